libddpcore_a_SOURCES += infer/generate.h infer/sample.h infer/text.h infer/generate.c infer/sample.c infer/text.c
