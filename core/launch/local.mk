libddpcore_a_SOURCES += core/launch/args.h core/launch/cause.h core/launch/fork_ranks.h core/launch/identify.h \
	core/launch/launcher_command.h core/launch/mpirun.h core/launch/secret.h core/launch/signals.h \
	core/launch/cause.c core/launch/fork_ranks.c core/launch/identify.c core/launch/launcher_command.c \
	core/launch/mpirun.c core/launch/secret.c core/launch/signals.c
