/* tests/integration/support/slow_backend.c -- a backend whose all_reduces take longer by SLOW_US microseconds in which
 * the processor is free: a slow network.
 *
 * REAL_BACKEND is the path of a backend for host memory. */
#include <ddpengine/backend.h>
#include <dlfcn.h>
#include <stdlib.h>
#include <unistd.h>

DDP_PLUGIN_EXPORT ddp_plugin ddp_plugin_desc = {DDP_PLUGIN_HEAD(BACKEND, 0), .memory = "host", .name = "slow"};

static const ddp_backend_ops *real;
static ddp_backend_ops slow;
static unsigned pause_us;

static ddp_status all_reduce(ddp_comm *c, const ddp_coll *a, ddp_work **out, ddp_err *err)
{
    (void)usleep(pause_us);
    return real->all_reduce(c, a, out, err);
}

__attribute__((constructor)) static void begin(void)
{
    void *lib = dlopen(REAL_BACKEND, RTLD_NOW | RTLD_LOCAL);
    const ddp_plugin *desc = lib == NULL ? NULL : dlsym(lib, DDP_PLUGIN_SYMBOL);
    const char *text = getenv("SLOW_US");

    if (desc == NULL) abort();
    real = desc->ops;
    slow = *real;
    slow.all_reduce = all_reduce;
    ddp_plugin_desc = *desc;
    ddp_plugin_desc.name = "slow";
    ddp_plugin_desc.ops = &slow;
    pause_us = text == NULL ? 0 : (unsigned)atoi(text);
}
