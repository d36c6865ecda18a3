# sources of core/group
libddpcore_a_SOURCES += core/group/group.h core/group/plane.h core/group/wire.h core/group/store.h core/group/agree.h \
	core/group/address.h core/group/group.c core/group/calls.c core/group/control.c core/group/deliver.c \
	core/group/server.c core/group/waits.c core/group/meet.c core/group/address.c core/group/wire.c core/group/store.c \
	core/group/agree.c core/group/interface.c core/group/nodes.c core/group/nodes.h core/group/pulse.c core/group/pace.c \
	core/group/door.c core/group/identity.c core/group/identity.h core/group/tls.c core/group/tls.h
libddpcore_a_SOURCES += core/group/comm.c core/group/queue.c core/group/compose.c core/group/queue.h
