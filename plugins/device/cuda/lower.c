/* lower.c -- groups the nodes of a program into kernels, and says what storage and scratch they need.
 *
 * Each node goes to the family of its op, which may take nodes further down into the same kernel. A kernel stands at the place
 * of its first node, unless a node that joined it reads a value that does not exist there yet. How values lie and what they are
 * stored as is for layout.c and types.c. What the device cannot do is refused here, with the op and the layer's name. */
#include "cu.h"

#include <stdlib.h>
#include <string.h>

typedef struct op_traits {
    const char *name;
    const cu_family *family;
    uint32_t min_in, max_in;
    uint32_t outs;
    uint32_t index_in; /* bit i: input i is i64 */
    bool grad;         /* the outputs may be slices of the gradient arena */
} op_traits;

static const op_traits traits[DDP_OP_END_] = {
    [DDP_OP_LINEAR] = {"linear", &cu_family_linear, 2, 3, 1, 0, false},
    [DDP_OP_LINEAR_GRAD_INPUT] = {"linear_grad_input", &cu_family_linear_grad_input, 2, 2, 1, 0, true},
    [DDP_OP_LINEAR_GRAD_WEIGHT] = {"linear_grad_weight", &cu_family_linear_grad_weight, 2, 2, 1, 0, true},
    [DDP_OP_LINEAR_GRAD_BIAS] = {"linear_grad_bias", &cu_family_column_sums, 1, 1, 1, 0, true},
    [DDP_OP_RELU] = {"relu", &cu_family_act, 1, 1, 1, 0, false},
    [DDP_OP_RELU_GRAD] = {"relu_grad", &cu_family_act_grad, 2, 2, 1, 0, true},
    [DDP_OP_GELU] = {"gelu", &cu_family_act, 1, 1, 1, 0, false},
    [DDP_OP_GELU_GRAD] = {"gelu_grad", &cu_family_act_grad, 2, 2, 1, 0, true},
    [DDP_OP_ADD] = {"add", &cu_family_add, 2, 2, 1, 0, true},
    [DDP_OP_RESHAPE] = {"reshape", &cu_family_view, 1, 1, 1, 0, true},
    [DDP_OP_CROSS_ENTROPY] = {"cross_entropy", &cu_family_loss, 2, 2, 1, 2, false},
    [DDP_OP_CROSS_ENTROPY_GRAD] = {"cross_entropy_grad", &cu_family_loss, 2, 2, 1, 2, true},
    [DDP_OP_MSE] = {"mse", &cu_family_loss, 2, 2, 1, 0, false},
    [DDP_OP_MSE_GRAD] = {"mse_grad", &cu_family_loss, 2, 2, 1, 0, true},
    [DDP_OP_ACCURACY] = {"accuracy", &cu_family_loss, 2, 2, 1, 2, false},
    [DDP_OP_CONV2D] = {"conv2d", &cu_family_conv, 2, 3, 1, 0, false},
    [DDP_OP_CONV2D_GRAD_INPUT] = {"conv2d_grad_input", &cu_family_conv_grad, 2, 2, 1, 0, true},
    [DDP_OP_CONV2D_GRAD_WEIGHT] = {"conv2d_grad_weight", &cu_family_conv_grad, 2, 2, 1, 0, true},
    [DDP_OP_CONV2D_GRAD_BIAS] = {"conv2d_grad_bias", &cu_family_column_sums, 1, 1, 1, 0, true},
    [DDP_OP_BATCH_NORM] = {"batch_norm", &cu_family_batch_norm, 5, 5, 3, 0, false},
    [DDP_OP_BATCH_NORM_GRAD] = {"batch_norm_grad", &cu_family_batch_norm_grad, 5, 5, 3, 0, true},
    [DDP_OP_MAX_POOL2D] = {"max_pool2d", &cu_family_pool, 1, 1, 1, 0, false},
    [DDP_OP_MAX_POOL2D_GRAD] = {"max_pool2d_grad", &cu_family_pool_grad, 2, 2, 1, 0, true},
    [DDP_OP_AVG_POOL2D] = {"avg_pool2d", &cu_family_pool, 1, 1, 1, 0, false},
    [DDP_OP_AVG_POOL2D_GRAD] = {"avg_pool2d_grad", &cu_family_pool_grad, 1, 1, 1, 0, true},
    [DDP_OP_ADAPTIVE_AVG_POOL2D] = {"adaptive_avg_pool2d", &cu_family_pool, 1, 1, 1, 0, false},
    [DDP_OP_ADAPTIVE_AVG_POOL2D_GRAD] = {"adaptive_avg_pool2d_grad", &cu_family_pool_grad, 1, 1, 1, 0, true},
    [DDP_OP_LAYER_NORM] = {"layer_norm", &cu_family_layer_norm, 3, 3, 3, 0, false},
    [DDP_OP_LAYER_NORM_GRAD] = {"layer_norm_grad", &cu_family_layer_norm_grad, 5, 5, 3, 0, true},
    [DDP_OP_EMBEDDING] = {"embedding", &cu_family_embedding, 2, 2, 1, 1, false},
    [DDP_OP_EMBEDDING_GRAD] = {"embedding_grad", &cu_family_embedding_grad, 2, 2, 1, 2, true},
    [DDP_OP_POSITION] = {"position", &cu_family_position, 2, 2, 1, 0, false},
    [DDP_OP_POSITION_GRAD] = {"position_grad", &cu_family_position_grad, 1, 1, 1, 0, true},
    [DDP_OP_ATTENTION] = {"attention", &cu_family_attention, 1, 1, 2, 0, false},
    [DDP_OP_ATTENTION_GRAD] = {"attention_grad", &cu_family_attention_grad, 4, 4, 1, 0, true},
    [DDP_OP_DROPOUT] = {"dropout", &cu_family_dropout, 1, 1, 1, 0, false},
    [DDP_OP_DROPOUT_GRAD] = {"dropout_grad", &cu_family_dropout, 1, 1, 1, 0, true},
};

/* ---- checks --------------------------------------------------------------------------------------------------------- */
ddp_status cu_refuse(ddp_err *err, const ddp_node *n, const char *why)
{
    const char *name = n->op < DDP_OP_END_ && traits[n->op].name != NULL ? traits[n->op].name : "unknown";

    return ddp_fail(err, DDP_ERR_UNSUPPORTED, "device \"cuda\" cannot run op %u (%s) of layer \"%s\": %s", n->op, name,
                    n->name, why);
}

static ddp_status check_values(const ddp_program *p, const ddp_node *n, const op_traits *t, ddp_err *err)
{
    bool view = n->op == DDP_OP_RESHAPE;

    for (uint32_t i = 0; i < n->in_count && !view; i++) {
        uint32_t want = t->index_in >> i & 1u ? DDP_I64 : DDP_F32;
        if (n->in[i] >= 0 && cu_value(p, n->in[i])->dtype != want)
            return cu_refuse(err, n, want == DDP_I64 ? "its labels and indices must be i64" : "its inputs must be f32");
    }
    for (uint32_t i = 0; i < n->out_count; i++) {
        const ddp_value *out = n->out[i] >= 0 ? cu_value(p, n->out[i]) : NULL;
        if (out == NULL) continue;
        if (out->dtype != (view ? cu_value(p, n->in[0])->dtype : DDP_F32))
            return cu_refuse(err, n, "its output must be f32, or for a reshape of the input's dtype");
        if (out->kind == DDP_VALUE_GRAD && !t->grad)
            return cu_refuse(err, n, "its output cannot be a parameter's gradient");
    }
    return DDP_OK;
}

static ddp_status check_node(const ddp_program *p, const ddp_node *n, ddp_err *err)
{
    const op_traits *t = n->op < DDP_OP_END_ ? &traits[n->op] : NULL;

    if (t == NULL || t->family == NULL)
        return cu_refuse(err, n, "this plugin does not know it; use a newer device plugin");
    if (n->in_count < t->min_in || n->in_count > t->max_in || n->out_count != t->outs)
        return cu_refuse(err, n, "it has a number of inputs or outputs that this plugin does not know");
    return check_values(p, n, t, err);
}

/* ---- for the families ----------------------------------------------------------------------------------------------- */
void cu_take(cu_lowering *w, cu_kernel *k, uint32_t node)
{
    uint32_t i = k->node_count++;

    for (; i > 0 && k->nodes[i - 1] > node; i--) k->nodes[i] = k->nodes[i - 1];
    k->nodes[i] = node;
    w->taken[node] = true;
}

void cu_take_and_move(cu_lowering *w, cu_kernel *k, uint32_t node)
{
    cu_take(w, k, node);
    if (node > k->place) k->place = node;
}

int64_t cu_find_reader(const cu_lowering *w, uint32_t from, int32_t value, uint32_t slot, const uint32_t *ops,
                       uint32_t op_count)
{
    if (value < 0) return -1;
    for (uint32_t i = from + 1; i < w->p->node_count; i++) {
        const ddp_node *n = cu_node(w->p, i);
        if (w->taken[i] || slot >= n->in_count || n->in[slot] != value) continue;
        for (uint32_t o = 0; o < op_count; o++)
            if (n->op == ops[o]) return i;
    }
    return -1;
}

bool cu_read_once(const cu_lowering *w, int32_t v) { return w->readers[v] == 1 && !w->kept[v]; }

void cu_may_replace(cu_kernel *k, int32_t out, int32_t in)
{
    if (k->inplace_count == 2 || out < 0 || in < 0) return;
    k->inplace_out[k->inplace_count] = out;
    k->inplace_in[k->inplace_count++] = in;
}

void *cu_state(cu_kernel *k, size_t bytes, ddp_err *err)
{
    k->state = calloc(1, bytes);
    if (k->state == NULL) (void)ddp_fail(err, DDP_ERR_NOMEM, "device \"cuda\": out of memory while lowering");
    return k->state;
}

void cu_matrix(const cu_lowering *w, int32_t v, int64_t *rows, int64_t *cols)
{
    const ddp_value *value = cu_value(w->p, v);

    *cols = value->rank == 4 ? value->dims[1] : cu_last_dim(value);
    *rows = value->elements / *cols;
}

void cu_rows(const cu_lowering *w, cu_kernel *k, int32_t v)
{
    const ddp_value *value = cu_value(w->p, v);

    k->plain = true;
    k->cols = cu_last_dim(value);
    k->rows = value->elements / k->cols;
}

uint32_t cu_act_of(const ddp_node *n)
{
    if (n->op == DDP_OP_RELU || n->op == DDP_OP_RELU_GRAD) return CU_ACT_RELU;
    return n->attrs.gelu.tanh ? CU_ACT_GELU_TANH : CU_ACT_GELU_ERF;
}

/* ---- what the core sees --------------------------------------------------------------------------------------------- */
static bool may_replace(const cu_lowering *w, const cu_kernel *k, int32_t out, int32_t in)
{
    uint32_t here = 0;
    int32_t root = cu_root_of(w->l, in);

    if (cu_outside(cu_value(w->p, out)) || cu_outside(cu_value(w->p, root))) return false;
    if (w->l->storage[out].bytes == 0 || w->l->storage[root].bytes == 0) return false;
    for (uint32_t i = 0; i < k->node_count; i++) {
        const ddp_node *n = cu_node(w->p, k->nodes[i]);
        for (uint32_t j = 0; j < n->in_count; j++) here += n->in[j] == in;
    }
    return w->readers[in] == here && !w->kept[in] && w->type[out] == w->type[root];
}

static void describe_kernel(cu_lowering *w, uint32_t index)
{
    cu_kernel *k = &w->l->kernels[index];
    ddp_kernel *t = &w->l->table[index];

    t->nodes = k->nodes;
    t->node_count = k->node_count;
    t->name = k->name;
    for (uint32_t i = 0; i < k->inplace_count; i++) {
        bool had = t->inplace_count > 0 && t->inplace_out[0] == k->inplace_out[i];
        if (had || w->l->change_count[index] > 0 || !may_replace(w, k, k->inplace_out[i], k->inplace_in[i])) continue;
        t->inplace_out[t->inplace_count] = k->inplace_out[i];
        t->inplace_in[t->inplace_count++] = k->inplace_in[i];
    }
}

static int by_place(const void *a, const void *b)
{
    const cu_kernel *x = a, *y = b;

    return x->place != y->place ? (x->place < y->place ? -1 : 1) : (x->id < y->id ? -1 : 1);
}

/* ---- memory --------------------------------------------------------------------------------------------------------- */
static void lowered_release(cu_lowered *l)
{
    if (l == NULL) return;
    for (uint32_t i = 0; l->kernels != NULL && i < l->kernel_count; i++)
        if (l->kernels[i].family->release != NULL) l->kernels[i].family->release(l->kernels[i].state);
    free(l->kernels);
    free(l->table);
    free(l->storage);
    free(l->privates);
    free(l->type);
    free(l->changes);
    free(l->change_count);
    free(l);
}

static bool lowering_reserve(cu_lowering *w)
{
    size_t nodes = w->p->node_count + 1, values = w->p->value_count + 1;
    cu_lowered *l = w->l = calloc(1, sizeof(*w->l));

    w->readers = calloc(values, sizeof(*w->readers));
    w->kept = calloc(values, sizeof(*w->kept));
    w->inner = calloc(values, sizeof(*w->inner));
    w->layout = calloc(values, sizeof(*w->layout));
    w->taken = calloc(nodes, sizeof(*w->taken));
    if (l == NULL || w->readers == NULL || w->kept == NULL || w->inner == NULL || w->layout == NULL || w->taken == NULL)
        return false;
    l->kernels = calloc(nodes, sizeof(*l->kernels));
    l->table = calloc(nodes, sizeof(*l->table));
    l->storage = calloc(values, sizeof(*l->storage));
    l->privates = calloc(nodes * CU_MAX_VALUES, sizeof(*l->privates));
    l->type = w->type = calloc(values, sizeof(*l->type));
    l->changes = calloc(nodes, sizeof(*l->changes));
    l->change_count = calloc(nodes, sizeof(*l->change_count));
    return l->kernels != NULL && l->table != NULL && l->storage != NULL && l->privates != NULL && l->type != NULL &&
           l->changes != NULL && l->change_count != NULL;
}

static void lowering_release(cu_lowering *w)
{
    free(w->readers);
    free(w->kept);
    free(w->inner);
    free(w->layout);
    free(w->taken);
}

/* ---- all together --------------------------------------------------------------------------------------------------- */
static ddp_status group(cu_lowering *w, uint32_t node, ddp_err *err)
{
    const ddp_node *n = cu_node(w->p, node);
    uint32_t id = w->l->kernel_count++;
    cu_kernel *k = &w->l->kernels[id];

    *k = (cu_kernel){
        .family = traits[n->op].family, .layer = n->name, .name = traits[n->op].name, .place = node, .id = id};
    for (uint32_t i = 0; i < CU_MAX_VALUES; i++) {
        k->in[i] = i < n->in_count ? n->in[i] : -1;
        k->out[i] = i < n->out_count ? n->out[i] : -1;
        k->in_type[i] = k->out_type[i] = CU_AS_IT_LIES;
    }
    k->adds = n->accumulate;
    cu_take(w, k, node);
    return k->family->group(w, k, node, err);
}

static ddp_status count_readers(cu_lowering *w, ddp_err *err)
{
    const ddp_program *p = w->p;

    for (uint32_t i = 0; i < p->node_count; i++) {
        const ddp_node *n = cu_node(p, i);
        ddp_status status = check_node(p, n, err);
        if (status != DDP_OK) return status;
        for (uint32_t j = 0; j < n->in_count; j++)
            if (n->in[j] >= 0) w->readers[n->in[j]]++;
    }
    if (p->loss >= 0) w->kept[p->loss] = true;
    for (uint32_t i = 0; i < p->metric_count; i++) w->kept[p->metrics[i]] = true;
    return DDP_OK;
}

static ddp_status lowering_run(cu_lowering *w, ddp_err *err)
{
    ddp_status status = count_readers(w, err);

    if (status != DDP_OK) return status;
    cu_choose_types(w);
    cu_describe_layouts(w);
    for (uint32_t i = 0; i < w->p->node_count; i++) {
        status = w->taken[i] ? DDP_OK : group(w, i, err);
        if (status != DDP_OK) return status;
    }
    qsort(w->l->kernels, w->l->kernel_count, sizeof(*w->l->kernels), by_place);
    cu_size_storage(w);
    status = cu_find_changes(w, err);
    for (uint32_t i = 0; status == DDP_OK && i < w->l->kernel_count; i++) describe_kernel(w, i);
    return status;
}

ddp_status cu_lower(ddp_device *d, const ddp_program *p, ddp_lowered **out, ddp_err *err)
{
    cu_lowering w = {.device = d, .p = p};
    ddp_lowered *lowered = calloc(1, sizeof(*lowered));
    ddp_status status = cu_enter(d, err);

    if (status == DDP_OK && lowered != NULL && lowering_reserve(&w))
        status = lowering_run(&w, err);
    else if (status == DDP_OK)
        status = ddp_fail(err, DDP_ERR_NOMEM, "device \"cuda\": out of memory while lowering %u nodes", p->node_count);
    lowering_release(&w);
    if (status != DDP_OK || lowered == NULL) {
        lowered_release(w.l);
        free(lowered);
        return status;
    }
    *lowered = (ddp_lowered){.struct_size = sizeof(*lowered),
                             .kernel_count = w.l->kernel_count,
                             .private_count = w.l->private_count,
                             .kernels = w.l->table,
                             .storage = w.l->storage,
                             .privates = w.l->privates,
                             .device_data = w.l};
    *out = lowered;
    return DDP_OK;
}

void cu_lowered_free(ddp_device *d, ddp_lowered *l)
{
    (void)d;
    if (l == NULL) return;
    lowered_release(l->device_data);
    free(l);
}
