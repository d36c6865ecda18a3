/* conform/device/program.h -- small networks, forward and backward. */
#pragma once

#include "conform/harness/rank_process.h"

void device_program(ddp_rank_process *a, const ddp_device_ops *ops, ddp_device *d);
