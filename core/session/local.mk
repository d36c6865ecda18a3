libddpcore_a_SOURCES += core/session/affinity.h core/session/device.h core/session/devices.h core/session/groups.h core/session/metrics.h \
	core/session/open.h core/session/fields.h core/session/fields.c \
	core/session/place.h core/session/plugins.h core/session/report.h core/session/session.h core/session/variants.h core/session/affinity.c \
	core/session/devices.c core/session/groups.c core/session/lora.c core/session/metrics.c core/session/open.c core/session/place.c core/session/plugins.c core/session/report.c core/session/session.c \
	core/session/variants.c
