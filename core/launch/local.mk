libddpcore_a_SOURCES += core/launch/args.h core/launch/cause.h core/launch/fork_ranks.h core/launch/identify.h \
	core/launch/launcher_command.h core/launch/mpirun.h core/launch/relay.h core/launch/secret.h core/launch/signals.h \
	core/launch/cause.c core/launch/fork_ranks.c core/launch/identify.c core/launch/launcher_command.c \
	core/launch/mpirun.c core/launch/relay.c core/launch/secret.c core/launch/signals.c
libddpcore_a_SOURCES += core/launch/hosts/hosts.h core/launch/hosts/node.h core/launch/hosts/parse.h core/launch/hosts/remote.h \
	core/launch/hosts/hosts.c core/launch/hosts/node.c core/launch/hosts/parse.c core/launch/hosts/remote.c
