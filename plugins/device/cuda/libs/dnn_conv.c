/* plugins/device/cuda/libs/dnn_conv.c -- convolutions by cuDNN: one operation, whose plan is the fastest that was
 * measured. Bias and ReLU are no part of it: cuDNN's ReLU does not promise to keep a NaN. */
#include "dnn_graph.h"
#include <limits.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#define MAX_WORKSPACE ((size_t)256 << 20)
enum { MAX_CANDIDATES = 10 /* of each mode of the heuristics */, X = 1, W, Y };
enum { AT_A, AT_B, AT_OUT, ARRAYS }; /* to try them with */

struct cu_dnn_conv {
    cu_dnn *d;
    uint32_t what, type;
    cu_conv c;
    cu_dnn_graph graph;
};

static const char *const texts[] = {"a convolution", "a convolution's gradient of its input",
                                    "a convolution's gradient of its weight"};

/* ---- shapes ------------------------------------------------------------------------------------------------------ */
static bool fits(const cu_conv *c)
{
    const int64_t all[] = {c->in.n,        c->in.h,         c->in.w,        c->in.c,        c->o,
                           c->oh,          c->ow,           c->w.kernel[0], c->w.kernel[1], c->w.stride[0],
                           c->w.stride[1], c->w.padding[0], c->w.padding[1]};

    for (size_t i = 0; i < sizeof(all) / sizeof(all[0]); i++)
        if (all[i] < 0 || all[i] > INT_MAX) return false;
    return c->groups >= 1 && c->in.c % c->groups == 0 && c->o % c->groups == 0;
}

/* (n, c, h, w), the channels side by side in memory. */
static cu_shape channels_last(int64_t n, int64_t c, int64_t h, int64_t w)
{
    return (cu_shape){{n, c, h, w}, {h * w * c, 1, w * c, c}};
}

typedef struct shapes {
    cu_shape x, w, y;
} shapes;

static shapes shapes_of(const cu_conv *c)
{
    return (shapes){channels_last(c->in.n, c->in.c, c->in.h, c->in.w),
                    channels_last(c->o, c->in.c / c->groups, c->w.kernel[0], c->w.kernel[1]),
                    channels_last(c->in.n, c->o, c->oh, c->ow)};
}

static uint64_t bytes_of(const cu_shape *s, uint32_t type)
{
    return (uint64_t)s->dims[0] * (uint64_t)s->strides[0] * (type == CU_BF16 ? 2 : 4);
}

void cu_dnn_conv_describe(cu_dnn_graph *g, const cu_dnn *d, uint32_t what, const cu_conv *c, uint32_t type)
{
    const shapes s = shapes_of(c);
    const cudnnDataType_t data = type == CU_BF16 ? CUDNN_DATA_BFLOAT16 : CUDNN_DATA_FLOAT;
    const cu_dnn_window window = {.stride = {c->w.stride[0], c->w.stride[1]},
                                  .padding = {c->w.padding[0], c->w.padding[1]}};
    cu_dnn_node x, w, y;

    cu_dnn_graph_begin(g, d);
    x = cu_dnn_graph_tensor(g, X, data, &s.x);
    w = cu_dnn_graph_tensor(g, W, data, &s.w);
    y = cu_dnn_graph_tensor(g, Y, data, &s.y);
    cu_dnn_graph_convolution(g, what, &window, x, w, y);
}

/* ---- run --------------------------------------------------------------------------------------------------------- */
static cudnnStatus_t start(const cu_dnn_conv *t, cudaStream_t s, const void *a, const void *b, void *out,
                           void *workspace)
{
    static const int64_t uids[3][3] = {
        [CU_CONV_FORWARD] = {X, W, Y}, [CU_CONV_GRAD_INPUT] = {Y, W, X}, [CU_CONV_GRAD_WEIGHT] = {Y, X, W}};
    void *at[3] = {NULL, NULL, out};

    memcpy(&at[0], &a, sizeof(a)); /* cuDNN's table of operands has no const */
    memcpy(&at[1], &b, sizeof(b));
    return cu_dnn_graph_start(&t->graph, s, uids[t->what], at, 3, workspace);
}

ddp_status cu_dnn_conv_run(const cu_dnn_conv *t, cudaStream_t s, const void *a, const void *b, void *out,
                           void *workspace, ddp_err *err)
{
    cudnnStatus_t said = start(t, s, a, b, out, workspace);

    return said == CUDNN_STATUS_SUCCESS ? DDP_OK : cu_fail_dnn(t->d->l, said, err, "%s by cuDNN", texts[t->what]);
}

size_t cu_dnn_conv_workspace(const cu_dnn_conv *t) { return t->graph.workspace; }

/* ---- choosing ---------------------------------------------------------------------------------------------------- */
typedef struct trial {
    cu_dnn_conv *t;
    cu_scratch s;
    void *workspace;
    size_t workspace_bytes;
    bool no_room; /* for what a plan needs to be tried */
    float best;
    char name[CU_ALGORITHM_NAME]; /* of the best */
    cudnnStatus_t why;            /* of the last that did not run; SUCCESS: all did */
} trial;

static bool start_trial(void *argument)
{
    trial *r = argument;
    cudnnStatus_t said =
        start(r->t, r->t->d->timer.stream, r->s.at[AT_A], r->s.at[AT_B], r->s.at[AT_OUT], r->workspace);

    if (said != CUDNN_STATUS_SUCCESS) r->why = said;
    return said == CUDNN_STATUS_SUCCESS;
}

/* Room for a plan's workspace; false, and a note of it, where there is none. */
static bool grow(trial *r, size_t bytes, cudaError_t *result)
{
    if (bytes <= r->workspace_bytes) return true;
    (void)cudaFree(r->workspace);
    r->workspace = NULL;
    r->workspace_bytes = 0;
    *result = cudaMalloc(&r->workspace, bytes);
    if (*result == cudaSuccess) r->workspace_bytes = bytes;
    if (*result != cudaErrorMemoryAllocation) return true;
    (void)cudaGetLastError();
    *result = cudaSuccess;
    r->no_room = true;
    return false;
}

/* Which plan it is may not depend on how much memory is free. */
static ddp_status no_room_to_try(const cu_dnn_conv *t, ddp_err *err)
{
    return ddp_fail(err, DDP_ERR_NOMEM,
                    "no GPU memory is left to try %s by cuDNN in, which [train] deterministic = yes needs; "
                    "set a smaller batch_size, or [device.cuda] cudnn_library to nothing",
                    texts[t->what]);
}

static cu_plan_choice check(void *ctx, cu_dnn_graph *g, const char *name, ddp_err *err)
{
    trial *r = ctx;
    const cu_dnn *d = r->t->d;
    float ms = INFINITY;
    cudaError_t result = cudaSuccess;

    if (!grow(r, g->workspace, &result)) {
        if (!d->deterministic) return CU_PLAN_NEXT;
        (void)no_room_to_try(r->t, err);
        return CU_PLAN_FAIL;
    }
    if (result == cudaSuccess && d->deterministic) { /* whether it runs: no time may decide */
        if (!start_trial(r)) {
            (void)cudaGetLastError();
            return CU_PLAN_NEXT;
        }
        result = cudaStreamSynchronize(d->timer.stream);
        if (result == cudaSuccess) return CU_PLAN_TAKE;
    } else if (result == cudaSuccess) {
        result = cu_timer_measure(&d->timer, start_trial, r, r->best, &ms);
    }
    if (result != cudaSuccess) {
        (void)cu_fail(result, err, "trying %s by cuDNN", texts[r->t->what]);
        return CU_PLAN_FAIL;
    }
    if (!(ms < r->best)) return CU_PLAN_NEXT;
    r->best = ms;
    (void)snprintf(r->name, sizeof(r->name), "%s", name);
    return CU_PLAN_BEST;
}

/* Operands. */
static cudaError_t make_room(trial *r)
{
    const cu_dnn_conv *t = r->t;
    const shapes s = shapes_of(&t->c);
    const uint64_t x = bytes_of(&s.x, t->type), w = bytes_of(&s.w, t->type), y = bytes_of(&s.y, t->type);
    const uint64_t bytes[3][ARRAYS] = {
        [CU_CONV_FORWARD] = {x, w, y}, [CU_CONV_GRAD_INPUT] = {y, w, x}, [CU_CONV_GRAD_WEIGHT] = {y, x, w}};
    cudaError_t result = cu_scratch_open(&r->s, t->d->timer.stream, bytes[t->what], ARRAYS);

    r->no_room = result == cudaErrorMemoryAllocation;
    if (!r->no_room) return result;
    (void)cudaGetLastError();
    return cudaSuccess;
}

static void key_of(const cu_dnn_conv *t, char key[CU_ALGORITHM_KEY])
{
    static const char *const names[] = {"y", "dx", "dw"};
    const cu_conv *c = &t->c;
    const cu_window *w = &c->w;

    (void)snprintf(key, CU_ALGORITHM_KEY,
                   "%s-n%lld-h%lld-w%lld-c%lld-o%lld-k%lldx%lld-s%lldx%lld-p%lldx%lld-g%lld-%s-x%d", names[t->what],
                   (long long)c->in.n, (long long)c->in.h, (long long)c->in.w, (long long)c->in.c, (long long)c->o,
                   (long long)w->kernel[0], (long long)w->kernel[1], (long long)w->stride[0], (long long)w->stride[1],
                   (long long)w->padding[0], (long long)w->padding[1], (long long)c->groups,
                   t->type == CU_BF16 ? "bf16" : "f32", t->d->tf32);
}

/* Sums are in f32; f32 is not rounded before it is multiplied, but to tf32 where that is allowed. */
static uint32_t refused_notes(const cu_dnn_conv *t)
{
    uint32_t notes = CU_NOTE(REDUCED_PRECISION_REDUCTION);

    if (t->d->deterministic) notes |= CU_NOTE(NONDETERMINISTIC);
    if (t->type == CU_F32) notes |= CU_NOTE(DOWN_CONVERT_INPUTS);
    if (t->type == CU_F32 && !t->d->tf32) notes |= CU_NOTE(TENSOR_CORE);
    return notes;
}

/* The fastest that runs or, where there is no room to find that out, the first. */
static ddp_status try_all(cu_dnn_conv *t, cu_dnn_search how, const char *key, ddp_err *err)
{
    trial r = {.t = t, .best = INFINITY, .why = CUDNN_STATUS_SUCCESS};
    cudaError_t result = make_room(&r);
    ddp_status status = DDP_ERR_UNSUPPORTED;

    if (result != cudaSuccess) return cu_fail(result, err, "operands to try a convolution with");
    how.check = check;
    how.ctx = &r;
    if (r.no_room && t->d->deterministic) status = no_room_to_try(t, err);
    if (!r.no_room) status = cu_dnn_graph_plan(&t->graph, &how, texts[t->what], err);
    cu_scratch_close(&r.s);
    (void)cudaFree(r.workspace);
    how.check = NULL;
    if (status == DDP_ERR_UNSUPPORTED && r.no_room) return cu_dnn_graph_plan(&t->graph, &how, texts[t->what], err);
    if (status == DDP_ERR_UNSUPPORTED && r.why != CUDNN_STATUS_SUCCESS) {
        (void)cu_fail_dnn(t->d->l, r.why, err, "%s by cuDNN: no plan runs", texts[t->what]);
        return err->status = DDP_ERR_UNSUPPORTED;
    }
    if (status == DDP_OK && r.name[0] != '\0')
        cu_algorithms_put(t->d->known, key, r.name, (uint64_t)((double)r.best * 1e6));
    return status;
}

static ddp_status choose(cu_dnn_conv *t, const char *key, ddp_err *err)
{
    cu_dnn_search how = {.limit = MAX_WORKSPACE, .refused = refused_notes(t), .most = MAX_CANDIDATES};
    uint64_t nanoseconds;

    how.only = cu_algorithms_find(t->d->known, key, &nanoseconds);
    if (how.only != NULL && cu_dnn_graph_plan(&t->graph, &how, texts[t->what], err) == DDP_OK) return DDP_OK;
    how.only = NULL;
    return try_all(t, how, key, err);
}

static void tell(const cu_dnn_conv *t, const char *key)
{
    const ddp_host *h = t->d->host;
    uint64_t nanoseconds = 0;

    (void)cu_algorithms_find(t->d->known, key, &nanoseconds);
    if (h != NULL && h->log != NULL)
        h->log(h->ctx, DDP_LOG_DEBUG, __FILE__, __LINE__, "cuDNN takes %s for %s, measured: %.1f us",
               t->graph.name[0] != '\0' ? t->graph.name : "a plan without a name", key, (double)nanoseconds / 1e3);
}

/* ---- create ------------------------------------------------------------------------------------------------------ */
ddp_status cu_dnn_conv_create(cu_dnn *d, uint32_t what, const cu_conv *c, uint32_t type, cu_dnn_conv **out,
                              ddp_err *err)
{
    cu_dnn_conv *t;
    char key[CU_ALGORITHM_KEY];
    ddp_status status;

    if (what > CU_CONV_GRAD_WEIGHT || !fits(c))
        return ddp_fail(err, DDP_ERR_UNSUPPORTED, "cuDNN takes no convolution of these sizes");
    t = calloc(1, sizeof(*t));
    if (t == NULL) return ddp_fail(err, DDP_ERR_NOMEM, "out of memory for a convolution");
    t->d = d;
    t->what = what;
    t->type = type;
    t->c = *c;
    cu_dnn_conv_describe(&t->graph, d, what, c, type);
    key_of(t, key);
    status = choose(t, key, err);
    if (status != DDP_OK) {
        cu_dnn_conv_free(t);
        return status;
    }
    tell(t, key);
    *out = t;
    return DDP_OK;
}

void cu_dnn_conv_free(cu_dnn_conv *t)
{
    if (t == NULL) return;
    cu_dnn_graph_end(&t->graph);
    free(t);
}
