# the program; everything below it is in libddpcore.a
bin_PROGRAMS += ddpengine
ddpengine_SOURCES = core/cli/checkpoint/diff.h core/cli/checkpoint/merge.h core/cli/child.h core/cli/cli.h \
	core/cli/lr_curve.h core/cli/options.h core/cli/audit.c core/cli/bench.c \
	core/cli/checkpoint/checkpoint.c core/cli/checkpoint/diff.c core/cli/checkpoint/merge.c core/cli/child.c \
	core/cli/commands.c core/cli/conform.c core/cli/export.c core/cli/generate.c \
	core/cli/lr.c core/cli/lr_curve.c core/cli/main.c core/cli/merge.c core/cli/model.c \
	core/cli/options.c core/cli/predict.c core/cli/run.c core/cli/runs.c core/cli/sweep.c core/cli/tokenize.c
ddpengine_LDFLAGS = $(AM_LDFLAGS) $(DDP_WRAP)
ddpengine_LDADD = $(ONNX_LIBS) $(CORE_LIBS)
# what a YAML of LLaMA-Factory becomes; without libyaml no_yaml.c says so
IMPORT_SHARED = core/cli/import/check.c core/cli/import/convert.c core/cli/import/datasets.c core/cli/import/mapping.c \
	core/cli/import/merge.c core/cli/import/values.c core/cli/import/yaml.c
IMPORT_FILES = core/cli/import/import.c $(IMPORT_SHARED) core/cli/import/check.h core/cli/import/convert.h \
	core/cli/import/datasets.h core/cli/import/mapping.h core/cli/import/merge.h core/cli/import/values.h \
	core/cli/import/yaml.h
EXTRA_DIST += core/cli/import/no_yaml.c $(IMPORT_FILES)
if WITH_YAML
ddpengine_SOURCES += $(IMPORT_FILES)
ddpengine_LDADD += $(YAML_LIBS)
else
ddpengine_SOURCES += core/cli/import/no_yaml.c
endif
