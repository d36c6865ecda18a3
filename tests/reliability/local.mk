# What a group must stand, many times over: `make reliability` (TRIALS=100: the full table); one trial of each row in check-long.
EXTRA_DIST += tests/reliability/trial.py tests/reliability/attacks.py tests/reliability/hostile.py tests/reliability/kill.py tests/reliability/pause.py \
	tests/reliability/network.py tests/reliability/rendezvous.py tests/reliability/run.py tests/reliability/failpoints.py tests/failpoints.sh \
	tests/reliability/parts.py tests/reliability/test_parts.py tests/reliability/test_reliability.py tests/reliability/survive.py \
	tests/reliability/restart.py tests/reliability/links.py tests/reliability/beside.py tests/reliability/torch_elastic.py \
	tests/reliability/all_off.py tests/reliability/soak.py tests/reliability/slow_dataset.c tests/reliability/power_loss.py \
	tests/reliability/survivors.py \
	tests/reliability/paced_sampler.c tests/reliability/mutate.sh tests/reliability/mutations
TESTS += tests/reliability/test_parts.py
if WITH_GLOO
LONG_TESTS += tests/reliability/test_reliability.py tests/reliability/survivors.py
endif

TRIALS = 20
# What a group must stand, and the whole contract of every backend that is built, side by side (parts.py).
reliability: all
	@DDP_SRCDIR='$(abs_srcdir)' DDP_BUILDDIR='$(abs_builddir)' $(PYTHON) $(srcdir)/tests/reliability/parts.py \
		--trials $(TRIALS) $(RELIABILITY_FLAGS)
# one row after the other, alone on the machine
reliability-rows: all
	@DDP_SRCDIR='$(abs_srcdir)' DDP_BUILDDIR='$(abs_builddir)' $(PYTHON) $(srcdir)/tests/reliability/run.py \
		--trials $(TRIALS) $(RELIABILITY_FLAGS)
# each row once more, against an engine with a fault that it must see; some minutes
reliability-mutations:
	@PYTHON='$(PYTHON)' $(SHELL) $(srcdir)/tests/reliability/mutate.sh $(MUTATIONS)
# each allocation and system call of a small run fails once; FAILPOINTS_FLAGS="--sample": one of each place
failpoints:
	@$(SHELL) $(srcdir)/tests/failpoints.sh $(FAILPOINTS_FLAGS)
# a short trial of each program of runs that survive; SURVIVE_FLAGS="--only soak --seed 7"
survive: all
	@DDP_SRCDIR='$(abs_srcdir)' DDP_BUILDDIR='$(abs_builddir)' $(PYTHON) $(srcdir)/tests/reliability/survivors.py $(SURVIVE_FLAGS)
.PHONY: survive reliability reliability-rows reliability-mutations failpoints
