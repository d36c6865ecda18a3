# unit tests of graph
if WITH_CMOCKA
check_PROGRAMS += tests/unit/test_autodiff tests/unit/test_graph tests/unit/test_graph_memory tests/unit/test_layout \
	tests/unit/test_lowered tests/unit/test_models tests/unit/test_ops tests/unit/test_ops_sequence tests/unit/test_plan tests/unit/test_plan_cases tests/unit/test_program tests/unit/test_stages
TESTS += tests/unit/test_autodiff tests/unit/test_graph tests/unit/test_graph_memory tests/unit/test_layout \
	tests/unit/test_lowered tests/unit/test_models tests/unit/test_ops tests/unit/test_ops_sequence tests/unit/test_plan tests/unit/test_plan_cases tests/unit/test_program tests/unit/test_stages

tests_unit_test_autodiff_SOURCES = tests/unit/test_autodiff.c tests/unit/graph_util.h
tests_unit_test_autodiff_CPPFLAGS = $(UNIT_CPPFLAGS)
tests_unit_test_autodiff_LDADD = $(UNIT_LDADD)

tests_unit_test_stages_SOURCES = tests/unit/test_stages.c tests/unit/graph_util.h
tests_unit_test_stages_CPPFLAGS = $(UNIT_CPPFLAGS)
tests_unit_test_stages_LDADD = $(UNIT_LDADD) -lm

tests_unit_test_graph_SOURCES = tests/unit/test_graph.c tests/unit/graph_util.h
tests_unit_test_graph_CPPFLAGS = $(UNIT_CPPFLAGS)
tests_unit_test_graph_LDADD = $(UNIT_LDADD)

tests_unit_test_layout_SOURCES = tests/unit/test_layout.c tests/unit/graph_util.h
tests_unit_test_layout_CPPFLAGS = $(UNIT_CPPFLAGS)
tests_unit_test_layout_LDADD = $(UNIT_LDADD)

tests_unit_test_lowered_SOURCES = tests/unit/test_lowered.c tests/unit/graph_util.h tests/unit/device_double.h
tests_unit_test_lowered_CPPFLAGS = $(UNIT_CPPFLAGS)
tests_unit_test_lowered_LDADD = $(UNIT_LDADD)

tests_unit_test_models_SOURCES = tests/unit/test_models.c tests/unit/graph_util.h
tests_unit_test_models_CPPFLAGS = $(UNIT_CPPFLAGS)
tests_unit_test_models_LDADD = $(UNIT_LDADD)

tests_unit_test_ops_SOURCES = tests/unit/test_ops.c tests/unit/graph_util.h
tests_unit_test_ops_CPPFLAGS = $(UNIT_CPPFLAGS)
tests_unit_test_ops_LDADD = $(UNIT_LDADD)

tests_unit_test_ops_sequence_SOURCES = tests/unit/test_ops_sequence.c tests/unit/graph_util.h
tests_unit_test_ops_sequence_CPPFLAGS = $(UNIT_CPPFLAGS)
tests_unit_test_ops_sequence_LDADD = $(UNIT_LDADD)

tests_unit_test_plan_SOURCES = tests/unit/test_plan.c tests/unit/graph_util.h tests/unit/device_double.h
tests_unit_test_plan_CPPFLAGS = $(UNIT_CPPFLAGS)
tests_unit_test_plan_LDADD = $(UNIT_LDADD)

tests_unit_test_program_SOURCES = tests/unit/test_program.c tests/unit/graph_util.h
tests_unit_test_program_CPPFLAGS = $(UNIT_CPPFLAGS)
tests_unit_test_program_LDADD = $(UNIT_LDADD)

tests_unit_test_plan_cases_SOURCES = tests/unit/test_plan_cases.c tests/unit/graph_util.h tests/unit/device_double.h
tests_unit_test_plan_cases_CPPFLAGS = $(UNIT_CPPFLAGS)
tests_unit_test_plan_cases_LDADD = $(UNIT_LDADD)

# makes allocations fail
tests_unit_test_graph_memory_SOURCES = tests/unit/test_graph_memory.c tests/unit/graph_util.h tests/unit/device_double.h
tests_unit_test_graph_memory_CPPFLAGS = $(UNIT_CPPFLAGS)
tests_unit_test_graph_memory_LDFLAGS = $(AM_LDFLAGS) -Wl,--wrap=calloc,--wrap=realloc
tests_unit_test_graph_memory_LDADD = $(UNIT_LDADD)

check_PROGRAMS += tests/unit/test_ops_image
TESTS += tests/unit/test_ops_image
tests_unit_test_ops_image_SOURCES = tests/unit/test_ops_image.c tests/unit/graph_util.h
tests_unit_test_ops_image_CPPFLAGS = $(UNIT_CPPFLAGS)
tests_unit_test_ops_image_LDADD = $(UNIT_LDADD)
endif
