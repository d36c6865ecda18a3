# unit tests of commands: their files are of the program, and not in libddpcore.a
if WITH_CMOCKA
check_PROGRAMS += tests/unit/cli/test_pairs
TESTS += tests/unit/cli/test_pairs

tests_unit_cli_test_pairs_SOURCES = tests/unit/cli/test_pairs.c core/cli/preflight/table.c core/cli/preflight/findings.c
tests_unit_cli_test_pairs_CPPFLAGS = $(UNIT_CPPFLAGS)
tests_unit_cli_test_pairs_LDADD = $(UNIT_LDADD)
endif
