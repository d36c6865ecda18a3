/* train/local/stage.c -- see stage.h: programs, memory, and a stage's side of a step. */
#include "train/local/stage.h"
#include "session/metrics.h"
#include "train/local/batch.h"
#include <inttypes.h>
#include <stdlib.h>

/* ---- opening --------------------------------------------------------------------------------------------------- */
static const ddp_variant *variants_of(const ddp_stage *g) { return g->pipe->t->s->programs.variants; }

static ddp_status check_sent(const ddp_stage *g, const ddp_stages *cut, const ddp_plan *plan, ddp_err *err)
{
    for (uint32_t i = 0; i < cut->crossing_count; i++) {
        const ddp_crossing *x = &cut->crossings[i];

        if (x->from == g->number && x->sent >= 0 && plan->value_offset[x->sent] == DDP_NO_OFFSET)
            return ddp_fail(
                err, DDP_ERR_UNSUPPORTED,
                "\"%s\" goes from device %u to device %u and is a view of what is not computed there; place its layer on device %u too",
                cut->programs[g->number]->values[x->sent].name, x->from, x->to, x->to);
    }
    return DDP_OK;
}

static ddp_status plan_program(ddp_stage *g, const ddp_stages *cut, ddp_stage_program *p, ddp_err *err)
{
    const ddp_program *program = cut->programs[g->number];

    DDP_TRY_AS(DDP_EXIT_PLUGIN, err, ddp_device_lower(&g->s->device, program, &p->lowered, err));
    DDP_TRY(ddp_lowered_check(program, p->lowered, err));
    DDP_TRY(ddp_plan_create(program, p->lowered, NULL, &p->planned, err));
    DDP_TRY(ddp_stages_split(cut, g->number, p->lowered, &p->split, err));
    DDP_TRY(check_sent(g, cut, &p->planned->plan, err));
    p->instances = ddp_alloc(g->slots * sizeof(ddp_instance *), err);
    return p->instances == NULL ? err->status : DDP_OK;
}

static ddp_status allocate(ddp_stage *g, uint64_t arena_bytes, uint32_t inputs, ddp_err *err)
{
    g->arenas = ddp_alloc(g->slots * sizeof(void *), err);
    g->inputs = ddp_alloc(g->slots * sizeof(void **), err);
    if (g->arenas == NULL || g->inputs == NULL) return err->status;
    for (uint32_t k = 0; k < g->slots; k++) {
        DDP_TRY(ddp_device_alloc(&g->s->device, arena_bytes, &g->arenas[k], err));
        g->inputs[k] = ddp_alloc((inputs + 1) * sizeof(void *), err);
        if (g->inputs[k] == NULL) return err->status;
    }
    for (uint32_t i = 0; i < g->pipe->link_count; i++) {
        ddp_link *l = &g->pipe->links[i];

        if (l->to == g->number || g->pipe->of_ranks)
            DDP_TRY(ddp_device_alloc(&g->s->device, l->slots * l->slot_bytes, &l->memory, err));
    }
    return DDP_OK;
}

ddp_status ddp_stage_open(ddp_stage *g, ddp_err *err)
{
    uint64_t arena_bytes = 0;
    uint32_t inputs = 0;

    for (uint32_t v = 0; v < g->pipe->t->s->programs.count; v++) {
        const ddp_stages *cut = variants_of(g)[v].stages;

        if (cut == NULL) continue;
        DDP_TRY(plan_program(g, cut, &g->programs[v], err));
        arena_bytes = DDP_MAX_OF(arena_bytes, g->programs[v].planned->plan.arena_bytes);
        inputs = DDP_MAX_OF(inputs, cut->inputs[g->number]);
    }
    return allocate(g, arena_bytes, inputs, err);
}

static void close_program(const ddp_stage *g, ddp_stage_program *p)
{
    for (uint32_t k = 0; p->instances != NULL && k < g->slots; k++)
        ddp_device_instance_free(&g->s->device, p->instances[k]);
    free(p->instances);
    ddp_device_exec_free(&g->s->device, p->exec);
    ddp_plan_free(p->planned);
    ddp_device_lowered_free(&g->s->device, p->lowered);
}

void ddp_stage_close(ddp_stage *g)
{
    for (uint32_t v = 0; v < DDP_MAX_VARIANTS; v++) close_program(g, &g->programs[v]);
    for (uint32_t i = 0; i < g->pipe->link_count; i++)
        if (g->pipe->links[i].to == g->number || g->pipe->of_ranks)
            ddp_device_free(&g->s->device, g->pipe->links[i].memory);
    for (uint32_t k = 0; k < g->slots; k++) {
        if (g->arenas != NULL) ddp_device_free(&g->s->device, g->arenas[k]);
        if (g->inputs != NULL) free(g->inputs[k]);
    }
    free(g->arenas);
    free(g->inputs);
}

/* ---- links ----------------------------------------------------------------------------------------------------- */
static uint64_t message_bytes(const ddp_stages *cut, uint32_t first, uint32_t count)
{
    uint64_t bytes = 0;

    for (uint32_t k = first; k < first + count; k++) bytes += ddp_round_up(cut->crossings[k].bytes, 64);
    return bytes;
}

static ddp_link *link_of(ddp_pipeline *p, uint32_t from, uint32_t to)
{
    for (uint32_t i = 0; i < p->link_count; i++)
        if (p->links[i].from == from && p->links[i].to == to) return &p->links[i];
    p->links[p->link_count] = (ddp_link){.from = from, .to = to, .slots = p->count - DDP_MIN_OF(from, to)};
    return &p->links[p->link_count++];
}

/* The crossings of two stages stand side by side in the table. */
static void add_links(ddp_pipeline *p, const ddp_variant *v, uint32_t own)
{
    const ddp_stages *cut = v->stages;
    uint32_t kind = v->training ? DDP_LINK_TRAINS : DDP_LINK_EVALUATES, next;

    for (uint32_t i = 0; i < cut->crossing_count; i = next) {
        uint32_t from = cut->crossings[i].from, to = cut->crossings[i].to;
        ddp_link *l;

        for (next = i + 1; next < cut->crossing_count; next++)
            if (cut->crossings[next].from != from || cut->crossings[next].to != to) break;
        if (own != UINT32_MAX && from != own && to != own) continue;
        l = link_of(p, from, to);
        l->kind[kind].first = i;
        l->kind[kind].count = next - i;
        l->kind[kind].bytes = DDP_MAX_OF(l->kind[kind].bytes, message_bytes(cut, i, next - i));
        l->slot_bytes = DDP_MAX_OF(l->slot_bytes, l->kind[kind].bytes);
    }
}

/* A sender has at most as many messages out as it, or its receiver, has micro-batches in flight: so it never waits
 * for room. */
ddp_status ddp_stage_links(ddp_pipeline *p, uint32_t own, ddp_err *err)
{
    const ddp_session *s = p->t->s;

    p->links = ddp_alloc((size_t)p->count * p->count * sizeof(*p->links), err);
    if (p->links == NULL) return err->status;
    for (uint32_t v = 0; v < s->programs.count; v++)
        if (s->programs.variants[v].stages != NULL) add_links(p, &s->programs.variants[v], own);
    return DDP_OK;
}

ddp_status ddp_stage_begin(ddp_pipeline *p, uint32_t kind, uint64_t messages, ddp_err *err)
{
    for (uint32_t i = 0; i < p->link_count; i++)
        DDP_TRY(p->ops->begin(&p->links[i], kind, p->links[i].kind[kind].count > 0 ? messages : 0, err));
    return DDP_OK;
}

/* ---- what passes between stages -------------------------------------------------------------------------------- */
static int64_t deadline(const ddp_stage *g) { return ddp_now_ns() + g->s->config->group->step_timeout_ms * 1000000; }

/* What comes of a wait that began at `from`: words where it has ended badly; none where another stage has failed, whose
 * words count. */
static ddp_status waited(ddp_stage *g, ddp_status st, int64_t from, const ddp_link *l, uint64_t micro, ddp_err *err)
{
    bool told = st != DDP_OK && err->msg[0] != '\0';

    g->wait_ns += ddp_now_ns() - from;
    g->cancelled = st == DDP_ERR_ABORTED && !told;
    if (st == DDP_OK || g->cancelled || told) return st;
    (void)ddp_fail(err, st, "%s of micro-batch %" PRIu64 ", from stage %u to stage %u: not within [group] step_timeout",
                   l->from < l->to ? "the activations" : "the gradients", micro, l->from, l->to);
    return ddp_fail_as(err, DDP_EXIT_TIMEOUT);
}

static char *slot_of(const ddp_link *l, uint64_t micro) { return l->memory + micro % l->slots * l->slot_bytes; }

static uint32_t kind_of(const ddp_stages *cut)
{
    return cut->programs[0]->training != 0 ? DDP_LINK_TRAINS : DDP_LINK_EVALUATES;
}

/* Whether messages come to the stage on the link in this direction; forward: to a later stage. */
static bool is_of(const ddp_link *l, uint32_t kind, uint32_t stage, bool forward)
{
    return stage == l->to && (l->from < l->to) == forward && l->kind[kind].count > 0;
}

/* Waits for what earlier stages give (forward), or later ones, and points the inputs at it. */
static ddp_status receive(ddp_stage *g, const ddp_stages *cut, uint64_t micro, bool forward, ddp_err *err)
{
    void **inputs = g->inputs[micro % g->slots];
    uint32_t kind = kind_of(cut);

    for (uint32_t i = 0; i < g->pipe->link_count; i++) {
        ddp_link *l = &g->pipe->links[i];
        uint32_t first = l->kind[kind].first;
        int64_t from;
        char *at;

        if (!is_of(l, kind, g->number, forward)) continue;
        from = ddp_now_ns();
        DDP_TRY(waited(g, g->pipe->ops->wait(l, micro, deadline(g), err), from, l, micro, err));
        at = slot_of(l, micro);
        for (uint32_t k = first; k < first + l->kind[kind].count; k++) {
            inputs[cut->crossings[k].input] = at;
            at += ddp_round_up(cut->crossings[k].bytes, 64);
        }
    }
    return DDP_OK;
}

static ddp_status send_message(ddp_stage *g, ddp_link *l, const ddp_stages *cut, const ddp_stage_program *p,
                               uint64_t micro, ddp_err *err)
{
    uint32_t slot = (uint32_t)(micro % g->slots), kind = kind_of(cut), first = l->kind[kind].first;
    char *to = slot_of(l, micro);

    for (uint32_t k = first; k < first + l->kind[kind].count; k++) {
        const ddp_crossing *x = &cut->crossings[k];
        const void *from =
            x->sent < 0 ? g->inputs[slot][x->field] : (char *)g->arenas[slot] + p->planned->plan.value_offset[x->sent];

        DDP_TRY(ddp_device_copy(&g->s->device, to, from, x->bytes, DDP_COPY_ON_DEVICE, err));
        to += ddp_round_up(x->bytes, 64);
    }
    DDP_TRY(ddp_device_sync(&g->s->device, err));
    return g->pipe->ops->send(l, micro, err);
}

static ddp_status send_all(ddp_stage *g, const ddp_stages *cut, const ddp_stage_program *p, uint64_t micro,
                           bool forward, ddp_err *err)
{
    for (uint32_t i = 0; i < g->pipe->link_count; i++) {
        ddp_link *l = &g->pipe->links[i];
        int64_t from;

        if (l->from != g->number || (l->from < l->to) != forward || l->kind[kind_of(cut)].count == 0) continue;
        from = ddp_now_ns();
        DDP_TRY(waited(g, g->pipe->ops->reserve(l, micro, deadline(g), err), from, l, micro, err));
        DDP_TRY(send_message(g, l, cut, p, micro, err));
    }
    return DDP_OK;
}

static ddp_status release_all(const ddp_stage *g, uint32_t kind, ddp_err *err)
{
    for (uint32_t i = 0; i < g->pipe->link_count; i++) {
        ddp_link *l = &g->pipe->links[i];

        if (l->to == g->number && l->kind[kind].count > 0) DDP_TRY(g->pipe->ops->release(l, err));
    }
    return DDP_OK;
}

/* ---- a micro-batch --------------------------------------------------------------------------------------------- */
/* Which of the programs is for batch `number` of those of `samples`: the last one may be smaller. */
static uint32_t variant_at(const ddp_stage *g, bool training, uint64_t samples, uint64_t number)
{
    uint64_t batch = (uint64_t)g->pipe->t->s->batches.batch_size;
    int64_t count = (int64_t)DDP_MIN_OF(batch, samples - number * batch);
    uint32_t v = 0;

    while (variants_of(g)[v].batch != count || variants_of(g)[v].training != training) v++;
    return v;
}

static uint32_t variant_of(const ddp_stage *g, uint64_t micro)
{
    const ddp_trainer *t = g->pipe->t;

    return variant_at(g, true, t->s->train.count, t->progress.cursor + micro);
}

static void set_batch(const ddp_stage *g, uint64_t micro, const ddp_batch *batch, uint32_t fields)
{
    for (uint32_t f = 0; f < fields; f++) g->inputs[micro % g->slots][f] = batch->buffers[f];
}

static ddp_status take_batch(ddp_stage *g, uint64_t micro, ddp_err *err)
{
    ddp_batch batch;

    DDP_TRY(local_batch_next(g->t, g->pipe->step, 0, &batch, err));
    set_batch(g, micro, &batch, g->s->train.field_count);
    return DDP_OK;
}

static ddp_status ready(ddp_stage *g, const ddp_stages *cut, ddp_stage_program *p, uint32_t slot, ddp_err *err)
{
    const ddp_trainer *t = g->pipe->t;
    const ddp_bind bind = {.struct_size = sizeof(bind),
                           .arena = g->arenas[slot],
                           .params = t->mem.params,
                           .grads = t->mem.grads,
                           .buffers = t->mem.buffers};

    if (p->instances[slot] != NULL) return DDP_OK;
    return ddp_device_instance(&g->s->device, cut->programs[g->number], p->lowered, &p->planned->plan, &bind, &p->exec,
                               &p->instances[slot], err);
}

static ddp_status run_kernels(ddp_stage *g, const ddp_stage_program *p, uint64_t micro, uint32_t first, uint32_t last,
                              ddp_err *err)
{
    const ddp_trainer *t = g->pipe->t;
    uint32_t slot = (uint32_t)(micro % g->slots);
    ddp_run run = {.struct_size = sizeof(run),
                   .flags = micro > 0 ? DDP_RUN_GRAD_ADD : 0,
                   .inputs = g->inputs[slot],
                   .random = g->pipe->random};

    run.random.stream += micro * ddp_session_parts(t->s);
    if (ddp_device_run(&g->s->device, p->instances[slot], &run, first, last, err) != DDP_OK) return ddp_run_failed(err);
    return ddp_device_sync(&g->s->device, err);
}

static ddp_status read_loss(ddp_stage *g, const ddp_stages *cut, const ddp_stage_program *p, uint64_t micro,
                            ddp_err *err)
{
    const ddp_program *program = cut->programs[g->number];
    const char *at = g->arenas[micro % g->slots];
    float loss;

    if (program->loss < 0) return DDP_OK;
    DDP_TRY(ddp_device_copy(&g->s->device, &loss, at + p->planned->plan.value_offset[program->loss], sizeof(loss),
                            DDP_COPY_TO_HOST, err));
    g->loss_sum += (double)loss * ddp_loss_factor(&g->s->train.mean, program->batch);
    return DDP_OK;
}

static ddp_status forward(ddp_stage *g, uint64_t micro, ddp_err *err)
{
    uint32_t v = variant_of(g, micro);
    const ddp_stages *cut = variants_of(g)[v].stages;
    ddp_stage_program *p = &g->programs[v];

    if (g->number == 0) DDP_TRY(take_batch(g, micro, err));
    DDP_TRY(ready(g, cut, p, (uint32_t)(micro % g->slots), err));
    DDP_TRY(receive(g, cut, micro, true, err));
    DDP_TRY(run_kernels(g, p, micro, 0, p->split, err));
    return send_all(g, cut, p, micro, true, err);
}

static ddp_status backward(ddp_stage *g, uint64_t micro, ddp_err *err)
{
    uint32_t v = variant_of(g, micro);
    const ddp_stages *cut = variants_of(g)[v].stages;
    const ddp_stage_program *p = &g->programs[v];

    DDP_TRY(receive(g, cut, micro, false, err));
    DDP_TRY(run_kernels(g, p, micro, p->split, p->lowered->kernel_count, err));
    DDP_TRY(send_all(g, cut, p, micro, false, err));
    DDP_TRY(read_loss(g, cut, p, micro, err));
    return release_all(g, DDP_LINK_TRAINS, err);
}

ddp_status ddp_stage_evaluate(ddp_stage *g, uint64_t number, const ddp_batch *batch, uint32_t *variant, ddp_err *err)
{
    uint32_t slot = (uint32_t)(number % g->slots), v = variant_at(g, false, g->s->eval.count, number);
    const ddp_stages *cut = variants_of(g)[v].stages;
    ddp_stage_program *p = &g->programs[v];
    ddp_run run = {.struct_size = sizeof(run), .inputs = g->inputs[slot]};

    if (batch != NULL) set_batch(g, number, batch, g->s->eval.field_count);
    DDP_TRY(ready(g, cut, p, slot, err));
    DDP_TRY(receive(g, cut, number, true, err));
    if (ddp_device_run(&g->s->device, p->instances[slot], &run, 0, p->lowered->kernel_count, err) != DDP_OK ||
        ddp_device_sync(&g->s->device, err) != DDP_OK)
        return ddp_run_failed(err);
    DDP_TRY(send_all(g, cut, p, number, true, err));
    *variant = v;
    return release_all(g, DDP_LINK_EVALUATES, err);
}

/* Forward runs `slots` - 1 micro-batches before backward, then in turn. */
static ddp_status run_schedule(ddp_stage *g, ddp_err *err)
{
    uint64_t micros = g->pipe->step->micros, in_flight = DDP_MIN_OF((uint64_t)g->slots - 1, micros);

    for (uint64_t i = 0; i < micros + in_flight; i++) {
        if (i < micros) DDP_TRY(forward(g, i, err));
        if (i >= in_flight) DDP_TRY(backward(g, i - in_flight, err));
    }
    return DDP_OK;
}

ddp_status ddp_stage_run(ddp_stage *g, ddp_err *err)
{
    ddp_status st;

    g->loss_sum = 0.0;
    g->wait_ns = 0;
    g->cancelled = false;
    st = run_schedule(g, err);
    if (g->cancelled) return DDP_OK; /* the one that failed has the words */
    for (uint32_t i = 0; st != DDP_OK && i < g->pipe->link_count; i++) g->pipe->ops->cancel(&g->pipe->links[i]);
    return st;
}
