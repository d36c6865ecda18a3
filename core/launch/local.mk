libddpcore_a_SOURCES += core/launch/fork_ranks.c core/launch/identify.c core/launch/mpirun.c core/launch/mpirun_reap.c \
	core/launch/secret.c
