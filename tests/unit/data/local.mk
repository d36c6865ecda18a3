if WITH_CMOCKA
check_PROGRAMS += tests/unit/data/test_data tests/unit/base/test_random tests/unit/data/test_sampler
TESTS += tests/unit/data/test_data tests/unit/base/test_random tests/unit/data/test_sampler
check_PROGRAMS += tests/unit/data/test_transform tests/unit/data/test_image tests/unit/data/test_split
TESTS += tests/unit/data/test_transform tests/unit/data/test_image tests/unit/data/test_split

# counts the loader's allocations and makes them fail
tests_unit_data_test_data_SOURCES = tests/unit/data/test_data.c
tests_unit_data_test_data_CPPFLAGS = $(UNIT_CPPFLAGS)
tests_unit_data_test_data_LDFLAGS = $(AM_LDFLAGS) -Wl,--wrap=malloc,--wrap=calloc,--wrap=realloc,--wrap=aligned_alloc \
	-Wl,--wrap=posix_memalign
tests_unit_data_test_data_LDADD = $(UNIT_LDADD)

tests_unit_base_test_random_SOURCES = tests/unit/base/test_random.c tests/unit/support/data_util.h
tests_unit_base_test_random_CPPFLAGS = $(UNIT_CPPFLAGS)
tests_unit_base_test_random_LDADD = $(UNIT_LDADD)

tests_unit_data_test_sampler_SOURCES = tests/unit/data/test_sampler.c tests/unit/support/data_util.h
tests_unit_data_test_sampler_CPPFLAGS = $(UNIT_CPPFLAGS)
tests_unit_data_test_sampler_LDADD = $(UNIT_LDADD)

tests_unit_data_test_transform_SOURCES = tests/unit/data/test_transform.c
tests_unit_data_test_transform_CPPFLAGS = $(UNIT_CPPFLAGS)
tests_unit_data_test_transform_LDADD = $(UNIT_LDADD)

tests_unit_data_test_split_SOURCES = tests/unit/data/test_split.c
tests_unit_data_test_split_CPPFLAGS = $(UNIT_CPPFLAGS)
tests_unit_data_test_split_LDADD = $(UNIT_LDADD)

tests_unit_data_test_image_SOURCES = tests/unit/data/test_image.c
tests_unit_data_test_image_CPPFLAGS = $(UNIT_CPPFLAGS)
tests_unit_data_test_image_LDADD = $(UNIT_LDADD)
endif
