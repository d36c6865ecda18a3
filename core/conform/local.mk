libddpcore_a_SOURCES += core/conform/conform.h core/conform/board.h core/conform/internal.h core/conform/conform.c \
	core/conform/board.c core/conform/probe.c core/conform/world.c core/conform/launch.c core/conform/actor.c core/conform/report.c \
	core/conform/pattern.c core/conform/cases.c core/conform/trial.c core/conform/backend.c \
	core/conform/backend_failure.c core/conform/backend_refusals.c core/conform/leaks.c core/conform/kinds.c core/conform/init.c core/conform/device.c \
	core/conform/device_optimizer.c core/conform/device_program.c core/conform/device_step.c core/conform/device_trial.h core/conform/model.c core/conform/sampler.c \
	core/conform/dataset.c core/conform/hook.h core/conform/hook.c core/conform/hook_mean.c core/conform/hook_trial.c core/conform/hook_group.c core/conform/bench.c core/conform/bench_plan.c core/conform/bench_print.c
