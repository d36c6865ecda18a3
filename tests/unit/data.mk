# unit tests of data
