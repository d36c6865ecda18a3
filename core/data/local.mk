libddpcore_a_SOURCES += core/data/loader.c core/data/loader.h core/data/transform.c core/data/transform.h \
	core/data/resize.c core/data/resize.h
