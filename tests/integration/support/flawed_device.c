/* tests/integration/support/flawed_device.c -- device `cpu`, but one rank once has a value that it should not: a
 * gradient that is not finite, or a bit of a parameter that has flipped, as faulty memory does it.
 *
 *   FLAW=grad:RANK:MICRO:ELEMENT:COUNT   element ELEMENT of the gradients is NaN after micro-step MICRO (from 0), and
 *                                        after the COUNT - 1 that follow
 *   FLAW=later:RANK:MICRO:ELEMENT:0      it is NaN after micro-step MICRO; the next time after the one that follows, ..
 *   FLAW=bit:RANK:STEP:ELEMENT:BIT       bit BIT of parameter ELEMENT flips right after update STEP (from 1)
 *   FLAW=state:RANK:STEP:ELEMENT:BIT     the same of the optimiser's first state
 *   FLAW_TIMES=N                         that happens N times at most, then never again: steps may be made again
 *   FLAW_WORLD=N                         ranks, or replicas: the random stream of a micro-step tells which one runs
 *
 * REAL_DEVICE is the path of device_cpu.so. */
#include <ddpengine/device.h>
#include <dlfcn.h>
#include <limits.h>
#include <math.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

DDP_PLUGIN_EXPORT ddp_plugin ddp_plugin_desc = {DDP_PLUGIN_HEAD(DEVICE, 0), .memory = "host", .name = "flawed"};

static const ddp_device_ops *real;
static ddp_device_ops flawed;
static struct {
    int what; /* 'g', 'l', 'b', 's' */
    long rank, at, element, last;
} flaw;
static long world = 1, times = LONG_MAX;
static _Thread_local long rank = -1;

enum { INSTANCES = 256 };
static struct {
    const ddp_instance *instance;
    ddp_bind bind;
} known[INSTANCES];
static int known_count;

static ddp_status instance_create(ddp_exec *e, const ddp_bind *bind, ddp_instance **out, ddp_err *err)
{
    ddp_status st = real->instance_create(e, bind, out, err);

    if (st != DDP_OK || known_count == INSTANCES) return st;
    known[known_count].instance = *out;
    known[known_count++].bind = *bind;
    return st;
}

static const ddp_bind *bind_of(const ddp_instance *i)
{
    for (int k = known_count; k-- > 0;)
        if (known[k].instance == i) return &known[k].bind;
    return NULL;
}

/* Whether the gradients of this micro-step, which may take several calls, are to be NaN. */
static int bad(long micro)
{
    static int inside;
    int was = inside;

    inside =
        (flaw.what == 'g' && micro >= flaw.at && micro < flaw.at + flaw.last) || (flaw.what == 'l' && micro == flaw.at);
    if (was && !inside) {
        times--;
        flaw.at += flaw.what == 'l';
    }
    return inside && times > 0;
}

static ddp_status run(ddp_instance *i, const ddp_run *r, uint32_t first, uint32_t last, ddp_err *err)
{
    ddp_status st = real->run(i, r, first, last, err);
    long micro = (long)(r->random.stream / (uint64_t)world);
    const ddp_bind *b = bind_of(i);

    rank = (long)(r->random.stream % (uint64_t)world);
    if (st == DDP_OK && b != NULL && b->grads != NULL && rank == flaw.rank && bad(micro)) b->grads[flaw.element] = NAN;
    return st;
}

/* The slice of the update that has the element, where all of the arenas belong to this rank. */
static ddp_status optim_step(ddp_device *d, const ddp_optim *o, const ddp_optim_slice *s, ddp_err *err)
{
    ddp_status st = real->optim_step(d, o, s, err);
    const float *params = known_count > 0 ? known[0].bind.params : NULL;
    long first = params == NULL ? 0 : s->param - params;

    if (st == DDP_OK && (flaw.what == 'b' || flaw.what == 's') && rank == flaw.rank && (long)o->step == flaw.at &&
        flaw.element >= first && flaw.element < first + (long)s->count && times-- > 0)
        ((uint32_t *)(flaw.what == 'b' ? s->param : s->state1))[flaw.element - first] ^= UINT32_C(1) << flaw.last;
    return st;
}

__attribute__((constructor)) static void begin(void)
{
    void *lib = dlopen(REAL_DEVICE, RTLD_NOW | RTLD_LOCAL);
    const ddp_plugin *desc = lib == NULL ? NULL : dlsym(lib, DDP_PLUGIN_SYMBOL);
    const char *text = getenv("FLAW"), *ranks = getenv("FLAW_WORLD"), *most = getenv("FLAW_TIMES");
    char what[8] = "";

    if (desc == NULL) abort();
    real = desc->ops;
    flawed = *real;
    flawed.instance_create = instance_create;
    flawed.run = run;
    flawed.optim_step = optim_step;
    ddp_plugin_desc = *desc;
    ddp_plugin_desc.name = "flawed";
    ddp_plugin_desc.ops = &flawed;
    if (ranks != NULL) world = atol(ranks);
    if (most != NULL) times = atol(most);
    if (text == NULL) return;
    if (sscanf(text, "%5[a-z]:%ld:%ld:%ld:%ld", what, &flaw.rank, &flaw.at, &flaw.element, &flaw.last) != 5) abort();
    flaw.what = what[0];
}
