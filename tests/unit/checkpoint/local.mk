if WITH_CMOCKA
check_PROGRAMS += tests/unit/checkpoint/test_safetensors tests/unit/checkpoint/test_checkpoint tests/unit/checkpoint/test_lock \
	tests/unit/checkpoint/test_inspect tests/unit/checkpoint/test_shards tests/unit/checkpoint/test_writer
TESTS += tests/unit/checkpoint/test_safetensors tests/unit/checkpoint/test_checkpoint tests/unit/checkpoint/test_lock \
	tests/unit/checkpoint/test_inspect tests/unit/checkpoint/test_shards tests/unit/checkpoint/test_writer

tests_unit_checkpoint_test_safetensors_SOURCES = tests/unit/checkpoint/test_safetensors.c tests/unit/support/checkpoint_util.h
tests_unit_checkpoint_test_safetensors_CPPFLAGS = $(UNIT_CPPFLAGS)
tests_unit_checkpoint_test_safetensors_LDADD = $(UNIT_LDADD)

tests_unit_checkpoint_test_checkpoint_SOURCES = tests/unit/checkpoint/test_checkpoint.c tests/unit/support/checkpoint_util.h
tests_unit_checkpoint_test_checkpoint_CPPFLAGS = $(UNIT_CPPFLAGS)
tests_unit_checkpoint_test_checkpoint_LDADD = $(UNIT_LDADD)

tests_unit_checkpoint_test_lock_SOURCES = tests/unit/checkpoint/test_lock.c tests/unit/support/checkpoint_util.h
tests_unit_checkpoint_test_lock_CPPFLAGS = $(UNIT_CPPFLAGS)
tests_unit_checkpoint_test_lock_LDFLAGS = $(AM_LDFLAGS) -Wl,--wrap=rename,--wrap=fcntl
tests_unit_checkpoint_test_lock_LDADD = $(UNIT_LDADD)

tests_unit_checkpoint_test_inspect_SOURCES = tests/unit/checkpoint/test_inspect.c tests/unit/support/checkpoint_util.h
tests_unit_checkpoint_test_inspect_CPPFLAGS = $(UNIT_CPPFLAGS)
tests_unit_checkpoint_test_inspect_LDADD = $(UNIT_LDADD)

tests_unit_checkpoint_test_shards_SOURCES = tests/unit/checkpoint/test_shards.c tests/unit/support/checkpoint_util.h
tests_unit_checkpoint_test_shards_CPPFLAGS = $(UNIT_CPPFLAGS)
tests_unit_checkpoint_test_shards_LDFLAGS = $(AM_LDFLAGS) -Wl,--wrap=rename
tests_unit_checkpoint_test_shards_LDADD = $(UNIT_LDADD)

tests_unit_checkpoint_test_writer_SOURCES = tests/unit/checkpoint/test_writer.c tests/unit/support/checkpoint_util.h
tests_unit_checkpoint_test_writer_CPPFLAGS = $(UNIT_CPPFLAGS)
tests_unit_checkpoint_test_writer_LDFLAGS = $(AM_LDFLAGS) -Wl,--wrap=fsync,--wrap=write,--wrap=rename,--wrap=mkdir,--wrap=open
tests_unit_checkpoint_test_writer_LDADD = $(UNIT_LDADD)
endif
