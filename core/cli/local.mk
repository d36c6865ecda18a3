# the program; everything below it is in libddpcore.a
bin_PROGRAMS += ddpengine
ddpengine_SOURCES = core/cli/main.c
ddpengine_LDADD = libddpcore.a $(INIH_LIBS) $(JANSSON_LIBS) $(CRYPTO_LIBS) $(XXHASH_LIBS)
