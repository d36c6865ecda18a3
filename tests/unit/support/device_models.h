/* device_models.h -- whole models for the tests of devices: layers of linear, a transformer, networks of images. */
#pragma once

#include "device_util.h"
#include <ddpengine/layers.h>

typedef struct built {
    ddp_graph *g;
    ddp_layout *layout;
    ddp_program *p;
} built;

static inline void finish(fixture *f, built *b, int64_t batch, bool training)
{
    OK(f, ddp_graph_status(b->g, &f->err));
    OK(f, ddp_graph_finish(b->g, &f->err));
    OK(f, ddp_layout_create(b->g, 256, 1024, 1, &b->layout, &f->err));
    OK(f, ddp_program_create(b->g, b->layout, batch, training, &b->p, &f->err));
}

static inline void unbuild(built *b)
{
    ddp_program_free(b->p);
    ddp_layout_free(b->layout);
    ddp_graph_free(b->g);
}

static inline int named(fixture *f, const built *b, const char *name)
{
    ddp_lowered *l;
    int found = 0;

    OK(f, f->ops->lower(f->device, b->p, &l, &f->err));
    for (uint32_t i = 0; i < l->kernel_count; i++) found += strcmp(l->kernels[i].name, name) == 0;
    f->ops->lowered_free(f->device, l);
    return found;
}

/* Runs the model on both sides `times`, gradients set and added. `like` says how: its f, seed, classes, scale,
 * tolerance and by_*. */
static inline void built_check(const built *b, job like, int times)
{
    job *j = &like;

    j->p = b->p;
    j->layout = b->layout;
    j->arena_elements = b->layout->elements;
    j->random = (ddp_random){random_bits(j->seed), random_bits(j->seed)};
    j->margin = 4e-6;
    job_open(j);
    for (int i = 0; i < times; i++) job_run_and_check(j);
    job_close(j);
}

/* ---- layers of linear -------------------------------------------------------------------------------------------- */
typedef struct mlp {
    int64_t features, width, classes;
    int layers, act; /* 0 relu, 1 gelu erf, 2 gelu tanh */
    int64_t rank;    /* of an adapter beside each layer; 0: none */
    bool bias, residual, shared, regression;
} mlp;

static inline ddp_tensor activate(ddp_graph *g, ddp_tensor x, int act)
{
    return act == 0 ? ddp_relu(g, x) : ddp_gelu(g, x, act == 2);
}

/* With an adapter: y + B A x. */
static inline ddp_tensor mlp_layer(ddp_graph *g, const mlp *m, ddp_tensor x, int i)
{
    ddp_tensor y = ddp_linear(g, x, m->width, m->bias, "fc%d", i), z;

    if (m->rank == 0) return y;
    z = ddp_linear(g, ddp_linear(g, x, m->rank, 0, "fc%d_a", i), m->width, 0, "fc%d_b", i);
    return i % 2 == 0 ? ddp_add(g, z, y) : ddp_add(g, y, z);
}

/* `shared`: a layer applied twice, so that its gradients accumulate. `residual`: values with several readers. */
static inline void mlp_layers(ddp_graph *g, const mlp *m)
{
    ddp_tensor x = ddp_flatten(g, ddp_input(g, "image")), label = ddp_input(g, m->regression ? "target" : "label");
    ddp_init_spec init = {.kind = DDP_INIT_CONSTANT, .a = 0.5};
    int64_t dims[2] = {m->width, m->width};
    ddp_tensor in[3], first;

    x = first = activate(g, mlp_layer(g, m, x, 1), m->act);
    for (int i = 1; i < m->layers; i++) {
        ddp_tensor y = activate(g, mlp_layer(g, m, x, i + 1), m->act);
        x = m->residual ? ddp_add(g, x, y) : y;
    }
    if (m->shared) {
        in[1] = g->api->param(g, "tied.weight", 2, dims, &init);
        in[2] = g->api->param(g, "tied.bias", 1, dims, &init);
        for (int i = 0; i < 2; i++) {
            in[0] = x;
            x = activate(g, g->api->op(g, DDP_OP_LINEAR, NULL, 3, in, "tied"), m->act);
        }
        x = ddp_add(g, x, first);
    }
    x = ddp_linear(g, x, m->classes, m->bias, "head");
    if (m->regression) {
        ddp_loss(g, m->act == 0   ? ddp_mse(g, x, label)
                    : m->act == 1 ? ddp_smooth_l1(g, x, label, 0.5)
                                  : ddp_bce_with_logits(g, x, label));
        return;
    }
    ddp_loss(g, ddp_cross_entropy(g, x, label));
    ddp_metric(g, "accuracy", ddp_accuracy(g, x, label));
}

static inline built mlp_build(fixture *f, const mlp *m, int64_t batch, bool training)
{
    const ddp_field fields[] = {
        {.name = "image", .dtype = DDP_F32, .rank = 2, .dims = {1, m->features}, .min = 1},
        {.name = "label", .dtype = DDP_I64, .min = 0, .max = m->classes - 1},
        {.name = "target", .dtype = DDP_F32, .rank = 1, .dims = {m->classes}, .min = 1},
    };
    built b;

    OK(f, ddp_graph_create(fields, 3, &b.g, &f->err));
    mlp_layers(b.g, m);
    finish(f, &b, batch, training);
    return b;
}

/* The i-th of many shapes. Rounded before a relu, or the largest of its row, a number may be on either side: none of
 * that in bf16. */
static inline mlp mlp_case(int i, bool half)
{
    mlp m = {.features = 13 + 29 * (i % 3),
             .width = 5 + 31 * (i % 5),
             .classes = 2 + i % 11,
             .layers = 1 + i % 4,
             .act = i % 3,
             .bias = i % 5 != 0,
             .residual = i % 2 == 1,
             .shared = i % 4 >= 2,
             .regression = i % 7 == 3};

    if (half) m.regression = true;
    if (half) m.act = 1 + i % 2;
    return m;
}

/* ---- a transformer ----------------------------------------------------------------------------------------------- */
typedef struct gpt {
    int64_t length, heads, size, vocabulary;
    int layers;
    double dropout;
    bool tied, full, post; /* full: attention is not causal; post: the norm comes behind the sum */
    bool gated;            /* RMS norms, turned queries and keys, and a gate, as in LLaMA */
} gpt;

static inline ddp_tensor conv1d(ddp_graph *g, ddp_tensor x, int64_t out, const char *name)
{
    return ddp_conv1d(g, x, out, 0.3, NULL, "%s", name);
}

static inline ddp_tensor attend(ddp_graph *g, const gpt *m, ddp_tensor x)
{
    int64_t e = m->heads * m->size;
    ddp_attrs attrs = {.attention = {.scale = 1.0 / sqrt((double)m->size),
                                     .dropout = m->dropout,
                                     .heads = (uint32_t)m->heads,
                                     .causal = !m->full}};

    x = conv1d(g, x, 3 * e, "c_attn");
    if (m->gated && m->size % 2 == 0)
        x = ddp_rope(g, x, (ddp_tensor){-1}, &(ddp_rope_spec){.head_dim = m->size, .theta = 1e4});
    x = g->api->op(g, DDP_OP_ATTENTION, &attrs, 1, &x, "attn");
    return ddp_dropout(g, conv1d(g, x, e, "c_proj"), m->dropout);
}

static inline ddp_tensor norm(ddp_graph *g, const gpt *m, ddp_tensor x, const char *name)
{
    return m->gated ? ddp_rms_norm(g, x, 1e-5, "%s", name) : ddp_layer_norm(g, x, "%s", name);
}

static inline ddp_tensor feed_forward(ddp_graph *g, const gpt *m, ddp_tensor x)
{
    int64_t e = m->heads * m->size;
    ddp_tensor y = conv1d(g, x, 2 * e, "c_fc");

    y = m->gated ? ddp_mul(g, ddp_silu(g, y), conv1d(g, x, 2 * e, "c_up")) : ddp_gelu(g, y, 1);
    return conv1d(g, y, e, "c_proj2");
}

static inline void gpt_layers(ddp_graph *g, const gpt *m)
{
    int64_t e = m->heads * m->size;
    ddp_tensor table, x = ddp_embedding(g, ddp_input(g, "token"), m->vocabulary, e, 1.0, &table, "wte");

    x = ddp_dropout(g, ddp_position_embedding(g, x, m->length + 3, 1.0, NULL, "wpe"), m->dropout);
    for (int i = 0; i < m->layers; i++) {
        ddp_scope(g, "h.%d", i);
        if (m->post) {
            x = norm(g, m, ddp_add(g, x, attend(g, m, x)), "ln_1");
        } else {
            x = ddp_add(g, x, attend(g, m, norm(g, m, x, "ln_1")));
            x = ddp_add(g, feed_forward(g, m, norm(g, m, x, "ln_2")), x);
        }
        ddp_scope_end(g);
    }
    x = norm(g, m, x, "ln_f");
    x = m->tied ? ddp_linear_tied(g, x, table, "head") : ddp_linear(g, x, m->vocabulary, 0, "head");
    ddp_loss(g, ddp_cross_entropy(g, x, ddp_input(g, "label")));
    ddp_output(g, "logits", x);
}

static inline built gpt_build(fixture *f, const gpt *m, int64_t batch, bool training)
{
    ddp_field fields[2];
    built b;

    for (int i = 0; i < 2; i++)
        fields[i] = (ddp_field){.name = i == 0 ? "token" : "label",
                                .dtype = DDP_I64,
                                .rank = 1,
                                .dims = {m->length},
                                .max = m->vocabulary - 1};
    OK(f, ddp_graph_create(fields, 2, &b.g, &f->err));
    gpt_layers(b.g, m);
    finish(f, &b, batch, training);
    return b;
}

/* ---- networks ---------------------------------------------------------------------------------------------------- */
enum { CLASSES = 5 };
typedef ddp_tensor (*network)(ddp_graph *g, ddp_tensor x);

static inline ddp_tensor conv(ddp_graph *g, ddp_tensor x, int64_t out, int64_t kernel, int64_t stride, int bias,
                              const char *name)
{
    const ddp_conv_spec s = {.out = out, .kernel = kernel, .stride = stride, .padding = kernel / 2, .bias = bias};

    return ddp_conv2d(g, x, &s, NULL, "%s", name);
}

/* convolution, relu, convolution, relu, max pooling: the relu goes into the pooling */
static inline ddp_tensor net_lenet(ddp_graph *g, ddp_tensor x)
{
    x = ddp_relu(g, conv(g, x, 6, 3, 1, 1, "c1"));
    return ddp_max_pool2d(g, ddp_relu(g, conv(g, x, 18, 3, 1, 1, "c2")), 2, 2, 0);
}

static inline ddp_tensor block(ddp_graph *g, ddp_tensor x, int64_t out, int64_t stride, const char *scope)
{
    ddp_tensor y;

    ddp_scope(g, "%s", scope);
    y = ddp_relu(g, ddp_batch_norm2d(g, conv(g, x, out, 3, stride, 0, "conv1"), NULL, "bn1"));
    y = ddp_batch_norm2d(g, conv(g, y, out, 3, 1, 0, "conv2"), NULL, "bn2");
    if (stride != 1) x = ddp_batch_norm2d(g, conv(g, x, out, 1, stride, 0, "down"), NULL, "bn3");
    x = ddp_relu(g, ddp_add(g, y, x));
    ddp_scope_end(g);
    return x;
}

static inline ddp_tensor net_resnet(ddp_graph *g, ddp_tensor x)
{
    x = ddp_relu(g, ddp_batch_norm2d(g, conv(g, x, 8, 3, 1, 0, "conv1"), NULL, "bn1"));
    x = block(g, ddp_max_pool2d(g, x, 3, 2, 1), 8, 1, "a");
    x = block(g, block(g, x, 12, 2, "b"), 12, 1, "c");
    return ddp_adaptive_avg_pool2d(g, x, 1, 1);
}

/* in a batch of 8, two convolutions with as many tiles of 4 x 4 as channels; one with fewer, one with too few
 * channels */
static inline ddp_tensor net_tiles(ddp_graph *g, ddp_tensor x)
{
    x = conv(g, conv(g, x, 32, 3, 1, 0, "c1"), 48, 3, 1, 1, "c2");
    x = conv(g, conv(g, x, 32, 3, 1, 0, "c3"), 512, 3, 1, 0, "c4");
    return ddp_adaptive_avg_pool2d(g, x, 1, 1);
}

/* relus whose output others read too, poolings without a relu, averages, a batch norm with nothing behind it */
static inline ddp_tensor net_odd(ddp_graph *g, ddp_tensor x)
{
    ddp_tensor y = ddp_relu(g, conv(g, x, 4, 3, 2, 1, "c1")), z;

    z = ddp_add(g, ddp_max_pool2d(g, y, 3, 1, 1), y);
    z = ddp_batch_norm2d(g, ddp_avg_pool2d(g, z, 2, 2, 1), NULL, "bn1");
    y = ddp_max_pool2d(g, ddp_gelu(g, z, 0), 2, 1, 0);
    return ddp_adaptive_avg_pool2d(g, ddp_add(g, y, ddp_avg_pool2d(g, z, 2, 1, 0)), 2, 1);
}

/* one convolution applied twice and one batch norm four times; the sum of two batch norms goes on without a relu */
static inline ddp_tensor net_shared(ddp_graph *g, ddp_tensor x)
{
    const int64_t weight_dims[] = {4, 4, 3, 3}, one[] = {4};
    const ddp_init_spec init = {.kind = DDP_INIT_CONSTANT, .a = 0.5};
    ddp_attrs attrs = {.conv = {{1, 1}, {1, 1}, 1}}, norm = {.batch_norm = {1e-2, 0.25, 0, 0}};
    ddp_tensor w = g->api->param(g, "shared", 4, weight_dims, &init), n[5], y[2];

    n[1] = g->api->param(g, "bn.weight", 1, one, &init);
    n[2] = g->api->param(g, "bn.bias", 1, one, &init);
    n[3] = g->api->buffer(g, "bn.mean", DDP_F32, 1, one, 0);
    n[4] = g->api->buffer(g, "bn.var", DDP_F32, 1, one, 1);
    w = ddp_relu(g, w); /* a weight that is computed lies otherwise */
    x = conv(g, x, 4, 3, 1, 0, "first");
    for (int i = 0; i < 2; i++) {
        ddp_tensor in[2] = {x, w};
        n[0] = g->api->op(g, DDP_OP_CONV2D, &attrs, 2, in, "");
        x = y[i] = g->api->op(g, DDP_OP_BATCH_NORM, &norm, 5, n, "");
    }
    x = ddp_relu(g, ddp_add(g, ddp_add(g, y[0], y[1]), ddp_relu(g, x)));
    /* used again before the sum that its first result goes into alone */
    n[0] = conv(g, x, 4, 3, 1, 0, "left");
    y[0] = g->api->op(g, DDP_OP_BATCH_NORM, &norm, 5, n, "");
    n[0] = conv(g, x, 4, 3, 1, 0, "right");
    return ddp_relu(g, ddp_add(g, y[0], g->api->op(g, DDP_OP_BATCH_NORM, &norm, 5, n, "")));
}

/* dropouts with images around them, between them and behind them, and a flattening or another shape that follows */
static inline ddp_tensor net_dropped(ddp_graph *g, ddp_tensor x)
{
    const int64_t dims[] = {-1, 3, 10, 4};
    ddp_tensor y;

    x = ddp_dropout(g, conv(g, x, 6, 3, 1, 1, "c1"), 0.3);
    y = ddp_dropout(g, ddp_dropout(g, ddp_max_pool2d(g, x, 2, 2, 0), 0.2), 0.4);
    y = ddp_dropout(g, ddp_reshape(g, y, 4, dims), 0.1);
    y = ddp_add(g, conv(g, y, 3, 3, 1, 1, "c2"), y);
    return ddp_dropout(g, ddp_max_pool2d(g, y, 2, 2, 0), 0.5);
}

static inline int joined_norms(fixture *f, const built *b)
{
    return named(f, b, "relu_grad+batch_norm_grad") + named(f, b, "add+relu_grad+batch_norm_grad");
}

/* what a batch norm's gradient reads may be computed again: it cannot join what stands before that */
static inline ddp_tensor net_gelu_norm(ddp_graph *g, ddp_tensor x)
{
    ddp_tensor y = ddp_gelu(g, conv(g, x, 6, 3, 1, 1, "c1"), 1);

    y = ddp_relu(g, ddp_batch_norm2d(g, y, NULL, "bn1"));
    y = ddp_add(g, ddp_batch_norm2d(g, ddp_gelu(g, conv(g, y, 6, 3, 1, 1, "c2"), 1), NULL, "bn2"), y);
    return ddp_max_pool2d(g, ddp_relu(g, y), 2, 2, 0);
}

/* nothing in it jumps: a pooling or a relu may choose otherwise for a number that was rounded */
static inline ddp_tensor net_smooth(ddp_graph *g, ddp_tensor x)
{
    ddp_tensor y = ddp_gelu(g, ddp_batch_norm2d(g, conv(g, x, 8, 3, 1, 0, "c1"), NULL, "bn1"), 1);

    y = ddp_add(g, ddp_batch_norm2d(g, conv(g, y, 8, 3, 1, 0, "c2"), NULL, "bn2"), y);
    return ddp_adaptive_avg_pool2d(g, ddp_dropout(g, ddp_avg_pool2d(g, y, 2, 2, 0), 0.2), 2, 2);
}

static inline built net_build(fixture *f, network net, int64_t batch, bool training)
{
    static const ddp_field fields[] = {{.name = "image", .dtype = DDP_F32, .rank = 3, .dims = {3, 10, 8}, .min = 1},
                                       {.name = "label", .dtype = DDP_I64, .min = 0, .max = CLASSES - 1}};
    ddp_tensor x, label;
    built b;

    OK(f, ddp_graph_create(fields, 2, &b.g, &f->err));
    x = ddp_linear(b.g, ddp_flatten(b.g, net(b.g, ddp_input(b.g, "image"))), CLASSES, 1, "head");
    label = ddp_input(b.g, "label");
    ddp_loss(b.g, ddp_cross_entropy(b.g, x, label));
    if (!f->half) ddp_metric(b.g, "accuracy", ddp_accuracy(b.g, x, label));
    finish(f, &b, batch, training);
    return b;
}

/* A batch norm's gradient joins what stands before it, but not in front of what it reads and is computed again. */
static inline void check_recomputed_norm(job like, int times)
{
    for (int again = 0; again < 2; again++) {
        built b = net_build(like.f, net_gelu_norm, 5, true);
        assert_int_not_equal(joined_norms(like.f, &b), 0);
        if (again) OK(like.f, ddp_program_recompute(b.p, &like.f->err));
        if (again) assert_int_equal(joined_norms(like.f, &b), 0);
        built_check(&b, like, times);
        unbuild(&b);
    }
}
