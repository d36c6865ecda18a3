exampledir = $(docdir)/conf
dist_example_DATA = conf/common.ini conf/node1.ini conf/node2.ini conf/quickstart.ini
