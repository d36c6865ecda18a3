/* lower.c -- groups the nodes of a program into kernels, and says what storage and scratch they need.
 *
 * A kernel stands at the place of its first node; the nodes that join it from further down read nothing but values that exist
 * there already:
 *   linear + relu or gelu         the pre-activation has no storage unless somebody else reads it (gelu's gradient does)
 *   relu or gelu gradient + bias gradient   one pass over dy
 *   cross-entropy or mse + its gradient     one pass over the logits, in their place when nobody reads them later
 * A reshape is a view. What the device cannot do is refused here, with the op and the layer's name. */
#include "cpu.h"

#include <stdlib.h>
#include <string.h>

typedef struct lowering {
    ddp_device *device;
    const ddp_program *p;
    cpu_lowered *l;
    uint32_t *readers; /* by value: nodes that read it */
    bool *kept;        /* by value: the loss and the metrics */
    bool *taken;       /* by node */
    bool *inner;       /* by value: never leaves its kernel, no storage */
} lowering;

const char *cpu_op_name(uint32_t op)
{
    static const char *const names[DDP_OP_END_] = {
        [DDP_OP_LINEAR] = "linear",
        [DDP_OP_LINEAR_GRAD_INPUT] = "linear_grad_input",
        [DDP_OP_LINEAR_GRAD_WEIGHT] = "linear_grad_weight",
        [DDP_OP_LINEAR_GRAD_BIAS] = "linear_grad_bias",
        [DDP_OP_RELU] = "relu",
        [DDP_OP_RELU_GRAD] = "relu_grad",
        [DDP_OP_GELU] = "gelu",
        [DDP_OP_GELU_GRAD] = "gelu_grad",
        [DDP_OP_ADD] = "add",
        [DDP_OP_RESHAPE] = "reshape",
        [DDP_OP_CROSS_ENTROPY] = "cross_entropy",
        [DDP_OP_CROSS_ENTROPY_GRAD] = "cross_entropy_grad",
        [DDP_OP_MSE] = "mse",
        [DDP_OP_MSE_GRAD] = "mse_grad",
        [DDP_OP_ACCURACY] = "accuracy",
    };

    return op < DDP_OP_END_ && names[op] != NULL ? names[op] : "unknown";
}

/* ---- checks --------------------------------------------------------------------------------------------------------- */
static uint32_t op_arity(uint32_t op)
{
    switch (op) {
    case DDP_OP_LINEAR: return 2; /* or 3, with a bias */
    case DDP_OP_LINEAR_GRAD_BIAS:
    case DDP_OP_RELU:
    case DDP_OP_GELU:
    case DDP_OP_RESHAPE: return 1;
    default: return 2;
    }
}

static bool op_has_label(uint32_t op)
{
    return op == DDP_OP_CROSS_ENTROPY || op == DDP_OP_CROSS_ENTROPY_GRAD || op == DDP_OP_ACCURACY;
}

static bool op_is_gradient(uint32_t op)
{
    return op != DDP_OP_LINEAR && op != DDP_OP_RELU && op != DDP_OP_GELU && op != DDP_OP_CROSS_ENTROPY &&
           op != DDP_OP_MSE && op != DDP_OP_ACCURACY;
}

static ddp_status refuse(ddp_err *err, const ddp_node *n, const char *why)
{
    return ddp_fail(err, DDP_ERR_UNSUPPORTED, "device \"cpu\" cannot run op %u (%s) of layer \"%s\": %s", n->op,
                    cpu_op_name(n->op), n->name, why);
}

static ddp_status check_node(const ddp_program *p, const ddp_node *n, ddp_err *err)
{
    uint32_t arity = op_arity(n->op);
    const ddp_value *out;

    if (n->op == 0 || n->op >= DDP_OP_END_)
        return refuse(err, n, "this plugin does not know it; use a newer device plugin");
    if (n->in_count < arity || n->in_count > arity + (n->op == DDP_OP_LINEAR) || n->out_count != 1)
        return refuse(err, n, "it has a number of inputs or outputs that this plugin does not know");
    out = cpu_value(p, n->out[0]);
    for (uint32_t i = 0; i < n->in_count && n->op != DDP_OP_RESHAPE; i++) {
        uint32_t want = op_has_label(n->op) && i == 1 ? DDP_I64 : DDP_F32;
        if (n->in[i] >= 0 && cpu_value(p, n->in[i])->dtype != want)
            return refuse(err, n, want == DDP_I64 ? "its labels must be i64" : "its inputs must be f32");
    }
    if (out->dtype != (n->op == DDP_OP_RESHAPE ? cpu_value(p, n->in[0])->dtype : DDP_F32))
        return refuse(err, n, "its output must be f32, or for a reshape of the input's dtype");
    if (out->kind == DDP_VALUE_GRAD && !op_is_gradient(n->op))
        return refuse(err, n, "its output cannot be a parameter's gradient");
    return DDP_OK;
}

/* ---- grouping ------------------------------------------------------------------------------------------------------- */
static void kernel_take(lowering *w, cpu_kernel *k, uint32_t node)
{
    uint32_t i = k->node_count++;

    for (; i > 0 && k->nodes[i - 1] > node; i--) k->nodes[i] = k->nodes[i - 1];
    k->nodes[i] = node;
    w->taken[node] = true;
}

/* The first free node after `from` whose op is in the list and whose first input is `value`; -1 if none. */
static int64_t find_reader(const lowering *w, uint32_t from, int32_t value, const uint32_t *ops, uint32_t op_count)
{
    for (uint32_t i = from + 1; i < w->p->node_count; i++) {
        const ddp_node *n = cpu_node(w->p, i);
        if (w->taken[i] || n->in[0] != value) continue;
        for (uint32_t o = 0; o < op_count; o++)
            if (n->op == ops[o]) return i;
    }
    return -1;
}

static uint32_t act_of(const ddp_node *n)
{
    if (n->op == DDP_OP_RELU || n->op == DDP_OP_RELU_GRAD) return CPU_ACT_RELU;
    return n->attrs.gelu.tanh ? CPU_ACT_GELU_TANH : CPU_ACT_GELU_ERF;
}

static ddp_status group_linear(lowering *w, cpu_kernel *k, uint32_t node, const ddp_node *n, ddp_err *err)
{
    static const uint32_t acts[] = {DDP_OP_RELU, DDP_OP_GELU};
    const ddp_value *weight = cpu_value(w->p, n->in[1]);
    int64_t act = find_reader(w, node, n->out[0], acts, 2);

    k->kind = CPU_LINEAR;
    k->c = n->in_count > 2 ? n->in[2] : -1;
    k->in = weight->dims[1];
    k->cols = weight->dims[0];
    k->rows = cpu_value(w->p, n->out[0])->elements / k->cols;
    if (act >= 0) {
        const ddp_node *a = cpu_node(w->p, (uint32_t)act);
        k->act = act_of(a);
        k->act_out = a->out[0];
        w->inner[n->out[0]] = w->readers[n->out[0]] == 1 && !w->kept[n->out[0]];
        kernel_take(w, k, (uint32_t)act);
    }
    return cpu_product_create(w->device->library, k->rows, k->in, k->cols, &k->product, err);
}

static void group_linear_gradient(lowering *w, cpu_kernel *k, const ddp_node *n)
{
    const ddp_value *dy = cpu_value(w->p, n->in[0]), *out = cpu_value(w->p, n->out[0]);

    k->cols = dy->dims[dy->rank - 1];
    k->rows = dy->elements / k->cols;
    if (n->op == DDP_OP_LINEAR_GRAD_BIAS) {
        k->kind = CPU_GRAD_BIAS;
        k->bias_out = n->out[0];
        k->out = -1;
        k->bias_add = k->add;
        return;
    }
    k->kind = n->op == DDP_OP_LINEAR_GRAD_INPUT ? CPU_GRAD_INPUT : CPU_GRAD_WEIGHT;
    k->in = out->dims[out->rank - 1];
}

/* A gradient that accumulates stays where it is, here and in group_loss: another one must have been set before it. */
static void group_act_gradient(lowering *w, cpu_kernel *k, uint32_t node, const ddp_node *n)
{
    static const uint32_t ops[] = {DDP_OP_LINEAR_GRAD_BIAS};
    const ddp_value *dx = cpu_value(w->p, n->out[0]);
    int64_t bias = find_reader(w, node, n->out[0], ops, 1);

    k->kind = CPU_ACT_GRAD;
    k->act = act_of(n);
    k->cols = dx->rank > 0 ? dx->dims[dx->rank - 1] : 1;
    k->rows = dx->elements / k->cols;
    if (bias < 0 || (cpu_node(w->p, (uint32_t)bias)->flags & DDP_NODE_F_ACCUMULATE)) return;
    k->bias_out = cpu_node(w->p, (uint32_t)bias)->out[0];
    kernel_take(w, k, (uint32_t)bias);
}

static void group_loss(lowering *w, cpu_kernel *k, uint32_t node, const ddp_node *n)
{
    bool entropy = n->op == DDP_OP_CROSS_ENTROPY || n->op == DDP_OP_CROSS_ENTROPY_GRAD;
    bool gradient = n->op == DDP_OP_CROSS_ENTROPY_GRAD || n->op == DDP_OP_MSE_GRAD;
    uint32_t forward = entropy ? DDP_OP_CROSS_ENTROPY : DDP_OP_MSE;
    uint32_t partner = gradient ? forward : forward + 1; /* X_GRAD follows X in the list of ops */
    int64_t other = find_reader(w, node, n->in[0], &partner, 1);
    const ddp_value *x = cpu_value(w->p, n->in[0]);

    k->kind = entropy ? CPU_CROSS_ENTROPY : CPU_MSE;
    k->cols = x->rank > 0 ? x->dims[x->rank - 1] : 1;
    k->rows = x->elements / k->cols;
    k->out = gradient ? -1 : n->out[0];
    k->grad_out = gradient ? n->out[0] : -1;
    if (other < 0 || cpu_node(w->p, (uint32_t)other)->in[1] != n->in[1] ||
        (cpu_node(w->p, (uint32_t)other)->flags & DDP_NODE_F_ACCUMULATE))
        return;
    *(gradient ? &k->out : &k->grad_out) = cpu_node(w->p, (uint32_t)other)->out[0];
    kernel_take(w, k, (uint32_t)other);
}

static void group_simple(lowering *w, cpu_kernel *k, const ddp_node *n)
{
    const ddp_value *x = cpu_value(w->p, n->in[0]);

    k->cols = x->rank > 0 ? x->dims[x->rank - 1] : 1;
    k->rows = x->elements / k->cols;
    switch (n->op) {
    case DDP_OP_ADD: k->kind = CPU_ADD; break;
    case DDP_OP_RESHAPE: k->kind = CPU_VIEW; break;
    case DDP_OP_ACCURACY: k->kind = CPU_ACCURACY; break;
    default:
        k->kind = CPU_ACT;
        k->act = act_of(n);
        break;
    }
}

static ddp_status group(lowering *w, uint32_t node, ddp_err *err)
{
    const ddp_node *n = cpu_node(w->p, node);
    cpu_kernel *k = &w->l->kernels[w->l->kernel_count++];

    *k = (cpu_kernel){.a = n->in[0],
                      .b = n->in_count > 1 ? n->in[1] : -1,
                      .c = -1,
                      .out = n->out[0],
                      .act_out = -1,
                      .grad_out = -1,
                      .bias_out = -1,
                      .name = n->name};
    k->add = (n->flags & DDP_NODE_F_ACCUMULATE) != 0;
    kernel_take(w, k, node);
    switch (n->op) {
    case DDP_OP_LINEAR: return group_linear(w, k, node, n, err);
    case DDP_OP_LINEAR_GRAD_INPUT:
    case DDP_OP_LINEAR_GRAD_WEIGHT:
    case DDP_OP_LINEAR_GRAD_BIAS: group_linear_gradient(w, k, n); break;
    case DDP_OP_RELU_GRAD:
    case DDP_OP_GELU_GRAD: group_act_gradient(w, k, node, n); break;
    case DDP_OP_CROSS_ENTROPY:
    case DDP_OP_CROSS_ENTROPY_GRAD:
    case DDP_OP_MSE:
    case DDP_OP_MSE_GRAD: group_loss(w, k, node, n); break;
    default: group_simple(w, k, n); break;
    }
    return DDP_OK;
}

/* ---- what the core sees --------------------------------------------------------------------------------------------- */
static const char *kernel_name(const cpu_kernel *k)
{
    static const char *const linear[2][4] = {
        {"linear", "linear+relu", "linear+gelu", "linear+gelu"},
        {"linear+bias", "linear+bias+relu", "linear+bias+gelu", "linear+bias+gelu"}};
    static const char *const grad[2][4] = {{"", "relu_grad", "gelu_grad", "gelu_grad"},
                                           {"", "relu_grad+bias_grad", "gelu_grad+bias_grad", "gelu_grad+bias_grad"}};

    switch (k->kind) {
    case CPU_LINEAR: return linear[k->c >= 0][k->act];
    case CPU_GRAD_INPUT: return "linear_grad_input";
    case CPU_GRAD_WEIGHT: return "linear_grad_weight";
    case CPU_GRAD_BIAS: return "linear_grad_bias";
    case CPU_ACT: return k->act == CPU_ACT_RELU ? "relu" : "gelu";
    case CPU_ACT_GRAD: return grad[k->bias_out >= 0][k->act];
    case CPU_ADD: return "add";
    case CPU_VIEW: return "reshape";
    case CPU_CROSS_ENTROPY:
        return k->grad_out < 0 ? "cross_entropy" : k->out < 0 ? "cross_entropy_grad" : "cross_entropy+grad";
    case CPU_MSE: return k->grad_out < 0 ? "mse" : k->out < 0 ? "mse_grad" : "mse+grad";
    case CPU_ACCURACY: return "accuracy";
    default: return "?";
    }
}

static bool is_act(const ddp_program *p, int32_t v) { return v >= 0 && cpu_value(p, v)->kind == DDP_VALUE_ACT; }

/* `out` may lie where `in` lies, if nobody else reads that: one pair an output, so the better of two inputs is chosen here. */
static bool allow_in_place(const lowering *w, ddp_kernel *t, int32_t out, int32_t in)
{
    uint32_t here = 0;
    int32_t root = in;

    if (!is_act(w->p, out) || !is_act(w->p, in)) return false;
    for (uint32_t i = 0; i < t->node_count; i++) {
        const ddp_node *n = cpu_node(w->p, t->nodes[i]);
        for (uint32_t j = 0; j < n->in_count; j++) here += n->in[j] == in;
    }
    if (w->readers[in] != here || w->kept[in]) return false;
    while (w->l->storage[root].alias_of >= 0) root = w->l->storage[root].alias_of;
    if (w->l->storage[root].bytes == 0) return false; /* a view of an input or a parameter */
    t->inplace_out[t->inplace_count] = out;
    t->inplace_in[t->inplace_count++] = in;
    return true;
}

/* A gradient that is computed by a kernel that can only set, and goes to the gradient arena, where a run may want it added. */
static int32_t staged_value(const ddp_program *p, const cpu_kernel *k)
{
    int32_t v = k->kind == CPU_CROSS_ENTROPY || k->kind == CPU_MSE ? k->grad_out : k->out;

    if (k->kind == CPU_GRAD_WEIGHT || k->kind == CPU_VIEW) return -1;
    return v >= 0 && cpu_value(p, v)->kind == DDP_VALUE_GRAD ? v : -1;
}

static void describe_kernel(const lowering *w, cpu_kernel *k, ddp_kernel *t)
{
    k->staged = staged_value(w->p, k);
    t->nodes = k->nodes;
    t->node_count = k->node_count;
    t->name = kernel_name(k);
    t->scratch_bytes = k->product != NULL ? cpu_product_scratch(k->product) : 0;
    if (k->staged >= 0) t->scratch_bytes = (uint64_t)cpu_value(w->p, k->staged)->elements * sizeof(float);
    switch (k->kind) {
    case CPU_ACT: (void)allow_in_place(w, t, k->out, k->a); break;
    case CPU_ACT_GRAD:
    case CPU_ADD:
        if (!allow_in_place(w, t, k->out, k->a)) (void)allow_in_place(w, t, k->out, k->b);
        break;
    case CPU_CROSS_ENTROPY:
    case CPU_MSE: (void)allow_in_place(w, t, k->grad_out, k->a); break;
    default: break;
    }
}

static void describe_storage(lowering *w)
{
    for (uint32_t v = 0; v < w->p->value_count; v++) {
        const ddp_value *value = cpu_value(w->p, (int32_t)v);
        w->l->storage[v].alias_of = -1;
        if (value->kind == DDP_VALUE_ACT && !w->inner[v])
            w->l->storage[v].bytes = (uint64_t)value->elements * ddp_dtype_size(value->dtype);
    }
    for (uint32_t i = 0; i < w->l->kernel_count; i++) {
        const cpu_kernel *k = &w->l->kernels[i];
        if (k->kind != CPU_VIEW || !is_act(w->p, k->out)) continue;
        w->l->storage[k->out].bytes = 0;
        w->l->storage[k->out].alias_of = k->a;
    }
}

/* ---- memory --------------------------------------------------------------------------------------------------------- */
static void lowered_release(cpu_lowered *l)
{
    if (l == NULL) return;
    for (uint32_t i = 0; l->kernels != NULL && i < l->kernel_count; i++) cpu_product_free(l->kernels[i].product);
    free(l->kernels);
    free(l->table);
    free(l->storage);
    free(l);
}

static bool lowering_reserve(lowering *w)
{
    size_t nodes = w->p->node_count, values = w->p->value_count;

    w->l = calloc(1, sizeof(*w->l));
    w->readers = calloc(values + 1, sizeof(*w->readers));
    w->kept = calloc(values + 1, sizeof(*w->kept));
    w->inner = calloc(values + 1, sizeof(*w->inner));
    w->taken = calloc(nodes + 1, sizeof(*w->taken));
    if (w->l == NULL || w->readers == NULL || w->kept == NULL || w->inner == NULL || w->taken == NULL) return false;
    w->l->kernels = calloc(nodes + 1, sizeof(*w->l->kernels));
    w->l->table = calloc(nodes + 1, sizeof(*w->l->table));
    w->l->storage = calloc(values + 1, sizeof(*w->l->storage));
    return w->l->kernels != NULL && w->l->table != NULL && w->l->storage != NULL;
}

static void lowering_release(lowering *w)
{
    free(w->readers);
    free(w->kept);
    free(w->inner);
    free(w->taken);
}

static ddp_status lowering_run(lowering *w, ddp_err *err)
{
    const ddp_program *p = w->p;

    for (uint32_t i = 0; i < p->node_count; i++) {
        const ddp_node *n = cpu_node(p, i);
        ddp_status status = check_node(p, n, err);
        if (status != DDP_OK) return status;
        for (uint32_t j = 0; j < n->in_count; j++)
            if (n->in[j] >= 0) w->readers[n->in[j]]++;
    }
    if (p->loss >= 0) w->kept[p->loss] = true;
    for (uint32_t i = 0; i < p->metric_count; i++) w->kept[p->metrics[i]] = true;
    for (uint32_t i = 0; i < p->node_count; i++) {
        ddp_status status = w->taken[i] ? DDP_OK : group(w, i, err);
        if (status != DDP_OK) return status;
    }
    describe_storage(w);
    for (uint32_t i = 0; i < w->l->kernel_count; i++) describe_kernel(w, &w->l->kernels[i], &w->l->table[i]);
    return DDP_OK;
}

ddp_status cpu_lower(ddp_device *d, const ddp_program *p, ddp_lowered **out, ddp_err *err)
{
    lowering w = {.device = d, .p = p};
    ddp_lowered *lowered = calloc(1, sizeof(*lowered));
    ddp_status status;

    if (lowered != NULL && lowering_reserve(&w))
        status = lowering_run(&w, err);
    else
        status = ddp_fail(err, DDP_ERR_NOMEM, "device \"cpu\": out of memory while lowering %u nodes", p->node_count);
    lowering_release(&w);
    if (status != DDP_OK || lowered == NULL) {
        lowered_release(w.l);
        free(lowered);
        return status;
    }
    *lowered = (ddp_lowered){.struct_size = sizeof(*lowered),
                             .kernel_count = w.l->kernel_count,
                             .kernels = w.l->table,
                             .storage = w.l->storage,
                             .device_data = w.l};
    *out = lowered;
    return DDP_OK;
}

void cpu_lowered_free(ddp_device *d, ddp_lowered *l)
{
    (void)d;
    if (l == NULL) return;
    lowered_release(l->device_data);
    free(l);
}
