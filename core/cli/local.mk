# the program; everything below it is in libddpcore.a
bin_PROGRAMS += ddpengine
ddpengine_SOURCES = core/cli/cli.h core/cli/main.c core/cli/run.c core/cli/supervise.c core/cli/commands.c core/cli/launch.c \
	core/cli/conform.c core/cli/bench.c core/cli/generate.c core/cli/launcher.c core/cli/tend.c core/cli/secret.c
ddpengine_LDADD = libddpcore.a $(INIH_LIBS) $(JANSSON_LIBS) $(CRYPTO_LIBS) $(XXHASH_LIBS)
