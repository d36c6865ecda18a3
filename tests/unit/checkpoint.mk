if WITH_CMOCKA
check_PROGRAMS += tests/unit/test_safetensors tests/unit/test_checkpoint
TESTS += tests/unit/test_safetensors tests/unit/test_checkpoint

tests_unit_test_safetensors_SOURCES = tests/unit/test_safetensors.c tests/unit/checkpoint_util.h
tests_unit_test_safetensors_CPPFLAGS = $(UNIT_CPPFLAGS)
tests_unit_test_safetensors_LDADD = $(UNIT_LDADD)

tests_unit_test_checkpoint_SOURCES = tests/unit/test_checkpoint.c tests/unit/checkpoint_util.h
tests_unit_test_checkpoint_CPPFLAGS = $(UNIT_CPPFLAGS)
tests_unit_test_checkpoint_LDADD = $(UNIT_LDADD)
endif
