# unit tests of train
if WITH_CMOCKA
check_PROGRAMS += tests/unit/train/test_thread_pool tests/unit/train/test_channel tests/unit/train/test_state tests/unit/infer/test_sample tests/unit/infer/test_infer tests/unit/session/test_affinity
check_PROGRAMS += tests/unit/train/test_schedule
TESTS += tests/unit/train/test_thread_pool tests/unit/train/test_channel tests/unit/train/test_state tests/unit/infer/test_sample tests/unit/infer/test_infer tests/unit/session/test_affinity
TESTS += tests/unit/train/test_schedule

tests_unit_train_test_state_SOURCES = tests/unit/train/test_state.c
tests_unit_train_test_state_CPPFLAGS = $(UNIT_CPPFLAGS)
tests_unit_train_test_state_LDADD = $(UNIT_LDADD)

tests_unit_train_test_thread_pool_SOURCES = tests/unit/train/test_thread_pool.c
tests_unit_train_test_thread_pool_CPPFLAGS = $(UNIT_CPPFLAGS)
tests_unit_train_test_thread_pool_LDADD = $(UNIT_LDADD)

tests_unit_train_test_channel_SOURCES = tests/unit/train/test_channel.c
tests_unit_train_test_channel_CPPFLAGS = $(UNIT_CPPFLAGS)
tests_unit_train_test_channel_LDADD = $(UNIT_LDADD)

tests_unit_session_test_affinity_SOURCES = tests/unit/session/test_affinity.c
tests_unit_session_test_affinity_CPPFLAGS = $(UNIT_CPPFLAGS)
tests_unit_session_test_affinity_LDADD = $(UNIT_LDADD)

tests_unit_train_test_schedule_SOURCES = tests/unit/train/test_schedule.c
tests_unit_train_test_schedule_CPPFLAGS = $(UNIT_CPPFLAGS)
tests_unit_train_test_schedule_LDADD = $(UNIT_LDADD) -lm

tests_unit_infer_test_sample_SOURCES = tests/unit/infer/test_sample.c
tests_unit_infer_test_sample_CPPFLAGS = $(UNIT_CPPFLAGS)
tests_unit_infer_test_sample_LDADD = $(UNIT_LDADD) -lm

tests_unit_infer_test_infer_SOURCES = tests/unit/infer/test_infer.c
tests_unit_infer_test_infer_CPPFLAGS = $(UNIT_CPPFLAGS)
tests_unit_infer_test_infer_LDADD = libddpinfer.la $(UNIT_LDADD) -lm
endif
