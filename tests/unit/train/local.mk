# unit tests of train
if WITH_CMOCKA
check_PROGRAMS += tests/unit/train/test_thread_pool tests/unit/train/test_channel tests/unit/train/test_state tests/unit/infer/test_sample tests/unit/infer/test_infer tests/unit/session/test_affinity tests/unit/session/test_cuts
check_PROGRAMS += tests/unit/train/test_schedule tests/unit/train/test_predict tests/unit/train/test_outer
TESTS += tests/unit/train/test_thread_pool tests/unit/train/test_channel tests/unit/train/test_state tests/unit/infer/test_sample tests/unit/infer/test_infer tests/unit/session/test_affinity tests/unit/session/test_cuts
TESTS += tests/unit/train/test_schedule tests/unit/train/test_predict tests/unit/train/test_outer

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
tests_unit_session_test_cuts_SOURCES = tests/unit/session/test_cuts.c
tests_unit_session_test_cuts_CPPFLAGS = $(UNIT_CPPFLAGS)
tests_unit_session_test_cuts_LDADD = $(UNIT_LDADD)

tests_unit_train_test_predict_SOURCES = tests/unit/train/test_predict.c
tests_unit_train_test_predict_CPPFLAGS = $(UNIT_CPPFLAGS)
tests_unit_train_test_predict_LDADD = $(UNIT_LDADD) -lm

tests_unit_train_test_schedule_SOURCES = tests/unit/train/test_schedule.c
tests_unit_train_test_schedule_CPPFLAGS = $(UNIT_CPPFLAGS)
tests_unit_train_test_schedule_LDADD = $(UNIT_LDADD) -lm

tests_unit_train_test_outer_SOURCES = tests/unit/train/test_outer.c tests/unit/support/device_util.h
tests_unit_train_test_outer_CPPFLAGS = $(UNIT_CPPFLAGS)
tests_unit_train_test_outer_LDADD = $(UNIT_LDADD) -lm
EXTRA_tests_unit_train_test_outer_DEPENDENCIES = device_cpu.la

tests_unit_infer_test_sample_SOURCES = tests/unit/infer/test_sample.c
tests_unit_infer_test_sample_CPPFLAGS = $(UNIT_CPPFLAGS)
tests_unit_infer_test_sample_LDADD = $(UNIT_LDADD) -lm

tests_unit_infer_test_infer_SOURCES = tests/unit/infer/test_infer.c
tests_unit_infer_test_infer_CPPFLAGS = $(UNIT_CPPFLAGS)
tests_unit_infer_test_infer_LDADD = libddpinfer.la $(UNIT_LDADD) -lm
endif
