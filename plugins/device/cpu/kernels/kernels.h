/* plugins/device/cpu/kernels/kernels.h -- the CPU device's own kernels.
 *
 * One table of functions for each instruction set, compiled from the same source (kernels_body.h, optim_body.h) and
 * chosen once, at open, by CPU feature. Every variant gives the same bits: each fused multiply-add is written as
 * fmaf, reductions have a fixed order, and the files are compiled with -ffp-contract=off. But the product of x86's
 * portable variant has no fused multiply-adds, which would be calls there. No threads, no allocation, nothing of
 * oneDNN. */
#pragma once

#include "image.h"

#include <ddpengine/device.h>
#include <stdbool.h>
#include <stdint.h>

/* Activations by number, for bias_act, act and act_grad. */
enum { CPU_ACT_NONE = 0, CPU_ACT_RELU, CPU_ACT_GELU_ERF, CPU_ACT_GELU_TANH, CPU_ACT_SILU };

/* One update's constants, rounded to float where PyTorch rounds them. */
typedef struct cpu_update {
    uint32_t algorithm; /* DDP_OPTIM_* */
    bool nesterov, first, momentum_on;
    float grad_scale, weight_decay, minus_lr, momentum;
    float shrink; /* AdamW: 1 - lr * weight_decay */
    float beta1, one_minus_beta1;
    float beta2, one_minus_beta2;
    float minus_step, root_bias2, eps; /* lr / (1 - beta1^t) negated; sqrt(1 - beta2^t) */
} cpu_update;

/* Losses by number, for pair_loss. */
enum { CPU_LOSS_L1 = 0, CPU_LOSS_SMOOTH_L1, CPU_LOSS_BCE };

/* Of cross-entropy: of a row's columns the first `classes` count. The gradient is multiplied by `scale`. */
typedef struct cpu_entropy {
    int64_t classes;
    int64_t ignored; /* a label whose row counts for nothing; one that is no class does so too */
    float scale, smoothing;
    const float *weight;  /* by class; NULL: all are 1 */
    double weight_sum;    /* of all classes */
    const int64_t *other; /* of mixed labels, by row: the target is lambda of the label and 1 - lambda of this one */
    const float *lambda;  /* NULL: there are none */
} cpu_entropy;

/* Of dropout: an element is 0 where its word is below the threshold, else multiplied by the scale. */
typedef struct cpu_mask {
    ddp_random random;
    uint32_t place, threshold; /* threshold 0: nothing is dropped */
    float scale;
} cpu_mask;

enum { CPU_NARROW = 16 }; /* most features that are few */

enum { CPU_ROPE_PAIRS = 512 };

/* Of the rotary position embedding: x (N, length, heads size). */
typedef struct cpu_rope {
    int64_t length, heads, size;
    const float *frequency;  /* (size / 2) */
    const int64_t *position; /* (N, length), below 2^22; NULL: 0 .. length - 1 */
    bool starts;             /* position is (N): that of each sample's first row */
    float scaling;           /* of cos and sin */
    float direction;         /* 1, or -1: back */
} cpu_rope;

/* Causal or full attention; see ddp_attrs. Of a sample, row t of q is q_wide floats after row t - 1, of k and v
 * kv_wide: more than their heads take where the three are packed side by side. y is (samples, length, heads * size). */
typedef struct cpu_attention {
    int64_t length, heads, kv_heads, size; /* kv_heads: of k and v, a divisor of heads */
    int64_t q_wide, kv_wide;
    const float *q, *k, *v;
    const int64_t *segment; /* (samples, length): a query sees keys of its own; NULL: all are of one */
    float scale;
    bool causal;
    bool bf16; /* by cpu_kernels: what is multiplied is rounded to bf16 first */
    cpu_mask mask;
} cpu_attention;

/* Its gradient: the inputs, and the results, whose rows lie as those of q, k and v; NULL: not wanted. */
typedef struct cpu_attention_grad {
    const float *dy, *y, *lse;
    float *dq, *dk, *dv;
} cpu_attention_grad;

/* Attention in one kind of numbers: f32, or products of bf16. */
typedef struct cpu_attention_kernels {
    /* Head `number % heads` of sample `number / heads`: its part of y and, unless NULL, of the log-sum-exp. `packed`:
     * the scratch is that of the call before, for another head of the same k and v. The scratch has
     * scratch(a, false) floats, 64-byte aligned. */
    void (*forward)(const cpu_attention *a, int64_t number, bool packed, float *y, float *lse, float *scratch);
    /* All heads of q that go with head `number % kv_heads` of k and v of sample `number / kv_heads`. */
    void (*grad)(const cpu_attention *a, const cpu_attention_grad *g, int64_t number, float *scratch);
    /* The same bits by heads of q: dq, and dk and dv of each head in `parts`, (samples heads, 2, length, size); then
     * their sums for each head of k and v. */
    void (*grad_head)(const cpu_attention *a, const cpu_attention_grad *g, int64_t number, bool packed, float *parts,
                      float *scratch);
    void (*grad_sum)(const cpu_attention *a, const cpu_attention_grad *g, int64_t number, const float *parts);
    int64_t (*scratch)(const cpu_attention *a, bool gradient);
} cpu_attention_kernels;

/* Causal attention of `length` new positions from start[n] on over caches; see DDP_OP_ATTENTION_CACHED. */
typedef struct cpu_cached_attention {
    int64_t length, heads, kv_heads, size, capacity;
    int64_t q_wide, kv_wide; /* of q, k and v as in cpu_attention */
    const float *q, *k, *v;
    float *keys, *values;
    const int64_t *start; /* by sample */
    float scale;
} cpu_cached_attention;

/* Numbers from a packed panel of `width` lines to the next: with a gap, and an odd number of lines of the cache, lest
 * all panels begin in the same set of it. */
static inline int64_t cpu_product_stride(int64_t width, int64_t depth)
{
    return (((width * depth + 15) / 16 + 1) | 1) * 16;
}

/* Convolutions that are a product over windows: as many as were measured to be faster than oneDNN's. */
enum { CPU_WINDOWS_NONE, CPU_WINDOWS_MANY_CHANNELS, CPU_WINDOWS_ALL };
enum { CPU_PRODUCT_SET, CPU_PRODUCT_ADD, CPU_PRODUCT_PAST }; /* what becomes of the sums; past the caches */

/* The parts of a matrix product of f32: see product_body.h. Packers take element (i, k) at i * along + k * down, of
 * which one is 1, and write panels of `rows` or `cols` lines and `depth` numbers each. */
typedef struct cpu_product_kernels {
    int64_t rows, cols; /* of a tile */
    int64_t depth;      /* most of k that is summed in registers before it goes to memory: the bits depend on it */
    int windows;        /* CPU_WINDOWS_* */
    void (*pack_left)(float *to, const float *from, int64_t along, int64_t down, int64_t count, int64_t depth);
    void (*pack_right)(float *to, const float *from, int64_t along, int64_t down, int64_t count, int64_t depth);
    /* c (count, wide) = or += the left panels of `count` lines times the right panels of `wide` lines. Past the caches:
     * its rows begin where a vector of the CPU may. */
    void (*panels)(float *c, int64_t stride, const float *left, const float *right, int64_t depth, int64_t count,
                   int64_t wide, int how);
} cpu_product_kernels;

typedef struct cpu_kernels {
    const char *isa;
    cpu_product_kernels product;
    cpu_image_kernels image;
    cpu_winograd_kernels winograd;
    /* y (rows, cols) += bias (cols), NULL for none; then out = act(y). out may be y. */
    void (*bias_act)(float *out, float *y, const float *bias, int64_t rows, int64_t cols, uint32_t act);
    /* dx = dy * act'(ref) over columns first .. last-1 of (rows, cols), and db = or += the column sums of dx unless
     * NULL. ref is the output for relu, the input for gelu and silu. act NONE: dx is dy, not written. dx may be dy or
     * ref. */
    void (*act_grad)(float *dx, const float *dy, const float *ref, float *db, int64_t rows, int64_t cols, int64_t first,
                     int64_t last, uint32_t act, bool add);
    /* y = x where sign > 0, else slope x: leaky_relu of x, x, and its gradient of dy, y. y may be x or sign. */
    void (*leaky_relu)(float *y, const float *x, const float *sign, float slope, int64_t n);
    void (*add)(float *y, const float *a, const float *b, int64_t n); /* y may be a or b, of mul too */
    void (*mul)(float *y, const float *a, const float *b, int64_t n);
    void (*times)(float *y, const float *x, float factor, int64_t n); /* y may be x */
    /* (n, c, hw) to (n, hw, c), and back: y = or += x. */
    void (*channels_last)(float *y, const float *x, int64_t n, int64_t c, int64_t hw);
    void (*channels_first)(float *y, const float *x, int64_t n, int64_t c, int64_t hw, bool add);
    /* Sum over the rows of the loss with label smoothing s: log-sum-exp(row) - (1 - s) row[label] - s mean(row);
     * grad, unless NULL, gets (softmax - (1 - s) onehot - s / classes) * scale, and may be logits. With weights each
     * class's part is multiplied by its own. A row that counts for nothing and columns after the classes have the
     * gradient 0. */
    double (*cross_entropy)(float *grad, const float *logits, const int64_t *label, int64_t rows, int64_t cols,
                            const cpu_entropy *e);
    /* Of one row of logits: see DDP_OP_SOFTMAX_PARTS and its gradient; dx may be x. label -1: of other classes. */
    void (*softmax_parts)(float parts[4], const float *x, int64_t label, int64_t cols);
    void (*softmax_parts_grad)(float *dx, const float *x, int64_t label, const float terms[2], int64_t cols);
    /* Sum of (p - t)^2; grad, unless NULL, gets (p - t) * scale, and may be p. */
    double (*mse)(float *grad, const float *p, const float *t, int64_t n, float scale);
    /* Sum of the losses CPU_LOSS_* of p - t, bce of the logits p and the targets t; grad, unless NULL, gets the slopes
     * in p, times scale, and may be p. beta: of smooth_l1. */
    double (*pair_loss)(float *grad, const float *p, const float *t, int64_t n, float scale, uint32_t loss, float beta);
    /* Rows whose first largest logit stands at the label. A NaN counts as the largest, as in torch.argmax. */
    int64_t (*accuracy)(const float *logits, const int64_t *label, int64_t rows, int64_t cols);
    /* y = (s - mean) invstd w + b over rows of n, s = x, or x + residual, which is written to sum; mean and invstd
     * (rows) unless NULL. y may be x. */
    void (*layer_norm)(float *y, float *mean, float *invstd, float *sum, const float *x, const float *residual,
                       const float *w, const float *b, int64_t rows, int64_t n, double eps);
    /* dx (rows, n), unless NULL, plus the residual unless that is NULL; dx may be dy or the residual. dw and db get
     * the sums over these rows; they have room for n up to a multiple of 16. */
    void (*layer_norm_grad)(float *dx, float *dw, float *db, const float *dy, const float *x, const float *w,
                            const float *mean, const float *invstd, const float *residual, int64_t rows, int64_t n);
    /* The same without mean and bias: y = s invstd w, 1 / invstd the root of the mean of s^2. */
    void (*rms_norm)(float *y, float *invstd, float *sum, const float *x, const float *residual, const float *w,
                     int64_t rows, int64_t n, double eps);
    void (*rms_norm_grad)(float *dx, float *dw, const float *dy, const float *x, const float *w, const float *invstd,
                          const float *residual, int64_t rows, int64_t n);
    /* Rows first .. last - 1 of (N T, heads size). y may be x. */
    void (*rope)(const cpu_rope *p, float *y, const float *x, int64_t first, int64_t last);
    /* Elements first .. first + n - 1 of the op. y may be x. */
    void (*dropout)(float *y, const float *x, const cpu_mask *m, uint64_t first, int64_t n);
    cpu_attention_kernels attention;
    /* All heads of q that go with head `number % kv_heads` of sample `number / kv_heads`. The scratch has
     * cached_attention_scratch() floats. */
    void (*cached_attention)(const cpu_cached_attention *a, int64_t number, float *y, float *scratch);
    int64_t (*cached_attention_scratch)(const cpu_cached_attention *a);
    /* Products with few features, `rank`, 8 or CPU_NARROW; rows are a multiple of 8, k and n of 16.
     * z (rows, rank) = x (rows, k) w, with w (k, CPU_NARROW), of which the first `rank` columns count. */
    void (*narrow_in)(float *z, const float *x, const float *w, int64_t rows, int64_t k, int64_t rank);
    /* y (rows, n) = base + z (rows, rank) w, with w (rank, n); base NULL: 0. y may be base. */
    void (*narrow_out)(float *y, const float *base, const float *z, const float *w, int64_t rows, int64_t n,
                       int64_t rank);
    /* Columns first .. last - 1, multiples of 16, of dw (rank, n) = or += z^T (rank, rows) x (rows, n). */
    void (*narrow_outer)(float *dw, const float *z, const float *x, int64_t rows, int64_t n, int64_t rank,
                         int64_t first, int64_t last, bool add);
    /* y (cols) = x (rows) w, row r of w at w + r * stride. */
    void (*row_product)(float *y, const float *x, const float *w, int64_t stride, int64_t rows, int64_t cols);
    /* y (count) = x (n) . row of w. */
    void (*row_dots)(float *y, const float *x, const float *w, int64_t stride, int64_t n, int64_t count);
    /* state1, state2 as in ddp_optim_slice. */
    void (*update)(const cpu_update *u, float *param, float *state1, float *state2, const float *grad, int64_t n);
    /* y = the mean of x[0 .. count - 1], added in that order; the bits of an average by all_reduce. */
    void (*mean)(float *y, const float *const *x, uint32_t count, int64_t n);
    /* To the nearest number of bf16, ties to even, denormal numbers to 0; y may be x. And from bf16. */
    void (*round_bf16)(float *y, const float *x, int64_t n);
    void (*widen_bf16)(float *y, const uint16_t *x, int64_t n);
    /* y = x past the caches where the CPU can; y is 64-byte aligned. */
    void (*copy_past)(float *y, const float *x, int64_t n);
    int64_t (*first_not_finite)(const float *x, int64_t n); /* its index, or n */
    double (*sum_squares)(const float *x, int64_t n);       /* 16 lanes of double, lane i % 16; lanes added in order */
    /* For measuring; keep has 32 floats, the first 16 between 0 and 1. As many independent multiply-adds as the CPU
     * can have in flight, `rounds` times; the FLOPs that were done. */
    double (*fma_chains)(int64_t rounds, float *keep);
    void (*read_through)(const float *x, int64_t n, float *keep);
} cpu_kernels;

extern const cpu_kernels cpu_kernels_portable;
#if defined(__x86_64__)
extern const cpu_kernels cpu_kernels_avx2, cpu_kernels_avx512;
#endif

/* By DDP_ISA_* of ddpengine/isa.h, best first: this CPU can run those from ddp_isa_best() on. */
extern const cpu_kernels *const cpu_kernels_variants[];
bool cpu_multiplies_matrices(void); /* it has AMX for bf16, which oneDNN uses */
