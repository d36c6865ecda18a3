# unit tests of graph
