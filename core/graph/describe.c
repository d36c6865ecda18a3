/* graph/describe.c -- a graph's operations as text, so that ranks whose models have the same parameters and compute
 * something else with them are told apart. */
#include "base/sys.h"
#include "graph/internal.h"
#include <inttypes.h>

static void pair(ddp_text *out, const char *what, const int64_t *dims)
{
    ddp_text_printf(out, " %s %" PRId64, what, dims[0]);
    if (dims[1] != dims[0]) ddp_text_printf(out, " x %" PRId64, dims[1]);
}

static void image_attributes(const ddp_graph_node *n, ddp_text *out)
{
    const ddp_attrs *a = &n->attrs;

    switch (n->row->op) {
    case DDP_OP_CONV2D:
        pair(out, "stride", a->conv.stride);
        pair(out, "padding", a->conv.padding);
        ddp_text_printf(out, " groups %" PRId64, a->conv.groups);
        break;
    case DDP_OP_MAX_POOL2D:
    case DDP_OP_AVG_POOL2D:
        pair(out, "kernel", a->pool.kernel);
        pair(out, "stride", a->pool.stride);
        pair(out, "padding", a->pool.padding);
        break;
    case DDP_OP_ADAPTIVE_AVG_POOL2D: pair(out, "out", a->adaptive.out); break;
    case DDP_OP_BATCH_NORM:
        ddp_text_printf(out, " eps %.17g momentum %.17g", a->batch_norm.eps, a->batch_norm.momentum);
        break;
    default: break;
    }
}

static void rope_attributes(const ddp_attrs *a, ddp_text *out)
{
    ddp_text_printf(out, " head_dim %" PRId64 " kind %u%s theta %.17g", a->rope.head_dim, a->rope.kind,
                    a->rope.exact ? " exact" : "", a->rope.theta);
    if (a->rope.kind != DDP_ROPE_DEFAULT)
        ddp_text_printf(out, " factor %.17g original_context %" PRId64, a->rope.factor, a->rope.original_context);
    if (a->rope.kind == DDP_ROPE_LLAMA3)
        ddp_text_printf(out, " low_freq_factor %.17g high_freq_factor %.17g", a->rope.low_freq_factor,
                        a->rope.high_freq_factor);
    if (a->rope.kind == DDP_ROPE_YARN)
        ddp_text_printf(out, " beta_fast %.17g beta_slow %.17g", a->rope.beta_fast, a->rope.beta_slow);
    if (a->rope.attention_factor > 0.0) ddp_text_printf(out, " attention_factor %.17g", a->rope.attention_factor);
}

static void attributes(const ddp_graph_node *n, ddp_text *out)
{
    const ddp_attrs *a = &n->attrs;

    switch (n->row->op) {
    case DDP_OP_LINEAR: ddp_text_printf(out, "%s", a->linear.transposed ? " transposed" : ""); break;
    case DDP_OP_GELU: ddp_text_printf(out, "%s", a->gelu.tanh ? " tanh" : ""); break;
    case DDP_OP_RESHAPE:
        for (uint32_t i = 0; i < a->reshape.rank; i++) ddp_text_printf(out, " %" PRId64, a->reshape.dims[i]);
        break;
    case DDP_OP_CROSS_ENTROPY:
        ddp_text_printf(out, " label_smoothing %.17g classes %" PRId64, a->cross_entropy.label_smoothing,
                        a->cross_entropy.classes);
        if (a->cross_entropy.ignores) ddp_text_printf(out, " ignore_index %" PRId64, a->cross_entropy.ignore_index);
        for (uint32_t i = 0; i < a->cross_entropy.weights; i++)
            ddp_text_printf(out, "%s%.9g", i == 0 ? " weight " : ", ", (double)a->cross_entropy.weight[i]);
        break;
    case DDP_OP_LEAKY_RELU: ddp_text_printf(out, " negative_slope %.17g", a->leaky_relu.negative_slope); break;
    case DDP_OP_SCALE: ddp_text_printf(out, " factor %.17g", a->scale.factor); break;
    case DDP_OP_SMOOTH_L1: ddp_text_printf(out, " beta %.17g", a->smooth_l1.beta); break;
    case DDP_OP_TOP_K: ddp_text_printf(out, " k %u", a->metric.k); break;
    case DDP_OP_LAYER_NORM: ddp_text_printf(out, " eps %.17g", a->layer_norm.eps); break;
    case DDP_OP_RMS_NORM: ddp_text_printf(out, " eps %.17g", a->rms_norm.eps); break;
    case DDP_OP_ROPE: rope_attributes(a, out); break;
    case DDP_OP_ATTENTION:
    case DDP_OP_ATTENTION_APART:
        ddp_text_printf(out, " heads %u", a->attention.heads);
        if (a->attention.kv_heads > 0) ddp_text_printf(out, " kv_heads %u", a->attention.kv_heads);
        ddp_text_printf(out, "%s scale %.17g dropout %.17g", a->attention.causal ? " causal" : "", a->attention.scale,
                        a->attention.dropout);
        break;
    case DDP_OP_DROPOUT: ddp_text_printf(out, " p %.17g", a->dropout.p); break;
    default: image_attributes(n, out);
    }
}

uint32_t ddp_graph_operations(const ddp_graph *g) { return ddp_graph_view(g)->node_count; }

void ddp_graph_operation_text(const ddp_graph *g, uint32_t operation, ddp_text *out)
{
    const ddp_graph_core *c = ddp_graph_view(g);
    const ddp_graph_node *n = &c->nodes[operation];

    ddp_text_printf(out, "%s", n->row->name);
    attributes(n, out);
    for (uint32_t i = 0; i < n->in_count; i++)
        ddp_text_printf(out, "%s%s", i == 0 ? " of " : ", ", n->in[i] >= 0 ? c->values[n->in[i]].name : "nothing");
}

void ddp_graph_identity(const ddp_graph *g, ddp_text *out)
{
    const ddp_graph_core *c = ddp_graph_view(g);
    ddp_text all = {0};
    uint32_t count = 0;

    for (uint32_t i = 0; i < c->node_count; i++) {
        if (!c->nodes[i].trains) continue;
        ddp_graph_operation_text(g, i, &all);
        ddp_text_append(&all, "\n", 1);
        count++;
    }
    out->failed |= all.failed;
    ddp_text_printf(out, "%u operations, hash %016" PRIx64, count, ddp_hash64(all.data, all.length, 0));
    ddp_text_free(&all);
}
