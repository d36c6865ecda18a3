libddpcore_a_SOURCES += core/session/affinity.h core/session/device.h core/session/devices.h core/session/groups.h core/session/metrics.h \
	core/session/open.h core/session/epoch.h core/session/epoch.c core/session/fields.h core/session/fields.c \
	core/session/stages/pipeline.h core/session/stages/pipeline.c core/session/stages/place.h core/session/stages/place.c core/session/stages/cuts.h core/session/stages/cuts.c core/session/stages/measure.c core/session/stages/head.h core/session/stages/head.c core/session/place.h core/session/plugins.h core/session/report/report.h core/session/session.h core/session/variants.h core/session/affinity.c \
	core/session/devices.c core/session/groups.c core/session/lora.c core/session/metrics.c core/session/open.c core/session/place.c core/session/plugins.c core/session/report/report.c core/session/report/run_file.c core/session/session.c \
	core/session/variants.c
