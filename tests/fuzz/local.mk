# Whatever bytes reach a parser: the kept inputs are replayed by `make check`; `make fuzz` looks for new ones with clang's
# libFuzzer, FUZZ_SECONDS for each target of FUZZ_TARGETS; `make fuzz-coverage`
# prints what the kept ones reach (COVERAGE_FLAGS=--missing: and what they do not).
FUZZ_SOURCES = tests/fuzz/targets/adapter.c tests/fuzz/targets/aggregate.c tests/fuzz/targets/audit.c tests/fuzz/targets/cifar.c tests/fuzz/targets/control.c tests/fuzz/targets/elf.c \
	tests/fuzz/targets/environment.c \
	tests/fuzz/targets/gguf.c tests/fuzz/targets/hook_state.c tests/fuzz/targets/identity.c tests/fuzz/targets/ini.c tests/fuzz/targets/manifest.c \
	tests/fuzz/targets/jsonl.c tests/fuzz/targets/model_config.c tests/fuzz/targets/model_index.c tests/fuzz/targets/net.c tests/fuzz/targets/nodes.c tests/fuzz/targets/option.c tests/fuzz/targets/record.c tests/fuzz/targets/report.c tests/fuzz/targets/safetensors.c \
	tests/fuzz/targets/secret.c tests/fuzz/targets/shards.c tests/fuzz/targets/stl10.c tests/fuzz/targets/tokens.c tests/fuzz/targets/url.c tests/fuzz/targets/wire.c
# compiled for it, and what it takes from the libraries of the plugins: FUZZ_OF_PLUGINS are those libraries' sources
FUZZ_SHARED = tests/fuzz/fuzz.c $(REPORT_SHARED) plugins/init/env/slurm.c plugins/backend/aggregate/workers.c \
	plugins/backend/aggregate/socket.c plugins/backend/aggregate/wire.c \
	plugins/init/file/record.c plugins/model/layers/build.c plugins/model/layers/file.c plugins/model/layers/keys.c \
	plugins/model/layers/kinds.c plugins/model/llama/config.c
FUZZ_OF_PLUGINS = $(DATASET_SHARED) $(TOKENIZER_SHARED) plugins/dataset/common/tokenizer/text.c $(REDUCE_SHARED)
FUZZ_PLUGIN_LIBS = $(TOKENIZER_LIB) $(IMAGE_LIB) $(DATASET_LIB) $(BACKEND_REDUCE)
FUZZ_CPPFLAGS = $(AM_CPPFLAGS) $(INSTALLED_PLUGINS) -I$(srcdir)/tests/fuzz -I$(srcdir)/plugins/dataset -I$(srcdir)/plugins/init -I$(srcdir)/plugins/model -I$(srcdir)/plugins/backend -I$(srcdir)/plugins -DDDP_SRCDIR='"$(abs_srcdir)"'
FUZZ_LIBS = $(INIH_LIBS) $(JANSSON_LIBS) $(CRYPTO_LIBS) $(XXHASH_LIBS)
EXTRA_DIST += tests/fuzz/corpus tests/fuzz/seeds.py tests/fuzz/fuzz.mk tests/fuzz/run.sh tests/fuzz/coverage.py
check_PROGRAMS += tests/fuzz/replay
TESTS += tests/fuzz/replay
tests_fuzz_replay_SOURCES = tests/fuzz/replay.c tests/fuzz/fuzz.h tests/fuzz/fuzz_dataset.h tests/fuzz/fuzz_socket.h \
	tests/fuzz/targets.h $(FUZZ_SOURCES) $(FUZZ_SHARED)
tests_fuzz_replay_CPPFLAGS = $(FUZZ_CPPFLAGS)
tests_fuzz_replay_LDADD = $(FUZZ_PLUGIN_LIBS) libddpcore.a $(FUZZ_LIBS)
nodist_EXTRA_tests_fuzz_replay_SOURCES = $(LINK_AS_CXX)
if WITH_ZLIB
FUZZ_SOURCES += tests/fuzz/targets/idx.c
FUZZ_SHARED += plugins/dataset/idx/file.c
FUZZ_CPPFLAGS += -DDDP_WITH_ZLIB $(ZLIB_CFLAGS)
FUZZ_LIBS += $(ZLIB_LIBS)
endif
# what the datasets tokens and sft have
FUZZ_SHARED += $(TOKENS_SHARED)
FUZZ_LIBS += $(TOKENIZER_LINK)
if WITH_TOKENIZER
FUZZ_SOURCES += tests/fuzz/targets/regex.c tests/fuzz/targets/sft.c tests/fuzz/targets/tokenizer.c
FUZZ_SHARED += $(SFT_SHARED)
FUZZ_OF_PLUGINS += $(TOKENIZER_PIECES)
FUZZ_CPPFLAGS += -DDDP_WITH_TOKENIZER
endif
if WITH_SENTENCEPIECE
FUZZ_SOURCES += tests/fuzz/targets/pieces.c
FUZZ_CPPFLAGS += -DDDP_WITH_SENTENCEPIECE
FUZZ_LIBS += -lstdc++
endif
if WITH_YAML
FUZZ_SOURCES += tests/fuzz/targets/import.c
FUZZ_SHARED += $(IMPORT_SHARED) $(IMPORT_READ)
FUZZ_CPPFLAGS += -DDDP_WITH_YAML $(YAML_CFLAGS)
FUZZ_LIBS += $(YAML_LIBS)
endif
if WITH_CSV
FUZZ_SOURCES += tests/fuzz/targets/csv.c
FUZZ_SHARED += $(CSV_SHARED)
FUZZ_CPPFLAGS += -DDDP_WITH_CSV
FUZZ_LIBS += -lcsv
endif
if WITH_LIBZIP
FUZZ_SOURCES += tests/fuzz/targets/npy.c
FUZZ_SHARED += $(NPY_SHARED)
FUZZ_CPPFLAGS += -DDDP_WITH_LIBZIP $(LIBZIP_CFLAGS)
FUZZ_LIBS += $(LIBZIP_LIBS)
endif
if WITH_IMAGES
FUZZ_SOURCES += tests/fuzz/targets/image.c tests/fuzz/targets/image_list.c
FUZZ_SHARED += $(FOLDER_SHARED)
FUZZ_OF_PLUGINS += $(IMAGE_SHARED)
FUZZ_CPPFLAGS += -DDDP_WITH_IMAGES $(IMAGES_CFLAGS)
FUZZ_LIBS += $(IMAGES_LIBS)
endif
if WITH_ARCHIVE
FUZZ_SOURCES += tests/fuzz/targets/tar.c
FUZZ_SHARED += $(TAR_SHARED)
FUZZ_CPPFLAGS += -DDDP_WITH_ARCHIVE $(ARCHIVE_CFLAGS)
FUZZ_LIBS += $(ARCHIVE_LIBS)
endif

FUZZ_SECONDS = 600
FUZZ_TARGETS =
FUZZ_MAKE = $(MAKE) -s -f $(srcdir)/tests/fuzz/fuzz.mk SRCDIR='$(srcdir)' CORE='$(libddpcore_a_SOURCES)' \
	TARGETS='$(FUZZ_SOURCES)' SHARED='$(FUZZ_SHARED) $(FUZZ_OF_PLUGINS)' LIBS='$(FUZZ_LIBS) $(LIBS)'
fuzz fuzz-coverage: export CPPFLAGS := $(FUZZ_CPPFLAGS)
fuzz:
	@$(SHELL) $(srcdir)/tests/fuzz/run.sh check '$(FUZZ_CC)'
	@$(FUZZ_MAKE) CC='$(FUZZ_CC)' programs
	@$(SHELL) $(srcdir)/tests/fuzz/run.sh run $(srcdir)/tests/fuzz/corpus $(FUZZ_SECONDS) $(FUZZ_TARGETS)
fuzz-coverage:
	@$(FUZZ_MAKE) CC='$(CC)' coverage
	@$(PYTHON) $(srcdir)/tests/fuzz/coverage.py fuzz-build $(COVERAGE_FLAGS)
.PHONY: fuzz fuzz-coverage
clean-local: clean-fuzz
clean-fuzz:
	rm -rf fuzz-build
.PHONY: clean-fuzz
