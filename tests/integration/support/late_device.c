/* tests/integration/support/late_device.c -- device `cpu`, with which a rank fails while another one closes in order to
 * join again: too late to be heard in a step. It does so while FILE.late is there; two ranks have LATE=ROLE:FILE:
 *
 *   closes   an instance that is freed waits while FILE.hold is there, as in a device that takes long for it
 *   fails    an update waits until the other rank is in a later step, or closes: then, and when FILE.wait is not there
 *            any more, it fails
 *
 * FILE has what the two know of each other. REAL_DEVICE is the path of device_cpu.so. */
#include <ddpengine/device.h>
#include <dlfcn.h>
#include <fcntl.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

DDP_PLUGIN_EXPORT ddp_plugin ddp_plugin_desc = {DDP_PLUGIN_HEAD(DEVICE, 0), .memory = "host", .name = "late"};

enum { LOOK_US = 1000 };

static const ddp_device_ops *real;
static ddp_device_ops late;
static char role; /* 'c', 'f', 0 */
static const char *base;
static uint64_t updated; /* of this rank */
static struct shared {
    _Atomic uint64_t run; /* steps that were updated before the newest run of "closes" */
    atomic_bool closes;
} * other;

static int is_there(const char *end)
{
    char path[4096];

    (void)snprintf(path, sizeof(path), "%s.%s", base, end);
    return access(path, F_OK) == 0;
}

static void instance_free(ddp_instance *i)
{
    if (role == 'c' && is_there("late")) atomic_store(&other->closes, 1);
    while (role == 'c' && is_there("hold")) (void)usleep(LOOK_US);
    real->instance_free(i);
}

static ddp_status run(ddp_instance *i, const ddp_run *r, uint32_t first, uint32_t last, ddp_err *err)
{
    if (role == 'c') atomic_store(&other->run, updated);
    return real->run(i, r, first, last, err);
}

static ddp_status optim_step(ddp_device *d, const ddp_optim *o, const ddp_optim_slice *s, ddp_err *err)
{
    while (role == 'f' && is_there("late") && atomic_load(&other->run) < o->step) {
        if (atomic_load(&other->closes) && !is_there("wait"))
            return ddp_fail(err, DDP_ERR_LIBRARY, "device late: fails on purpose");
        (void)usleep(LOOK_US);
    }
    updated = o->step;
    return real->optim_step(d, o, s, err);
}

__attribute__((constructor)) static void begin(void)
{
    void *lib = dlopen(REAL_DEVICE, RTLD_NOW | RTLD_LOCAL);
    const ddp_plugin *desc = lib == NULL ? NULL : dlsym(lib, DDP_PLUGIN_SYMBOL);
    const char *text = getenv("LATE"), *file = text == NULL ? NULL : strchr(text, ':');
    int fd;

    if (desc == NULL) abort();
    real = desc->ops;
    late = *real;
    late.instance_free = instance_free;
    late.run = run;
    late.optim_step = optim_step;
    ddp_plugin_desc = *desc;
    ddp_plugin_desc.name = "late";
    ddp_plugin_desc.ops = &late;
    if (file++ == NULL) return;
    role = text[0];
    base = file;
    fd = open(file, O_RDWR | O_CREAT | O_CLOEXEC, 0600);
    if (fd < 0 || ftruncate(fd, sizeof(*other)) != 0) abort();
    other = mmap(NULL, sizeof(*other), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (other == MAP_FAILED) abort();
}
