# unit tests of config
