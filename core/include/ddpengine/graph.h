/* ddpengine/graph.h -- building a model's graph; a model reads like the PyTorch module it matches.
 *
 * A model describes and never computes. Errors stick: the first one is kept with the op, its name and both shapes,
 * later calls are harmless, ddp_graph_status() returns it. The first dimension of every input is the batch N; it is
 * symbolic while the graph is built: ddp_dims gives DDP_N for it, and -f for a first dimension of f times N, as
 * ddp_reshape takes it.
 *
 *     ddp_tensor x = ddp_flatten(g, ddp_input(g, "image"));          // (N, 784)
 *     x = ddp_relu(g, ddp_linear(g, x, 512, 1, "fc1"));              // (N, 512)
 *     x = ddp_linear(g, x, 10, 1, "fc2");                            // (N, 10)
 *     ddp_loss(g, ddp_cross_entropy(g, x, ddp_input(g, "label")));
 *     ddp_metric(g, "accuracy", ddp_accuracy(g, x, ddp_input(g, "label")));
 *     return ddp_graph_status(g, err);
 * */
#ifndef DDPENGINE_GRAPH_H
#define DDPENGINE_GRAPH_H

#include <ddpengine/program.h>
#include <math.h>
#include <string.h>

#ifdef __cplusplus
extern "C" {
#endif

#define DDP_N        (-1) /* the batch dimension */
#define DDP_NAME_MAX 192

typedef struct ddp_tensor {
    int32_t id; /* -1: the result of a call that failed */
} ddp_tensor;

/* How a parameter starts. Drawn in order of declaration from one mt19937 seeded with [train] seed, as
 * torch.manual_seed(seed) followed by the modules' constructors draws it. */
enum { DDP_INIT_CONSTANT = 1, DDP_INIT_UNIFORM, DDP_INIT_NORMAL };
typedef struct ddp_init_spec {
    uint32_t kind, reserved0;
    double a, b; /* CONSTANT: a; UNIFORM: from a to b; NORMAL: mean a, standard deviation b */
} ddp_init_spec;

typedef struct ddp_graph ddp_graph;

typedef struct ddp_graph_api {
    uint32_t struct_size, reserved0;
    /* A field of the dataset, with the batch dimension in front. */
    ddp_tensor (*input)(ddp_graph *g, const char *field);
    /* The name gets the scopes in front, joined by dots. Declaring a name twice is an error. */
    ddp_tensor (*param)(ddp_graph *g, const char *name, uint32_t rank, const int64_t *dims, const ddp_init_spec *init);
    /* attrs may be NULL; in[i].id -1 with no error pending means "absent". */
    ddp_tensor (*op)(ddp_graph *g, uint32_t op, const ddp_attrs *attrs, uint32_t in_count, const ddp_tensor *in,
                     const char *name);
    void (*scope)(ddp_graph *g, const char *name); /* NULL ends the innermost one */
    void (*loss)(ddp_graph *g, ddp_tensor scalar);
    void (*metric)(ddp_graph *g, const char *name, ddp_tensor scalar); /* summed over the samples of an evaluation */
    uint32_t (*dims)(const ddp_graph *g, ddp_tensor t, int64_t *dims); /* returns the rank, 0 for a failed tensor */
    void (*fail)(ddp_graph *g, const char *message); /* a model's own complaint; the first one sticks */
    ddp_status (*status)(const ddp_graph *g, ddp_err *err);
    /* Draws a parameter again over its first values, as torch.nn.init.*_ does after a module's constructor. */
    void (*init)(ddp_graph *g, ddp_tensor param, const ddp_init_spec *init);
    /* torch's register_buffer: state of the model that is not trained. DDP_F32 starts at `initial`; a DDP_I64 scalar
     * starts at 0 and counts the training batches by itself, as num_batches_tracked does. */
    ddp_tensor (*buffer)(ddp_graph *g, const char *name, uint32_t dtype, uint32_t rank, const int64_t *dims,
                         double initial);
    /* A result for programs that use the model, such as the logits that text is sampled from; of any shape. */
    void (*output)(ddp_graph *g, const char *name, ddp_tensor t);
    /* The ops from here on run on this of the run's devices, from 0; 0 until the first call. Data go from device to
     * device in their order: an op cannot read what a later device computes. Without parallel = model it means
     * nothing. */
    void (*place)(ddp_graph *g, uint32_t device);
    void (*measure)(ddp_graph *g, const char *name); /* see ddp_measure */
    int (*has_input)(const ddp_graph *g, const char *field); /* 1 where the dataset has a field of this name, else 0 */
} ddp_graph_api;

struct ddp_graph { /* the core's graph starts with this */
    const ddp_graph_api *api;
};

#define DDP_FORMAT_NAME_(buf, fmt)                                                                                     \
    do {                                                                                                               \
        va_list ap_;                                                                                                   \
        va_start(ap_, fmt);                                                                                            \
        (void)vsnprintf(buf, sizeof(buf), fmt, ap_);                                                                   \
        va_end(ap_);                                                                                                   \
    } while (0)

static inline ddp_tensor ddp_input(ddp_graph *g, const char *field) { return g->api->input(g, field); }
/* For a field that a model takes where the dataset has it. */
static inline int ddp_has_input(const ddp_graph *g, const char *field) { return g->api->has_input(g, field); }

/* Starts a scope: ddp_scope(g, "h.%d", i) .. ddp_scope_end(g) puts "h.0." in front of the names in between. */
static inline void ddp_scope(ddp_graph *g, const char *fmt, ...) DDP_PRINTF_(2, 3);
static inline void ddp_scope(ddp_graph *g, const char *fmt, ...)
{
    char name[DDP_NAME_MAX];

    DDP_FORMAT_NAME_(name, fmt);
    g->api->scope(g, name);
}
static inline void ddp_scope_end(ddp_graph *g) { g->api->scope(g, NULL); }

static inline uint32_t ddp_dims(const ddp_graph *g, ddp_tensor t, int64_t *dims) { return g->api->dims(g, t, dims); }
static inline void ddp_loss(ddp_graph *g, ddp_tensor scalar) { g->api->loss(g, scalar); }
static inline void ddp_metric(ddp_graph *g, const char *name, ddp_tensor scalar) { g->api->metric(g, name, scalar); }
/* One of the engine's metrics by its name, of a loss that is there already: accuracy, top5, f1, confusion of
 * cross_entropy and, but for top5, of bce_with_logits; mae and r2 of mse, l1 and smooth_l1. */
static inline void ddp_measure(ddp_graph *g, const char *name) { g->api->measure(g, name); }
static inline void ddp_output(ddp_graph *g, const char *name, ddp_tensor t) { g->api->output(g, name, t); }
static inline void ddp_place(ddp_graph *g, uint32_t device) { g->api->place(g, device); }
static inline void ddp_graph_fail(ddp_graph *g, const char *message) { g->api->fail(g, message); }
static inline ddp_status ddp_graph_status(const ddp_graph *g, ddp_err *err) { return g->api->status(g, err); }

static inline ddp_tensor ddp_op1_(ddp_graph *g, uint32_t op, ddp_tensor a)
{
    return g->api->op(g, op, NULL, 1, &a, "");
}
static inline ddp_tensor ddp_op2_(ddp_graph *g, uint32_t op, ddp_tensor a, ddp_tensor b)
{
    ddp_tensor in[2];

    in[0] = a;
    in[1] = b;
    return g->api->op(g, op, NULL, 2, in, "");
}

static inline ddp_tensor ddp_relu(ddp_graph *g, ddp_tensor x) { return ddp_op1_(g, DDP_OP_RELU, x); }

/* torch.nn.functional.leaky_relu; a slope below 0 is refused. */
static inline ddp_tensor ddp_leaky_relu(ddp_graph *g, ddp_tensor x, double negative_slope)
{
    ddp_attrs attrs;

    memset(&attrs, 0, sizeof(attrs));
    attrs.leaky_relu.negative_slope = negative_slope;
    return g->api->op(g, DDP_OP_LEAKY_RELU, &attrs, 1, &x, "");
}

/* factor x */
static inline ddp_tensor ddp_scale(ddp_graph *g, ddp_tensor x, double factor)
{
    ddp_attrs attrs;

    memset(&attrs, 0, sizeof(attrs));
    attrs.scale.factor = factor;
    return g->api->op(g, DDP_OP_SCALE, &attrs, 1, &x, "");
}

/* tanh_approximation: 0 for torch's approximate='none', 1 for 'tanh'. */
static inline ddp_tensor ddp_gelu(ddp_graph *g, ddp_tensor x, int tanh_approximation)
{
    ddp_attrs attrs;

    memset(&attrs, 0, sizeof(attrs));
    attrs.gelu.tanh = tanh_approximation != 0;
    return g->api->op(g, DDP_OP_GELU, &attrs, 1, &x, "");
}

static inline ddp_tensor ddp_silu(ddp_graph *g, ddp_tensor x) { return ddp_op1_(g, DDP_OP_SILU, x); }

static inline ddp_tensor ddp_add(ddp_graph *g, ddp_tensor a, ddp_tensor b) { return ddp_op2_(g, DDP_OP_ADD, a, b); }
/* Element by element; nothing is broadcast. */
static inline ddp_tensor ddp_mul(ddp_graph *g, ddp_tensor a, ddp_tensor b) { return ddp_op2_(g, DDP_OP_MUL, a, b); }

/* Rotary position embedding of x (N, T, heads head_dim), see DDP_OP_ROPE; position (N, T) i64, with id -1: 0 .. T - 1.
 * Of the spec, what does not belong to the kind is 0. */
typedef struct ddp_rope_spec {
    int64_t head_dim;
    uint32_t kind, exact; /* DDP_ROPE_*; see ddp_attrs */
    double theta, factor, low_freq_factor, high_freq_factor, beta_fast, beta_slow, attention_factor;
    int64_t original_context;
} ddp_rope_spec;
static inline ddp_tensor ddp_rope(ddp_graph *g, ddp_tensor x, ddp_tensor position, const ddp_rope_spec *spec)
{
    ddp_attrs attrs;
    ddp_tensor in[2];

    memset(&attrs, 0, sizeof(attrs));
    attrs.rope.head_dim = spec->head_dim;
    attrs.rope.kind = spec->kind;
    attrs.rope.exact = spec->exact;
    attrs.rope.theta = spec->theta;
    attrs.rope.factor = spec->factor;
    attrs.rope.low_freq_factor = spec->low_freq_factor;
    attrs.rope.high_freq_factor = spec->high_freq_factor;
    attrs.rope.beta_fast = spec->beta_fast;
    attrs.rope.beta_slow = spec->beta_slow;
    attrs.rope.attention_factor = spec->attention_factor;
    attrs.rope.original_context = spec->original_context;
    in[0] = x;
    in[1] = position;
    return g->api->op(g, DDP_OP_ROPE, &attrs, position.id >= 0 ? 2 : 1, in, "");
}

/* At most one of dims[1..] is -1 ("what is left"); dims[0] is DDP_N where the batch dimension is kept. */
static inline ddp_tensor ddp_reshape(ddp_graph *g, ddp_tensor x, uint32_t rank, const int64_t *dims)
{
    ddp_attrs attrs;
    uint32_t i;

    memset(&attrs, 0, sizeof(attrs));
    attrs.reshape.rank = rank;
    for (i = 0; i < rank && i < DDP_MAX_DIMS; i++) attrs.reshape.dims[i] = dims[i];
    return g->api->op(g, DDP_OP_RESHAPE, &attrs, 1, &x, "");
}

/* (N, a, b, ..) -> (N, a*b*..); (N) -> (N, 1). */
static inline ddp_tensor ddp_flatten(ddp_graph *g, ddp_tensor x)
{
    int64_t dims[DDP_MAX_DIMS], flat[2];
    uint32_t rank = ddp_dims(g, x, dims), i;

    flat[0] = DDP_N;
    flat[1] = 1;
    for (i = 1; i < rank; i++) flat[1] *= dims[i];
    return ddp_reshape(g, x, 2, flat);
}

/* torch.nn.functional.cross_entropy: logits (N, .., C), label (N, ..) -> the mean over the labels that are not
 * ignore_index. Of the C logits the first `classes` count, 0: all. */
typedef struct ddp_cross_entropy_spec {
    int64_t classes, ignore_index;
    double label_smoothing;
    const float *weight; /* one for each class, copied by the call; NULL: all are 1 */
    uint32_t weights;    /* how many there are */
} ddp_cross_entropy_spec;
static inline ddp_tensor ddp_cross_entropy_with(ddp_graph *g, ddp_tensor logits, ddp_tensor label,
                                                const ddp_cross_entropy_spec *spec)
{
    ddp_attrs attrs;
    ddp_tensor in[2];

    memset(&attrs, 0, sizeof(attrs));
    attrs.cross_entropy.classes = spec->classes;
    attrs.cross_entropy.label_smoothing = spec->label_smoothing;
    attrs.cross_entropy.ignore_index = spec->ignore_index;
    attrs.cross_entropy.ignores = 1;
    attrs.cross_entropy.weight = spec->weight;
    attrs.cross_entropy.weights = spec->weights;
    in[0] = logits;
    in[1] = label;
    return g->api->op(g, DDP_OP_CROSS_ENTROPY, &attrs, 2, in, "");
}
/* The mean over the labels that are not -100, torch's ignore_index. */
static inline ddp_tensor ddp_cross_entropy_padded(ddp_graph *g, ddp_tensor logits, ddp_tensor label, int64_t classes,
                                                  double label_smoothing)
{
    ddp_cross_entropy_spec spec;

    memset(&spec, 0, sizeof(spec));
    spec.classes = classes;
    spec.ignore_index = -100;
    spec.label_smoothing = label_smoothing;
    return ddp_cross_entropy_with(g, logits, label, &spec);
}
static inline ddp_tensor ddp_cross_entropy_smoothed(ddp_graph *g, ddp_tensor logits, ddp_tensor label,
                                                    double label_smoothing)
{
    return ddp_cross_entropy_padded(g, logits, label, 0, label_smoothing);
}
static inline ddp_tensor ddp_cross_entropy(ddp_graph *g, ddp_tensor logits, ddp_tensor label)
{
    return ddp_cross_entropy_smoothed(g, logits, label, 0.0);
}
static inline ddp_tensor ddp_mse(ddp_graph *g, ddp_tensor prediction, ddp_tensor target)
{
    return ddp_op2_(g, DDP_OP_MSE, prediction, target);
}
static inline ddp_tensor ddp_l1(ddp_graph *g, ddp_tensor prediction, ddp_tensor target)
{
    return ddp_op2_(g, DDP_OP_L1, prediction, target);
}
static inline ddp_tensor ddp_smooth_l1(ddp_graph *g, ddp_tensor prediction, ddp_tensor target, double beta)
{
    ddp_attrs attrs;
    ddp_tensor in[2];

    memset(&attrs, 0, sizeof(attrs));
    attrs.smooth_l1.beta = beta;
    in[0] = prediction;
    in[1] = target;
    return g->api->op(g, DDP_OP_SMOOTH_L1, &attrs, 2, in, "");
}
/* target from 0 to 1, f32, of the logits' shape. */
static inline ddp_tensor ddp_bce_with_logits(ddp_graph *g, ddp_tensor logits, ddp_tensor target)
{
    return ddp_op2_(g, DDP_OP_BCE_WITH_LOGITS, logits, target);
}
static inline ddp_tensor ddp_accuracy(ddp_graph *g, ddp_tensor logits, ddp_tensor label)
{
    return ddp_op2_(g, DDP_OP_ACCURACY, logits, label);
}

/* x (N, C, H, W); op is DDP_OP_MAX_POOL2D or DDP_OP_AVG_POOL2D; height and width of the window. */
static inline ddp_tensor ddp_pool2d(ddp_graph *g, uint32_t op, ddp_tensor x, const int64_t kernel[2],
                                    const int64_t stride[2], const int64_t padding[2])
{
    ddp_attrs attrs;
    int i;

    memset(&attrs, 0, sizeof(attrs));
    for (i = 0; i < 2; i++) {
        attrs.pool.kernel[i] = kernel[i];
        attrs.pool.stride[i] = stride[i];
        attrs.pool.padding[i] = padding[i];
    }
    return g->api->op(g, op, &attrs, 1, &x, "");
}

/* torch.nn.functional.max_pool2d over squares: x (N, C, H, W). */
static inline ddp_tensor ddp_pool2d_(ddp_graph *g, uint32_t op, ddp_tensor x, int64_t kernel, int64_t stride,
                                     int64_t padding)
{
    int64_t k[2], s[2], p[2];

    k[0] = k[1] = kernel;
    s[0] = s[1] = stride;
    p[0] = p[1] = padding;
    return ddp_pool2d(g, op, x, k, s, p);
}
static inline ddp_tensor ddp_max_pool2d(ddp_graph *g, ddp_tensor x, int64_t kernel, int64_t stride, int64_t padding)
{
    return ddp_pool2d_(g, DDP_OP_MAX_POOL2D, x, kernel, stride, padding);
}
static inline ddp_tensor ddp_avg_pool2d(ddp_graph *g, ddp_tensor x, int64_t kernel, int64_t stride, int64_t padding)
{
    return ddp_pool2d_(g, DDP_OP_AVG_POOL2D, x, kernel, stride, padding);
}

/* torch.nn.functional.adaptive_avg_pool2d: x (N, C, H, W) -> (N, C, height, width). */
static inline ddp_tensor ddp_adaptive_avg_pool2d(ddp_graph *g, ddp_tensor x, int64_t height, int64_t width)
{
    ddp_attrs attrs;

    memset(&attrs, 0, sizeof(attrs));
    attrs.adaptive.out[0] = height;
    attrs.adaptive.out[1] = width;
    return g->api->op(g, DDP_OP_ADAPTIVE_AVG_POOL2D, &attrs, 1, &x, "");
}

/* torch.nn.functional.dropout; with p = 0 there is no op. */
static inline ddp_tensor ddp_dropout(ddp_graph *g, ddp_tensor x, double p)
{
    ddp_attrs attrs;

    if (p == 0.0) return x;
    memset(&attrs, 0, sizeof(attrs));
    attrs.dropout.p = p;
    return g->api->op(g, DDP_OP_DROPOUT, &attrs, 1, &x, "");
}

/* Self-attention without its projections: qkv (N, T, 3 E) -> (N, T, E), scores scaled by 1 / sqrt(E / heads). */
static inline ddp_tensor ddp_attention(ddp_graph *g, ddp_tensor qkv, uint32_t heads, int causal, double dropout)
{
    ddp_attrs attrs;
    int64_t dims[DDP_MAX_DIMS];
    uint32_t rank = ddp_dims(g, qkv, dims);

    memset(&attrs, 0, sizeof(attrs));
    attrs.attention.heads = heads;
    attrs.attention.causal = causal != 0;
    attrs.attention.scale = rank == 3 && heads > 0 ? 1.0 / sqrt((double)dims[2] / 3.0 / (double)heads) : 1.0;
    attrs.attention.dropout = dropout;
    return g->api->op(g, DDP_OP_ATTENTION, &attrs, 1, &qkv, "");
}
static inline ddp_tensor ddp_causal_attention(ddp_graph *g, ddp_tensor qkv, uint32_t heads, double dropout)
{
    return ddp_attention(g, qkv, heads, 1, dropout);
}

/* Attention over q, k and v apart. */
typedef struct ddp_attention_spec {
    uint32_t heads, kv_heads; /* kv_heads: of k and v, a divisor of heads; 0: as many as heads */
    int causal;
    double dropout;
    double scale; /* of q k^T; 0: 1 / sqrt(D) */
} ddp_attention_spec;
/* q (N, T, heads D), k and v (N, T, kv_heads D), segment (N, T) i64 -> (N, T, heads D). segment.id == -1: absent, all
 * positions of a sample are of one segment; else a query sees keys of its own segment only. */
static inline ddp_tensor ddp_attention_apart(ddp_graph *g, ddp_tensor q, ddp_tensor k, ddp_tensor v, ddp_tensor segment,
                                             const ddp_attention_spec *s)
{
    ddp_tensor in[4];
    ddp_attrs attrs;
    int64_t dims[DDP_MAX_DIMS];
    uint32_t rank = ddp_dims(g, q, dims);

    in[0] = q;
    in[1] = k;
    in[2] = v;
    in[3] = segment;
    memset(&attrs, 0, sizeof(attrs));
    attrs.attention.heads = s->heads;
    attrs.attention.kv_heads = s->kv_heads;
    attrs.attention.causal = s->causal != 0;
    attrs.attention.dropout = s->dropout;
    attrs.attention.scale = s->scale;
    if (s->scale == 0.0)
        attrs.attention.scale = rank == 3 && s->heads > 0 ? 1.0 / sqrt((double)dims[2] / (double)s->heads) : 1.0;
    return g->api->op(g, DDP_OP_ATTENTION_APART, &attrs, 4, in, "");
}

#ifdef __cplusplus
}
#endif
#endif
