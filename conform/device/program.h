/* conform/device/program.h -- small networks, forward and backward. */
#ifndef DDP_CONFORM_DEVICE_PROGRAM_H
#define DDP_CONFORM_DEVICE_PROGRAM_H

#include "conform/harness/rank_process.h"

void device_program(ddp_rank_process *a, const ddp_device_ops *ops, ddp_device *d);

#endif
