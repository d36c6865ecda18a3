EXTRA_DIST += tests/bench/hosts/advice.py tests/bench/hosts/simgrid.py tests/bench/image_loading.py tests/bench/observing.py tests/bench/step_time.py tests/bench/model_steps.py tests/bench/torch_steps.py \
	tests/bench/slow_link.py tests/bench/mode_steps.py tests/bench/async_save.py tests/bench/checkpoint_memory.py \
	tests/bench/generate_tokens.py tests/bench/infer_latency.py tests/bench/darknet.py tests/bench/lora/lora_steps.py tests/bench/lora/lora_curve.py \
	tests/bench/lora/lora_link.py tests/bench/hosts/world_change.py \
	tests/bench/tokenizer_ids.py tests/bench/hosts/hierarchy.py tests/bench/hosts/pipeline.py tests/bench/hosts/split_head.py tests/bench/hosts/torch_llama.py \
	tests/bench/hosts/wire_order.py tests/bench/hosts/local_steps.py tests/bench/hosts/aggregate.py tests/bench/hosts/paced_device.c

# of slow_link.py; it skips itself where it is not root
LINK_FLAGS = --rate 1gbit --rounds 1 --steps 4

# not a test: both sides of the comparisons with PyTorch, with Gloo and with MPI, from one run each
bench: all
	@$(MAKE) $(AM_MAKEFLAGS) tests/bench/bench_device$(EXEEXT) tests/bench/bench_allreduce$(EXEEXT) $(BENCH_SHM) $(BENCH_MPI)
	@DDP_BUILDDIR='$(abs_builddir)' $(PYTHON) $(srcdir)/tests/bench/step_time.py $(BENCH_FLAGS)
	@DDP_BUILDDIR='$(abs_builddir)' $(PYTHON) $(srcdir)/tests/bench/model_steps.py $(MODEL_FLAGS)
	@DDP_SRCDIR='$(abs_srcdir)' DDP_BUILDDIR='$(abs_builddir)' $(PYTHON) $(srcdir)/tests/bench/slow_link.py $(LINK_FLAGS) || test $$? -eq 77
	@DDP_BUILDDIR='$(abs_builddir)' $(PYTHON) $(srcdir)/tests/bench/generate_tokens.py $(GENERATE_FLAGS) || test $$? -eq 77
	@for program in $(BENCH_SHM); do ./$$program $(BENCH_ROUNDS); done
	@for program in $(BENCH_MPI); do OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 \
		mpirun --oversubscribe --bind-to none -np 2 ./$$program $(BENCH_ROUNDS); done
.PHONY: bench

# make tests/bench/bench_mpi: MPI called directly against backend mpi and others
if WITH_MPI
BENCH_MPI = tests/bench/bench_mpi$(EXEEXT)
EXTRA_PROGRAMS += tests/bench/bench_mpi
CLEANFILES += tests/bench/bench_mpi
tests_bench_bench_mpi_SOURCES = tests/bench/bench_mpi.c
tests_bench_bench_mpi_CPPFLAGS = $(AM_CPPFLAGS) $(MPI_CFLAGS) -DDDP_BUILDDIR='"$(abs_builddir)"'
tests_bench_bench_mpi_LDADD = $(CORE_LIBS) $(MPI_LIBS)

# make tests/bench/hosts/bench_hosts_mpi: MPI's part of hierarchy.py
EXTRA_PROGRAMS += tests/bench/hosts/bench_hosts_mpi
CLEANFILES += tests/bench/hosts/bench_hosts_mpi
tests_bench_hosts_bench_hosts_mpi_SOURCES = tests/bench/hosts/bench_hosts_mpi.c
tests_bench_hosts_bench_hosts_mpi_CPPFLAGS = $(AM_CPPFLAGS) $(MPI_CFLAGS)
tests_bench_hosts_bench_hosts_mpi_LDADD = $(MPI_LIBS)
endif

# make tests/bench/bench_images: dataset folder; image_loading.py compares it with torchvision
if WITH_IMAGES
if WITH_CMOCKA
EXTRA_PROGRAMS += tests/bench/bench_images
CLEANFILES += tests/bench/bench_images
tests_bench_bench_images_SOURCES = tests/bench/bench_images.c $(DATASET_TEST_UTIL)
tests_bench_bench_images_CPPFLAGS = $(UNIT_CPPFLAGS)
tests_bench_bench_images_LDADD = $(UNIT_LDADD)
endif
endif

# make tests/bench/bench_tokenizer: tokenizer_ids.py compares it with Hugging Face's and SentencePiece's
if WITH_TOKENIZER
EXTRA_PROGRAMS += tests/bench/bench_tokenizer
CLEANFILES += tests/bench/bench_tokenizer
tests_bench_bench_tokenizer_SOURCES = tests/bench/bench_tokenizer.c
nodist_EXTRA_tests_bench_bench_tokenizer_SOURCES = $(LINK_AS_CXX)
tests_bench_bench_tokenizer_CPPFLAGS = $(AM_CPPFLAGS) -I$(srcdir)/plugins/dataset
tests_bench_bench_tokenizer_LDADD = $(TOKENIZER_LIB) $(TOKENIZER_LINK) $(XXHASH_LIBS)
endif

# make tests/bench/hosts/bench_control: the control plane with up to 1,024 ranks
EXTRA_PROGRAMS += tests/bench/hosts/bench_control
CLEANFILES += tests/bench/hosts/bench_control
tests_bench_hosts_bench_control_SOURCES = tests/bench/hosts/bench_control.c
tests_bench_hosts_bench_control_LDADD = $(CORE_LIBS)
