/* plugins/device/cpu/onednn/onednn.h -- what the files that see oneDNN share: library.c and conv.c. */
#pragma once

#include "api.h"
#include "openmp.h"

#include <ddpengine/plugin.h>

/* Waking another thread costs 5-10 us, which is what one thread needs for this many operations. */
#define CPU_SERIAL_FLOPS 2e6

struct cpu_library {
    dnnl_engine_t engine;
    dnnl_stream_t stream;
    int threads;
};

/* Before oneDNN generates code: that does not survive an allocation that fails, but crashes. A primitive takes up to a
 * megabyte. */
ddp_status cpu_library_room(ddp_err *err);

/* OpenMP's count is a property of the calling thread, oneDNN reads it at creation and at execution: both must agree. */
static inline int cpu_threads_for(const struct cpu_library *lib, double flops)
{
    int n = flops < CPU_SERIAL_FLOPS ? 1 : lib->threads;

    omp_set_num_threads(n);
    return n;
}
