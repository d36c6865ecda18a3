# sources of core/data
