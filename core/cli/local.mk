# the program; everything below it is in libddpcore.a
bin_PROGRAMS += ddpengine
ddpengine_SOURCES = core/cli/aggregate/aggregate.c core/cli/aggregate/setup.c core/cli/aggregate/setup.h core/cli/checkpoint/diff.h core/cli/checkpoint/merge.h core/cli/child.h core/cli/cli.h \
	core/cli/lr_curve.h core/cli/options.h core/cli/audit.c core/cli/bench.c \
	core/cli/checkpoint/checkpoint.c core/cli/checkpoint/diff.c core/cli/checkpoint/merge.c core/cli/child.c \
	core/cli/commands.c core/cli/conform.c core/cli/export.c core/cli/generate.c \
	core/cli/lr.c core/cli/lr_curve.c core/cli/main.c core/cli/merge.c core/cli/model.c \
	core/cli/manual/complete.c core/cli/manual/completion.c core/cli/manual/manual.c \
	core/cli/manual/mdoc.c core/cli/manual/mdoc.h \
	core/cli/options.c core/cli/preflight/checks.h core/cli/preflight/files.c core/cli/preflight/findings.c \
	core/cli/preflight/findings.h core/cli/preflight/host.c core/cli/preflight/net.c core/cli/preflight/net.h core/cli/preflight/owner.c \
	core/cli/preflight/pairs.c core/cli/preflight/plugins.c core/cli/preflight/reach.c core/cli/preflight/table.c \
	core/cli/preflight/preflight.c core/cli/preflight/preflight.h core/cli/preflight/rendezvous.c \
	core/cli/predict.c core/cli/run.c core/cli/runs.c core/cli/sweep.c core/cli/tokenize.c
# `ddpengine report`; the files of its page are in the program
REPORT_SHARED = core/cli/report/folders.c core/cli/report/history.c core/cli/report/json.c core/cli/report/page.c \
	core/cli/report/ranks.c core/cli/report/ranks_read.c core/cli/report/run.c core/cli/report/series.c \
	core/cli/report/text.c core/cli/report/trace.c
REPORT_PAGE = core/cli/report/page/page.html core/cli/report/page/page.css core/cli/report/page/base.js core/cli/report/page/chart.js \
	core/cli/report/page/curves.js core/cli/report/page/ranks.js core/cli/report/page/tables.js core/cli/report/page/page.js
ddpengine_SOURCES += core/cli/launch/launch.c core/cli/report/report.c $(REPORT_SHARED) core/cli/report/folders.h core/cli/report/history.h \
	core/cli/report/json.h core/cli/report/page.h core/cli/report/ranks.h core/cli/report/run.h \
	core/cli/report/series.h core/cli/report/text.h core/cli/report/trace.h
nodist_ddpengine_SOURCES = core/cli/report/embedded.c
EXTRA_DIST += $(REPORT_PAGE)
CLEANFILES += core/cli/report/embedded.c
core/cli/report/embedded.c: $(REPORT_PAGE) $(EMBED)
	@$(MKDIR_P) core/cli/report
	$(AM_V_GEN)$(SHELL) $(EMBED) cli/embedded.h report_files $(srcdir) $(REPORT_PAGE) >$@.part && mv $@.part $@
ddpengine_LDFLAGS = $(AM_LDFLAGS) $(DDP_WRAP)
ddpengine_LDADD = $(ONNX_LIBS) $(CORE_LIBS)
ddpengine_SOURCES += core/cli/advise/table.h core/cli/advise/advise.c core/cli/advise/table.c
# what `ddpengine new` writes, as C, so that the program looks for no file
NEW_TEMPLATES = core/cli/new/templates/CMakeLists.txt core/cli/new/templates/Makefile core/cli/new/templates/README.md \
	core/cli/new/templates/gitignore core/cli/new/templates/backend.c core/cli/new/templates/backend.ini \
	core/cli/new/templates/dataset.c core/cli/new/templates/dataset.ini core/cli/new/templates/device.c \
	core/cli/new/templates/device.ini core/cli/new/templates/hook.c core/cli/new/templates/hook.ini \
	core/cli/new/templates/init.c core/cli/new/templates/init.ini core/cli/new/templates/model.c \
	core/cli/new/templates/model.ini core/cli/new/templates/sampler.c core/cli/new/templates/sampler.ini
EXTRA_DIST += $(NEW_TEMPLATES)
ddpengine_SOURCES += core/cli/new/new.c core/cli/embedded.h
nodist_ddpengine_SOURCES += core/cli/new/builtin.c
CLEANFILES += core/cli/new/builtin.c
core/cli/new/builtin.c: $(NEW_TEMPLATES) $(EMBED)
	@$(MKDIR_P) core/cli/new
	$(AM_V_GEN)$(SHELL) $(EMBED) cli/embedded.h new_templates $(srcdir) $(NEW_TEMPLATES) >$@.part && mv $@.part $@
# what a YAML of LLaMA-Factory becomes; without libyaml no_yaml.c says so where a file is read
IMPORT_SHARED = core/cli/import/check.c core/cli/import/convert.c core/cli/import/datasets.c core/cli/import/mapping.c \
	core/cli/import/merge.c core/cli/import/values.c
IMPORT_READ = core/cli/import/yaml.c
EXTRA_DIST += $(IMPORT_READ) core/cli/import/no_yaml.c
ddpengine_SOURCES += core/cli/import/import.c $(IMPORT_SHARED) core/cli/import/check.h core/cli/import/convert.h \
	core/cli/import/datasets.h core/cli/import/mapping.h core/cli/import/merge.h core/cli/import/values.h \
	core/cli/import/yaml.h
if WITH_YAML
ddpengine_SOURCES += $(IMPORT_READ)
ddpengine_LDADD += $(YAML_LIBS)
else
ddpengine_SOURCES += core/cli/import/no_yaml.c
endif
