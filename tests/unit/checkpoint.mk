# unit tests of checkpoint
