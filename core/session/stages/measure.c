/* session/stages/measure.c -- how long each node of a model takes on this rank's device, without the memory that the
 * whole model needs: kernels run one after the other in address space whose pages are given back after each. What they
 * compute is of zeros, and takes as long. A kernel that looks like one before it has its time. */
#include "session/stages/place.h"
#include "base/sys.h"
#include "session/variants.h"
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

enum { ARENAS = 4, RUNS = 5 };

typedef struct measured {
    uint64_t hash;
    double s;
} measured;

typedef struct bench {
    ddp_session *s;
    ddp_variant v;
    ddp_bind bind;
    void *at[ARENAS]; /* activations, parameters, gradients, buffers */
    size_t bytes[ARENAS];
    void **inputs;
    measured *seen; /* by kernel */
    uint32_t seen_count;
} bench;

/* ---- memory ---------------------------------------------------------------------------------------------------- */
static ddp_status map(bench *b, int i, uint64_t bytes, ddp_err *err)
{
    b->bytes[i] = (size_t)ddp_round_up(bytes + 1, 4096);
    b->at[i] = mmap(NULL, b->bytes[i], PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (b->at[i] != MAP_FAILED) return DDP_OK;
    b->at[i] = NULL;
    return ddp_fail(err, DDP_ERR_NOMEM, "no address space to measure the layers in");
}

static void give_back(const bench *b)
{
    for (int i = 0; i < ARENAS; i++) (void)madvise(b->at[i], b->bytes[i], MADV_DONTNEED);
}

static ddp_status map_all(bench *b, ddp_err *err)
{
    const ddp_session *s = b->s;

    DDP_TRY(map(b, 0, b->v.planned->plan.arena_bytes, err));
    DDP_TRY(map(b, 1, s->model.layout->param_elements * sizeof(float), err));
    DDP_TRY(map(b, 2, s->model.layout->elements * sizeof(float), err));
    DDP_TRY(map(b, 3, s->model.buffer_elements * sizeof(float), err));
    b->bind = (ddp_bind){
        .struct_size = sizeof(b->bind), .arena = b->at[0], .params = b->at[1], .grads = b->at[2], .buffers = b->at[3]};
    return DDP_OK;
}

/* Zeros, which are a label and a token of every model. */
static ddp_status make_inputs(bench *b, ddp_err *err)
{
    b->inputs = ddp_alloc((b->s->train.field_count + 1) * sizeof(void *), err);
    if (b->inputs == NULL) return err->status;
    for (uint32_t f = 0; f < b->s->train.field_count; f++) {
        const ddp_field *field = &b->s->train.fields[f];
        size_t bytes = ddp_dtype_size(field->dtype) * (size_t)b->v.batch;

        for (uint32_t i = 0; i < field->rank; i++) bytes *= (size_t)field->dims[i];
        DDP_TRY(ddp_device_host_alloc(&b->s->device, bytes, &b->inputs[f], err));
    }
    return DDP_OK;
}

/* ---- kernels --------------------------------------------------------------------------------------------------- */
static uint64_t hash_of_value(const ddp_program *p, int32_t v, uint64_t hash)
{
    struct {
        int64_t dims[DDP_MAX_DIMS];
        uint32_t kind, dtype, rank, zero;
    } what = {.kind = DDP_VALUE_ACT};

    if (v >= 0) {
        what.kind = p->values[v].kind;
        what.dtype = p->values[v].dtype;
        what.rank = p->values[v].rank;
        memcpy(what.dims, p->values[v].dims, what.rank * sizeof(what.dims[0]));
    }
    return ddp_hash64(&what, sizeof(what), hash + 1);
}

static uint64_t hash_of_kernel(const ddp_program *p, const ddp_kernel *k)
{
    uint64_t hash = 0;

    for (uint32_t i = 0; i < k->node_count; i++) {
        const ddp_node *n = &p->nodes[k->nodes[i]];

        hash = ddp_hash64(&n->op, sizeof(n->op), hash);
        for (uint32_t j = 0; j < n->in_count; j++) hash = hash_of_value(p, n->in[j], hash);
        for (uint32_t j = 0; j < n->out_count; j++) hash = hash_of_value(p, n->out[j], hash);
    }
    return hash;
}

/* The fastest of some runs; the first one brings the pages. */
static ddp_status time_kernel(bench *b, uint32_t k, double *out, ddp_err *err)
{
    ddp_run run = {.struct_size = sizeof(run), .inputs = b->inputs};
    int64_t best = INT64_MAX;

    for (int i = 0; i < RUNS; i++) {
        int64_t from = ddp_now_ns();

        DDP_TRY(ddp_device_run(&b->s->device, b->v.instance, &run, k, k + 1, err));
        DDP_TRY(ddp_device_sync(&b->s->device, err));
        if (i > 0) best = DDP_MIN_OF(best, ddp_now_ns() - from);
    }
    *out = (double)best * 1e-9;
    give_back(b);
    return DDP_OK;
}

static ddp_status kernel_time(bench *b, uint32_t k, double *out, ddp_err *err)
{
    uint64_t hash = hash_of_kernel(b->v.program, ddp_kernel_at(b->v.lowered, k));

    for (uint32_t i = 0; i < b->seen_count; i++)
        if (b->seen[i].hash == hash) {
            *out = b->seen[i].s;
            return DDP_OK;
        }
    DDP_TRY(time_kernel(b, k, out, err));
    b->seen[b->seen_count++] = (measured){hash, *out};
    return DDP_OK;
}

static ddp_status measure(bench *b, double *times, ddp_err *err)
{
    b->seen = ddp_alloc((b->v.lowered->kernel_count + 1) * sizeof(*b->seen), err);
    if (b->seen == NULL) return err->status;
    DDP_TRY(map_all(b, err));
    DDP_TRY(make_inputs(b, err));
    DDP_TRY(ddp_variant_ready(b->s, &b->v, &b->bind, err));
    for (uint32_t k = 0; k < b->v.lowered->kernel_count; k++) {
        const ddp_kernel *kernel = ddp_kernel_at(b->v.lowered, k);
        double s;

        DDP_TRY(kernel_time(b, k, &s, err));
        for (uint32_t i = 0; i < kernel->node_count; i++)
            times[b->v.program->nodes[kernel->nodes[i]].device] += s / kernel->node_count;
    }
    return DDP_OK;
}

static void free_all(bench *b)
{
    for (uint32_t f = 0; b->inputs != NULL && f < b->s->train.field_count; f++)
        ddp_device_host_free(&b->s->device, b->inputs[f]);
    free(b->inputs);
    free(b->seen);
    session_variant_free(b->s, &b->v);
    for (int i = 0; i < ARENAS; i++)
        if (b->at[i] != NULL) (void)munmap(b->at[i], b->bytes[i]);
}

ddp_status ddp_session_stage_times(ddp_session *s, double *times, ddp_err *err)
{
    bench b = {.s = s, .v = {.batch = s->batches.batch_size, .training = true}};
    uint32_t stages = s->devices.rank_stages;
    ddp_status st;

    for (uint32_t i = 0; i < ddp_graph_nodes(s->model.graph); i++) times[i] = 0.0;
    ddp_graph_place_each(s->model.graph);
    s->devices.rank_stages = 1; /* it is the whole that is planned */
    st = session_variant_plan(s, &b.v, err);
    s->devices.rank_stages = stages;
    if (st == DDP_OK) st = measure(&b, times, err);
    free_all(&b);
    return st;
}
