# unit tests of plugins/hook/common, whose variants they compare
if WITH_CMOCKA
check_PROGRAMS += tests/unit/test_hook_kernels
TESTS += tests/unit/test_hook_kernels

tests_unit_test_hook_kernels_SOURCES = tests/unit/test_hook_kernels.c
tests_unit_test_hook_kernels_CPPFLAGS = $(UNIT_CPPFLAGS)
tests_unit_test_hook_kernels_LDADD = $(HOOK_KERNELS) $(UNIT_LDADD) -lm
endif
