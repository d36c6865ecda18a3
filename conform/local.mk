# the judge of plugins, and `ddpengine bench`
libddpcore_a_SOURCES += conform/conform.h conform/conform.c conform/init.c conform/kinds.c conform/model.c
libddpcore_a_SOURCES += conform/harness/internal.h conform/harness/shared_results.h conform/harness/launch.c \
	conform/harness/leaks.c conform/harness/probe.c conform/harness/rank_process.c conform/harness/report.c \
	conform/harness/shared_results.c conform/harness/world.c
libddpcore_a_SOURCES += conform/backend/backend.c conform/backend/cases.c conform/backend/failure.c \
	conform/backend/pattern.c conform/backend/refusals.c conform/backend/trial.c
libddpcore_a_SOURCES += conform/device/trial.h conform/device/device.c conform/device/optimizer.c \
	conform/device/program.c conform/device/step.c
libddpcore_a_SOURCES += conform/hook/hook.h conform/hook/group.c conform/hook/hook.c conform/hook/mean.c \
	conform/hook/trial.c
libddpcore_a_SOURCES += conform/data/dataset.c conform/data/sampler.c
libddpcore_a_SOURCES += conform/bench/bench.c conform/bench/plan.c conform/bench/print.c
