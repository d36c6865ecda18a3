if WITH_CMOCKA
check_PROGRAMS += tests/unit/observe/test_observe
TESTS += tests/unit/observe/test_observe
tests_unit_observe_test_observe_SOURCES = tests/unit/observe/test_observe.c tests/unit/support/checkpoint_util.h
tests_unit_observe_test_observe_CPPFLAGS = $(UNIT_CPPFLAGS)
tests_unit_observe_test_observe_LDADD = $(UNIT_LDADD)
endif
