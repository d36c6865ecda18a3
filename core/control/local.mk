libddpcore_a_SOURCES += core/control/agree.h core/control/group.h core/control/plane.h core/control/store.h \
	core/control/accept.c core/control/agree.c core/control/client.c core/control/control.c core/control/group.c \
	core/control/heartbeat.c core/control/pending.c core/control/rendezvous.c core/control/request.c \
	core/control/server.c core/control/store.c core/control/straggler.c
