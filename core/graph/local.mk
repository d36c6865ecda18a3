# sources of core/graph
