libddpcore_a_SOURCES += core/observe/observe.h core/observe/internal.h core/observe/observe.c \
	core/observe/metrics.c core/observe/summary.c core/observe/progress.c core/observe/statistics.c
