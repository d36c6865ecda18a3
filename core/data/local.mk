libddpcore_a_SOURCES += core/data/loader.c core/data/loader.h core/data/transform.c core/data/transform.h \
	core/data/augment.c core/data/augment.h core/data/cache.c core/data/cache.h core/data/image.c core/data/image.h core/data/mix.c core/data/mix.h core/data/resample.c core/data/resample.h \
	core/data/resize.c core/data/resize.h core/data/split.c core/data/split.h core/data/view.c core/data/view.h
