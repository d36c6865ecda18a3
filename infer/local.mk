libddpcore_a_SOURCES += infer/generate.h infer/generate.c
