/* run.c -- runs ranges of kernels. What changes from run to run lies in the instance's own memory and is uploaded in front of them;
 * the kernels themselves are the same each time, so that a range is started as one CUDA graph from its second run on. */
#include "cu.h"

#include <string.h>

/* ---- kernels ---------------------------------------------------------------------------------------------------------- */
static ddp_status convert(const cu_call *c, const cu_move *m, bool add, ddp_err *err)
{
    const int64_t *dims = m->value->dims;
    cudaError_t result;

    if (m->how == LOW_TO_IMAGE)
        result = cu_channels_last(c->stream, m->from, m->to, dims[0], dims[1], dims[2] * dims[3], add);
    else if (m->how == LOW_TO_PLAIN)
        result = cu_channels_first(c->stream, m->from, m->to, dims[0], dims[1], dims[2] * dims[3], add);
    else
        result = cu_convert(c->stream, m->from, m->to, m->value->elements, add);
    return cu_started(c, result, err);
}

/* With the run's flag it adds to all of the gradient arena, else as the program says. */
static ddp_status start_kernel(cu_call *c, uint32_t flags, ddp_err *err)
{
    uint32_t adds = c->k->adds | ((flags & DDP_RUN_GRAD_ADD) != 0 ? c->grads : 0);
    ddp_status status = DDP_OK;

    c->adds = adds & ~c->changed;
    for (uint32_t i = 0; status == DDP_OK && i < c->before_count; i++) status = convert(c, &c->before[i], false, err);
    if (status == DDP_OK) status = cu_family_of(c->k)->run(c, err);
    for (uint32_t i = 0; status == DDP_OK && i < c->after_count; i++)
        status = convert(c, &c->after[i], (adds >> c->after[i].slot & 1u) != 0, err);
    return status;
}

static ddp_status start_range(ddp_instance *in, uint32_t first, uint32_t last, uint32_t flags, ddp_err *err)
{
    ddp_status status = DDP_OK;

    for (uint32_t i = first; status == DDP_OK && i < last; i++) status = start_kernel(&in->calls[i], flags, err);
    return status;
}

/* ---- CUDA graphs -------------------------------------------------------------------------------------------------------- */
static const cu_graph *find_graph(const ddp_instance *in, uint32_t first, uint32_t last, uint32_t flags)
{
    for (uint32_t i = 0; i < in->graph_count; i++)
        if (in->graphs[i].first == first && in->graphs[i].last == last && in->graphs[i].flags == flags)
            return &in->graphs[i];
    return NULL;
}

/* Nothing runs while it is captured. */
static ddp_status capture(ddp_instance *in, uint32_t first, uint32_t last, uint32_t flags, ddp_err *err)
{
    const ddp_device *d = in->exec->device;
    cu_graph *g = &in->graphs[in->graph_count];
    cudaGraph_t graph = NULL;
    ddp_status status;
    cudaError_t result = cudaStreamBeginCapture(cu_compute(d), cudaStreamCaptureModeThreadLocal);

    if (result != cudaSuccess) return cu_fail(result, err, "a graph cannot be begun");
    status = start_range(in, first, last, flags, err);
    result = cudaStreamEndCapture(cu_compute(d), &graph);
    if (status == DDP_OK && result == cudaSuccess) result = cudaGraphInstantiate(&g->exec, graph, 0);
    if (graph != NULL) (void)cudaGraphDestroy(graph);
    if (status != DDP_OK) return status;
    if (result != cudaSuccess) return cu_fail(result, err, "they cannot be made a graph");
    g->first = first;
    g->last = last;
    g->flags = flags;
    in->graph_count++;
    return DDP_OK;
}

/* The range has run already: a library that cannot be captured costs the graphs, not the training. */
static void try_capture(ddp_instance *in, uint32_t first, uint32_t last, uint32_t flags)
{
    ddp_device *d = in->exec->device;
    ddp_err err = {0};

    if (capture(in, first, last, flags, &err) == DDP_OK) return;
    (void)cudaGetLastError();
    d->graphs = false;
    CU_LOG(d, DDP_LOG_WARN,
           "device \"cuda:%d\": kernels %u to %u are started one by one from now on, which is slower: %s", d->ordinal,
           first, last, err.msg);
}

/* The first run is without a graph: it loads what the kernels and the libraries load once, which may not happen in a capture. */
static ddp_status start(ddp_instance *in, uint32_t first, uint32_t last, uint32_t flags, ddp_err *err)
{
    const ddp_device *d = in->exec->device;
    const cu_graph *g = find_graph(in, first, last, flags);
    ddp_status status;
    cudaError_t result;

    if (g != NULL) {
        result = cudaGraphLaunch(g->exec, cu_compute(d));
        return result == cudaSuccess
                   ? DDP_OK
                   : cu_fail(result, err, "device \"cuda:%d\": the graph of kernels %u to %u", d->ordinal, first, last);
    }
    status = start_range(in, first, last, flags, err);
    if (status == DDP_OK && d->graphs && last - first >= 2 && in->graph_count < CU_GRAPHS)
        try_capture(in, first, last, flags);
    return status;
}

/* ---- uploads ------------------------------------------------------------------------------------------------------------ */
/* Fields go up on a stream of their own, to a stage that the last sequence but one has left: where the host is ahead, beside the
 * kernels of the step before. */
static cudaError_t stage_field(const ddp_instance *in, const ddp_run *r, uint32_t f)
{
    const ddp_exec *e = in->exec;

    return cudaMemcpyAsync(in->stages[in->stage].at + e->field_at[f], r->inputs[f], e->field_bytes[f],
                           cudaMemcpyDefault, e->device->input);
}

static cudaError_t take_field(const ddp_instance *in, uint32_t f)
{
    const ddp_exec *e = in->exec;

    return cudaMemcpyAsync(in->own + e->field_at[f], in->stages[in->stage].at + e->field_at[f], e->field_bytes[f],
                           cudaMemcpyDeviceToDevice, cu_compute(e->device));
}

/* A field is due in front of the first kernel of the sequence that reads it: a stage's may not be there before. */
static bool is_due(const ddp_instance *in, uint32_t f, uint32_t first, uint32_t last)
{
    const ddp_exec *e = in->exec;

    return !in->uploaded[f] && e->next_reader[(size_t)f * (e->lowered->kernel_count + 1) + first] < last;
}

static ddp_status upload_fields(ddp_instance *in, const ddp_run *r, uint32_t first, uint32_t last, ddp_err *err)
{
    const ddp_exec *e = in->exec;
    const cu_stage *s = &in->stages[in->stage];
    cudaError_t result = cudaSuccess;
    bool any = false;

    for (uint32_t f = 0; result == cudaSuccess && f < e->field_count; f++) {
        if (!is_due(in, f, first, last)) continue;
        if (r->inputs[f] == NULL)
            return ddp_fail(err, DDP_ERR_INVALID, "device \"cuda\": field %u of the batch is not there", f);
        any = true;
        result = stage_field(in, r, f);
    }
    if (!any) return DDP_OK;
    if (result == cudaSuccess) result = cudaEventRecord(s->there, e->device->input);
    if (result == cudaSuccess) result = cudaStreamWaitEvent(cu_compute(e->device), s->there, 0);
    for (uint32_t f = 0; result == cudaSuccess && f < e->field_count; f++) {
        if (!is_due(in, f, first, last)) continue;
        result = take_field(in, f);
        in->uploaded[f] = true;
    }
    if (result == cudaSuccess) result = cudaEventRecord(s->taken, cu_compute(e->device));
    return result == cudaSuccess ? DDP_OK
                                 : cu_fail(result, err, "device \"cuda:%d\": fields of the batch", e->device->ordinal);
}

/* A new sequence: the other stage, once what it had was taken. */
static ddp_status turn_stage(ddp_instance *in, ddp_err *err)
{
    const ddp_device *d = in->exec->device;
    cudaError_t result;

    memset(in->uploaded, 0, in->exec->field_count * sizeof(*in->uploaded));
    in->stage = (in->stage + 1) % CU_STAGES;
    result = cudaStreamWaitEvent(d->input, in->stages[in->stage].taken, 0);
    return result == cudaSuccess ? DDP_OK : cu_fail(result, err, "device \"cuda:%d\": a stage", d->ordinal);
}

static ddp_status upload_random(ddp_instance *in, const ddp_random *random, ddp_err *err)
{
    ddp_device *d = in->exec->device;
    uint32_t slot = d->ring.next++ % CU_RING;
    cudaError_t result = cudaEventSynchronize(d->ring.past[slot]);

    if (result == cudaSuccess) {
        d->ring.slots[slot] = (cu_run_params){.seed = random->seed, .stream = random->stream};
        result = cudaMemcpyAsync(in->own + in->exec->own_bytes, &d->ring.slots[slot], sizeof(cu_run_params),
                                 cudaMemcpyHostToDevice, cu_compute(d));
    }
    if (result == cudaSuccess) result = cudaEventRecord(d->ring.past[slot], cu_compute(d));
    if (result != cudaSuccess) return cu_fail(result, err, "device \"cuda:%d\": a run's random numbers", d->ordinal);
    in->random = *random;
    return DDP_OK;
}

static ddp_status upload(ddp_instance *in, const ddp_run *r, uint32_t first, uint32_t last, ddp_err *err)
{
    bool begins = first != in->ended;
    bool new_random = begins || r->random.seed != in->random.seed || r->random.stream != in->random.stream;
    ddp_status status = DDP_OK;

    if (begins) status = turn_stage(in, err);
    in->ended = last;
    if (status == DDP_OK && in->mirror != NULL && !in->mirror->filled)
        status = cu_mirror_fill(in->exec->device, in->mirror, err);
    if (status == DDP_OK && in->exec->random && new_random) status = upload_random(in, &r->random, err);
    return status == DDP_OK ? upload_fields(in, r, first, last, err) : status;
}

ddp_status cu_run(ddp_instance *in, const ddp_run *r, uint32_t first, uint32_t last, ddp_err *err)
{
    const ddp_exec *e = in->exec;
    ddp_status status = cu_enter(e->device, err);

    if (status != DDP_OK) return status;
    if (first > last || last > e->lowered->kernel_count)
        return ddp_fail(err, DDP_ERR_INVALID, "device \"cuda\": run of kernels %u to %u, but the program has %u", first,
                        last, e->lowered->kernel_count);
    status = cu_known_fault(e->device, err);
    if (status == DDP_OK) status = upload(in, r, first, last, err);
    return status == DDP_OK && first < last ? start(in, first, last, r->flags, err) : status;
}
