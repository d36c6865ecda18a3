/* graph/place.c -- which device, or stage, a graph's nodes are on, where the model does not say: the nodes in the order
 * of the calls are cut into stretches. */
#include "graph/internal.h"
#include <stdlib.h>
#include <string.h>

static void set_param_stages(ddp_graph_core *c)
{
    for (uint32_t i = 0; i < c->param_count; i++) c->params[i].stage = c->nodes[c->params[i].first_use].device;
}

void ddp_graph_place_nodes(ddp_graph *g, const uint32_t *first, uint32_t count)
{
    ddp_graph_core *c = ddp_graph_of(g);
    uint32_t stage = 0;

    for (uint32_t i = 0; i < c->node_count; i++) {
        while (stage + 1 < count && first[stage + 1] <= i) stage++;
        c->nodes[i].device = stage;
    }
    c->devices = count;
    set_param_stages(c);
}

void ddp_graph_place_each(ddp_graph *g)
{
    ddp_graph_core *c = ddp_graph_of(g);

    for (uint32_t i = 0; i < c->node_count; i++) c->nodes[i].device = i;
    c->devices = c->node_count;
}

/* ---- where it can be cut --------------------------------------------------------------------------------------- */
/* Computed values that nodes before `at` give to nodes from there on. */
static uint32_t crossings_at(const ddp_graph_core *c, uint32_t at, const uint32_t *last_read)
{
    uint32_t count = 0;

    for (uint32_t i = 0; i < at; i++)
        for (uint32_t k = 0; k < DDP_NODE_MAX_OUT; k++)
            count += c->nodes[i].out[k] >= 0 && last_read[c->nodes[i].out[k]] >= at;
    return count;
}

/* The last node that reads each value, 0: none. */
static void find_readers(const ddp_graph_core *c, uint32_t *last_read)
{
    for (uint32_t i = 0; i < c->node_count; i++)
        for (uint32_t k = 0; k < c->nodes[i].in_count; k++)
            if (c->nodes[i].in[k] >= 0) last_read[c->nodes[i].in[k]] = i;
}

/* Of a parameter that is read on both sides, the gradient would have to cross. */
static bool cuts_param(const ddp_graph_core *c, uint32_t at, const uint32_t *last_read)
{
    for (uint32_t v = 0; v < c->value_count; v++)
        if (c->values[v].kind == DDP_VALUE_PARAM && c->params[c->values[v].index].first_use < at && last_read[v] >= at)
            return true;
    return false;
}

static bool is_trained(const ddp_graph_core *c, uint32_t first, uint32_t end)
{
    for (uint32_t i = first; i < end; i++)
        for (uint32_t k = 0; c->nodes[i].trains && k < c->nodes[i].in_count; k++)
            if (c->nodes[i].in[k] >= 0 && c->values[c->nodes[i].in[k]].kind == DDP_VALUE_PARAM) return true;
    return false;
}

ddp_status ddp_graph_cuts(const ddp_graph *g, uint32_t *cuts, uint32_t *count, ddp_err *err)
{
    const ddp_graph_core *c = ddp_graph_view(g);
    uint32_t *last_read = ddp_alloc((c->value_count + 1) * sizeof(*last_read), err), begin = 0;

    if (last_read == NULL) return err->status;
    find_readers(c, last_read);
    *count = 0;
    for (uint32_t at = 1; at < c->node_count; at++) {
        if (!is_trained(c, begin, at) || !is_trained(c, at, c->node_count)) continue;
        if (crossings_at(c, at, last_read) != 1 || cuts_param(c, at, last_read)) continue;
        cuts[(*count)++] = at;
        begin = at;
    }
    free(last_read);
    return DDP_OK;
}

uint32_t ddp_graph_nodes(const ddp_graph *g) { return ddp_graph_view(g)->node_count; }
const char *ddp_graph_node_name(const ddp_graph *g, uint32_t node) { return ddp_graph_view(g)->nodes[node].name; }

/* ---- layers by name -------------------------------------------------------------------------------------------- */
/* "h.6" is a part of "transformer.h.6.ln_1", of which it is whole components. */
static bool is_in(const char *name, const char *layer, size_t length)
{
    for (const char *at = name; at != NULL; at = strchr(at, '.')) {
        at += *at == '.';
        if (strncmp(at, layer, length) == 0 && (at[length] == '.' || at[length] == '\0')) return true;
    }
    return false;
}

uint32_t ddp_graph_layer(const ddp_graph *g, const char *layer, size_t length)
{
    const ddp_graph_core *c = ddp_graph_view(g);
    uint32_t i = 0;

    while (i < c->node_count && !is_in(c->nodes[i].name, layer, length)) i++;
    return i;
}
