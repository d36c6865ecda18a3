# unit tests of device
