if WITH_CMOCKA
check_PROGRAMS += tests/unit/checkpoint/test_safetensors tests/unit/checkpoint/test_checkpoint
TESTS += tests/unit/checkpoint/test_safetensors tests/unit/checkpoint/test_checkpoint

tests_unit_checkpoint_test_safetensors_SOURCES = tests/unit/checkpoint/test_safetensors.c tests/unit/support/checkpoint_util.h
tests_unit_checkpoint_test_safetensors_CPPFLAGS = $(UNIT_CPPFLAGS)
tests_unit_checkpoint_test_safetensors_LDADD = $(UNIT_LDADD)

tests_unit_checkpoint_test_checkpoint_SOURCES = tests/unit/checkpoint/test_checkpoint.c tests/unit/support/checkpoint_util.h
tests_unit_checkpoint_test_checkpoint_CPPFLAGS = $(UNIT_CPPFLAGS)
tests_unit_checkpoint_test_checkpoint_LDADD = $(UNIT_LDADD)
endif
