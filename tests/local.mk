# Every test prints TAP; automake's driver counts each case.
TEST_LOG_DRIVER = env AM_TAP_AWK='$(AWK)' $(SHELL) $(top_srcdir)/build-aux/tap-driver.sh
LOG_DRIVER = $(TEST_LOG_DRIVER)
PY_LOG_DRIVER = $(TEST_LOG_DRIVER)
SH_LOG_DRIVER = $(TEST_LOG_DRIVER)
TEST_EXTENSIONS = .py .sh
PY_LOG_COMPILER = $(PYTHON)
SH_LOG_COMPILER = $(SHELL)
LOG_COMPILER = $(SHELL) $(srcdir)/tests/tap.sh
AM_TESTS_ENVIRONMENT = CMOCKA_MESSAGE_OUTPUT=TAP; export CMOCKA_MESSAGE_OUTPUT; \
	DDP_SRCDIR='$(abs_srcdir)'; export DDP_SRCDIR; DDP_BUILDDIR='$(abs_builddir)'; export DDP_BUILDDIR; \
	DDP_LONG='$(DDP_LONG)'; export DDP_LONG;

# `make check` is what everybody runs after each change. What is long and seldom breaks is `make check-long`, which .ci/run runs too:
# whole programs (LONG_CHECKS, LONG_DOUBLES) and scripts (LONG_TESTS), or a script's cases that are marked so (harness.long_case, seldom).
check-long: all $(LONG_DOUBLES) $(LONG_CHECKS) $(LONG_BUILT) tests/bench/hosts/bench_control$(EXEEXT)
	@$(MAKE) $(AM_MAKEFLAGS) check-TESTS TESTS='$(LONG_TESTS) $(LONG_CHECKS)' TEST_SUITE_LOG=test-suite-long.log DDP_LONG=1
.PHONY: check-long
EXTRA_PROGRAMS += $(LONG_CHECKS)
EXTRA_LTLIBRARIES += $(LONG_DOUBLES)
CLEANFILES += $(LONG_CHECKS) $(LONG_DOUBLES) test-suite-long.log
if LONG_IN_CHECK
TESTS += $(LONG_CHECKS)
endif

# Tests that mostly wait come first, those that compute run beside them.
include $(srcdir)/tests/integration/local.mk

# unit tests, by room
include $(srcdir)/tests/unit/base/local.mk
include $(srcdir)/tests/unit/config/local.mk
include $(srcdir)/tests/unit/plugin/local.mk
include $(srcdir)/tests/unit/graph/local.mk
include $(srcdir)/tests/unit/control/local.mk
include $(srcdir)/tests/unit/comm/local.mk
include $(srcdir)/tests/unit/init/local.mk
include $(srcdir)/tests/unit/cli/local.mk
include $(srcdir)/tests/unit/launch/local.mk
include $(srcdir)/tests/unit/backend/local.mk
include $(srcdir)/tests/unit/hook/local.mk
include $(srcdir)/tests/unit/data/local.mk
include $(srcdir)/tests/unit/dataset/local.mk
include $(srcdir)/tests/unit/checkpoint/local.mk
include $(srcdir)/tests/unit/observe/local.mk
include $(srcdir)/tests/unit/device/local.mk
include $(srcdir)/tests/unit/cuda/local.mk
include $(srcdir)/tests/unit/train/local.mk
include $(srcdir)/tests/unit/conform/local.mk
include $(srcdir)/tests/parity/local.mk
include $(srcdir)/tests/bench/local.mk
include $(srcdir)/tests/reliability/local.mk
include $(srcdir)/tests/fuzz/local.mk
include $(srcdir)/tests/gpu/local.mk

# the CPU device as on a CPU of each class below this one's
EXTRA_DIST += tests/classes.sh
if WITH_CMOCKA
if WITH_GLOO
TESTS += tests/classes.sh
LONG_TESTS += tests/classes.sh
endif
endif

EXTRA_DIST += tests/lint/lint.sh tests/lint/layers.py tests/lint/structure.py tests/lint/words.py \
	tests/lint/cppcheck.txt tests/lint/analyzer.h tests/source.sh \
	tests/sanitized.sh tests/packaged.sh tests/packages.sh tests/distro.sh tests/core_alone.sh tests/arm64.sh tests/repeat.sh tests/tap.sh tests/count.awk tests/tsan.supp tests/lsan.supp .clang-tidy

lint:
	@$(SHELL) $(srcdir)/tests/lint/lint.sh
.PHONY: lint
