/* conform/device/optimizer.h -- updates of parameters. */
#ifndef DDP_CONFORM_DEVICE_OPTIMIZER_H
#define DDP_CONFORM_DEVICE_OPTIMIZER_H

#include "conform/harness/rank_process.h"

void ddp_device_optimizer(ddp_rank_process *a, const ddp_device_ops *ops, ddp_device *d);

#endif
