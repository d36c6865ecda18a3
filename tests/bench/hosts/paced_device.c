/* tests/bench/hosts/paced_device.c -- device `cpu`, but its kernels take the time that their products would take at
 * DEVICE_FLOPS operations a second; the processor is free meanwhile. With a small model on a link that is as much
 * slower, two hosts fit a machine whose processors are not enough for them: what is sent when is as in the large model.
 *
 * REAL_DEVICE is the path of device_cpu.so. */
#include <ddpengine/device.h>
#include <dlfcn.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>

DDP_PLUGIN_EXPORT ddp_plugin ddp_plugin_desc = {DDP_PLUGIN_HEAD(DEVICE, 0), .memory = "host", .name = "paced"};

enum { MOST = 512 };

static const ddp_device_ops *real;
static ddp_device_ops paced;
static double flops = 1e12;
static struct {
    const void *key; /* an exec or an instance */
    const ddp_program *program;
    const ddp_lowered *lowered;
} known[MOST];
static int count;

static void note(const void *key, const ddp_program *p, const ddp_lowered *l)
{
    if (count == MOST) abort();
    known[count].key = key;
    known[count].program = p;
    known[count++].lowered = l;
}

static int find(const void *key)
{
    int i = count;

    while (i-- > 0 && known[i].key != key) {}
    return i;
}

static ddp_status compile(ddp_device *d, const ddp_program *p, const ddp_lowered *l, const ddp_plan *plan,
                          ddp_exec **out, ddp_err *err)
{
    ddp_status st = real->compile(d, p, l, plan, out, err);

    if (st == DDP_OK) note(*out, p, l);
    return st;
}

static ddp_status instance_create(ddp_exec *e, const ddp_bind *bind, ddp_instance **out, ddp_err *err)
{
    ddp_status st = real->instance_create(e, bind, out, err);
    int i = find(e);

    if (st == DDP_OK) note(*out, known[i].program, known[i].lowered);
    return st;
}

/* 2 x rows x inputs x outputs of a product. */
static double work_of(const ddp_program *p, const ddp_node *n)
{
    int32_t rows, other;

    switch (n->op) {
    case DDP_OP_LINEAR: rows = n->out[0], other = n->in[1]; break;
    case DDP_OP_LINEAR_GRAD_INPUT: rows = n->in[0], other = n->in[1]; break;
    case DDP_OP_LINEAR_GRAD_WEIGHT: rows = n->in[0], other = n->out[0]; break;
    default: return 0.0;
    }
    return 2.0 * (double)ddp_value_at(p, (uint32_t)rows)->elements * (double)ddp_value_at(p, (uint32_t)other)->dims[1];
}

static double now(void)
{
    struct timespec t;

    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static ddp_status run(ddp_instance *in, const ddp_run *r, uint32_t first, uint32_t last, ddp_err *err)
{
    double from = now(), left = 0.0;
    ddp_status st = real->run(in, r, first, last, err);
    int i = find(in);

    for (uint32_t k = first; k < last; k++) {
        const ddp_kernel *kernel = ddp_kernel_at(known[i].lowered, k);

        for (uint32_t n = 0; n < kernel->node_count; n++)
            left += work_of(known[i].program, ddp_node_at(known[i].program, kernel->nodes[n])) / flops;
    }
    left -= now() - from;
    if (left > 0.0) (void)usleep((useconds_t)(left * 1e6));
    return st;
}

__attribute__((constructor)) static void begin(void)
{
    void *lib = dlopen(REAL_DEVICE, RTLD_NOW | RTLD_LOCAL);
    const ddp_plugin *desc = lib == NULL ? NULL : dlsym(lib, DDP_PLUGIN_SYMBOL);
    const char *text = getenv("DEVICE_FLOPS");

    if (desc == NULL) abort();
    real = desc->ops;
    paced = *real;
    paced.compile = compile;
    paced.instance_create = instance_create;
    paced.run = run;
    ddp_plugin_desc = *desc;
    ddp_plugin_desc.name = "paced";
    ddp_plugin_desc.ops = &paced;
    if (text != NULL) flops = atof(text);
}
