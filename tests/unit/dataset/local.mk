# unit tests of plugins/dataset
DATASET_TEST_UTIL = tests/unit/support/data_util.h tests/unit/support/dataset_util.h
if WITH_CMOCKA
check_PROGRAMS += tests/unit/dataset/test_datasets tests/unit/dataset/test_synthetic
TESTS += tests/unit/dataset/test_datasets tests/unit/dataset/test_synthetic

tests_unit_dataset_test_synthetic_SOURCES = tests/unit/dataset/test_synthetic.c tests/unit/support/data_util.h
tests_unit_dataset_test_synthetic_CPPFLAGS = $(UNIT_CPPFLAGS)
tests_unit_dataset_test_synthetic_LDADD = $(UNIT_LDADD)

tests_unit_dataset_test_datasets_SOURCES = tests/unit/dataset/test_datasets.c $(DATASET_TEST_UTIL)
tests_unit_dataset_test_datasets_CPPFLAGS = $(UNIT_CPPFLAGS)
tests_unit_dataset_test_datasets_LDADD = $(UNIT_LDADD)

if WITH_TOKENIZER
check_PROGRAMS += tests/unit/dataset/test_tokenizer
TESTS += tests/unit/dataset/test_tokenizer
tests_unit_dataset_test_tokenizer_SOURCES = tests/unit/dataset/test_tokenizer.c $(DATASET_TEST_UTIL)
nodist_EXTRA_tests_unit_dataset_test_tokenizer_SOURCES = $(LINK_AS_CXX)
tests_unit_dataset_test_tokenizer_CPPFLAGS = $(UNIT_CPPFLAGS) -I$(srcdir)/plugins/dataset $(XXHASH_CFLAGS)
tests_unit_dataset_test_tokenizer_LDADD = $(TOKENIZER_LIB) $(UNIT_LDADD) $(TOKENIZER_LINK)

# makes allocations fail
TOKENIZER_MEMORY_WRAPS = -Wl,--wrap=malloc,--wrap=calloc,--wrap=realloc,--wrap=strdup
check_PROGRAMS += tests/unit/dataset/test_tokenizer_memory
TESTS += tests/unit/dataset/test_tokenizer_memory
tests_unit_dataset_test_tokenizer_memory_SOURCES = tests/unit/dataset/test_tokenizer_memory.c $(DATASET_TEST_UTIL)
tests_unit_dataset_test_tokenizer_memory_CPPFLAGS = $(UNIT_CPPFLAGS) -I$(srcdir)/plugins/dataset $(XXHASH_CFLAGS)
tests_unit_dataset_test_tokenizer_memory_LDADD = $(TOKENIZER_LIB) $(UNIT_LDADD) $(TOKENIZER_LINK)

if WITH_SENTENCEPIECE
tests_unit_dataset_test_tokenizer_memory_SOURCES += tests/unit/dataset/throwing_new.cc
tests_unit_dataset_test_tokenizer_memory_CPPFLAGS += -DDDP_WITH_SENTENCEPIECE
TOKENIZER_MEMORY_WRAPS += -Wl,--wrap=_Znwm
check_PROGRAMS += tests/unit/dataset/test_pieces
TESTS += tests/unit/dataset/test_pieces
tests_unit_dataset_test_pieces_SOURCES = tests/unit/dataset/test_pieces.c $(DATASET_TEST_UTIL)
nodist_EXTRA_tests_unit_dataset_test_pieces_SOURCES = $(LINK_AS_CXX)
tests_unit_dataset_test_pieces_CPPFLAGS = $(UNIT_CPPFLAGS) -I$(srcdir)/plugins/dataset $(XXHASH_CFLAGS)
tests_unit_dataset_test_pieces_LDADD = $(TOKENIZER_LIB) $(UNIT_LDADD) $(TOKENIZER_LINK)
endif
tests_unit_dataset_test_tokenizer_memory_LDFLAGS = $(AM_LDFLAGS) $(TOKENIZER_MEMORY_WRAPS)

check_PROGRAMS += tests/unit/dataset/test_sft
TESTS += tests/unit/dataset/test_sft
tests_unit_dataset_test_sft_SOURCES = tests/unit/dataset/test_sft.c $(DATASET_TEST_UTIL)
tests_unit_dataset_test_sft_CPPFLAGS = $(UNIT_CPPFLAGS) $(XXHASH_CFLAGS)
tests_unit_dataset_test_sft_LDADD = $(UNIT_LDADD) $(JANSSON_LIBS)
endif

if WITH_CSV
check_PROGRAMS += tests/unit/dataset/test_csv
TESTS += tests/unit/dataset/test_csv
tests_unit_dataset_test_csv_SOURCES = tests/unit/dataset/test_csv.c $(DATASET_TEST_UTIL)
tests_unit_dataset_test_csv_CPPFLAGS = $(UNIT_CPPFLAGS)
tests_unit_dataset_test_csv_LDADD = $(UNIT_LDADD)
endif

if WITH_IMAGES
check_PROGRAMS += tests/unit/dataset/test_images
TESTS += tests/unit/dataset/test_images
tests_unit_dataset_test_images_SOURCES = tests/unit/dataset/test_images.c $(DATASET_TEST_UTIL)
tests_unit_dataset_test_images_CPPFLAGS = $(UNIT_CPPFLAGS)
tests_unit_dataset_test_images_LDADD = $(UNIT_LDADD)
endif

if WITH_LIBZIP
check_PROGRAMS += tests/unit/dataset/test_npy
TESTS += tests/unit/dataset/test_npy
tests_unit_dataset_test_npy_SOURCES = tests/unit/dataset/test_npy.c $(DATASET_TEST_UTIL)
tests_unit_dataset_test_npy_CPPFLAGS = $(UNIT_CPPFLAGS) $(LIBZIP_CFLAGS)
tests_unit_dataset_test_npy_LDADD = $(UNIT_LDADD) $(LIBZIP_LIBS)
endif

if WITH_ZLIB
check_PROGRAMS += tests/unit/dataset/test_idx
TESTS += tests/unit/dataset/test_idx
tests_unit_dataset_test_idx_SOURCES = tests/unit/dataset/test_idx.c tests/unit/support/data_util.h
tests_unit_dataset_test_idx_CPPFLAGS = $(UNIT_CPPFLAGS) $(ZLIB_CFLAGS)
tests_unit_dataset_test_idx_LDADD = $(UNIT_LDADD) $(ZLIB_LIBS)
endif
endif
