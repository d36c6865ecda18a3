/* tests/integration/support/slow_device.c -- device `cpu`, but each forward and backward pass of a batch takes longer
 * by SLOW_US microseconds in which the processor is free: ranks of different speed, on a machine that is busy as well.
 *
 * REAL_DEVICE is the path of device_cpu.so. */
#include <ddpengine/device.h>
#include <dlfcn.h>
#include <stdlib.h>
#include <unistd.h>

DDP_PLUGIN_EXPORT ddp_plugin ddp_plugin_desc = {DDP_PLUGIN_HEAD(DEVICE, 0), .memory = "host", .name = "slow"};

static const ddp_device_ops *real;
static ddp_device_ops slow;
static unsigned pause_us;

static ddp_status run(ddp_instance *i, const ddp_run *r, uint32_t first, uint32_t last, ddp_err *err)
{
    if (first == 0) (void)usleep(pause_us);
    return real->run(i, r, first, last, err);
}

__attribute__((constructor)) static void begin(void)
{
    void *lib = dlopen(REAL_DEVICE, RTLD_NOW | RTLD_LOCAL);
    const ddp_plugin *desc = lib == NULL ? NULL : dlsym(lib, DDP_PLUGIN_SYMBOL);
    const char *text = getenv("SLOW_US");

    if (desc == NULL) abort();
    real = desc->ops;
    slow = *real;
    slow.run = run;
    ddp_plugin_desc = *desc;
    ddp_plugin_desc.name = "slow";
    ddp_plugin_desc.ops = &slow;
    pause_us = text == NULL ? 0 : (unsigned)atoi(text);
}
