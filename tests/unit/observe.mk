if WITH_CMOCKA
check_PROGRAMS += tests/unit/test_observe
TESTS += tests/unit/test_observe
tests_unit_test_observe_SOURCES = tests/unit/test_observe.c tests/unit/checkpoint_util.h
tests_unit_test_observe_CPPFLAGS = $(UNIT_CPPFLAGS)
tests_unit_test_observe_LDADD = $(UNIT_LDADD)
endif
