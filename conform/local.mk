# the contract suites of plugins, and `ddpengine bench`
libddpcore_a_SOURCES += conform/conform.h conform/kinds.h conform/params.h conform/suites.h conform/conform.c conform/init.c \
	conform/kinds.c conform/model.c
libddpcore_a_SOURCES += conform/harness/case.h conform/harness/leaks.h conform/harness/probe.h \
	conform/harness/helper.h conform/harness/helper.c conform/harness/rank_process.h conform/harness/report.h conform/harness/run_cases.h \
	conform/harness/shared_results.h conform/harness/world.h conform/harness/case.c conform/harness/leaks.c \
	conform/harness/probe.c conform/harness/rank_process.c conform/harness/report.c conform/harness/run_cases.c \
	conform/harness/shared_results.c conform/harness/world.c
libddpcore_a_SOURCES += conform/backend/backend.h conform/backend/cases.h conform/backend/failure.h \
	conform/backend/pattern.h conform/backend/trial.h conform/backend/backend.c conform/backend/cases.c \
	conform/backend/failure.c conform/backend/pattern.c conform/backend/trial.c
libddpcore_a_SOURCES += conform/device/program.h conform/device/device.c conform/device/program.c
libddpcore_a_SOURCES += conform/hook/group.h conform/hook/trial.h conform/hook/types.h conform/hook/group.c \
	conform/hook/hook.c conform/hook/trial.c
libddpcore_a_SOURCES += conform/data/image.h conform/data/dataset.c conform/data/image.c conform/data/sampler.c
libddpcore_a_SOURCES += conform/bench/bench.h conform/bench/plan.h conform/bench/bench.c conform/bench/plan.c
