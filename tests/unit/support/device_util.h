/* device_util.h -- runs programs on a built device, the CPU's unless a test says otherwise, and in the double
 * reference, and compares. Where a device's memory is its own, the job's arrays are the host's side of it. */
#pragma once

#include "graph/graph.h"
#include <ddpengine/device.h>
#include <ddpengine/isa.h>
#include <dlfcn.h>
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include <cmocka.h>

#define CANARY 16 /* poisoned floats around what a device may write */

#if defined(__SANITIZE_ADDRESS__)
/* gcc 12's leak checker crashes on the thread-local storage of oneDNN's dlopened library. */
__attribute__((visibility("default"))) const char *__lsan_default_options(void);
__attribute__((visibility("default"))) const char *__lsan_default_options(void)
{
    return "use_tls=0:print_suppressions=0";
}
#endif

typedef struct fixture {
    void *handle;
    const ddp_plugin *plugin;
    const ddp_device_ops *ops;
    ddp_device *device; /* NULL: this CPU cannot do the precision that was asked for */
    bool half;  /* products in bf16: inputs and parameters are numbers that bf16 has, which makes each op exact */
    bool apart; /* its memory is not the host's */
    ddp_err err;
} fixture;

#define OK(f, call)                                                                                                    \
    do {                                                                                                               \
        if ((call) != DDP_OK) fail_msg("%s: %s", #call, (f)->err.msg);                                                 \
    } while (0)

static inline const char *build_dir(void)
{
    const char *dir = getenv("DDP_BUILDDIR");

    return dir != NULL ? dir : DDP_BUILDDIR;
}

static inline void fixture_load(fixture *f, const char *file)
{
    char path[4096];

    memset(f, 0, sizeof(*f));
    (void)snprintf(path, sizeof(path), "%s/%s", build_dir(), file);
    (void)setenv("OMP_WAIT_POLICY", "PASSIVE", 0); /* as the engine has it */
    f->handle = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    if (f->handle == NULL) fail_msg("%s", dlerror());
    f->plugin = dlsym(f->handle, DDP_PLUGIN_SYMBOL);
    assert_non_null(f->plugin);
    f->ops = f->plugin->ops;
    f->apart = (f->ops->caps & DDP_DEVICE_CAP_HOST_MEMORY) == 0;
}

/* All options of the device at 0, which are their defaults. */
static inline void fixture_open_in(fixture *f, uint32_t threads, uint32_t precision)
{
    static const uint64_t config[8];
    ddp_device_params p = {.struct_size = sizeof(p), .threads = threads, .precision = precision, .local_size = 1};

    fixture_load(f, getenv("DDP_DEVICE_CPU") != NULL ? getenv("DDP_DEVICE_CPU") : ".libs/device_cpu.so");
    f->half = precision == DDP_PRECISION_BF16;
    OK(f, f->ops->open(NULL, config, &p, &f->device, &f->err));
}

static inline void fixture_open(fixture *f, uint32_t threads) { fixture_open_in(f, threads, DDP_PRECISION_F32); }

static inline void fixture_close(fixture *f)
{
    if (f->device != NULL) f->ops->close(f->device); /* the file stays mapped, as its F_NO_UNLOAD asks */
}

/* Set-up and tear-down of a test, with one thread and with two. */
static inline int open_one(void **state)
{
    static fixture f;

    fixture_open(&f, 1);
    *state = &f;
    return 0;
}

static inline int open_two(void **state)
{
    static fixture f;

    fixture_open(&f, 2);
    *state = &f;
    return 0;
}

static inline int close_device(void **state)
{
    fixture_close(*state);
    return 0;
}

static inline int open_one_half(void **state)
{
    static fixture f;

    fixture_open_in(&f, 1, DDP_PRECISION_BF16);
    *state = &f;
    return 0;
}

static inline int open_two_half(void **state)
{
    static fixture f;

    fixture_open_in(&f, 2, DDP_PRECISION_BF16);
    *state = &f;
    return 0;
}

#define ONE(test)                                                                                                      \
    {                                                                                                                  \
#test, test, open_one, close_device, NULL                                                                      \
    }
#define BOTH(test)                                                                                                     \
    ONE(test), { #test ", 2 threads", test, open_two, close_device, NULL }
#define HALF(test)                                                                                                     \
    {#test ", bf16", test, open_one_half, close_device, NULL},                                                         \
    {                                                                                                                  \
#test ", bf16, 2 threads", test, open_two_half, close_device, NULL                                             \
    }

/* ---- random numbers: the same in every run, or of the seed that DDP_TEST_SEED says (`random`: fresh), printed ---- */
static inline uint64_t random_bits(uint64_t *state) /* splitmix64 */
{
    uint64_t z = *state += 0x9e3779b97f4a7c15u;

    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return z ^ (z >> 31);
}

static inline uint64_t test_seed(void)
{
    const char *given = getenv("DDP_TEST_SEED");
    struct timespec t;
    uint64_t seed = 20261126;

    (void)clock_gettime(CLOCK_REALTIME, &t);
    if (given != NULL) seed = strcmp(given, "random") == 0 ? (uint64_t)t.tv_nsec : strtoull(given, NULL, 0);
    (void)printf("# DDP_TEST_SEED=%llu\n", (unsigned long long)seed);
    return seed;
}

static inline float random_float(uint64_t *state) /* -1 .. 1 */
{
    return (float)((double)(random_bits(state) >> 40) / (double)(1 << 23) - 1.0);
}

static inline void poison(float *x, size_t n) { memset(x, 0xff, n * sizeof(*x)); } /* NaN */

/* ---- one program on both sides ----------------------------------------------------------------------------------- */
typedef struct job {
    fixture *f;
    const ddp_program *p;
    const ddp_layout *layout; /* or NULL: parameters one after another, as their values say */
    uint64_t arena_elements;  /* of parameters and gradients */
    uint64_t *seed;
    double scale;     /* of inputs and parameters; 0 is 1 */
    int64_t classes;  /* labels are below */
    bool add;         /* the gradients are added to what is there */
    double tolerance; /* relative to 1 + |expected|; 0 is 1e-5 */
    bool by_scale;    /* instead relative to the value's largest element, for gradients that are small all over */
    bool
        /* instead of the elements their distance altogether, relative to the value's norm: what rounding moves */
        by_norm;
    double margin; /* so far the numbers stay from where a relu, a maximum or a largest of a row jumps; 0: anywhere */
    ddp_random random;
    /* set up by job_open */
    ddp_ref_tensor *ref;
    float *params, *grads, *before, *arena, **inputs;
    float *buffers;   /* of the model */
    uint16_t *frozen; /* parameters in bf16 */
    uint64_t buffer_elements;
    uint32_t input_count;
    ddp_bind bind; /* the device's side */
    ddp_lowered *lowered;
    ddp_planned *planned;
    ddp_exec *exec;
    ddp_instance *instance;
} job;

static inline void *aligned(size_t bytes)
{
    void *p = NULL;

    assert_int_equal(posix_memalign(&p, 64, bytes + 64), 0);
    return p;
}

/* ---- the device's side of an array; itself where the host's memory is the device's */
static inline void *job_mirror(job *j, void *host, size_t bytes)
{
    void *p = host;

    if (j->f->apart) OK(j->f, j->f->ops->alloc(j->f->device, bytes, &p, &j->f->err));
    return p;
}

static inline void job_up(job *j, const void *device, const void *host, size_t bytes)
{
    if (!j->f->apart) return;
    OK(j->f, j->f->ops->copy(j->f->device, (void *)device, host, bytes, DDP_COPY_TO_DEVICE, &j->f->err));
}

static inline void job_down(job *j, void *host, const void *device, size_t bytes)
{
    if (!j->f->apart) return;
    OK(j->f, j->f->ops->copy(j->f->device, host, device, bytes, DDP_COPY_TO_HOST, &j->f->err));
}

static inline size_t job_arena_bytes(const job *j) { return (size_t)j->planned->plan.arena_bytes + CANARY * 4; }

static inline void *job_host_memory(job *j, size_t bytes)
{
    void *p;

    if (!j->f->apart) return aligned(bytes);
    OK(j->f, j->f->ops->host_alloc(j->f->device, bytes, &p, &j->f->err));
    return p;
}

/* Whether parameters that are not trained may be in bf16. */
static inline bool fixture_takes_half(const fixture *f)
{
    return f->ops->frozen_dtypes != NULL && (f->ops->frozen_dtypes(f->device) >> DDP_BF16 & 1u) != 0;
}

/* -1 .. 1; eight bits where bf16 has to have it */
static inline float job_random(const job *j)
{
    float x = random_float(j->seed);

    return j->f->half ? roundf(x * 128) / 128 : x;
}

/* Whether the value is what a mixed label weighs, which is 0 .. 1. */
static inline bool job_is_lambda(const job *j, uint32_t i)
{
    for (uint32_t k = 0; k < j->p->node_count; k++) {
        const ddp_node *n = &j->p->nodes[k];
        bool entropy = n->op == DDP_OP_CROSS_ENTROPY || n->op == DDP_OP_CROSS_ENTROPY_GRAD;
        if (entropy && n->in_count == 4 && n->in[3] == (int32_t)i) return true;
    }
    return false;
}

static inline void job_fill_value(job *j, uint32_t i)
{
    const ddp_value *v = &j->p->values[i];
    double scale = j->scale > 0.0 ? j->scale : 1.0;
    bool lambda = job_is_lambda(j, i);

    if (j->ref[i].data == NULL) j->ref[i].data = calloc((size_t)v->elements + 1, sizeof(double));
    for (int64_t e = 0; v->kind == DDP_VALUE_PARAM && e < v->elements; e++) {
        float x = job_random(j) * (float)scale;
        uint32_t bits;

        memcpy(&bits, &x, sizeof(bits));
        j->ref[i].data[e] = x;
        if (v->dtype == DDP_BF16)
            j->frozen[v->offset + (uint64_t)e] = (uint16_t)(bits >> 16); /* what x is, see job_random */
        else
            j->params[v->offset + (uint64_t)e] = x;
    }
    for (int64_t e = 0; v->kind == DDP_VALUE_BUFFER && e < v->elements; e++) /* positive: a variance */
        j->ref[i].data[e] = j->buffers[v->offset + (uint64_t)e] = fabsf(random_float(j->seed)) + 0.125f;
    if (v->kind != DDP_VALUE_INPUT) return;
    if (v->index >= (int32_t)j->input_count) j->input_count = (uint32_t)v->index + 1;
    if (j->inputs[v->index] == NULL)
        j->inputs[v->index] = job_host_memory(j, (size_t)v->elements * ddp_dtype_size(v->dtype));
    for (int64_t e = 0; e < v->elements; e++) {
        if (v->dtype == DDP_I64) {
            int64_t label = (int64_t)(random_bits(j->seed) % (uint64_t)j->classes);
            ((int64_t *)(void *)j->inputs[v->index])[e] = label;
            j->ref[i].data[e] = (double)label;
        } else {
            float x = job_random(j);
            j->ref[i].data[e] = j->inputs[v->index][e] = lambda ? fabsf(x) : x * (float)scale;
        }
    }
}

/* Whether a window of the pooling has two different numbers at its top, nearer to each other than the margin. */
static inline bool pool_jumps(const job *j, const ddp_node *n)
{
    const ddp_value *x = &j->p->values[n->in[0]], *y = &j->p->values[n->out[0]];
    const int64_t *k = n->attrs.pool.kernel, *s = n->attrs.pool.stride, *pad = n->attrs.pool.padding;

    for (int64_t e = 0; e < y->elements; e++) {
        int64_t left = e % y->dims[3] * s[1] - pad[1], top = e / y->dims[3] % y->dims[2] * s[0] - pad[0];
        const double *plane = j->ref[n->in[0]].data + e / (y->dims[2] * y->dims[3]) * x->dims[2] * x->dims[3];
        double most = j->ref[n->out[0]].data[e];
        for (int64_t r = top > 0 ? top : 0; r < top + k[0] && r < x->dims[2]; r++)
            for (int64_t c = left > 0 ? left : 0; c < left + k[1] && c < x->dims[3]; c++) {
                double less = plane[r * x->dims[3] + c];
                if (less != most && most - less < j->margin) return true;
            }
    }
    return false;
}

/* The rows of an accuracy whose label has another class nearer than `margin`. */
static inline int64_t accuracy_near(const job *j, const ddp_node *n, double margin)
{
    const ddp_value *x = &j->p->values[n->in[0]], *labels = &j->p->values[n->in[1]];
    int64_t classes = x->elements / labels->elements, rows = 0;

    for (int64_t row = 0; row < labels->elements; row++) {
        const double *logits = j->ref[n->in[0]].data + row * classes;
        int64_t label = (int64_t)j->ref[n->in[1]].data[row];
        bool near = false;
        for (int64_t c = 0; c < classes; c++) near |= c != label && fabs(logits[c] - logits[label]) < margin;
        rows += near;
    }
    return rows;
}

/* Whether rounding alone may choose otherwise somewhere: such numbers prove nothing, and others are drawn. */
static inline bool job_jumps(const job *j)
{
    for (uint32_t i = 0; i < j->p->node_count; i++) {
        const ddp_node *n = &j->p->nodes[i];
        if (n->op == DDP_OP_MAX_POOL2D && pool_jumps(j, n)) return true;
        if (n->op == DDP_OP_ACCURACY && accuracy_near(j, n, j->margin) > 0) return true;
        for (int64_t e = 0; n->op == DDP_OP_RELU && e < j->p->values[n->in[0]].elements; e++) {
            double x = j->ref[n->in[0]].data[e];
            if (x != 0.0 && fabs(x) < j->margin) return true;
        }
    }
    return false;
}

static inline void job_fill(job *j)
{
    for (int tries = 0; tries < 1000; tries++) {
        poison(j->buffers, j->buffer_elements + CANARY);
        for (uint32_t i = 0; i < j->p->value_count; i++) job_fill_value(j, i);
        if (j->margin <= 0.0) return;
        OK(j->f, ddp_reference_run(j->p, &j->random, j->ref, &j->f->err));
        if (!job_jumps(j)) break;
        assert_true(tries < 999);
    }
    /* the run has put the buffers of the next step in place of this one's */
    for (uint32_t i = 0; i < j->p->value_count; i++) {
        const ddp_value *v = &j->p->values[i];
        for (int64_t e = 0; v->kind == DDP_VALUE_BUFFER && e < v->elements; e++)
            j->ref[i].data[e] = (double)j->buffers[v->offset + (uint64_t)e];
    }
}

static inline void job_open(job *j)
{
    fixture *f = j->f;
    uint64_t floats = j->arena_elements;
    size_t bytes;

    j->ref = calloc(j->p->value_count, sizeof(*j->ref));
    j->inputs = calloc(j->p->value_count + 1, sizeof(*j->inputs));
    j->params = aligned((floats + CANARY) * 4);
    j->frozen = j->f->half ? calloc(floats + CANARY, sizeof(*j->frozen)) : NULL;
    j->grads = aligned((floats + CANARY) * 4);
    j->before = aligned((floats + CANARY) * 4);
    for (uint32_t i = 0; i < j->p->value_count; i++)
        if (j->p->values[i].kind == DDP_VALUE_BUFFER)
            j->buffer_elements += ddp_round_up((uint64_t)j->p->values[i].elements, 16);
    j->buffers = aligned((j->buffer_elements + CANARY) * 4);
    job_fill(j);
    OK(f, f->ops->lower(f->device, j->p, &j->lowered, &f->err));
    OK(f, ddp_lowered_check(j->p, j->lowered, &f->err));
    OK(f, ddp_plan_create(j->p, j->lowered, j->layout, &j->planned, &f->err));
    OK(f, f->ops->compile(f->device, j->p, j->lowered, &j->planned->plan, &j->exec, &f->err));
    bytes = (size_t)j->planned->plan.arena_bytes;
    j->arena = aligned(bytes + CANARY * 4);
    poison(j->arena, bytes / 4 + CANARY);
    j->bind.struct_size = sizeof(j->bind);
    j->bind.arena = job_mirror(j, j->arena, job_arena_bytes(j));
    j->bind.params = job_mirror(j, j->params, (floats + CANARY) * 4);
    j->bind.frozen = j->frozen;
    j->bind.grads = job_mirror(j, j->grads, (floats + CANARY) * 4);
    j->bind.buffers = job_mirror(j, j->buffers, (j->buffer_elements + CANARY) * 4);
    OK(f, f->ops->instance_create(j->exec, &j->bind, &j->instance, &f->err));
    job_up(j, j->bind.params, j->params, (floats + CANARY) * 4);
    job_up(j, j->bind.buffers, j->buffers, (j->buffer_elements + CANARY) * 4);
}

static inline void job_close(job *j)
{
    j->f->ops->instance_free(j->instance);
    j->f->ops->exec_free(j->exec);
    ddp_plan_free(j->planned);
    j->f->ops->lowered_free(j->f->device, j->lowered);
    for (uint32_t i = 0; i < j->p->value_count; i++) free(j->ref[i].data);
    for (uint32_t i = 0; i < j->input_count; i++)
        if (j->f->apart)
            j->f->ops->host_free(j->f->device, j->inputs[i]);
        else
            free(j->inputs[i]);
    if (j->f->apart) {
        void *const mine[] = {j->bind.arena, (void *)j->bind.params, j->bind.grads, j->bind.buffers};
        for (size_t i = 0; i < DDP_COUNT(mine); i++) j->f->ops->free(j->f->device, mine[i]);
    }
    free(j->ref);
    free(j->inputs);
    free(j->params);
    free(j->frozen);
    free(j->grads);
    free(j->before);
    free(j->buffers);
    free(j->arena);
}

static inline ddp_status job_run(job *j)
{
    ddp_run r = {.struct_size = sizeof(r),
                 .flags = j->add ? DDP_RUN_GRAD_ADD : 0,
                 .inputs = (void *const *)(void *)j->inputs,
                 .random = j->random};
    uint32_t count = j->lowered->kernel_count, cut = count > 1 ? (uint32_t)(random_bits(j->seed) % count) : 0;
    ddp_status status;

    for (uint64_t i = 0; i < j->arena_elements + CANARY; i++) j->before[i] = random_float(j->seed);
    if (!j->add) poison(j->before, j->arena_elements + CANARY);
    memcpy(j->grads, j->before, (j->arena_elements + CANARY) * 4);
    poison(j->arena, (size_t)j->planned->plan.arena_bytes / 4 + CANARY);
    job_up(j, j->bind.grads, j->grads, (j->arena_elements + CANARY) * 4);
    job_up(j, j->bind.arena, j->arena, job_arena_bytes(j));
    status = j->f->ops->run(j->instance, &r, 0, cut, &j->f->err);
    if (status == DDP_OK) status = j->f->ops->run(j->instance, &r, cut, count, &j->f->err);
    if (status == DDP_OK) status = j->f->ops->sync(j->f->device, &j->f->err);
    if (status != DDP_OK) return status;
    job_down(j, j->grads, j->bind.grads, (j->arena_elements + CANARY) * 4);
    job_down(j, j->buffers, j->bind.buffers, (j->buffer_elements + CANARY) * 4);
    job_down(j, j->arena, j->bind.arena, job_arena_bytes(j));
    return DDP_OK;
}

static inline void compare_norm(const job *j, const ddp_value *v, uint32_t index, const float *got, const float *before)
{
    double far = 0.0, norm = 0.0;

    for (int64_t e = 0; e < v->elements; e++) {
        double want = j->ref[index].data[e], is = (double)got[e] - (before != NULL ? (double)before[e] : 0.0);
        far += (is - want) * (is - want);
        norm += want * want;
    }
    if (!(sqrt(far) <= j->tolerance * sqrt(norm) + (j->f->half ? 1e-4 : 1e-6) * sqrt((double)v->elements)))
        fail_msg("value %u \"%s\" is %.3g away from what it should be, which is %.3g long (batch %lld)", index, v->name,
                 sqrt(far), sqrt(norm), (long long)j->p->batch);
}

static inline double largest_of(const job *j, uint32_t index)
{
    double largest = 0.0;

    for (int64_t e = 0; e < j->p->values[index].elements; e++) largest = fmax(largest, fabs(j->ref[index].data[e]));
    return largest;
}

/* The rows that rounding to bf16 alone may count otherwise, where the value is an accuracy. */
static inline double accuracy_room(const job *j, uint32_t index)
{
    double rows = 0.0;

    for (uint32_t i = 0; j->f->half && i < j->p->node_count; i++) {
        const ddp_node *n = &j->p->nodes[i];
        if (n->op != DDP_OP_ACCURACY || n->out[0] != (int32_t)index) continue;
        rows = (double)accuracy_near(j, n, 2.0 * (0x1p-7 * largest_of(j, (uint32_t)n->in[0]) + 1e-4));
    }
    return rows;
}

static inline void compare(const job *j, const ddp_value *v, uint32_t index, const float *got, const float *before)
{
    double tolerance = j->tolerance > 0.0 ? j->tolerance : 1e-5, largest = largest_of(j, index);
    double room = accuracy_room(j, index);

    if (j->by_norm) {
        compare_norm(j, v, index, got, before);
        return;
    }
    for (int64_t e = 0; e < v->elements; e++) {
        double want = j->ref[index].data[e] + (before != NULL ? (double)before[e] : 0.0);
        double bound = j->by_scale ? tolerance * largest + 1e-7 * fabs(want) : tolerance * (1.0 + fabs(want));
        if (j->f->half)
            bound += room + 1e-4; /* what cancels to next to nothing keeps the roundings of what it was made of */
        if (!(fabs((double)got[e] - want) <= bound))
            fail_msg("value %u \"%s\" [%lld] is %.9g, should be %.9g (batch %lld)", index, v->name, (long long)e,
                     (double)got[e], want, (long long)j->p->batch);
    }
}

/* Gradients, buffers, the loss and the metrics; also that nothing else was written. */
static inline void job_check(job *j)
{
    bool *owned = calloc(j->arena_elements + CANARY, sizeof(*owned));

    for (uint32_t i = 0; i < j->p->value_count; i++) {
        const ddp_value *v = &j->p->values[i];
        bool kept = (int32_t)i == j->p->loss;
        for (uint32_t m = 0; m < j->p->metric_count; m++) kept = kept || j->p->metrics[m] == (int32_t)i;
        if (v->kind == DDP_VALUE_GRAD) {
            compare(j, v, i, j->grads + v->offset, j->add ? j->before + v->offset : NULL);
            for (int64_t e = 0; e < v->elements; e++) owned[v->offset + (uint64_t)e] = true;
        } else if (v->kind == DDP_VALUE_BUFFER) {
            compare(j, v, i, j->buffers + v->offset, NULL);
        } else if (kept && v->kind == DDP_VALUE_ACT) {
            assert_int_not_equal(j->planned->plan.value_offset[i], DDP_NO_OFFSET);
            compare(j, v, i, j->arena + j->planned->plan.value_offset[i] / 4, NULL);
        }
    }
    for (uint64_t e = 0; e < j->arena_elements + CANARY; e++)
        if (!owned[e] && memcmp(&j->grads[e], &j->before[e], 4) != 0)
            fail_msg("element %llu of the gradient arena belongs to nobody and was written", (unsigned long long)e);
    for (uint32_t i = 0; i < CANARY; i++) assert_true(isnan(j->arena[j->planned->plan.arena_bytes / 4 + i]));
    for (uint32_t i = 0; i < CANARY; i++) assert_true(isnan(j->buffers[j->buffer_elements + i]));
    free(owned);
}

/* Gradients set, then added. What is expected is the same in both, unless buffers have changed in the first. */
static inline void job_run_and_check(job *j)
{
    for (int add = 0; add < 2; add++) {
        j->add = add != 0;
        OK(j->f, job_run(j));
        if (!j->add || j->buffer_elements > 0) OK(j->f, ddp_reference_run(j->p, &j->random, j->ref, &j->f->err));
        job_check(j);
    }
}
