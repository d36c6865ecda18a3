# unit tests of plugins/hook/common, whose variants they compare
if WITH_CMOCKA
check_PROGRAMS += tests/unit/hook/test_kernels
TESTS += tests/unit/hook/test_kernels

tests_unit_hook_test_kernels_SOURCES = tests/unit/hook/test_kernels.c
tests_unit_hook_test_kernels_CPPFLAGS = $(UNIT_CPPFLAGS)
tests_unit_hook_test_kernels_LDADD = $(HOOK_KERNELS) $(UNIT_LDADD) -lm
endif
