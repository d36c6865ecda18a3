/* ddpengine/program.h -- what a step computes: ops, values, nodes, and the plan a device compiles.
 *
 * The core turns a model's graph into a program for one batch size; a device lowers it to kernels, the core plans
 * memory over the kernels, the device compiles them with the offsets known. Shapes are row-major, f32 unless said
 * otherwise. */
#ifndef DDPENGINE_PROGRAM_H
#define DDPENGINE_PROGRAM_H

#include <ddpengine/plugin.h>
#include <ddpengine/random.h>

#ifdef __cplusplus
extern "C" {
#endif

/* ---- ops ---------------------------------------------------------------------------------------------------------- *
 * Inputs -> outputs. N is the batch, * any leading dimensions. Each op matches the PyTorch function named. Images are
 * (N, C, H, W). An optional input that is absent is -1, as is an output that nobody wants. */
enum {
    DDP_OP_LINEAR = 1,         /* x (*, I), w (O, I) [, b (O)] -> y (*, O); attrs.linear  torch.nn.functional.linear */
    DDP_OP_LINEAR_GRAD_INPUT,  /* dy (*, O), w (O, I) -> dx (*, I) */
    DDP_OP_LINEAR_GRAD_WEIGHT, /* dy (*, O), x (*, I) -> dw (O, I) */
    DDP_OP_LINEAR_GRAD_BIAS,   /* dy (*, O) -> db (O) */
    DDP_OP_RELU,               /* x -> y                                                torch.relu */
    DDP_OP_RELU_GRAD,          /* dy, y (the output) -> dx; 0 where y == 0 */
    DDP_OP_GELU,               /* x -> y; attrs.gelu                                    torch.nn.functional.gelu */
    DDP_OP_GELU_GRAD,          /* dy, x (the input) -> dx */
    DDP_OP_ADD,                /* a, b of one shape -> a + b */
    DDP_OP_RESHAPE,            /* x -> y, the same elements in the same order; attrs.reshape */
    DDP_OP_CROSS_ENTROPY,      /* logits (*, C), label (*) i64 -> loss (), mean over the rows that are not ignored,
                                * weighted by their labels' weights where there are any; attrs.cross_entropy.
                                * [, other (*) i64, lambda (*) f32]: the target of a row is lambda of its label and
                                * 1 - lambda of the other one, as of mixed samples; lambda is 0 .. 1, and there are no
                                * weights                                          torch.nn.functional.cross_entropy */
    DDP_OP_CROSS_ENTROPY_GRAD, /* logits (*, C), label (*) [, other, lambda] -> dlogits (*, C), for a loss gradient of 1
                                */
    DDP_OP_MSE,                /* p, t of one shape -> loss (), mean over all elements  torch.nn.functional.mse_loss */
    DDP_OP_MSE_GRAD,           /* p, t -> dp, for a loss gradient of 1 */
    DDP_OP_ACCURACY,          /* logits (*, C), label (*) -> count () of rows whose first largest logit is at the label,
                                * divided by the rows of one sample */
    DDP_OP_CONV2D,            /* x (N, C, H, W), w (O, C / groups, KH, KW) [, b (O)] -> y (N, O, H', W'); attrs.conv
                                *                                                       torch.nn.functional.conv2d */
    DDP_OP_CONV2D_GRAD_INPUT, /* dy, w -> dx (N, C, H, W) */
    DDP_OP_CONV2D_GRAD_WEIGHT, /* dy, x -> dw */
    DDP_OP_CONV2D_GRAD_BIAS,   /* dy -> db (O) */
    DDP_OP_BATCH_NORM, /* x (N, C, H, W), w (C), b (C), running mean (C), running var (C) -> y, mean (C), invstd (C);
                                * attrs.batch_norm. Training: the batch's statistics, and the two buffers are updated
                                * (variance unbiased); else the buffers are used, and mean and invstd are -1.
                                *                                                      torch.nn.functional.batch_norm */
    DDP_OP_BATCH_NORM_GRAD, /* dy, x, w, mean, invstd -> dx, dw, db */
    DDP_OP_MAX_POOL2D,      /* x (N, C, H, W) -> y; attrs.pool                       torch.nn.functional.max_pool2d */
    DDP_OP_MAX_POOL2D_GRAD, /* dy, x -> dx; of equal values the first in the window gets it */
    DDP_OP_AVG_POOL2D,      /* x -> y; attrs.pool; padding counts                    torch.nn.functional.avg_pool2d */
    DDP_OP_AVG_POOL2D_GRAD, /* dy -> dx */
    DDP_OP_ADAPTIVE_AVG_POOL2D, /* x -> y (N, C, attrs.adaptive.out)                     torch's adaptive_avg_pool2d */
    DDP_OP_ADAPTIVE_AVG_POOL2D_GRAD, /* dy -> dx */
    DDP_OP_LAYER_NORM,               /* x (*, E), w (E), b (E) -> y, mean (*), invstd (*); attrs.layer_norm
                                *                                                      torch.nn.functional.layer_norm */
    DDP_OP_LAYER_NORM_GRAD,          /* dy, x, w, mean, invstd -> dx, dw, db */
    DDP_OP_EMBEDDING,        /* index (*) i64, w (V, E) -> y (*, E)                   torch.nn.functional.embedding */
    DDP_OP_EMBEDDING_GRAD,   /* dy (*, E), index (*) -> dw (V, E), summed in the order of the rows */
    DDP_OP_POSITION,         /* x (N, T, E), w (P, E), T <= P -> x + w[:T] */
    DDP_OP_POSITION_GRAD,    /* dy (N, T, E) -> dw (P, E), 0 from row T on */
    DDP_OP_ATTENTION,        /* qkv (N, T, 3 E): q, k and v side by side, each of attrs.attention.heads heads
                                * -> y (N, T, E), log-sum-exp (N, heads, T) of the scaled scores. For dropout, the
                                * weight of key s for query t in head h of sample n is element
                                * ((n heads + h) T + t) T + s.
                                *                                                       scaled_dot_product_attention */
    DDP_OP_ATTENTION_GRAD,   /* dy, qkv, y, log-sum-exp -> dqkv */
    DDP_OP_DROPOUT,          /* x -> y; attrs.dropout; never in a program that does not train
                                *                                                       torch.nn.functional.dropout */
    DDP_OP_DROPOUT_GRAD,     /* dy -> dx, by the same mask */
    DDP_OP_POSITION_AT,      /* x (N, T, E), w (P, E), start (N) i64, start + T <= P -> x + w[start : start + T] */
    DDP_OP_ATTENTION_CACHED, /* qkv (N, T, 3 E), keys (N, heads, E / heads, C), values (N, heads, C, E / heads), start
                              * (N) i64, start + T <= C -> y (N, T, E). Causal attention of positions start ..
                              * start + T - 1, by attrs.attention without dropout. keys and values are two BUFFERs, in
                              * which earlier runs have left those of positions 0 .. start - 1: it writes its own
                              * first, then reads. What they have behind start + T - 1 has no effect. */
    DDP_OP_L1,               /* p, t of one shape -> loss (), mean over all elements  torch.nn.functional.l1_loss */
    DDP_OP_L1_GRAD,          /* p, t -> dp, for a loss gradient of 1 */
    DDP_OP_SMOOTH_L1,        /* the same; attrs.smooth_l1                          torch.nn.functional.smooth_l1_loss */
    DDP_OP_SMOOTH_L1_GRAD,   /* p, t -> dp */
    DDP_OP_BCE_WITH_LOGITS,  /* logits x, t of one shape, t from 0 to 1 -> loss (), mean over all elements
                              *                             torch.nn.functional.binary_cross_entropy_with_logits */
    DDP_OP_BCE_WITH_LOGITS_GRAD, /* x, t -> dx */
    DDP_OP_TOP_K,            /* logits (*, C), label (*) -> counts (2): rows whose label is among the k largest logits,
                              * of equal ones the first, a NaN being larger than all; rows that are not ignored;
                              * attrs.metric */
    DDP_OP_CONFUSION,        /* logits (*, C), label (*) -> counts (C, C) of the rows that are not ignored: at the row
                              * of the label and the column of the first largest logit; C: of the classes; attrs.metric
                              */
    DDP_OP_BINARY_CONFUSION, /* logits x, t of one shape -> counts (2, 2) of elements, at the row t > 0.5 and the column
                              * x > 0 */
    DDP_OP_REGRESSION,       /* p, t (R, *) of one shape -> sums (2, D, 5) over the R rows of each of the D columns: 1,
                              * |p - t|, (p - t)^2, t, t^2. A sum is a double: its value as a float, then what that
                              * leaves */
    DDP_OP_LEAKY_RELU,       /* x -> y; attrs.leaky_relu                          torch.nn.functional.leaky_relu */
    DDP_OP_LEAKY_RELU_GRAD,  /* dy, y (the output) -> dx */
    DDP_OP_RMS_NORM,         /* x (*, E), w (E) -> y, invstd (*) = 1 / sqrt(mean of x^2 + eps); attrs.rms_norm
                              *                                                     torch.nn.functional.rms_norm */
    DDP_OP_RMS_NORM_GRAD,    /* dy, x, w, invstd -> dx, dw */
    DDP_OP_SILU,             /* x -> y = x / (1 + exp(-x))                          torch.nn.functional.silu */
    DDP_OP_SILU_GRAD,        /* dy, x (the input) -> dx */
    DDP_OP_MUL,              /* a, b of one shape -> a * b */
    DDP_OP_ROPE,             /* x (N, T, H D) [, position (N, T) i64, or start (N) i64] -> y (N, T, H D): pairs i and
                              * i + D / 2 of each of the H heads are turned by the angle position * frequency of i, see
                              * <ddpengine/rope.h>. Position t of a sample without positions is t, with a start
                              * start + t; attrs.rope                transformers' apply_rotary_pos_emb */
    DDP_OP_ROPE_GRAD,        /* dy [, position or start] -> dx, the turn back */
    DDP_OP_ATTENTION_APART,  /* q (N, T, heads D), k (N, T, kv_heads D), v like k [, segment (N, T) i64] -> y (N, T,
                              * heads D), log-sum-exp (N, heads, T), by attrs.attention. Head h of q goes with head
                              * h / (heads / kv_heads) of k and v. With segments a query sees keys of its own segment
                              * only. Dropout as of ATTENTION.      scaled_dot_product_attention with enable_gqa */
    DDP_OP_ATTENTION_APART_GRAD,   /* dy, q, k, v, y, log-sum-exp [, segment] -> dq, dk, dv */
    DDP_OP_ATTENTION_APART_CACHED, /* q (N, T, heads D), k, v (N, T, kv_heads D), keys (N, kv_heads, D, C), values (N,
                                    * kv_heads, C, D), start (N) i64 -> y (N, T, heads D); else as ATTENTION_CACHED */
    DDP_OP_SCALE,                  /* x -> attrs.scale.factor x; its gradient is itself */
    DDP_OP_SOFTMAX_PARTS,          /* Of an output layer whose classes are divided among ranks: logits (R, C) of some
                                    * classes, label (R) i64 counted from the first of them -> parts (R, 4): the largest
                                    * logit, the sum of exp(logit - largest), the label's logit, and where the first
                                    * largest stands. A label that is none of 0 .. C - 1 is of other classes, and its
                                    * logit -infinity */
    DDP_OP_SOFTMAX_PARTS_GRAD,     /* logits (R, C), label (R), terms (R, 2): log-sum-exp of all classes, and a weight
                                    * -> dlogits = (exp(logit - log-sum-exp) - 1 at the label) weight */
    DDP_OP_END_
};

/* Of CONFUSION: most classes. Of REGRESSION: sums of a column, most columns. */
#define DDP_CONFUSION_MAX   1024
#define DDP_REGRESSION_SUMS 5
#define DDP_REGRESSION_MAX  4096

/* Of ROPE: how the frequencies of longer contexts are made, transformers' rope_type. */
enum { DDP_ROPE_DEFAULT = 0, DDP_ROPE_LINEAR, DDP_ROPE_LLAMA3, DDP_ROPE_YARN };
#define DDP_ROPE_HEAD_MAX 1024

typedef union ddp_attrs {
    struct {
        uint32_t transposed; /* 1: w is (I, O), as in Hugging Face's Conv1D */
    } linear;
    struct {
        uint32_t tanh; /* 1: the tanh approximation, 0: erf */
    } gelu;
    struct {
        double negative_slope; /* from 0 on */
    } leaky_relu;
    struct {
        double factor;
    } scale;
    struct {
        uint32_t rank, reserved0;
        int64_t dims[DDP_MAX_DIMS]; /* of the output */
    } reshape;
    struct {
        double label_smoothing;    /* from 0 to 1 */
        int64_t ignore_index;      /* a label that counts for nothing, where `ignores` is 1 */
        uint32_t ignores, weights; /* weights: how many there are; 0: none, all classes count alike */
        int64_t classes; /* columns that are classes; those behind are padding and have the gradient 0. 0: all are */
        const float *weight; /* by class; of a program's node it lives as long as the program */
        double divisor;      /* what the sum over the rows is divided by; 0: by what counts, see DDP_OP_CROSS_ENTROPY */
    } cross_entropy;
    struct {
        double beta; /* below it the difference is squared; 0: nowhere, as l1 */
    } smooth_l1;
    struct {
        int64_t ignore_index; /* as of cross_entropy */
        uint32_t ignores, k;  /* k: of TOP_K */
        int64_t classes;      /* columns that are classes; 0: all are */
    } metric;
    struct {
        int64_t stride[2], padding[2]; /* height, width */
        int64_t groups;
    } conv;
    struct {
        int64_t kernel[2], stride[2], padding[2];
    } pool;
    struct {
        int64_t out[2];
    } adaptive;
    struct {
        double eps, momentum; /* running = (1 - momentum) * running + momentum * the batch's */
        uint32_t training, reserved0;
    } batch_norm;
    struct {
        double eps;
    } layer_norm;
    struct {
        double scale;           /* of q k^T */
        double dropout;         /* of the weights, after softmax; 0 in a program that does not train */
        uint32_t heads, causal; /* causal: position t sees 0 .. t */
        uint32_t place;         /* of the dropout */
        uint32_t kv_heads;      /* of k and v where they are apart, a divisor of heads; 0: as many as heads */
    } attention;
    struct {
        double eps;
    } rms_norm;
    struct {
        int64_t head_dim; /* D: even, at most DDP_ROPE_HEAD_MAX */
        uint32_t kind;    /* DDP_ROPE_* */
        uint32_t exact;   /* of yarn, 1: the ends of the ramp are not rounded to whole pairs: truncate = false */
        double theta;     /* base of the frequencies */
        double factor;    /* of linear, llama3 and yarn, from 1 on: the context is that much longer */
        double low_freq_factor, high_freq_factor; /* of llama3 */
        double beta_fast, beta_slow;              /* of yarn, turns within the original context; 0: 32 and 1 */
        double attention_factor;  /* cos and sin are multiplied by it; 0: 1, of yarn 0.1 ln(factor) + 1 */
        int64_t original_context; /* of llama3 and yarn: tokens */
    } rope;
    struct {
        double p;                  /* an element is 0 with it, else divided by 1 - p */
        uint32_t place, reserved0; /* of the op in the model, see ddp_philox */
    } dropout;
    uint64_t words[16]; /* the union's size, 128 bytes, is part of the ABI */
} ddp_attrs;

/* ---- random numbers of a step ------------------------------------------------------------------------------------- *
 * Counter-based, so that nothing is kept and a resumed run repeats them: ddp_philox4x32 with the seed as the key. The
 * four words of block i give elements 4 i .. 4 i + 3. An element is dropped where its word is below p * 2^32,
 * rounded to the nearest integer. */
typedef struct ddp_random {
    uint64_t seed;
    uint64_t stream; /* differs between micro-steps and between ranks */
} ddp_random;

static inline void ddp_philox(const ddp_random *r, uint32_t place, uint64_t block, uint32_t out[4])
{
    const uint32_t counter[4] = {(uint32_t)block, place ^ (uint32_t)(block >> 32) << 16, (uint32_t)r->stream,
                                 (uint32_t)(r->stream >> 32)};

    ddp_philox4x32(counter, r->seed, out);
}

/* ---- program ----------------------------------------------------------------------------------------------------- */
enum {
    DDP_VALUE_INPUT = 1, /* a field of the batch, written by the loader */
    DDP_VALUE_PARAM,     /* a slice of the parameter arena, canonical f32; or of ddp_bind.frozen, and then its dtype is
                          * one of those that the device takes there */
    DDP_VALUE_GRAD,      /* a slice of the gradient arena, canonical f32 */
    DDP_VALUE_ACT,       /* everything computed in between */
    DDP_VALUE_BUFFER     /* a slice of the buffer arena, f32: state that is not trained; its node reads and writes it */
};

typedef struct ddp_value {
    uint32_t kind, dtype, rank;
    int32_t index; /* INPUT: field; PARAM and GRAD: parameter; BUFFER: buffer; else -1 */
    int64_t dims[DDP_MAX_DIMS];
    int64_t elements;
    uint64_t offset;  /* PARAM, GRAD and BUFFER: elements from the start of the arena, or of ddp_bind.frozen */
    const char *name; /* the model's name where it has one, else "" */
} ddp_value;

#define DDP_NODE_MAX_IN  8
#define DDP_NODE_MAX_OUT 3

typedef struct ddp_node {
    uint32_t op;
    uint32_t accumulate; /* bit i: it adds to out[i], a GRAD that an earlier node of the program has set */
    uint32_t in_count, out_count;
    int32_t in[DDP_NODE_MAX_IN], out[DDP_NODE_MAX_OUT]; /* values; -1 where absent */
    uint32_t device; /* that the model has placed it on, ddp_place, from 0; a device plugin need not look */
    ddp_attrs attrs;
    const char *name; /* of the layer, "fc1"; a gradient node has its forward node's name */
} ddp_node;

typedef struct ddp_program {
    uint32_t struct_size, value_size, node_size, reserved0; /* strides of the two arrays */
    int64_t batch;                                          /* N */
    uint32_t training;                                      /* 1: forward and gradients; 0: forward and metrics */
    uint32_t value_count, node_count, param_count;
    const ddp_value *values;
    const ddp_node *nodes; /* in an order in which every value is written before it is read */
    int32_t loss;          /* value; mean over the batch; -1 in a program of outputs alone */
    uint32_t metric_count;
    /* Values that are there when the program has run: scalars f32, in a program of outputs of any shape, row-major. */
    const int32_t *metrics;
    const char *const *metric_names;
} ddp_program;

static inline const ddp_value *ddp_value_at(const ddp_program *p, uint32_t i)
{
    return (const ddp_value *)ddp_at_(p->values, p->value_size, i);
}
static inline const ddp_node *ddp_node_at(const ddp_program *p, uint32_t i)
{
    return (const ddp_node *)ddp_at_(p->nodes, p->node_size, i);
}

/* ---- lowering: made by the device -------------------------------------------------------------------------------- */
typedef struct ddp_kernel {
    const uint32_t *nodes; /* the indices of those it computes, in program order */
    uint32_t node_count;
    uint32_t inplace_count; /* pairs whose two values may share storage if `in` is not read by a later kernel;
                              * pairs of one output are alternatives, the first that can be is taken */
    int32_t inplace_out[2], inplace_in[2];
    uint64_t scratch_bytes; /* during this kernel only */
    const char *name;       /* "linear+bias+relu" */
} ddp_kernel;

/* One for each value. bytes 0: no storage in the arena (it stays inside a kernel, or is an INPUT, PARAM or GRAD).
 * alias_of: >= 0: a view, which shares the storage of that value; -1: none. DDP_NOT_STORED: later nodes read the value,
 * but their kernels use only what the first kernel has kept of it in a private value. */
#define DDP_NOT_STORED (-2)
typedef struct ddp_storage {
    uint64_t bytes;
    uint32_t layout; /* opaque to the core */
    int32_t alias_of;
} ddp_storage;

/* A value of the device's own (saved statistics, masks, packed weights), planned like the rest. */
typedef struct ddp_private {
    uint64_t bytes;
    uint32_t first_kernel, last_kernel; /* both included */
} ddp_private;

typedef struct ddp_lowered {
    uint32_t struct_size, kernel_count, private_count;
    uint32_t kernel_size, storage_size, private_size; /* strides of the three arrays */
    const ddp_kernel *kernels;   /* in an order in which every value is written before it is read */
    const ddp_storage *storage;  /* program->value_count */
    const ddp_private *privates; /* private_count */
    void *device_data;           /* the device's own, freed by lowered_free */
} ddp_lowered;

static inline const ddp_kernel *ddp_kernel_at(const ddp_lowered *l, uint32_t i)
{
    return (const ddp_kernel *)ddp_at_(l->kernels, l->kernel_size, i);
}
static inline const ddp_storage *ddp_storage_at(const ddp_lowered *l, uint32_t value)
{
    return (const ddp_storage *)ddp_at_(l->storage, l->storage_size, value);
}
static inline const ddp_private *ddp_private_at(const ddp_lowered *l, uint32_t i)
{
    return (const ddp_private *)ddp_at_(l->privates, l->private_size, i);
}

/* ---- plan: made by the core -------------------------------------------------------------------------------------- */
#define DDP_NO_OFFSET UINT64_MAX

typedef struct ddp_plan {
    uint32_t struct_size, reserved0;
    uint64_t arena_bytes;           /* of one instance; offsets are multiples of 64 */
    const uint64_t *value_offset;   /* program->value_count; DDP_NO_OFFSET where a value has no storage */
    const uint64_t *private_offset; /* lowered->private_count */
    const uint64_t *scratch_offset; /* lowered->kernel_count; DDP_NO_OFFSET where none */
} ddp_plan;

#ifdef __cplusplus
}
#endif
#endif
