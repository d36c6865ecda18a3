# not a test of `make check`: tests/gpu/run_nccl, on a machine with a GPU
if WITH_NCCL
EXTRA_PROGRAMS += tests/gpu/nccl_slots
CLEANFILES += tests/gpu/nccl_slots
tests_gpu_nccl_slots_SOURCES = tests/gpu/nccl_slots.c plugins/backend/nccl/runtime.c plugins/backend/nccl/runtime.h \
	tests/unit/store_double.h
tests_gpu_nccl_slots_CPPFLAGS = $(AM_CPPFLAGS) $(CUDA_CPPFLAGS)
endif
EXTRA_DIST += tests/gpu/run_nccl
