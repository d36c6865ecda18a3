/* plugins/device/cuda/host/run.c -- runs ranges of kernels. What changes from run to run lies in the instance's own
 * memory and is uploaded in front of them; the kernels themselves are the same each time, so that a range is started
 * as one CUDA graph from its second run on: one for each of the two stages that batches take in turn, and where the
 * run is a step, with its update. */
#include "instance.h"

#include <string.h>

/* ---- kernels ----------------------------------------------------------------------------------------------------- */
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

/* Of one stage. */
typedef struct range {
    uint32_t first, last, flags;
    const cu_ending *ending;
} range;

static ddp_status start_range(const ddp_instance *in, range r, uint32_t stage, ddp_err *err)
{
    ddp_status status = DDP_OK;

    for (uint32_t i = r.first; status == DDP_OK && i < r.last; i++)
        status = start_kernel(&in->stages[stage].calls[i], r.flags, err);
    return status == DDP_OK && r.ending != NULL ? cu_ending_start(in, r.ending, stage, err) : status;
}

/* ---- CUDA graphs ------------------------------------------------------------------------------------------------- */
static const cu_graph *find_graph(const ddp_instance *in, range r, uint32_t stage)
{
    for (uint32_t i = 0; i < in->graph_count; i++) {
        const cu_graph *g = &in->graphs[i];
        if (g->first == r.first && g->last == r.last && g->flags == r.flags && g->ending == r.ending &&
            g->stage == stage)
            return g;
    }
    return NULL;
}

/* Nothing runs while it is captured. */
static ddp_status capture(ddp_instance *in, range r, uint32_t stage, ddp_err *err)
{
    const ddp_device *d = in->exec->device;
    cu_graph *g = &in->graphs[in->graph_count];
    cudaGraph_t graph = NULL;
    ddp_status status;
    cudaError_t result = cudaStreamBeginCapture(cu_compute(d), cudaStreamCaptureModeThreadLocal);

    if (result != cudaSuccess) return cu_fail(result, err, "a graph cannot be begun");
    status = start_range(in, r, stage, err);
    result = cudaStreamEndCapture(cu_compute(d), &graph);
    if (status == DDP_OK && result == cudaSuccess) result = cudaGraphInstantiate(&g->exec, graph, 0);
    if (graph != NULL) (void)cudaGraphDestroy(graph);
    if (status != DDP_OK) return status;
    if (result != cudaSuccess) return cu_fail(result, err, "they cannot be made a graph");
    g->first = r.first;
    g->last = r.last;
    g->flags = r.flags;
    g->stage = stage;
    g->ending = r.ending;
    in->graph_count++;
    return DDP_OK;
}

/* The range has run already: a library that cannot be captured costs the graphs, not the training. An ending belongs
 * to one stage, as a rule; kernels alone come with each in turn. */
static void try_capture(ddp_instance *in, range r)
{
    ddp_device *d = in->exec->device;
    ddp_err err = {0};

    for (uint32_t stage = 0; stage < CU_STAGES && in->graph_count < CU_GRAPHS; stage++) {
        if (r.ending != NULL && stage != in->stage) continue;
        if (capture(in, r, stage, &err) == DDP_OK) continue;
        (void)cudaGetLastError();
        d->graphs = false;
        CU_LOG(d, DDP_LOG_WARN,
               "device \"cuda:%d\": kernels %u to %u are started one by one from now on, which is slower: %s",
               d->ordinal, r.first, r.last, err.msg);
        return;
    }
}

/* The first run is without a graph: it loads what the kernels and the libraries load once, which may not happen in a
 * capture. */
static ddp_status start(ddp_instance *in, range r, ddp_err *err)
{
    const ddp_device *d = in->exec->device;
    const cu_graph *g = find_graph(in, r, in->stage);
    ddp_status status;
    cudaError_t result;

    if (g != NULL) {
        result = cudaGraphLaunch(g->exec, cu_compute(d));
        return result == cudaSuccess ? DDP_OK
                                     : cu_fail(result, err, "device \"cuda:%d\": the graph of kernels %u to %u",
                                               d->ordinal, r.first, r.last);
    }
    status = start_range(in, r, in->stage, err);
    if (status == DDP_OK && d->graphs && (r.last - r.first >= 2 || r.ending != NULL)) try_capture(in, r);
    return status;
}

/* ---- uploads ----------------------------------------------------------------------------------------------------- */
/* What a sequence reads of the host's goes up on a stream of its own, to the stage that the sequence before does not
 * read: where the host is ahead, beside the kernels of that. A field is due in front of the first kernel of the
 * sequence that reads it: it may not be there before. */
static bool is_due(const ddp_instance *in, uint32_t f, uint32_t first, uint32_t last)
{
    const ddp_exec *e = in->exec;

    return !in->uploaded[f] && e->next_reader[(size_t)f * (e->lowered->kernel_count + 1) + first] < last;
}

static ddp_status upload_fields(ddp_instance *in, const ddp_run *r, uint32_t first, uint32_t last, bool *any,
                                ddp_err *err)
{
    const ddp_exec *e = in->exec;
    const cu_stage *s = &in->stages[in->stage];
    cudaError_t result = cudaSuccess;

    for (uint32_t f = 0; result == cudaSuccess && f < e->field_count; f++) {
        if (!is_due(in, f, first, last)) continue;
        if (r->inputs[f] == NULL)
            return ddp_fail(err, DDP_ERR_INVALID, "device \"cuda\": field %u of the batch is not there", f);
        result = cudaMemcpyAsync(s->at + e->field_at[f], r->inputs[f], e->field_bytes[f], cudaMemcpyDefault,
                                 e->device->input);
        in->uploaded[f] = *any = true;
    }
    return result == cudaSuccess ? DDP_OK
                                 : cu_fail(result, err, "device \"cuda:%d\": fields of the batch", e->device->ordinal);
}

static ddp_status upload_head(ddp_instance *in, const ddp_random *random, const cu_numbers *numbers, ddp_err *err)
{
    ddp_device *d = in->exec->device;
    uint32_t slot = d->ring.next++ % CU_RING;
    cudaError_t result = cudaEventSynchronize(d->ring.past[slot]);

    if (result == cudaSuccess) {
        d->ring.slots[slot] = (cu_head){.random = {.seed = random->seed, .stream = random->stream}};
        if (numbers != NULL) d->ring.slots[slot].numbers = *numbers;
        result = cudaMemcpyAsync(in->stages[in->stage].at, &d->ring.slots[slot], sizeof(cu_head),
                                 cudaMemcpyHostToDevice, d->input);
    }
    if (result == cudaSuccess) result = cudaEventRecord(d->ring.past[slot], d->input);
    if (result != cudaSuccess) return cu_fail(result, err, "device \"cuda:%d\": the numbers of a run", d->ordinal);
    in->random = *random;
    return DDP_OK;
}

/* The stage may be written once all that was started with it is past. */
static ddp_status free_stage(const ddp_instance *in, ddp_err *err)
{
    const ddp_device *d = in->exec->device;
    cudaError_t result = cudaStreamWaitEvent(d->input, in->stages[in->stage].taken, 0);

    return result == cudaSuccess ? DDP_OK : cu_fail(result, err, "device \"cuda:%d\": a stage", d->ordinal);
}

static ddp_status upload(ddp_instance *in, const ddp_run *r, uint32_t first, uint32_t last, const cu_numbers *numbers,
                         ddp_err *err)
{
    const ddp_device *d = in->exec->device;
    bool begins = first != in->ended || numbers != NULL, any = false;
    bool new_random = begins || r->random.seed != in->random.seed || r->random.stream != in->random.stream;
    bool head = numbers != NULL || (in->exec->random && new_random);
    cudaEvent_t there;
    ddp_status status = DDP_OK;
    cudaError_t result = cudaSuccess;

    if (begins) {
        memset(in->uploaded, 0, in->exec->field_count * sizeof(*in->uploaded));
        in->stage = (in->stage + 1) % CU_STAGES;
    }
    there = in->stages[in->stage].there;
    in->ended = last;
    if (begins || head) status = free_stage(in, err);
    if (status == DDP_OK && in->mirror != NULL && !in->mirror->filled)
        status = cu_mirror_fill(in->exec->device, in->mirror, err);
    if (status == DDP_OK && head) status = upload_head(in, &r->random, numbers, err);
    if (status == DDP_OK) status = upload_fields(in, r, first, last, &any, err);
    if (status != DDP_OK || !(any || head)) return status;
    result = cudaEventRecord(there, d->input);
    if (result == cudaSuccess) result = cudaStreamWaitEvent(cu_compute(d), there, 0);
    return result == cudaSuccess ? DDP_OK : cu_fail(result, err, "device \"cuda:%d\": a batch", d->ordinal);
}

/* ---- runs -------------------------------------------------------------------------------------------------------- */
ddp_status cu_run_range(ddp_instance *in, const ddp_run *r, uint32_t first, uint32_t last, const cu_ending *ending,
                        const cu_numbers *numbers, ddp_err *err)
{
    const ddp_device *d = in->exec->device;
    const range all = {first, last, r->flags, ending};
    ddp_status status = cu_known_fault(in->exec->device, err);
    cudaError_t result;

    if (status == DDP_OK) status = upload(in, r, first, last, numbers, err);
    if (status == DDP_OK && (first < last || ending != NULL)) status = start(in, all, err);
    if (status != DDP_OK) return status;
    result = cudaEventRecord(in->stages[in->stage].taken, cu_compute(d));
    return result == cudaSuccess ? DDP_OK : cu_fail(result, err, "device \"cuda:%d\": a run's end", d->ordinal);
}

ddp_status cu_run(ddp_instance *in, const ddp_run *r, uint32_t first, uint32_t last, ddp_err *err)
{
    const ddp_exec *e = in->exec;
    ddp_status status = cu_enter(e->device, err);

    if (status != DDP_OK) return status;
    if (first > last || last > e->lowered->kernel_count)
        return ddp_fail(err, DDP_ERR_INVALID, "device \"cuda\": run of kernels %u to %u, but the program has %u", first,
                        last, e->lowered->kernel_count);
    return cu_run_range(in, r, first, last, NULL, NULL, err);
}
