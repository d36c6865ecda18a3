# unit tests of observe
