if WITH_CMOCKA
check_PROGRAMS += tests/unit/observe/test_observe
TESTS += tests/unit/observe/test_observe
tests_unit_observe_test_observe_SOURCES = tests/unit/observe/test_observe.c tests/unit/support/checkpoint_util.h tests/unit/support/until.h
tests_unit_observe_test_observe_CPPFLAGS = $(UNIT_CPPFLAGS)
tests_unit_observe_test_observe_LDADD = $(UNIT_LDADD)
check_PROGRAMS += tests/unit/observe/test_audit
TESTS += tests/unit/observe/test_audit
tests_unit_observe_test_audit_SOURCES = tests/unit/observe/test_audit.c tests/unit/support/checkpoint_util.h
tests_unit_observe_test_audit_CPPFLAGS = $(UNIT_CPPFLAGS)
tests_unit_observe_test_audit_LDADD = $(UNIT_LDADD)
check_PROGRAMS += tests/unit/observe/test_histograms
TESTS += tests/unit/observe/test_histograms
tests_unit_observe_test_histograms_SOURCES = tests/unit/observe/test_histograms.c tests/unit/support/data_util.h
tests_unit_observe_test_histograms_CPPFLAGS = $(UNIT_CPPFLAGS)
tests_unit_observe_test_histograms_LDADD = $(UNIT_LDADD)
endif
