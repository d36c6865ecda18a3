/* conform/device/device.c -- a device: memory, copies, reductions over a flat slice, leaks. Updates of parameters.
 * Programs are in program.c. Everything goes in and out by `copy`, so that it need not be the
 * host's memory. */
#include "conform/device/program.h"
#include "conform/harness/leaks.h"
#include "conform/suites.h"
#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { FLOATS = 70001 };

static const ddp_device_ops *ops_of(const ddp_rank_process *a) { return a->plugin->ops; }

static bool open_device(ddp_rank_process *a, uint32_t threads, ddp_device **out)
{
    const ddp_device_params p = {
        .struct_size = sizeof(p), .threads = threads, .precision = DDP_PRECISION_F32, .local_size = 1};
    ddp_err err = {0};
    ddp_status st = ops_of(a)->open(&a->host, a->config, &p, out, &err);

    return st == DDP_OK || ddp_rank_process_fail_call(a, "open", st, &err);
}

static void describe(ddp_rank_process *a, ddp_device *d)
{
    ddp_device_info info = {.struct_size = sizeof(info)};

    ops_of(a)->describe(d, &info);
    (void)(DDP_EXPECT(a, memchr(info.name, '\0', sizeof(info.name)) != NULL && info.name[0] != '\0',
                      "describe gives no name, or one without an end") &&
           DDP_EXPECT(a, info.memory_bytes > 0, "describe gives no memory"));
}

/* ---- memory ------------------------------------------------------------------------------------------------------ */
static bool round_trip(ddp_rank_process *a, ddp_device *d, void *mine, size_t bytes)
{
    const ddp_device_ops *ops = ops_of(a);
    ddp_err err = {0};
    unsigned char *from = ddp_alloc(bytes, &err), *to = ddp_alloc(bytes, &err);
    ddp_status st = from == NULL || to == NULL ? DDP_ERR_NOMEM : ops->copy(d, to, mine, bytes, DDP_COPY_TO_HOST, &err);
    bool good = st == DDP_OK;

    for (size_t i = 0; i < bytes && good; i++) {
        good = DDP_EXPECT(a, to[i] == 0, "alloc of %zu bytes is not zero-filled", bytes);
        from[i] = (unsigned char)(i * 7 + 3);
    }
    if (good) st = ops->copy(d, mine, from, bytes, DDP_COPY_TO_DEVICE, &err);
    if (good && st == DDP_OK) st = ops->copy(d, to, mine, bytes, DDP_COPY_TO_HOST, &err);
    if (good && st == DDP_OK) good = DDP_EXPECT(a, memcmp(from, to, bytes) == 0, "%zu bytes come back changed", bytes);
    free(to);
    free(from);
    return st == DDP_OK ? good : ddp_rank_process_fail_call(a, "copy", st, &err);
}

static void memory(ddp_rank_process *a, ddp_device *d)
{
    static const size_t sizes[] = {1, 64, 4097, ((size_t)1 << 20) + 3};
    bool good = true;

    for (size_t i = 0; i < 2 * DDP_COUNT(sizes) && good; i++) { /* twice: memory that comes back is zero again */
        size_t bytes = sizes[i % DDP_COUNT(sizes)];
        ddp_err err = {0};
        void *p;
        ddp_status st = ops_of(a)->alloc(d, bytes, &p, &err);

        if (st != DDP_OK) {
            (void)ddp_rank_process_fail_call(a, "alloc", st, &err);
            return;
        }
        good = DDP_EXPECT(a, (uintptr_t)p % 64 == 0, "alloc of %zu bytes is not 64-byte aligned", bytes) &&
               round_trip(a, d, p, bytes);
        ops_of(a)->free(d, p);
    }
}

/* ---- reductions -------------------------------------------------------------------------------------------------- */
typedef struct slice {
    float *host, *device;
} slice;

static bool slice_set(ddp_rank_process *a, ddp_device *d, const slice *s)
{
    ddp_err err = {0};
    ddp_status st = ops_of(a)->copy(d, s->device, s->host, FLOATS * sizeof(float), DDP_COPY_TO_DEVICE, &err);

    return st == DDP_OK || ddp_rank_process_fail_call(a, "copy", st, &err);
}

static bool reduce(ddp_rank_process *a, ddp_device *d, const slice *s, uint32_t what, uint64_t count,
                   ddp_flat_result *out)
{
    ddp_err err = {0};
    ddp_status st = ops_of(a)->flat(d, what, s->device, count, out, &err);

    return st == DDP_OK || ddp_rank_process_fail_call(a, "flat", st, &err);
}

static bool sums(ddp_rank_process *a, ddp_device *one, ddp_device *two, const slice *s, const slice *other)
{
    static const uint64_t counts[] = {0, 1, 15, 17, 4097, FLOATS};

    for (size_t k = 0; k < DDP_COUNT(counts); k++) {
        ddp_flat_result x = {0}, y = {0};
        double want = 0;

        for (uint64_t i = 0; i < counts[k]; i++) want += (double)s->host[i] * (double)s->host[i];
        if (!reduce(a, one, s, DDP_FLAT_SUM_SQUARES, counts[k], &x) ||
            !reduce(a, two, other, DDP_FLAT_SUM_SQUARES, counts[k], &y) ||
            !DDP_EXPECT(a, fabs(x.value - want) <= 1e-9 * want, "the sum of squares of %llu is %.17g, not %.17g",
                        (unsigned long long)counts[k], x.value, want) ||
            !DDP_EXPECT(a, x.value == y.value, "the sum of squares of %llu has other bits with 2 threads than with 1",
                        (unsigned long long)counts[k]))
            return false;
    }
    return true;
}

static bool finds(ddp_rank_process *a, ddp_device *d, const slice *s)
{
    static const float bad[] = {INFINITY, -INFINITY, NAN};
    static const uint64_t positions[] = {0, 15, 4096, FLOATS - 1};
    ddp_flat_result r = {0};

    if (!reduce(a, d, s, DDP_FLAT_FINITE, FLOATS, &r) ||
        !DDP_EXPECT(a, r.index == FLOATS, "all is finite, and element %llu is reported not to be",
                    (unsigned long long)r.index))
        return false;
    for (size_t k = 0; k < DDP_COUNT(bad) * DDP_COUNT(positions); k++) {
        uint64_t at = positions[k / DDP_COUNT(bad)];
        float kept = s->host[at];
        bool good;

        s->host[at] = bad[k % DDP_COUNT(bad)];
        good = slice_set(a, d, s) && reduce(a, d, s, DDP_FLAT_FINITE, FLOATS, &r) &&
               DDP_EXPECT(a, r.index == at, "element %llu is %g, and %llu is found", (unsigned long long)at,
                          (double)s->host[at], (unsigned long long)r.index);
        s->host[at] = kept;
        if (!good) return false;
    }
    return true;
}

static void flat(ddp_rank_process *a, ddp_device *d)
{
    slice s = {0}, other = {0};
    uint64_t random = 11;
    ddp_device *two;
    ddp_err err = {0};
    void *p = NULL, *q = NULL;

    if (!open_device(a, 2, &two)) return;
    s.host = other.host = ddp_alloc(FLOATS * sizeof(float), &err);
    if (s.host != NULL && ops_of(a)->alloc(d, FLOATS * sizeof(float), &p, &err) == DDP_OK &&
        ops_of(a)->alloc(two, FLOATS * sizeof(float), &q, &err) == DDP_OK) {
        s.device = p;
        other.device = q;
        for (size_t i = 0; i < FLOATS; i++) s.host[i] = (float)ddp_next_random(&random, 1 << 20) / 1e5f - 5.0f;
        if (slice_set(a, d, &s) && slice_set(a, two, &other) && sums(a, d, two, &s, &other)) (void)finds(a, d, &s);
    } else {
        (void)ddp_rank_process_fail_call(a, "alloc", err.status, &err);
    }
    if (q != NULL) ops_of(a)->free(two, q);
    if (p != NULL) ops_of(a)->free(d, p);
    free(s.host);
    ops_of(a)->close(two);
}

/* ---- updates of parameters --------------------------------------------------------------------------------------- */
/* Against PyTorch's formulas in double: torch.optim.SGD, Adam, AdamW. */
enum { COUNT = 5003, STEPS = 3, ARRAYS = 4 };

typedef struct trial {
    ddp_rank_process *a;
    const ddp_device_ops *ops;
    ddp_device *d;
    float *host[ARRAYS], *device[ARRAYS]; /* parameters, states 1 and 2, gradients */
    double *want[ARRAYS];
} trial;

static const ddp_optim optims[] = {
    {.algorithm = DDP_OPTIM_SGD, .lr = 0.05, .grad_scale = 1},
    {.algorithm = DDP_OPTIM_SGD, .lr = 0.05, .weight_decay = 0.01, .grad_scale = 0.25},
    {.algorithm = DDP_OPTIM_SGD, .lr = 0.05, .momentum = 0.9, .grad_scale = 1},
    {.algorithm = DDP_OPTIM_SGD, .lr = 0.05, .momentum = 0.9, .nesterov = 1, .weight_decay = 0.01, .grad_scale = 0.5},
    {.algorithm = DDP_OPTIM_ADAM, .lr = 1e-2, .beta1 = 0.9, .beta2 = 0.999, .eps = 1e-8, .grad_scale = 1},
    {.algorithm = DDP_OPTIM_ADAM,
     .lr = 1e-2,
     .beta1 = 0.8,
     .beta2 = 0.99,
     .eps = 1e-6,
     .weight_decay = 0.1,
     .grad_scale = 0.5},
    {.algorithm = DDP_OPTIM_ADAMW,
     .lr = 1e-2,
     .beta1 = 0.9,
     .beta2 = 0.999,
     .eps = 1e-8,
     .weight_decay = 0.1,
     .grad_scale = 1},
};

static void reference(const ddp_optim *o, double *p, double *m, double *v, double g)
{
    double d = g * o->grad_scale;

    if (o->algorithm == DDP_OPTIM_SGD) {
        d += o->weight_decay * *p;
        *m = o->step == 1 ? d : o->momentum * *m + d;
        *p -= o->lr * (o->momentum <= 0 ? d : o->nesterov != 0 ? d + o->momentum * *m : *m);
        return;
    }
    if (o->algorithm == DDP_OPTIM_ADAMW)
        *p *= 1 - o->lr * o->weight_decay;
    else
        d += o->weight_decay * *p;
    *m = o->beta1 * *m + (1 - o->beta1) * d;
    *v = o->beta2 * *v + (1 - o->beta2) * d * d;
    *p -= o->lr * (*m / (1 - pow(o->beta1, (double)o->step))) /
          (sqrt(*v / (1 - pow(o->beta2, (double)o->step))) + o->eps);
}

static bool states_of(const ddp_optim *o, uint32_t array)
{
    if (array == 0 || array == 3) return true;
    return o->algorithm != DDP_OPTIM_SGD || (array == 1 && o->momentum > 0);
}

static bool copy(const trial *t, uint32_t array, uint32_t direction)
{
    ddp_err err = {0};
    bool in = direction == DDP_COPY_TO_DEVICE;
    ddp_status st = t->ops->copy(t->d, in ? t->device[array] : t->host[array], in ? t->host[array] : t->device[array],
                                 COUNT * sizeof(float), direction, &err);

    return st == DDP_OK || ddp_rank_process_fail_call(t->a, "copy", st, &err);
}

static bool step(trial *t, ddp_optim *o, uint32_t which)
{
    const ddp_optim_slice s = {.grad_dtype = DDP_F32,
                               .state_dtype = DDP_F32,
                               .param = t->device[0],
                               .state1 = states_of(o, 1) ? t->device[1] : NULL,
                               .state2 = states_of(o, 2) ? t->device[2] : NULL,
                               .grad = t->device[3],
                               .count = COUNT};
    ddp_err err = {0};
    ddp_status st = t->ops->optim_step(t->d, o, &s, &err);

    if (st != DDP_OK) return ddp_rank_process_fail_call(t->a, "optim_step", st, &err);
    for (uint32_t k = 0; k < 3; k++) {
        if (!copy(t, k, DDP_COPY_TO_HOST)) return false;
        for (size_t i = 0; i < COUNT && states_of(o, k); i++)
            if (!DDP_EXPECT(t->a, fabs((double)t->host[k][i] - t->want[k][i]) <= 1e-5 * (0.1 + fabs(t->want[k][i])),
                            "setting %u, step %llu: %s[%zu] is %.9g, not %.9g", which, (unsigned long long)o->step,
                            k == 0 ? "parameter" : "state", i, (double)t->host[k][i], t->want[k][i]))
                return false;
    }
    return true;
}

static bool run(trial *t, uint32_t which)
{
    ddp_optim o = optims[which];
    uint64_t random = which + 1;

    o.struct_size = sizeof(o);
    for (uint32_t k = 0; k < ARRAYS; k++)
        for (size_t i = 0; i < COUNT; i++) {
            t->host[k][i] = k == 0 ? (float)ddp_next_random(&random, 2000) / 1000 - 1 : 0;
            t->want[k][i] = (double)t->host[k][i];
        }
    for (uint32_t k = 0; k < ARRAYS; k++)
        if (!copy(t, k, DDP_COPY_TO_DEVICE)) return false;
    for (o.step = 1; o.step <= STEPS; o.step++) {
        for (size_t i = 0; i < COUNT; i++) {
            t->host[3][i] = (float)ddp_next_random(&random, 2000) / 500 - 2;
            reference(&o, &t->want[0][i], &t->want[1][i], &t->want[2][i], (double)t->host[3][i]);
        }
        if (!copy(t, 3, DDP_COPY_TO_DEVICE) || !step(t, &o, which)) return false;
    }
    return true;
}

static void optimizer(ddp_rank_process *a, const ddp_device_ops *ops, ddp_device *d)
{
    trial t = {.a = a, .ops = ops, .d = d};
    ddp_err err = {0};
    bool good = true;

    for (uint32_t k = 0; k < ARRAYS && good; k++) {
        void *p = NULL;

        t.host[k] = ddp_alloc(COUNT * sizeof(float), &err);
        t.want[k] = ddp_alloc(COUNT * sizeof(double), &err);
        good = t.host[k] != NULL && t.want[k] != NULL && ops->alloc(d, COUNT * sizeof(float), &p, &err) == DDP_OK;
        t.device[k] = p;
    }
    if (!good) (void)ddp_rank_process_fail_call(a, "alloc", err.status, &err);
    for (uint32_t i = 0; i < DDP_COUNT(optims) && good; i++) good = run(&t, i);
    for (uint32_t k = 0; k < ARRAYS; k++) {
        if (t.device[k] != NULL) ops->free(d, t.device[k]);
        free(t.want[k]);
        free(t.host[k]);
    }
}

/* ---- by name ----------------------------------------------------------------------------------------------------- */
static bool open_once(ddp_rank_process *a, uint32_t i)
{
    ddp_device *d;
    ddp_err err = {0};
    void *p;

    if (!open_device(a, 1 + i % 2, &d)) return false;
    if (ops_of(a)->alloc(d, 1000, &p, &err) != DDP_OK) return ddp_rank_process_fail_call(a, "alloc", err.status, &err);
    ops_of(a)->free(d, p);
    ops_of(a)->close(d);
    return true;
}

void ddp_device_case(ddp_rank_process *a)
{
    ddp_device *d;

    if (a->c->suite == DDP_SUITE_LEAKS) return ddp_leaks_check(a, open_once, 256);
    if (!open_device(a, 1, &d)) return;
    if (a->c->suite == DDP_SUITE_OPEN)
        describe(a, d);
    else if (a->c->suite == DDP_SUITE_MEMORY)
        memory(a, d);
    else if (a->c->variant == DDP_TOPIC_FLAT)
        flat(a, d);
    else if (a->c->variant == DDP_TOPIC_OPTIMIZER)
        optimizer(a, ops_of(a), d);
    else
        device_program(a, ops_of(a), d);
    ops_of(a)->close(d);
}
