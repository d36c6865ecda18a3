# unit tests of group
