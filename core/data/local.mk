libddpcore_a_SOURCES += core/data/loader.c core/data/loader.h
