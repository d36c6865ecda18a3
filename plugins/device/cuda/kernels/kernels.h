/* plugins/device/cuda/kernels/kernels.h -- the CUDA device's own kernels, as its host code calls them. The .cu files
 * beside it define them.
 *
 * Each call starts work on a stream and returns what the start said; none allocates or waits. Whatever stream capture
 * takes part in may be captured. Matrices are row-major. Images lie channels last, (N, H, W, C). Results are the same
 * bits in every run on one kind of GPU: sums go in a fixed order, no floating-point atomics. Sums are f32 at least,
 * whatever type is stored.
 *
 * A cu_view is an array in device memory with its element type; `at` NULL: absent. `add`: the result is added to
 * what is there. `scratch` is device memory of at least as many bytes as the function named ..._scratch says,
 * 256-byte aligned; what it holds before and after does not matter. */
#pragma once

#include <cuda_runtime_api.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

enum { CU_F32 = 0, CU_BF16 };
typedef struct cu_view {
    void *at;
    uint32_t type; /* CU_* */
} cu_view;

/* What changes from run to run, in device memory, so that a captured graph finds it. */
typedef struct cu_run_params {
    uint64_t seed, stream; /* ddp_random */
} cu_run_params;

/* Of an update, as its kernel uses them. */
typedef struct cu_numbers {
    uint64_t step;
    double scale; /* of the gradients, before it is rounded */
    float grad_scale, weight_decay, minus_lr, momentum, shrink, beta1, one_minus_beta1, beta2, one_minus_beta2,
        minus_step, root_bias2, eps;
} cu_numbers;

/* What a kernel finds wrong in its data, in page-locked host memory that kernels see. The first to report fills it
 * in (atomically from kind 0); the host resets it. */
enum { CU_FAULT_NONE = 0, CU_FAULT_LABEL, CU_FAULT_INDEX };
typedef struct cu_fault {
    uint32_t kind, kernel; /* kernel: the `kernel` argument of the call that found it */
    int64_t row, value;
} cu_fault;

/* ---- pointwise: pointwise.cu, columns.cu, order.cu --------------------------------------------------------------- */
enum { CU_ACT_NONE = 0, CU_ACT_RELU, CU_ACT_GELU_TANH, CU_ACT_GELU_ERF, CU_ACT_SILU };
cudaError_t cu_act(cudaStream_t s, uint32_t act, cu_view x, cu_view y, int64_t n);
/* saved: relu's output, gelu's and silu's input. dx may be dy. NaN in relu stays NaN. */
cudaError_t cu_act_grad(cudaStream_t s, uint32_t act, cu_view dy, cu_view saved, cu_view dx, int64_t n, bool add);
/* y = x where sign > 0, else slope x: leaky_relu of x, x, and its gradient of dy, y. y may be x or sign. */
cudaError_t cu_leaky_relu(cudaStream_t s, cu_view x, cu_view sign, double slope, cu_view y, int64_t n, bool add);
/* y = factor x; y may be x. */
cudaError_t cu_times(cudaStream_t s, cu_view x, double factor, cu_view y, int64_t n, bool add);
/* y = a + b; y may be a or b. */
cudaError_t cu_add(cudaStream_t s, cu_view a, cu_view b, cu_view y, int64_t n, bool add);
/* y = a * b, as cu_add. */
cudaError_t cu_mul(cudaStream_t s, cu_view a, cu_view b, cu_view y, int64_t n, bool add);
/* y = x in y's type; nearest even to bf16. */
cudaError_t cu_convert(cudaStream_t s, cu_view x, cu_view y, int64_t n, bool add);
/* x (rows, cols) + bias (cols) f32, activated: what no product's epilogue did. pre: x + bias itself, may be absent;
 * y may be x. */
cudaError_t cu_bias_act(cudaStream_t s, uint32_t act, cu_view x, const float *bias, cu_view pre, cu_view y,
                        int64_t rows, int64_t cols);
/* y = 0 where dropped, else x / (1 - p); element i's word as program.h says (ddp_philox over *params, `place`). The
 * gradient too. */
cudaError_t cu_dropout(cudaStream_t s, cu_view x, cu_view y, int64_t n, double p, uint32_t place,
                       const cu_run_params *params, bool add);
/* db (cols) f32 = sums over the rows of dy (rows, cols). */
size_t cu_column_sums_scratch(int64_t rows, int64_t cols);
cudaError_t cu_column_sums(cudaStream_t s, cu_view dy, float *db, int64_t rows, int64_t cols, bool add, void *scratch);
/* The same of dx = act'(saved) dy, which may be dy or saved. The scratch is that of cu_column_sums. */
cudaError_t cu_act_grad_sums(cudaStream_t s, uint32_t act, cu_view dy, cu_view saved, cu_view dx, float *db,
                             int64_t rows, int64_t cols, bool add, void *scratch);
/* (n, c, hw) <-> (n, hw, c) */
cudaError_t cu_channels_last(cudaStream_t s, cu_view x, cu_view y, int64_t n, int64_t c, int64_t hw, bool add);
cudaError_t cu_channels_first(cudaStream_t s, cu_view x, cu_view y, int64_t n, int64_t c, int64_t hw, bool add);

/* ---- sequences: norm.cu, norm_grad.cu, embedding.cu, embedding_grad.cu, rope.cu ---------------------------------- */
/* t = x + residual (absent: x), rounded to sum's type and stored there if sum is present (and that is what is
 * normalised); y = (t - mean) * invstd * w + b over rows of cols. mean, invstd (rows) may be NULL; in f32, variance
 * biased, two passes. b NULL: an RMS norm, whose mean is 0. */
cudaError_t cu_layer_norm(cudaStream_t s, cu_view x, cu_view residual, cu_view sum, const float *w, const float *b,
                          cu_view y, float *mean, float *invstd, int64_t rows, int64_t cols, double eps);
/* mean NULL: of an RMS norm. dx (+ passed where present) may be dy or passed, or absent; copy: dx once more, absent:
 * not wanted. dw, db, and `sums` of dx's columns: (cols) f32, NULL: not wanted. */
typedef struct cu_norm_grad {
    cu_view dy, x, passed, dx, copy;
    const float *w, *mean, *invstd;
    float *dw, *db, *sums;
    int64_t rows, cols;
    bool add_x, add_w, add_b, add_sums;
} cu_norm_grad;
size_t cu_layer_norm_grad_scratch(int64_t rows, int64_t cols, bool sums);
cudaError_t cu_layer_norm_grad(cudaStream_t s, const cu_norm_grad *g, void *scratch);
/* y (rows, e) = w[index]; an index that is not in 0 .. v - 1 is a fault, its row is left as it was. */
cudaError_t cu_embedding(cudaStream_t s, const int64_t *index, const float *w, cu_view y, int64_t rows, int64_t e,
                         int64_t v, cu_fault *fault, uint32_t kernel);
/* dw (v, e) f32 in full: rows of dy with one index summed in the order of the rows, 0 (or what was there) elsewhere. */
size_t cu_embedding_grad_scratch(int64_t rows, int64_t e, int64_t v);
cudaError_t cu_embedding_grad(cudaStream_t s, cu_view dy, const int64_t *index, float *dw, int64_t rows, int64_t e,
                              int64_t v, bool add, void *scratch);
/* x (n, t, e) + w[:t]; y may be x. */
cudaError_t cu_position(cudaStream_t s, cu_view x, const float *w, cu_view y, int64_t n, int64_t t, int64_t e);
/* dw (p, e): sums over n, 0 from row t on. */
cudaError_t cu_position_grad(cudaStream_t s, cu_view dy, float *dw, int64_t n, int64_t t, int64_t e, int64_t p,
                             bool add);

/* Turns pairs i and i + size / 2 of each head of x (n, t, heads size) by position * frequency[i]; y may be x. */
enum { CU_ROPE_PAIRS = 512 };
typedef struct cu_rope {
    int64_t n, t, heads, size;
    const int64_t *position;  /* device memory (n, t), or with `starts` (n), that of a sample's first row; NULL: 0 .. */
    float scaling, direction; /* of cos and sin; of sin: 1, or -1 to turn back */
    bool starts;
    float frequency[CU_ROPE_PAIRS];
} cu_rope;
cudaError_t cu_rope_turn(cudaStream_t s, cu_view x, cu_view y, const cu_rope *p, bool add);

/* ---- losses and metrics: entropy.cu, loss.cu, metric.cu ---------------------------------------------------------- */
/* loss () f32 and grad (rows, cols), either may be absent; grad may be logits. Mean over the rows that are not
 * ignored. A label out of range that is not ignored is a fault. */
typedef struct cu_entropy {
    double smoothing;
    int64_t ignore_index;
    uint32_t ignores;
    int64_t classes;      /* columns that count, the others have the gradient 0; 0: all */
    const float *weight;  /* by class, in the device's memory; NULL: all are 1 */
    double weight_sum;    /* of all classes */
    double divisor;       /* of the sums over the rows; 0: the weights of the rows that count */
    const int64_t *other; /* (rows): the target is lambda of the label and 1 - lambda of this one; NULL: the label */
    const float *lambda;  /* (rows) */
} cu_entropy;
size_t cu_cross_entropy_scratch(int64_t rows, int64_t cols);
cudaError_t cu_cross_entropy(cudaStream_t s, cu_view logits, const int64_t *label, float *loss, cu_view grad,
                             int64_t rows, int64_t cols, const cu_entropy *e, bool add_grad, void *scratch,
                             cu_fault *fault, uint32_t kernel);
/* The same with the logits of some rows at a time: begin, once for all labels; rows [first, first + count) of
 * `rows`, each once, in whichever order, grad set; end, which writes the loss. The scratch is that of all rows, kept
 * from begin to end. */
cudaError_t cu_entropy_begin(cudaStream_t s, const int64_t *label, int64_t rows, int64_t cols, const cu_entropy *e,
                             void *scratch, cu_fault *fault, uint32_t kernel);
cudaError_t cu_entropy_rows(cudaStream_t s, cu_view logits, const int64_t *label, cu_view grad, int64_t first,
                            int64_t count, int64_t rows, int64_t cols, const cu_entropy *e, void *scratch);
cudaError_t cu_entropy_end(cudaStream_t s, float *loss, int64_t rows, int64_t cols, const cu_entropy *e, void *scratch);
/* The mean over n elements of a loss of p - t, of bce of the logits p; either result may be absent. beta: of
 * smooth_l1. */
enum { CU_LOSS_MSE = 0, CU_LOSS_L1, CU_LOSS_SMOOTH_L1, CU_LOSS_BCE };
size_t cu_pair_loss_scratch(int64_t n);
cudaError_t cu_pair_loss(cudaStream_t s, uint32_t loss, double beta, cu_view p, cu_view t, float *out, cu_view grad,
                         int64_t n, bool add_grad, void *scratch);
/* *out = rows whose first largest logit (a NaN is the largest) is at the label, / per_sample. */
size_t cu_accuracy_scratch(int64_t rows);
cudaError_t cu_accuracy(cudaStream_t s, cu_view logits, const int64_t *label, float *out, int64_t rows, int64_t cols,
                        double per_sample, void *scratch, cu_fault *fault, uint32_t kernel);

/* Rows of logits (rows, cols) with a label, of which some may be ignored; the first `classes` columns count. */
typedef struct cu_labels {
    const int64_t *label;
    int64_t rows, cols, classes, ignore_index;
    uint32_t ignores, kernel; /* kernel: of the fault */
    cu_fault *fault;
} cu_labels;
/* The results of DDP_OP_TOP_K, _CONFUSION, _BINARY_CONFUSION and _REGRESSION. */
size_t cu_top_k_scratch(const cu_labels *l);
cudaError_t cu_top_k(cudaStream_t s, cu_view logits, const cu_labels *l, uint32_t k, float *out, void *scratch);
size_t cu_confusion_scratch(const cu_labels *l);
cudaError_t cu_confusion(cudaStream_t s, cu_view logits, const cu_labels *l, float *out, void *scratch);
cudaError_t cu_binary_confusion(cudaStream_t s, cu_view x, cu_view t, float *out, int64_t n);
cudaError_t cu_regression(cudaStream_t s, cu_view p, cu_view t, float *out, int64_t rows, int64_t cols);

/* ---- attention: attention.cuh (any size and type), flash.cuh (tensor cores, bf16) -------------------------------- */
/* qkv (n, t, 3 e): q, k and v side by side, heads of size = e / heads. y (n, t, e); lse (n, heads, t) f32, may be
 * NULL. */
typedef struct cu_attention {
    int64_t n, t, heads, size;
    double scale, dropout;
    uint32_t causal, place;
    const cu_run_params *params; /* device memory */
    int64_t kv_heads;            /* of k and v where they are apart; 0: heads */
    const int64_t *segment;      /* (n, t) where they are apart; NULL: all positions are of one */
} cu_attention;
cudaError_t cu_attention_plain(cudaStream_t s, const cu_attention *a, cu_view qkv, cu_view y, float *lse);
size_t cu_attention_plain_grad_scratch(const cu_attention *a);
cudaError_t cu_attention_plain_grad(cudaStream_t s, const cu_attention *a, cu_view dy, cu_view qkv, cu_view y,
                                    const float *lse, cu_view dqkv, bool add, void *scratch);
/* q, y and their gradients (n, t, heads size), k, v and theirs (n, t, kv_heads size); each result is of a type of its
 * own. One whose `at` is NULL is not wanted. The scratch is that of the packed gradient. */
cudaError_t cu_attention_apart(cudaStream_t s, const cu_attention *a, cu_view q, cu_view k, cu_view v, cu_view y,
                               float *lse);
typedef struct cu_apart_grad {
    cu_view dy, q, k, v, y;
    const float *lse;
    cu_view dq, dk, dv;
} cu_apart_grad;
cudaError_t cu_attention_apart_grad(cudaStream_t s, const cu_attention *a, const cu_apart_grad *g, void *scratch);
bool cu_flash_can(const cu_attention *a); /* size 64 or 128, bf16 everywhere, no dropout */
cudaError_t cu_flash(cudaStream_t s, const cu_attention *a, cu_view qkv, cu_view y, float *lse);
size_t cu_flash_grad_scratch(const cu_attention *a);
cudaError_t cu_flash_grad(cudaStream_t s, const cu_attention *a, cu_view dy, cu_view qkv, cu_view y, const float *lse,
                          cu_view dqkv, void *scratch);

/* ---- images: batch_norm.cu, batch_norm_grad.cu, pool.cu, conv.cu, order.cu --------------------------------------- */
typedef struct cu_image {
    int64_t n, h, w, c;
} cu_image;
typedef struct cu_window {
    int64_t kernel[2], stride[2], padding[2]; /* height, width */
} cu_window;

/* rows = n h w. Training: the batch's statistics, kept in mean and invstd, and the running ones updated (variance
 * unbiased). Else the running ones are used. y = relu of it where relu; y may be x. residual (absent: none) is added
 * before the relu. */
size_t cu_batch_norm_scratch(int64_t rows, int64_t c);
cudaError_t cu_batch_norm(cudaStream_t s, cu_view x, const float *w, const float *b, float *running_mean,
                          float *running_var, cu_view residual, cu_view y, float *mean, float *invstd, int64_t rows,
                          int64_t c, double eps, double momentum, bool training, bool relu, void *scratch);
/* The gradient is that of dy + more (absent: dy), 0 where y, the relu's output, is 0; it is kept in masked (absent: not
 * kept) for a residual's branch. y absent: where relu(x normalised, times w, plus b) is 0; b NULL besides: nowhere. dw,
 * db NULL: not wanted. masked may be dy or more; dx may be any of the arrays read but masked. */
size_t cu_batch_norm_grad_scratch(int64_t rows, int64_t c);
cudaError_t cu_batch_norm_grad(cudaStream_t s, cu_view dy, cu_view more, cu_view y, cu_view masked, cu_view x,
                               const float *w, const float *b, const float *mean, const float *invstd, cu_view dx,
                               float *dw, float *db, int64_t rows, int64_t c, bool add_x, bool add_w, bool add_b,
                               void *scratch);
/* x of shape `in` -> y (n, oh, ow, c). A NaN is the largest. */
cudaError_t cu_max_pool(cudaStream_t s, cu_view x, cu_view y, cu_image in, cu_window w, int64_t oh, int64_t ow);
/* Of equal values the first in the window, row by row, gets it. */
cudaError_t cu_max_pool_grad(cudaStream_t s, cu_view dy, cu_view x, cu_view dx, cu_image in, cu_window w, int64_t oh,
                             int64_t ow, bool add);
cudaError_t cu_avg_pool(cudaStream_t s, cu_view x, cu_view y, cu_image in, cu_window w, int64_t oh, int64_t ow);
cudaError_t cu_avg_pool_grad(cudaStream_t s, cu_view dy, cu_view dx, cu_image in, cu_window w, int64_t oh, int64_t ow,
                             bool add);
cudaError_t cu_adaptive_pool(cudaStream_t s, cu_view x, cu_view y, cu_image in, int64_t oh, int64_t ow);
cudaError_t cu_adaptive_pool_grad(cudaStream_t s, cu_view dy, cu_view dx, cu_image in, int64_t oh, int64_t ow,
                                  bool add);

/* Convolution without a library: any size and type, groups too. w (o, c / groups, kh, kw) f32, PyTorch's order. In
 * bf16 the operands are rounded to bf16 and the sums are f32. */
typedef struct cu_conv {
    cu_image in;
    int64_t o, oh, ow, groups;
    cu_window w;
    bool bf16;
} cu_conv;
cudaError_t cu_conv_plain(cudaStream_t s, const cu_conv *c, cu_view x, const float *w, const float *bias, cu_view y);
cudaError_t cu_conv_plain_grad_input(cudaStream_t s, const cu_conv *c, cu_view dy, const float *w, cu_view dx,
                                     bool add);
size_t cu_conv_plain_grad_weight_scratch(const cu_conv *c);
cudaError_t cu_conv_plain_grad_weight(cudaStream_t s, const cu_conv *c, cu_view dy, cu_view x, float *dw, bool add,
                                      void *scratch);
/* Weights between PyTorch's order (o, i, khw) f32 and a library's (o, khw, i) in any type. */
typedef struct cu_pack {
    const float *w;
    void *packed;
    int64_t o, i, khw;
} cu_pack;
cudaError_t cu_conv_pack(cudaStream_t s, const cu_pack *packs, uint32_t count, uint32_t type);
cudaError_t cu_conv_unpack(cudaStream_t s, cu_view packed, float *w, int64_t o, int64_t i, int64_t khw, bool add);

/* ---- flat arrays: optimizer.cu, flat.cu -------------------------------------------------------------------------- */
enum { CU_MAX_PEERS = 16 };
/* One update, ddp_optim of <ddpengine/device.h>: PyTorch's formulas in f32 as the CPU device has them, with explicit
 * fma where that has. half (may be NULL): the new parameters in bf16 too, nearest even, or with stochastic rounding
 * where `rounding` is given: one Philox word each. peers: counts 0: none. not_finite (may be NULL): device-visible
 * word, atomic minimum of the indices of means that are not finite; the caller has set it to n. numbers (NULL: from
 * the fields above): device memory, for a captured graph; clipped (NULL: none): device memory, what the gradients
 * are scaled by instead. copy_to (NULL: nothing): gets *copy_from. */
typedef struct cu_optim {
    uint32_t algorithm, nesterov; /* DDP_OPTIM_* */
    uint64_t step;
    double lr, momentum, beta1, beta2, eps, weight_decay, grad_scale;
    float *param, *state1, *state2;
    const float *grad;
    uint16_t *half;
    uint64_t n;
    uint32_t grad_peers, param_peers; /* how many of the two below */
    const float *grads[CU_MAX_PEERS];
    float *params[CU_MAX_PEERS]; /* `param` among them */
    unsigned long long *not_finite;
    bool stochastic;
    uint64_t seed; /* of the stochastic rounding; the stream is `step`, the block counts from `first` */
    uint64_t first;
    const cu_numbers *numbers;
    const float *clipped, *copy_from;
    float *copy_to;
} cu_optim;
void cu_optim_numbers(const cu_optim *o, cu_numbers *out);
/* Slices of one algorithm, several in a launch. numbers: of all of them; NULL: their own. */
cudaError_t cu_optim_steps(cudaStream_t s, const cu_optim *all, uint32_t count, const cu_numbers *numbers);
/* *out, device or page-locked memory: the first index that is not finite, or n. */
cudaError_t cu_flat_finite(cudaStream_t s, const float *x, uint64_t n, uint64_t *out);
/* *out: the sum of squares in double, in an order that depends on n alone. */
size_t cu_flat_squares_scratch(uint64_t n);
cudaError_t cu_flat_squares(cudaStream_t s, const float *x, uint64_t n, double *out, void *scratch);
/* *norm = root of the `count` sums, added in their order, times numbers->scale; *clipped = scale * min(1, max_norm /
 * (norm + 1e-6)). */
cudaError_t cu_clip(cudaStream_t s, const double *sums, uint32_t count, double max_norm, const cu_numbers *numbers,
                    float *clipped, double *norm);
cudaError_t cu_flat_scale(cudaStream_t s, float *x, uint64_t n, double by); /* ddp_device_ops.scale */

#ifdef __cplusplus
}
#endif
