/* plugins/device/cuda/host/run.c -- runs ranges of kernels. What changes from run to run lies in the instance's own
 * memory and is uploaded in front of them; the kernels themselves are the same each time, so that a range is started
 * as one CUDA graph from its second run on: one for each of the two stages that batches take in turn, and where the
 * run is a step, with its update. */
#include "instance.h"

#include <math.h>
#include <stdlib.h>
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

/* The same with some kernels beside others, of a range that is captured. */
static ddp_status start_beside(cu_beside *b, range r, uint32_t stage, ddp_err *err)
{
    const ddp_device *d = b->in->exec->device;
    ddp_status status = DDP_OK;
    cudaError_t result = cudaSuccess;

    for (uint32_t i = r.first; status == DDP_OK && result == cudaSuccess && i < r.last; i++) {
        cu_call c = b->in->stages[stage].calls[i];
        result = cu_beside_begin(b, &c, &c.stream);
        if (result == cudaSuccess) status = start_kernel(&c, r.flags, err);
        if (result == cudaSuccess && status == DDP_OK) result = cu_beside_end(b);
    }
    if (status == DDP_OK && result == cudaSuccess) result = cu_beside_join(b);
    if (status == DDP_OK && result != cudaSuccess)
        status = cu_fail(result, err, "device \"cuda:%d\": the second stream", d->ordinal);
    return status == DDP_OK && r.ending != NULL ? cu_ending_start(b->in, r.ending, stage, err) : status;
}

/* ---- CUDA graphs ------------------------------------------------------------------------------------------------- */
enum { TURNS = 4 }; /* of each way */

static cu_graph *find_graph(ddp_instance *in, range r, uint32_t stage)
{
    for (uint32_t i = 0; i < in->graph_count; i++) {
        cu_graph *g = &in->graphs[i];
        if (g->first == r.first && g->last == r.last && g->flags == r.flags && g->ending == r.ending &&
            g->stage == stage)
            return g;
    }
    return NULL;
}

static void drop_way(cu_graph *g, uint32_t way)
{
    if (g->exec[way] != NULL) (void)cudaGraphExecDestroy(g->exec[way]);
    g->exec[way] = NULL;
}

void cu_graph_free(ddp_device *d, cu_graph *g)
{
    d->side.timed = NULL;
    for (uint32_t way = 0; way < CU_WAYS; way++) drop_way(g, way);
}

/* Nothing runs while it is captured. b: with some kernels beside others; NULL: one after the other. */
static ddp_status capture(const ddp_instance *in, range r, uint32_t stage, cu_beside *b, cudaGraphExec_t *out,
                          ddp_err *err)
{
    const ddp_device *d = in->exec->device;
    cudaGraph_t graph = NULL;
    ddp_status status;
    cudaError_t result = cudaStreamBeginCapture(cu_compute(d), cudaStreamCaptureModeThreadLocal);

    *out = NULL;
    if (result != cudaSuccess) return cu_fail(result, err, "a graph cannot be begun");
    status = b != NULL ? start_beside(b, r, stage, err) : start_range(in, r, stage, err);
    result = cudaStreamEndCapture(cu_compute(d), &graph);
    if (status == DDP_OK && result == cudaSuccess) result = cudaGraphInstantiate(out, graph, 0);
    if (graph != NULL) (void)cudaGraphDestroy(graph);
    if (status != DDP_OK) return status;
    return result == cudaSuccess ? DDP_OK : cu_fail(result, err, "they cannot be made a graph");
}

/* The way with a second stream, where there is something for it to do. */
static ddp_status capture_beside(const ddp_instance *in, range r, uint32_t stage, cu_graph *g, ddp_err *err)
{
    const ddp_device *d = in->exec->device;
    cu_beside *b = calloc(1, sizeof(*b));
    ddp_status status;

    if (b == NULL) return ddp_fail(err, DDP_ERR_NOMEM, "out of memory for a graph");
    b->in = in;
    status = capture(in, r, stage, b, &g->exec[CU_BESIDE], err);
    if (status == DDP_OK && b->total == 0) drop_way(g, CU_BESIDE);
    if (status == DDP_OK && b->total > 0 && d->side_always) {
        drop_way(g, CU_IN_ORDER);
        g->way = CU_BESIDE;
    }
    if (status == DDP_OK && b->total > 0)
        CU_LOG(d, DDP_LOG_DEBUG,
               "device \"cuda:%d\": of kernels %u to %u, %u may run on a second stream; the first waits %u times",
               d->ordinal, r.first, r.last, b->total, b->waits);
    free(b);
    return status;
}

static ddp_status capture_ways(ddp_instance *in, range r, uint32_t stage, ddp_err *err)
{
    ddp_device *d = in->exec->device;
    cu_graph *g = &in->graphs[in->graph_count];
    ddp_status status;

    *g = (cu_graph){.first = r.first,
                    .last = r.last,
                    .flags = r.flags,
                    .stage = stage,
                    .ending = r.ending,
                    .ms = {INFINITY, INFINITY}};
    status = capture(in, r, stage, NULL, &g->exec[CU_IN_ORDER], err);
    if (status != DDP_OK) return status;
    in->graph_count++;
    if (d->side.stream == NULL || d->side.refused || capture_beside(in, r, stage, g, err) == DDP_OK) return DDP_OK;
    (void)cudaGetLastError();
    d->side.refused = true;
    CU_LOG(d, DDP_LOG_WARN, "device \"cuda:%d\": kernels run one after the other, without side_stream: %s", d->ordinal,
           err->msg);
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
        if (capture_ways(in, r, stage, &err) == DDP_OK) continue;
        (void)cudaGetLastError();
        d->graphs = false;
        CU_LOG(d, DDP_LOG_WARN,
               "device \"cuda:%d\": kernels %u to %u are started one by one from now on, which is slower: %s",
               d->ordinal, r.first, r.last, err.msg);
        return;
    }
}

/* What the last graph that was timed took, where it is past by now. */
static void read_time(ddp_device *d)
{
    cu_graph *g = d->side.timed;
    float ms;

    if (g == NULL) return;
    if (cudaEventQuery(d->side.to) != cudaSuccess) {
        (void)cudaGetLastError(); /* that it is not ready */
        return;
    }
    d->side.timed = NULL;
    if (cudaEventElapsedTime(&ms, d->side.from, d->side.to) != cudaSuccess) return;
    if (ms < g->ms[g->way]) g->ms[g->way] = ms;
    g->turns++;
    g->way = g->turns % CU_WAYS;
    if (g->turns < TURNS * CU_WAYS) return;
    g->way = g->ms[CU_BESIDE] < g->ms[CU_IN_ORDER] ? CU_BESIDE : CU_IN_ORDER;
    CU_LOG(d, DDP_LOG_DEBUG, "device \"cuda:%d\": kernels %u to %u take %.4f ms in order, %.4f with a second stream",
           d->ordinal, g->first, g->last, (double)g->ms[CU_IN_ORDER], (double)g->ms[CU_BESIDE]);
}

/* Both ways take turns in the first runs. One graph is timed at once; nobody waits for it. */
static cudaError_t launch(ddp_device *d, cu_graph *g)
{
    bool timed;
    cudaError_t result = cudaSuccess;

    read_time(d);
    timed = g->exec[CU_BESIDE] != NULL && g->exec[CU_IN_ORDER] != NULL && g->turns < TURNS * CU_WAYS &&
            d->side.timed == NULL;
    if (timed) result = cudaEventRecord(d->side.from, cu_compute(d));
    if (result == cudaSuccess) result = cudaGraphLaunch(g->exec[g->way], cu_compute(d));
    if (timed && result == cudaSuccess) result = cudaEventRecord(d->side.to, cu_compute(d));
    if (timed && result == cudaSuccess) d->side.timed = g;
    return result;
}

/* The first run is without a graph: it loads what the kernels and the libraries load once, which may not happen in a
 * capture. */
static ddp_status start(ddp_instance *in, range r, ddp_err *err)
{
    ddp_device *d = in->exec->device;
    cu_graph *g = find_graph(in, r, in->stage);
    ddp_status status;
    cudaError_t result;

    if (g != NULL) {
        result = launch(d, g);
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
