libddpcore_a_SOURCES += infer/generate.h infer/text.h infer/generate.c infer/text.c
