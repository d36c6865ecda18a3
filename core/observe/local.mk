libddpcore_a_SOURCES += core/observe/observe.h core/observe/internal.h core/observe/observe.c \
	core/observe/metrics.c core/observe/summary.c core/observe/progress.c core/observe/statistics.c core/observe/loss_spike.c \
	core/observe/audit.h core/observe/audit_index.h core/observe/audit_check.c core/observe/audit_index.c \
	core/observe/audit_record.c core/observe/audit_write.c
