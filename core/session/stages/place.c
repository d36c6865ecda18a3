/* session/stages/place.c -- see place.h. */
#include "session/stages/place.h"
#include "session/stages/cuts.h"
#include <stdlib.h>
#include <string.h>

/* What a device may do in a second, for a plan that nobody has measured: it says how products compare with copies. */
static const double FLOPS = 1e11, BYTES = 1e10;

static const ddp_list *list_of(const ddp_session *s) { return &s->config->train->place; }

static bool is_auto(const ddp_session *s)
{
    const ddp_list *list = list_of(s);

    return list->count == 1 && strcmp(((const char *const *)list->items)[0], "auto") == 0;
}

bool ddp_session_stages_measured(const ddp_session *s)
{
    return s->devices.placed && is_auto(s) && !s->config->train->deterministic;
}

/* ---- by name --------------------------------------------------------------------------------------------------- */
static ddp_status fail(const ddp_session *s, const char *item, const char *why, ddp_err *err)
{
    (void)ddp_fail(err, DDP_ERR_CONFIG, "[train] place: \"%.64s\" %s", item, why);
    return session_at_key(s, "train", "place", err);
}

/* "h.6:1" is where stage 1 begins; items come in the order of the stages, and the first stage needs none. */
static ddp_status place_item(const ddp_session *s, const char *item, uint32_t *next, uint32_t *first, ddp_err *err)
{
    const char *colon = strrchr(item, ':');
    char *end = NULL;
    unsigned long stage = colon == NULL ? 0 : strtoul(colon + 1, &end, 10);
    uint32_t node;

    if (colon == NULL || colon == item || end == colon + 1 || *end != '\0')
        return fail(s, item, "is no layer with a stage; write for example h.6:1, or auto", err);
    if (stage == 0 && *next == 1) return DDP_OK;
    if (stage != *next || stage >= s->devices.rank_stages)
        return fail(s, item, "is out of turn: name the first layer of stage 1, then that of stage 2, up to stages - 1",
                    err);
    node = ddp_graph_layer(s->model.graph, item, (size_t)(colon - item));
    if (node == ddp_graph_nodes(s->model.graph))
        return fail(s, item, "names a layer that the model does not have; `ddpengine model` lists them", err);
    if (node <= first[stage - 1])
        return fail(s, item, "goes backwards: its layer comes before the stage before it", err);
    first[(*next)++] = node;
    return DDP_OK;
}

static ddp_status by_name(const ddp_session *s, uint32_t *first, ddp_err *err)
{
    const char *const *items = list_of(s)->items;
    uint32_t next = 1;

    for (size_t i = 0; i < list_of(s)->count; i++) DDP_TRY(place_item(s, items[i], &next, first, err));
    if (next == s->devices.rank_stages) return DDP_OK;
    return fail(s, items[0], "and what follows do not name the first layer of every stage from stage 1 on", err);
}

/* ---- by costs -------------------------------------------------------------------------------------------------- */
static void add_bytes(const ddp_session *s, const ddp_program *p, session_costs *c)
{
    double copies = 2.0 + (double)ddp_optimizer_states(s->config);

    for (uint32_t i = 0; i < p->node_count; i++)
        for (uint32_t k = 0; k < p->nodes[i].out_count; k++) {
            const ddp_value *v = p->nodes[i].out[k] < 0 ? NULL : &p->values[p->nodes[i].out[k]];

            if (v != NULL && v->kind == DDP_VALUE_ACT)
                c->activations[p->nodes[i].device] += (double)((uint64_t)v->elements * ddp_dtype_size(v->dtype));
            if (v != NULL && v->kind == DDP_VALUE_GRAD && p->nodes[i].accumulate == 0)
                c->params[p->nodes[i].device] += (double)v->elements * sizeof(float) * copies;
        }
}

/* `times` NULL: by arithmetic. */
static void add_costs(const ddp_session *s, const ddp_program *p, const double *times, session_costs *c)
{
    add_bytes(s, p, c);
    for (uint32_t i = 0; i < c->nodes && times != NULL; i++) c->time[i] = times[i];
    for (uint32_t i = 0; i < p->node_count && times == NULL; i++) {
        const ddp_node *n = &p->nodes[i];

        c->time[n->device] +=
            (double)ddp_op_find(n->op)->flops(n, p->values) / FLOPS + (double)ddp_node_bytes(n, p->values) / BYTES;
    }
}

/* The training program of a graph whose nodes are placed each by itself. */
static ddp_status cost_nodes(const ddp_session *s, const double *times, session_costs *c, ddp_err *err)
{
    ddp_program *p = NULL;
    ddp_layout *l = NULL;
    ddp_status st = ddp_layout_create(s->model.graph, 1 << 20, 1 << 20, 1, &l, err);

    if (st == DDP_OK) st = ddp_program_create(s->model.graph, l, s->batches.batch_size, true, &p, err);
    if (st == DDP_OK) add_costs(s, p, times, c);
    ddp_program_free(p);
    ddp_layout_free(l);
    return st;
}

static ddp_status too_few(const ddp_session *s, uint32_t cuts, ddp_err *err)
{
    (void)ddp_fail(
        err, DDP_ERR_CONFIG,
        "[train] stages = %u: model \"%s\" can be cut into at most %u, between layers where one value crosses and no parameter is of both sides; take fewer stages, %s",
        s->devices.rank_stages, s->model.plugin->desc.name, cuts + 1,
        cuts == 0 ? "or untie its output layer (tied = no)" : "or name layers in [train] place");
    return session_at_key(s, "train", "stages", err);
}

static ddp_status choose(const ddp_session *s, const double *times, const double *speed, session_costs *c,
                         uint32_t *cuts, uint32_t *first, double *slowest, ddp_err *err)
{
    uint32_t count;

    for (uint32_t i = 0; i < c->stages; i++) c->speed[i] = speed == NULL ? 1.0 : speed[i];
    DDP_TRY(cost_nodes(s, times, c, err));
    DDP_TRY(ddp_graph_cuts(s->model.graph, cuts, &count, err));
    if (session_cut(c, cuts, count, first, slowest, err)) return DDP_OK;
    return err->status != DDP_OK ? err->status : too_few(s, count, err);
}

ddp_status ddp_session_stages_choose(const ddp_session *s, const double *times, const double *speed, uint32_t *first,
                                     double *slowest, ddp_err *err)
{
    uint32_t nodes = ddp_graph_nodes(s->model.graph), *cuts = ddp_alloc((nodes + 1) * sizeof(*cuts), err);
    double *room = ddp_alloc(3 * (size_t)nodes * sizeof(*room), err);
    session_costs c = {.nodes = nodes, .stages = s->devices.rank_stages};
    ddp_status st = err->status;

    if (cuts != NULL && room != NULL) {
        c.time = room;
        c.params = room + nodes;
        c.activations = room + 2 * (size_t)nodes;
        ddp_graph_place_each(s->model.graph);
        st = choose(s, times, speed, &c, cuts, first, slowest, err);
    }
    free(cuts);
    free(room);
    return st;
}

ddp_status session_stages_place(ddp_session *s, ddp_err *err)
{
    uint32_t first[SESSION_STAGES_MOST] = {0};
    double slowest;

    if (ddp_graph_places(s->model.graph) > 0) {
        if (is_auto(s)) return DDP_OK;
        return fail(s, ((const char *const *)list_of(s)->items)[0],
                    "is set, and the model places its layers too; leave one of them out", err);
    }
    DDP_TRY(is_auto(s) ? ddp_session_stages_choose(s, NULL, NULL, first, &slowest, err) : by_name(s, first, err));
    ddp_graph_place_nodes(s->model.graph, first, s->devices.rank_stages);
    s->devices.placed = true;
    return DDP_OK;
}
