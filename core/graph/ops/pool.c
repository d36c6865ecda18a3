/* graph/ops/pool.c -- rows of the poolings over images: torch.nn.functional.max_pool2d, avg_pool2d (padding counts),
 * adaptive_avg_pool2d, and their gradients. FLOPs: an addition or comparison for each element of each window. */
#include "graph/internal.h"
#include <math.h>
#include <string.h>

/* ---- shapes, gradients ------------------------------------------------------------------------------------------- */
static ddp_status pool_shape(const ddp_attrs *attrs, uint32_t in_count, const ddp_shape *const *in, ddp_shape *out,
                             ddp_err *err)
{
    (void)in_count;
    DDP_TRY(ddp_shape_image(in[0], err));
    *out = *in[0];
    for (int i = 0; i < 2; i++)
        if (attrs->pool.padding[i] > attrs->pool.kernel[i] / 2)
            return ddp_fail(err, DDP_ERR_CONFIG, "a padding of %lld is more than half of the kernel of %lld",
                            (long long)attrs->pool.padding[i], (long long)attrs->pool.kernel[i]);
    return ddp_shape_windows(in[0], attrs->pool.kernel, attrs->pool.stride, attrs->pool.padding, out, err);
}

static ddp_status adaptive_shape(const ddp_attrs *attrs, uint32_t in_count, const ddp_shape *const *in, ddp_shape *out,
                                 ddp_err *err)
{
    (void)in_count;
    DDP_TRY(ddp_shape_image(in[0], err));
    *out = *in[0];
    for (int i = 0; i < 2; i++) {
        if (attrs->adaptive.out[i] < 1)
            return ddp_fail(err, DDP_ERR_CONFIG, "an output of %lld x %lld is not possible",
                            (long long)attrs->adaptive.out[0], (long long)attrs->adaptive.out[1]);
        out->dims[2 + i] = attrs->adaptive.out[i];
    }
    return DDP_OK;
}

/* The gradient ops follow their forward ops in the list. */
static ddp_status max_gradient(ddp_grad_context *c, const ddp_node *node, int32_t dy, ddp_err *err)
{
    if (!ddp_grad_wanted(c, node->in[0])) return DDP_OK;
    return ddp_grad_emit(c, node, DDP_OP_MAX_POOL2D_GRAD, node->in[0], dy, node->in[0], err);
}

static ddp_status avg_gradient(ddp_grad_context *c, const ddp_node *node, int32_t dy, ddp_err *err)
{
    if (!ddp_grad_wanted(c, node->in[0])) return DDP_OK;
    return ddp_grad_emit(c, node, node->op + 1, node->in[0], dy, -1, err);
}

/* ---- windows ----------------------------------------------------------------------------------------------------- */
typedef struct span {
    int64_t first, last; /* `last` excluded; within the image */
} span;

/* Of output `at` along axis `i`, height or width; `size` and `out` are the image's and the output's. */
static span window(const ddp_node *node, int i, int64_t at, int64_t size, int64_t out)
{
    bool adaptive = node->op == DDP_OP_ADAPTIVE_AVG_POOL2D || node->op == DDP_OP_ADAPTIVE_AVG_POOL2D_GRAD;
    int64_t first, last;

    if (adaptive) return (span){at * size / out, ((at + 1) * size + out - 1) / out};
    first = at * node->attrs.pool.stride[i] - node->attrs.pool.padding[i];
    last = first + node->attrs.pool.kernel[i];
    return (span){first > 0 ? first : 0, DDP_MIN_OF(last, size)};
}

/* What a window's sum is divided by: padding counts, which an adaptive window does not have. */
static double share(const ddp_node *node, span h, span w)
{
    if (node->op == DDP_OP_AVG_POOL2D || node->op == DDP_OP_AVG_POOL2D_GRAD)
        return 1.0 / ((double)node->attrs.pool.kernel[0] * (double)node->attrs.pool.kernel[1]);
    return 1.0 / (double)((h.last - h.first) * (w.last - w.first));
}

typedef struct plane {
    const ddp_node *node;
    double *x, *y; /* of one channel of one image, or their gradients */
    const int64_t *x_dims, *y_dims;
} plane;

typedef void (*plane_fn)(const plane *p, const double *other);

/* Elements of all windows of one channel of one image. */
static uint64_t window_elements(const ddp_node *node, const ddp_value *x, const ddp_value *y)
{
    uint64_t sum[2] = {0, 0};

    for (int i = 0; i < 2; i++)
        for (int64_t at = 0; at < y->dims[2 + i]; at++) {
            span s = window(node, i, at, x->dims[2 + i], y->dims[2 + i]);
            sum[i] += (uint64_t)(s.last - s.first);
        }
    return sum[0] * sum[1];
}

static uint64_t forward_flops(const ddp_node *node, const ddp_value *values)
{
    const ddp_value *x = &values[node->in[0]], *y = &values[node->out[0]];

    return (uint64_t)(y->dims[0] * y->dims[1]) * window_elements(node, x, y);
}

static uint64_t gradient_flops(const ddp_node *node, const ddp_value *values)
{
    const ddp_value *y = &values[node->in[0]], *x = &values[node->out[0]];

    return (uint64_t)(y->dims[0] * y->dims[1]) * window_elements(node, x, y);
}

/* ---- references -------------------------------------------------------------------------------------------------- */
static void every_plane(const ddp_node *node, const ddp_ref_tensor *x, const ddp_ref_tensor *y, const double *other,
                        plane_fn f)
{
    int64_t x_pixels = x->dims[2] * x->dims[3], y_pixels = y->dims[2] * y->dims[3];

    for (int64_t i = 0; i < x->dims[0] * x->dims[1]; i++) {
        plane p = {node, x->data + i * x_pixels, y->data + i * y_pixels, x->dims, y->dims};
        f(&p, other != NULL ? other + i * x_pixels : NULL);
    }
}

static span rows_of(const plane *p, int64_t row) { return window(p->node, 0, row, p->x_dims[2], p->y_dims[2]); }
static span cols_of(const plane *p, int64_t col) { return window(p->node, 1, col, p->x_dims[3], p->y_dims[3]); }

/* Index of the window's largest, of equals the first; a NaN counts as larger than all. */
static int64_t largest(const plane *p, const double *x, span h, span w)
{
    int64_t best = h.first * p->x_dims[3] + w.first;

    for (int64_t i = h.first; i < h.last; i++)
        for (int64_t j = w.first; j < w.last; j++) {
            int64_t at = i * p->x_dims[3] + j;
            if (x[at] > x[best] || isnan(x[at])) best = at;
        }
    return best;
}

static void max_plane(const plane *p, const double *other)
{
    (void)other;
    for (int64_t row = 0; row < p->y_dims[2]; row++)
        for (int64_t col = 0; col < p->y_dims[3]; col++)
            p->y[row * p->y_dims[3] + col] = p->x[largest(p, p->x, rows_of(p, row), cols_of(p, col))];
}

static void max_grad_plane(const plane *p, const double *x)
{
    for (int64_t row = 0; row < p->y_dims[2]; row++)
        for (int64_t col = 0; col < p->y_dims[3]; col++)
            p->x[largest(p, x, rows_of(p, row), cols_of(p, col))] += p->y[row * p->y_dims[3] + col];
}

static void avg_plane(const plane *p, const double *other)
{
    (void)other;
    for (int64_t row = 0; row < p->y_dims[2]; row++)
        for (int64_t col = 0; col < p->y_dims[3]; col++) {
            span h = rows_of(p, row), w = cols_of(p, col);
            double sum = 0.0;

            for (int64_t i = h.first; i < h.last; i++)
                for (int64_t j = w.first; j < w.last; j++) sum += p->x[i * p->x_dims[3] + j];
            p->y[row * p->y_dims[3] + col] = sum * share(p->node, h, w);
        }
}

static void avg_grad_plane(const plane *p, const double *other)
{
    (void)other;
    for (int64_t row = 0; row < p->y_dims[2]; row++)
        for (int64_t col = 0; col < p->y_dims[3]; col++) {
            span h = rows_of(p, row), w = cols_of(p, col);
            double part = p->y[row * p->y_dims[3] + col] * share(p->node, h, w);

            for (int64_t i = h.first; i < h.last; i++)
                for (int64_t j = w.first; j < w.last; j++) p->x[i * p->x_dims[3] + j] += part;
        }
}

static void max_reference(const ddp_node *node, const ddp_ref_tensor *in, ddp_ref_tensor *out)
{
    every_plane(node, &in[0], out, NULL, max_plane);
}

static void avg_reference(const ddp_node *node, const ddp_ref_tensor *in, ddp_ref_tensor *out)
{
    every_plane(node, &in[0], out, NULL, avg_plane);
}

static void max_grad_reference(const ddp_node *node, const ddp_ref_tensor *in, ddp_ref_tensor *out)
{
    memset(out->data, 0, (size_t)out->elements * sizeof(double));
    every_plane(node, out, &in[0], in[1].data, max_grad_plane);
}

static void avg_grad_reference(const ddp_node *node, const ddp_ref_tensor *in, ddp_ref_tensor *out)
{
    memset(out->data, 0, (size_t)out->elements * sizeof(double));
    every_plane(node, out, &in[0], NULL, avg_grad_plane);
}

/* ---- rows -------------------------------------------------------------------------------------------------------- */
DDP_OP_ROW(MAX_POOL2D, max_pool2d, 1, 1, .shape = pool_shape, .gradient = max_gradient, .flops = forward_flops,
           .reference = max_reference);
DDP_OP_ROW(AVG_POOL2D, avg_pool2d, 1, 1, .shape = pool_shape, .gradient = avg_gradient, .flops = forward_flops,
           .reference = avg_reference);
DDP_OP_ROW(ADAPTIVE_AVG_POOL2D, adaptive_avg_pool2d, 1, 1, .shape = adaptive_shape, .gradient = avg_gradient,
           .flops = forward_flops, .reference = avg_reference);
DDP_OP_ROW(MAX_POOL2D_GRAD, max_pool2d_grad, 2, 2, .flops = gradient_flops, .reference = max_grad_reference);
DDP_OP_ROW(AVG_POOL2D_GRAD, avg_pool2d_grad, 1, 1, .flops = gradient_flops, .reference = avg_grad_reference);
DDP_OP_ROW(ADAPTIVE_AVG_POOL2D_GRAD, adaptive_avg_pool2d_grad, 1, 1, .flops = gradient_flops,
           .reference = avg_grad_reference);
