EXTRA_DIST += tests/bench/step_time.py

# not a test: both sides of the comparison with PyTorch, from one run
bench: all
	@$(MAKE) $(AM_MAKEFLAGS) tests/bench/bench_device$(EXEEXT) tests/bench/bench_allreduce$(EXEEXT)
	@DDP_BUILDDIR='$(abs_builddir)' $(PYTHON) $(srcdir)/tests/bench/step_time.py $(BENCH_FLAGS)
.PHONY: bench
