# not a test of `make check`: tests/gpu/run_nccl, on a machine with a GPU
if WITH_NCCL
EXTRA_PROGRAMS += tests/gpu/nccl_slots
CLEANFILES += tests/gpu/nccl_slots
tests_gpu_nccl_slots_SOURCES = tests/gpu/nccl_slots.c plugins/backend/nccl/runtime.c plugins/backend/nccl/runtime.h \
	tests/unit/store_double.h
tests_gpu_nccl_slots_CPPFLAGS = $(AM_CPPFLAGS) $(CUDA_CPPFLAGS)
endif
EXTRA_DIST += tests/gpu/run_nccl
# likewise: pack collects a build, run proves and times it elsewhere
EXTRA_DIST += tests/gpu/run tests/gpu/pack tests/gpu/gpu_engine.py tests/gpu/gpu_proofs.py tests/gpu/gpu_races.py tests/gpu/gpu_torch.py
