/* comm/queue.h -- "ddp-queue", the thread of a communicator. */
#pragma once

#include "comm/state.h"

/* What the plugin is opened with. */
void comm_queue_params(const ddp_communicator *c, int64_t timeout_ms, ddp_comm_params *out);
ddp_task_name comm_queue_name(const ddp_communicator *c, uint64_t ticket); /* of a task in the ring */
void *comm_queue_main(void *communicator);                                 /* the thread */
void comm_queue_free(ddp_communicator *c);                                 /* the memory of the communicator alone */
