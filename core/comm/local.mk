libddpcore_a_SOURCES += core/comm/communicator.h core/comm/fallback.h core/comm/queue.h core/comm/state.h core/comm/task.h core/comm/works.h \
	core/comm/communicator.c core/comm/fallback.c core/comm/queue.c core/comm/works.c
