# not a test of `make check`: tests/gpu/run_nccl, on a machine with a GPU
if WITH_NCCL
EXTRA_PROGRAMS += tests/gpu/nccl_slots
CLEANFILES += tests/gpu/nccl_slots
tests_gpu_nccl_slots_SOURCES = tests/gpu/nccl_slots.c plugins/backend/nccl/runtime.c plugins/backend/nccl/runtime.h \
	tests/unit/support/store_double.h
tests_gpu_nccl_slots_CPPFLAGS = $(UNIT_CPPFLAGS) $(CUDA_CPPFLAGS)
endif
# every op and whole models against the reference, on a GPU; built with the long tests so that they stay so
if WITH_CUDA_DOUBLE
if WITH_CMOCKA
GPU_CHECKS = tests/gpu/cuda_ops tests/gpu/cuda_models tests/gpu/cuda_step
EXTRA_PROGRAMS += $(GPU_CHECKS)
CLEANFILES += $(GPU_CHECKS)
LONG_BUILT = $(GPU_CHECKS)
CUDA_REAL_CPPFLAGS = $(UNIT_CPPFLAGS) -DDDP_CUDA_REAL $(CUDA_DEVICE_CPPFLAGS)
tests_gpu_cuda_ops_SOURCES = tests/unit/cuda/test_cuda_device.c $(CUDA_DEVICE_TEST)
tests_gpu_cuda_ops_CPPFLAGS = $(CUDA_REAL_CPPFLAGS)
tests_gpu_cuda_ops_LDADD = $(UNIT_LDADD) -lm
tests_gpu_cuda_models_SOURCES = tests/unit/cuda/test_cuda_models.c $(CUDA_DEVICE_TEST)
tests_gpu_cuda_models_CPPFLAGS = $(CUDA_REAL_CPPFLAGS)
tests_gpu_cuda_models_LDADD = $(UNIT_LDADD) -lm
tests_gpu_cuda_step_SOURCES = tests/unit/cuda/test_cuda_step.c $(CUDA_DEVICE_TEST)
tests_gpu_cuda_step_CPPFLAGS = $(CUDA_REAL_CPPFLAGS)
tests_gpu_cuda_step_LDADD = $(UNIT_LDADD) -lm
endif
endif
EXTRA_DIST += tests/gpu/run_nccl
# likewise: pack collects a build, run proves and times it elsewhere
EXTRA_DIST += tests/gpu/run tests/gpu/pack tests/gpu/gpu_engine.py tests/gpu/gpu_proofs.py tests/gpu/gpu_races.py tests/gpu/gpu_torch.py
