libddpcore_a_SOURCES += core/comm/communicator.h core/comm/queue.h core/comm/communicator.c core/comm/fallback.c core/comm/queue.c
