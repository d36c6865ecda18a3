libddpcore_a_SOURCES += core/control/client.h core/control/control.h core/control/failure.h core/control/group.h \
	core/control/heartbeat.h core/control/params.h core/control/peer.h core/control/rendezvous.h core/control/request.h \
	core/control/run.h core/control/state.h core/control/straggler.h core/control/trust.h core/control/client.c core/control/control.c \
	core/control/failure.c core/control/group.c core/control/heartbeat.c core/control/peer.c core/control/rendezvous.c \
	core/control/request.c core/control/run.c core/control/straggler.c core/control/trust.c
libddpcore_a_SOURCES += core/control/rank0/accept.h core/control/rank0/agree.h core/control/rank0/announce.h core/control/rank0/arrivals.h \
	core/control/rank0/pending.h core/control/rank0/server.h core/control/rank0/store.h core/control/rank0/waiting.h core/control/rank0/accept.c \
	core/control/rank0/agree.c core/control/rank0/announce.c core/control/rank0/arrivals.c core/control/rank0/pending.c core/control/rank0/server.c \
	core/control/rank0/store.c core/control/rank0/waiting.c
libddpcore_a_SOURCES += core/control/times/collect.h core/control/times/parts.h core/control/times/state.h core/control/times/times.h core/control/times/collect.c core/control/times/times.c
libddpcore_a_SOURCES += core/control/hub/hub.h core/control/hub/leaf.h core/control/hub/state.h core/control/rank0/helpers.h core/control/rank0/helpers.c core/control/rank0/relay.h core/control/hub/hub.c \
	core/control/hub/leaf.c core/control/rank0/relay.c
