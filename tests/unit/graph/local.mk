# unit tests of graph
if WITH_CMOCKA
check_PROGRAMS += tests/unit/graph/test_adapt tests/unit/graph/test_autodiff tests/unit/graph/test_graph tests/unit/graph/test_graph_memory tests/unit/graph/test_fold tests/unit/graph/test_head tests/unit/graph/test_layout \
	tests/unit/graph/test_lowered tests/unit/graph/test_models tests/unit/graph/test_ops tests/unit/graph/test_ops_sequence tests/unit/graph/test_plan tests/unit/graph/test_plan_cases tests/unit/graph/test_program tests/unit/graph/test_stages
TESTS += tests/unit/graph/test_adapt tests/unit/graph/test_autodiff tests/unit/graph/test_graph tests/unit/graph/test_graph_memory tests/unit/graph/test_fold tests/unit/graph/test_head tests/unit/graph/test_layout \
	tests/unit/graph/test_lowered tests/unit/graph/test_models tests/unit/graph/test_ops tests/unit/graph/test_ops_sequence tests/unit/graph/test_plan tests/unit/graph/test_plan_cases tests/unit/graph/test_program tests/unit/graph/test_stages

tests_unit_graph_test_adapt_SOURCES = tests/unit/graph/test_adapt.c tests/unit/support/graph_util.h
tests_unit_graph_test_adapt_CPPFLAGS = $(UNIT_CPPFLAGS)
tests_unit_graph_test_adapt_LDADD = $(UNIT_LDADD) -lm

tests_unit_graph_test_autodiff_SOURCES = tests/unit/graph/test_autodiff.c tests/unit/support/graph_util.h
tests_unit_graph_test_autodiff_CPPFLAGS = $(UNIT_CPPFLAGS)
tests_unit_graph_test_autodiff_LDADD = $(UNIT_LDADD)

tests_unit_graph_test_fold_SOURCES = tests/unit/graph/test_fold.c tests/unit/support/graph_util.h
tests_unit_graph_test_fold_CPPFLAGS = $(UNIT_CPPFLAGS)
tests_unit_graph_test_fold_LDADD = $(UNIT_LDADD) -lm

tests_unit_graph_test_head_SOURCES = tests/unit/graph/test_head.c tests/unit/support/graph_util.h
tests_unit_graph_test_head_CPPFLAGS = $(UNIT_CPPFLAGS)
tests_unit_graph_test_head_LDADD = $(UNIT_LDADD) -lm

tests_unit_graph_test_stages_SOURCES = tests/unit/graph/test_stages.c tests/unit/support/graph_util.h
tests_unit_graph_test_stages_CPPFLAGS = $(UNIT_CPPFLAGS)
tests_unit_graph_test_stages_LDADD = $(UNIT_LDADD) -lm

tests_unit_graph_test_graph_SOURCES = tests/unit/graph/test_graph.c tests/unit/support/graph_util.h
tests_unit_graph_test_graph_CPPFLAGS = $(UNIT_CPPFLAGS)
tests_unit_graph_test_graph_LDADD = $(UNIT_LDADD)

tests_unit_graph_test_layout_SOURCES = tests/unit/graph/test_layout.c tests/unit/support/graph_util.h
tests_unit_graph_test_layout_CPPFLAGS = $(UNIT_CPPFLAGS)
tests_unit_graph_test_layout_LDADD = $(UNIT_LDADD)

tests_unit_graph_test_lowered_SOURCES = tests/unit/graph/test_lowered.c tests/unit/support/graph_util.h tests/unit/support/device_double.h
tests_unit_graph_test_lowered_CPPFLAGS = $(UNIT_CPPFLAGS)
tests_unit_graph_test_lowered_LDADD = $(UNIT_LDADD)

tests_unit_graph_test_models_SOURCES = tests/unit/graph/test_models.c tests/unit/support/graph_util.h
tests_unit_graph_test_models_CPPFLAGS = $(UNIT_CPPFLAGS)
tests_unit_graph_test_models_LDADD = $(UNIT_LDADD)

tests_unit_graph_test_ops_SOURCES = tests/unit/graph/test_ops.c tests/unit/support/graph_util.h
tests_unit_graph_test_ops_CPPFLAGS = $(UNIT_CPPFLAGS)
tests_unit_graph_test_ops_LDADD = $(UNIT_LDADD)

tests_unit_graph_test_ops_sequence_SOURCES = tests/unit/graph/test_ops_sequence.c tests/unit/support/graph_util.h
tests_unit_graph_test_ops_sequence_CPPFLAGS = $(UNIT_CPPFLAGS)
tests_unit_graph_test_ops_sequence_LDADD = $(UNIT_LDADD)

tests_unit_graph_test_plan_SOURCES = tests/unit/graph/test_plan.c tests/unit/support/graph_util.h tests/unit/support/device_double.h
tests_unit_graph_test_plan_CPPFLAGS = $(UNIT_CPPFLAGS)
tests_unit_graph_test_plan_LDADD = $(UNIT_LDADD)

tests_unit_graph_test_program_SOURCES = tests/unit/graph/test_program.c tests/unit/support/graph_util.h
tests_unit_graph_test_program_CPPFLAGS = $(UNIT_CPPFLAGS)
tests_unit_graph_test_program_LDADD = $(UNIT_LDADD)

tests_unit_graph_test_plan_cases_SOURCES = tests/unit/graph/test_plan_cases.c tests/unit/support/graph_util.h tests/unit/support/device_double.h
tests_unit_graph_test_plan_cases_CPPFLAGS = $(UNIT_CPPFLAGS)
tests_unit_graph_test_plan_cases_LDADD = $(UNIT_LDADD)

# makes allocations fail
tests_unit_graph_test_graph_memory_SOURCES = tests/unit/graph/test_graph_memory.c tests/unit/support/graph_util.h tests/unit/support/device_double.h
tests_unit_graph_test_graph_memory_CPPFLAGS = $(UNIT_CPPFLAGS)
tests_unit_graph_test_graph_memory_LDFLAGS = $(AM_LDFLAGS) -Wl,--wrap=calloc,--wrap=realloc
tests_unit_graph_test_graph_memory_LDADD = $(UNIT_LDADD)

check_PROGRAMS += tests/unit/graph/test_cached
TESTS += tests/unit/graph/test_cached
tests_unit_graph_test_cached_SOURCES = tests/unit/graph/test_cached.c tests/unit/support/graph_util.h
tests_unit_graph_test_cached_CPPFLAGS = $(UNIT_CPPFLAGS)
tests_unit_graph_test_cached_LDADD = $(UNIT_LDADD)

check_PROGRAMS += tests/unit/graph/test_ops_image
TESTS += tests/unit/graph/test_ops_image
tests_unit_graph_test_ops_image_SOURCES = tests/unit/graph/test_ops_image.c tests/unit/support/graph_util.h
tests_unit_graph_test_ops_image_CPPFLAGS = $(UNIT_CPPFLAGS)
tests_unit_graph_test_ops_image_LDADD = $(UNIT_LDADD)
endif
