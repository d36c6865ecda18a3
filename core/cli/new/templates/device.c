/* device_@FILE@.c -- device "@NAME@": runs MLPs, one node of the program at a time, on the host.
 *
 * <ddpengine/simple_device.h> has all that a device needs but the arithmetic: a function for each op of the models in
 * use, and ddp_simple_kernel, which chooses. An op that is not here ends a run before it starts, with the layer's name:
 * add what your models need. <ddpengine/program.h> says what each op is. */
#include <ddpengine/simple_device.h>

#include <unistd.h>

/* ---- layers: x (rows, I), w (O, I), b (O), y (rows, O); row-major ------------------------------------------------ */
static int64_t last(const ddp_value *v) { return v->dims[v->rank - 1]; }

static ddp_status linear(const ddp_simple_node *n, ddp_err *err)
{
    const float *x = n->in[0], *w = n->in[1], *b = n->in[2];
    const int64_t in = last(n->in_value[0]), out = last(n->out_value[0]);
    float *y = n->out[0];

    (void)err;
    for (int64_t i = 0; i < n->out_value[0]->elements; i++) {
        y[i] = b != NULL ? b[i % out] : 0;
        for (int64_t k = 0; k < in; k++) y[i] += x[i / out * in + k] * w[i % out * in + k];
    }
    return DDP_OK;
}

/* Of dy (rows, O): dx (rows, I), dw (O, I) and db (O). */
static ddp_status linear_grad(const ddp_simple_node *n, ddp_err *err)
{
    const int64_t out = last(n->in_value[0]), rows = n->in_value[0]->elements / out, in = last(n->out_value[0]);
    const float *dy = n->in[0], *other = n->in[1];
    float *to = n->out[0];

    (void)err;
    memset(to, 0, (size_t)n->out_value[0]->elements * sizeof(*to));
    for (int64_t r = 0; r < rows; r++)
        for (int64_t o = 0; o < out; o++)
            if (n->node->op == DDP_OP_LINEAR_GRAD_BIAS)
                to[o] += dy[r * out + o];
            else if (n->node->op == DDP_OP_LINEAR_GRAD_INPUT)
                for (int64_t i = 0; i < in; i++) to[r * in + i] += dy[r * out + o] * other[o * in + i];
            else
                for (int64_t i = 0; i < in; i++) to[o * in + i] += dy[r * out + o] * other[r * in + i];
    return DDP_OK;
}

/* ---- ops on single elements -------------------------------------------------------------------------------------- */
static ddp_status pointwise(const ddp_simple_node *n, ddp_err *err)
{
    const float *a = n->in[0], *b = n->in[1];
    float *y = n->out[0];

    (void)err;
    for (int64_t i = 0; i < n->out_value[0]->elements; i++) switch (n->node->op) {
        case DDP_OP_RELU: y[i] = a[i] > 0 ? a[i] : 0; break;
        case DDP_OP_RELU_GRAD: y[i] = b[i] > 0 ? a[i] : 0; break; /* a: of the output; b: the output */
        case DDP_OP_GELU: y[i] = 0.5f * a[i] * (1 + erff(a[i] * 0.70710678f)); break;
        case DDP_OP_GELU_GRAD:
            y[i] = a[i] * (0.5f * (1 + erff(b[i] * 0.70710678f)) + b[i] * expf(-0.5f * b[i] * b[i]) * 0.39894228f);
            break;
        default: y[i] = a[i] + b[i]; break;
        }
    return DDP_OK;
}

/* ---- the device -------------------------------------------------------------------------------------------------- */
static ddp_simple_run ddp_simple_kernel(const ddp_node *node)
{
    switch (node->op) {
    case DDP_OP_LINEAR: return node->attrs.linear.transposed ? NULL : linear;
    case DDP_OP_LINEAR_GRAD_INPUT:
    case DDP_OP_LINEAR_GRAD_WEIGHT:
    case DDP_OP_LINEAR_GRAD_BIAS: return node->attrs.linear.transposed ? NULL : linear_grad;
    case DDP_OP_GELU:
    case DDP_OP_GELU_GRAD: return node->attrs.gelu.tanh ? NULL : pointwise;
    case DDP_OP_RELU:
    case DDP_OP_RELU_GRAD:
    case DDP_OP_ADD: return pointwise;
    default: return NULL;
    }
}

static void ddp_simple_describe(ddp_device *d, ddp_device_info *out)
{
    (void)d;
    (void)snprintf(out->name, sizeof(out->name), "@NAME@, one thread");
    out->memory_bytes = (uint64_t)sysconf(_SC_PHYS_PAGES) * (uint64_t)sysconf(_SC_PAGESIZE);
}

static const ddp_device_ops ops = {.struct_size = sizeof(ops), .caps = DDP_SIMPLE_CAPS, DDP_SIMPLE_SLOTS};

DDP_PLUGIN_EXPORT const ddp_plugin ddp_plugin_desc = {
    DDP_PLUGIN_HEAD(DEVICE, 0),
    .memory = DDP_MEMORY_HOST,
    DDP_PLUGIN_TAIL("@NAME@", "1.0", "MLPs, one node at a time", DDP_NO_OPTIONS, ops),
};
