# unit tests of plugin
