# unit tests of train
if WITH_CMOCKA
check_PROGRAMS += tests/unit/test_team tests/unit/test_channel tests/unit/test_state tests/unit/test_generate tests/unit/test_pin
check_PROGRAMS += tests/unit/test_schedule
TESTS += tests/unit/test_team tests/unit/test_channel tests/unit/test_state tests/unit/test_generate tests/unit/test_pin
TESTS += tests/unit/test_schedule

tests_unit_test_state_SOURCES = tests/unit/test_state.c
tests_unit_test_state_CPPFLAGS = $(UNIT_CPPFLAGS)
tests_unit_test_state_LDADD = $(UNIT_LDADD)

tests_unit_test_team_SOURCES = tests/unit/test_team.c
tests_unit_test_team_CPPFLAGS = $(UNIT_CPPFLAGS)
tests_unit_test_team_LDADD = $(UNIT_LDADD)

tests_unit_test_channel_SOURCES = tests/unit/test_channel.c
tests_unit_test_channel_CPPFLAGS = $(UNIT_CPPFLAGS)
tests_unit_test_channel_LDADD = $(UNIT_LDADD)

tests_unit_test_pin_SOURCES = tests/unit/test_pin.c
tests_unit_test_pin_CPPFLAGS = $(UNIT_CPPFLAGS)
tests_unit_test_pin_LDADD = $(UNIT_LDADD)

tests_unit_test_schedule_SOURCES = tests/unit/test_schedule.c
tests_unit_test_schedule_CPPFLAGS = $(UNIT_CPPFLAGS)
tests_unit_test_schedule_LDADD = $(UNIT_LDADD) -lm

tests_unit_test_generate_SOURCES = tests/unit/test_generate.c
tests_unit_test_generate_CPPFLAGS = $(UNIT_CPPFLAGS)
tests_unit_test_generate_LDADD = $(UNIT_LDADD) -lm
endif
