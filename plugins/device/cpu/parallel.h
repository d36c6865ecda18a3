/* plugins/device/cpu/parallel.h -- loops over OpenMP's threads, and the processors that those are bound to. */
#pragma once

#include <ddpengine/plugin.h>

typedef struct cpu_pins cpu_pins;

/* fn(ctx, first, last) over [0, count) in at most `threads` pieces whose bounds are multiples of `grain`; the pieces
 * run at once. What fn computes must not depend on the cut. */
void cpu_parallel(uint32_t threads, int64_t count, int64_t grain, void (*fn)(void *ctx, int64_t first, int64_t last),
                  void *ctx);
/* ddp_device_ops.pin, for the OpenMP threads of the calling thread. cpu_unpin takes *pins == NULL and leaves that. */
ddp_status cpu_pin_threads(uint32_t threads, const int32_t *processors, cpu_pins **pins, ddp_err *err);
void cpu_unpin(uint32_t threads, cpu_pins **pins);
#define CPU_GRAIN 16384 /* elements of an elementwise kernel for which another thread pays */
