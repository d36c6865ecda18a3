/* plugins/device/common/lower.c -- groups the nodes of a program into kernels, and says what storage and scratch they
 * need.
 *
 * Each node goes to the family of its op, which may take nodes further down into the same kernel. A kernel stands at
 * the position of its first node, unless a node that joined it reads a value that does not exist there yet. How values
 * lie and what they are stored as is for layout.c and the device. What the device cannot do is refused here, with
 * the op and the layer's name. */
#include "lower.h"

#include <stdlib.h>

typedef struct op_traits {
    const char *name;
    uint32_t min_in, max_in;
    uint32_t outs;
    uint32_t index_in; /* bit i: input i is i64 */
    bool grad;         /* the outputs may be slices of the gradient arena */
} op_traits;

static const op_traits traits[DDP_OP_END_] = {
    [DDP_OP_LINEAR] = {"linear", 2, 3, 1, 0, false},
    [DDP_OP_LINEAR_GRAD_INPUT] = {"linear_grad_input", 2, 2, 1, 0, true},
    [DDP_OP_LINEAR_GRAD_WEIGHT] = {"linear_grad_weight", 2, 2, 1, 0, true},
    [DDP_OP_LINEAR_GRAD_BIAS] = {"linear_grad_bias", 1, 1, 1, 0, true},
    [DDP_OP_RELU] = {"relu", 1, 1, 1, 0, false},
    [DDP_OP_RELU_GRAD] = {"relu_grad", 2, 2, 1, 0, true},
    [DDP_OP_LEAKY_RELU] = {"leaky_relu", 1, 1, 1, 0, false},
    [DDP_OP_LEAKY_RELU_GRAD] = {"leaky_relu_grad", 2, 2, 1, 0, true},
    [DDP_OP_SCALE] = {"scale", 1, 1, 1, 0, true},
    [DDP_OP_GELU] = {"gelu", 1, 1, 1, 0, false},
    [DDP_OP_GELU_GRAD] = {"gelu_grad", 2, 2, 1, 0, true},
    [DDP_OP_ADD] = {"add", 2, 2, 1, 0, true},
    [DDP_OP_RESHAPE] = {"reshape", 1, 1, 1, 0, true},
    [DDP_OP_CROSS_ENTROPY] = {"cross_entropy", 2, 4, 1, 6, false},
    [DDP_OP_CROSS_ENTROPY_GRAD] = {"cross_entropy_grad", 2, 4, 1, 6, true},
    [DDP_OP_MSE] = {"mse", 2, 2, 1, 0, false},
    [DDP_OP_MSE_GRAD] = {"mse_grad", 2, 2, 1, 0, true},
    [DDP_OP_ACCURACY] = {"accuracy", 2, 2, 1, 2, false},
    [DDP_OP_L1] = {"l1", 2, 2, 1, 0, false},
    [DDP_OP_L1_GRAD] = {"l1_grad", 2, 2, 1, 0, true},
    [DDP_OP_SMOOTH_L1] = {"smooth_l1", 2, 2, 1, 0, false},
    [DDP_OP_SMOOTH_L1_GRAD] = {"smooth_l1_grad", 2, 2, 1, 0, true},
    [DDP_OP_BCE_WITH_LOGITS] = {"bce_with_logits", 2, 2, 1, 0, false},
    [DDP_OP_BCE_WITH_LOGITS_GRAD] = {"bce_with_logits_grad", 2, 2, 1, 0, true},
    [DDP_OP_TOP_K] = {"top_k", 2, 2, 1, 2, false},
    [DDP_OP_CONFUSION] = {"confusion", 2, 2, 1, 2, false},
    [DDP_OP_BINARY_CONFUSION] = {"binary_confusion", 2, 2, 1, 0, false},
    [DDP_OP_REGRESSION] = {"regression", 2, 2, 1, 0, false},
    [DDP_OP_CONV2D] = {"conv2d", 2, 3, 1, 0, false},
    [DDP_OP_CONV2D_GRAD_INPUT] = {"conv2d_grad_input", 2, 2, 1, 0, true},
    [DDP_OP_CONV2D_GRAD_WEIGHT] = {"conv2d_grad_weight", 2, 2, 1, 0, true},
    [DDP_OP_CONV2D_GRAD_BIAS] = {"conv2d_grad_bias", 1, 1, 1, 0, true},
    [DDP_OP_BATCH_NORM] = {"batch_norm", 5, 5, 3, 0, false},
    [DDP_OP_BATCH_NORM_GRAD] = {"batch_norm_grad", 5, 5, 3, 0, true},
    [DDP_OP_MAX_POOL2D] = {"max_pool2d", 1, 1, 1, 0, false},
    [DDP_OP_MAX_POOL2D_GRAD] = {"max_pool2d_grad", 2, 2, 1, 0, true},
    [DDP_OP_AVG_POOL2D] = {"avg_pool2d", 1, 1, 1, 0, false},
    [DDP_OP_AVG_POOL2D_GRAD] = {"avg_pool2d_grad", 1, 1, 1, 0, true},
    [DDP_OP_ADAPTIVE_AVG_POOL2D] = {"adaptive_avg_pool2d", 1, 1, 1, 0, false},
    [DDP_OP_ADAPTIVE_AVG_POOL2D_GRAD] = {"adaptive_avg_pool2d_grad", 1, 1, 1, 0, true},
    [DDP_OP_RMS_NORM] = {"rms_norm", 2, 2, 2, 0, false},
    [DDP_OP_RMS_NORM_GRAD] = {"rms_norm_grad", 4, 4, 2, 0, true},
    [DDP_OP_SILU] = {"silu", 1, 1, 1, 0, false},
    [DDP_OP_SILU_GRAD] = {"silu_grad", 2, 2, 1, 0, true},
    [DDP_OP_MUL] = {"mul", 2, 2, 1, 0, true},
    [DDP_OP_ROPE] = {"rope", 1, 2, 1, 2, false},
    [DDP_OP_ROPE_GRAD] = {"rope_grad", 1, 2, 1, 2, true},
    [DDP_OP_LAYER_NORM] = {"layer_norm", 3, 3, 3, 0, false},
    [DDP_OP_LAYER_NORM_GRAD] = {"layer_norm_grad", 5, 5, 3, 0, true},
    [DDP_OP_EMBEDDING] = {"embedding", 2, 2, 1, 1, false},
    [DDP_OP_EMBEDDING_GRAD] = {"embedding_grad", 2, 2, 1, 2, true},
    [DDP_OP_POSITION] = {"position", 2, 2, 1, 0, false},
    [DDP_OP_POSITION_GRAD] = {"position_grad", 1, 1, 1, 0, true},
    [DDP_OP_ATTENTION] = {"attention", 1, 1, 2, 0, false},
    [DDP_OP_ATTENTION_GRAD] = {"attention_grad", 4, 4, 1, 0, true},
    [DDP_OP_DROPOUT] = {"dropout", 1, 1, 1, 0, false},
    [DDP_OP_DROPOUT_GRAD] = {"dropout_grad", 1, 1, 1, 0, true},
    [DDP_OP_POSITION_AT] = {"position_at", 3, 3, 1, 4, false},
    [DDP_OP_ATTENTION_CACHED] = {"attention_cached", 4, 4, 1, 8, false},
    [DDP_OP_ATTENTION_APART] = {"attention_apart", 3, 4, 2, 8, false},
    [DDP_OP_ATTENTION_APART_GRAD] = {"attention_apart_grad", 6, 7, 3, 64, true},
    [DDP_OP_ATTENTION_APART_CACHED] = {"attention_apart_cached", 6, 6, 1, 32, false},
    [DDP_OP_SOFTMAX_PARTS] = {"softmax_parts", 2, 2, 1, 2, false},
    [DDP_OP_SOFTMAX_PARTS_GRAD] = {"softmax_parts_grad", 3, 3, 1, 2, false},
};

/* ---- checks ------------------------------------------------------------------------------------------------------ */
ddp_status low_refuse(const low_lowering *w, const ddp_node *n, const char *why, ddp_err *err)
{
    const char *name = n->op < DDP_OP_END_ && traits[n->op].name != NULL ? traits[n->op].name : "unknown";

    return ddp_fail(err, DDP_ERR_UNSUPPORTED, "device \"%s\" cannot run op %u (%s) of layer \"%s\": %s",
                    w->target->name, n->op, name, n->name, why);
}

/* A parameter that is not trained may be of another dtype than f32. */
static bool is_frozen_weight(const low_lowering *w, const ddp_node *n, uint32_t slot)
{
    const ddp_value *v = low_value(w->p, n->in[slot]);
    bool takes = n->op == DDP_OP_LINEAR || n->op == DDP_OP_LINEAR_GRAD_INPUT || n->op == DDP_OP_EMBEDDING;

    return takes && slot == 1 && v->kind == DDP_VALUE_PARAM && w->target->frozen_dtypes != NULL &&
           (w->target->frozen_dtypes(w->device) >> v->dtype & 1u) != 0;
}

static ddp_status check_values(const low_lowering *w, const ddp_node *n, const op_traits *t, ddp_err *err)
{
    const ddp_program *p = w->p;
    bool view = n->op == DDP_OP_RESHAPE;

    for (uint32_t i = 0; i < n->in_count && !view; i++) {
        uint32_t want = t->index_in >> i & 1u ? DDP_I64 : DDP_F32;
        if (n->in[i] >= 0 && low_value(p, n->in[i])->dtype != want && !is_frozen_weight(w, n, i))
            return low_refuse(w, n, want == DDP_I64 ? "its labels and indices must be i64" : "its inputs must be f32",
                              err);
    }
    for (uint32_t i = 0; i < n->out_count; i++) {
        const ddp_value *out = n->out[i] >= 0 ? low_value(p, n->out[i]) : NULL;
        if (out == NULL) continue;
        if (out->dtype != (view ? low_value(p, n->in[0])->dtype : DDP_F32))
            return low_refuse(w, n, "its output must be f32, or for a reshape of the input's dtype", err);
        if (out->kind == DDP_VALUE_GRAD && !t->grad)
            return low_refuse(w, n, "its output cannot be a parameter's gradient", err);
    }
    return DDP_OK;
}

static ddp_status check_node(const low_lowering *w, const ddp_node *n, ddp_err *err)
{
    const op_traits *t = n->op < DDP_OP_END_ ? &traits[n->op] : NULL;

    if (t == NULL || w->target->families[n->op] == NULL)
        return low_refuse(w, n, "this plugin does not know it; use a newer device plugin", err);
    if (n->in_count < t->min_in || n->in_count > t->max_in || n->out_count != t->outs)
        return low_refuse(w, n, "it has a number of inputs or outputs that this plugin does not know", err);
    return check_values(w, n, t, err);
}

/* ---- for the families -------------------------------------------------------------------------------------------- */
void low_rows(const low_lowering *w, low_kernel *k, int32_t v)
{
    const ddp_value *value = low_value(w->p, v);

    k->plain = true;
    k->cols = low_last_dim(value);
    k->rows = value->elements / k->cols;
}

void low_take(low_lowering *w, low_kernel *k, uint32_t node)
{
    uint32_t i = k->node_count++;

    for (; i > 0 && k->nodes[i - 1] > node; i--) k->nodes[i] = k->nodes[i - 1];
    k->nodes[i] = node;
    w->taken[node] = true;
}

void low_take_and_move(low_lowering *w, low_kernel *k, uint32_t node)
{
    low_take(w, k, node);
    if (node > k->position) k->position = node;
}

int64_t low_find_reader(const low_lowering *w, uint32_t from, int32_t value, uint32_t slot, const uint32_t *ops,
                        uint32_t op_count)
{
    if (value < 0) return -1;
    for (uint32_t i = from + 1; i < w->p->node_count; i++) {
        const ddp_node *n = low_node(w->p, i);
        if (w->taken[i] || slot >= n->in_count || n->in[slot] != value) continue;
        for (uint32_t o = 0; o < op_count; o++)
            if (n->op == ops[o]) return i;
    }
    return -1;
}

bool low_read_once(const low_lowering *w, int32_t v) { return w->readers[v] == 1 && !w->kept[v]; }

void low_may_replace(low_kernel *k, int32_t out, int32_t in)
{
    if (k->inplace_count == 2 || out < 0 || in < 0) return;
    k->inplace_out[k->inplace_count] = out;
    k->inplace_in[k->inplace_count++] = in;
}

ddp_status low_private_new(low_lowering *w, uint64_t bytes, int32_t *number, ddp_err *err)
{
    low_lowered *l = w->l;

    if (l->private_count == l->private_capacity) {
        uint32_t capacity = l->private_capacity * 2 + 16;
        ddp_private *more = realloc(l->privates, capacity * sizeof(*more));
        if (more == NULL)
            return ddp_fail(err, DDP_ERR_NOMEM, "device \"%s\": out of memory while lowering", w->target->name);
        l->privates = more;
        l->private_capacity = capacity;
    }
    l->privates[l->private_count] = (ddp_private){.bytes = bytes, .first_kernel = UINT32_MAX};
    *number = (int32_t)l->private_count++;
    return DDP_OK;
}

ddp_status low_private_add(low_lowering *w, low_kernel *k, uint64_t bytes, int32_t *number, ddp_err *err)
{
    ddp_status status = low_private_new(w, bytes, number, err);

    if (status == DDP_OK) low_private_use(k, *number);
    return status;
}

void low_private_use(low_kernel *k, int32_t number) { k->privates[k->private_count++] = number; }

const low_kernel *low_kernel_of(const low_lowering *w, uint32_t node)
{
    for (uint32_t i = 0; i < w->l->kernel_count; i++)
        for (uint32_t j = 0; j < w->l->kernels[i].node_count; j++)
            if (w->l->kernels[i].nodes[j] == node) return &w->l->kernels[i];
    return NULL;
}

int64_t low_writer(const low_lowering *w, int32_t v)
{
    for (uint32_t i = 0; i < w->p->node_count; i++)
        for (uint32_t j = 0; j < low_node(w->p, i)->out_count; j++)
            if (low_node(w->p, i)->out[j] == v) return i;
    return -1;
}

void low_matrix(const low_lowering *w, int32_t v, int64_t *rows, int64_t *cols)
{
    const ddp_value *value = low_value(w->p, v);

    *cols = value->rank == 4 ? value->dims[1] : low_last_dim(value);
    *rows = value->elements / *cols;
}

/* ---- what the core sees ------------------------------------------------------------------------------------------ */
static bool may_replace(const low_lowering *w, const low_kernel *k, int32_t out, int32_t in)
{
    uint32_t here = 0;
    int32_t root = low_root_of(w->l, in);

    if (low_outside(low_value(w->p, out)) || low_outside(low_value(w->p, root))) return false;
    if (w->l->storage[out].bytes == 0 || w->l->storage[root].bytes == 0) return false;
    for (uint32_t i = 0; i < k->node_count; i++) {
        const ddp_node *n = low_node(w->p, k->nodes[i]);
        for (uint32_t j = 0; j < n->in_count; j++) here += n->in[j] == in;
    }
    return w->readers[in] == here && !w->kept[in] && w->type[out] == w->type[root];
}

static void describe_kernel(low_lowering *w, uint32_t index)
{
    low_kernel *k = &w->l->kernels[index];
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
    for (uint32_t i = 0; i < k->private_count; i++) {
        ddp_private *own = &w->l->privates[k->privates[i]];
        if (own->first_kernel == UINT32_MAX) own->first_kernel = index;
        own->last_kernel = index;
    }
}

static int by_place(const void *a, const void *b)
{
    const low_kernel *x = a, *y = b;

    return x->position != y->position ? (x->position < y->position ? -1 : 1) : (x->id < y->id ? -1 : 1);
}

/* ---- memory ------------------------------------------------------------------------------------------------------ */
static void lowered_release(low_lowered *l)
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

static bool lowering_reserve(low_lowering *w)
{
    size_t nodes = w->p->node_count + 1, values = w->p->value_count + 1;
    low_lowered *l = w->l = calloc(1, sizeof(*w->l));

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
    l->type = w->type = calloc(values, sizeof(*l->type));
    l->changes = calloc(nodes, sizeof(*l->changes));
    l->change_count = calloc(nodes, sizeof(*l->change_count));
    return l->kernels != NULL && l->table != NULL && l->storage != NULL && l->type != NULL && l->changes != NULL &&
           l->change_count != NULL;
}

static void lowering_release(low_lowering *w)
{
    free(w->readers);
    free(w->kept);
    free(w->inner);
    free(w->layout);
    free(w->taken);
}

/* ---- all together ------------------------------------------------------------------------------------------------ */
static ddp_status group(low_lowering *w, uint32_t node, ddp_err *err)
{
    const ddp_node *n = low_node(w->p, node);
    uint32_t id = w->l->kernel_count++;
    low_kernel *k = &w->l->kernels[id];

    *k = (low_kernel){.family = w->target->families[n->op],
                      .layer = n->name,
                      .name = traits[n->op].name,
                      .position = node,
                      .id = id,
                      .half_of = -1,
                      .half = -1};
    for (uint32_t i = 0; i < LOW_MAX_VALUES; i++) {
        k->in[i] = i < n->in_count ? n->in[i] : -1;
        k->out[i] = i < n->out_count ? n->out[i] : -1;
        k->in_type[i] = k->out_type[i] = LOW_AS_IT_LIES;
    }
    k->adds = n->accumulate;
    low_take(w, k, node);
    return k->family->group(w, k, node, err);
}

static ddp_status count_readers(low_lowering *w, ddp_err *err)
{
    const ddp_program *p = w->p;

    for (uint32_t i = 0; i < p->node_count; i++) {
        const ddp_node *n = low_node(p, i);
        ddp_status status = check_node(w, n, err);
        if (status != DDP_OK) return status;
        for (uint32_t j = 0; j < n->in_count; j++)
            if (n->in[j] >= 0) w->readers[n->in[j]]++;
    }
    if (p->loss >= 0) w->kept[p->loss] = true;
    for (uint32_t i = 0; i < p->metric_count; i++) w->kept[p->metrics[i]] = true;
    return DDP_OK;
}

static ddp_status lowering_run(low_lowering *w, ddp_err *err)
{
    ddp_status status = count_readers(w, err);

    if (status != DDP_OK) return status;
    if (w->target->choose_types != NULL) w->target->choose_types(w);
    low_describe_layouts(w);
    for (uint32_t i = 0; i < w->p->node_count; i++) {
        status = w->taken[i] ? DDP_OK : group(w, i, err);
        if (status != DDP_OK) return status;
    }
    qsort(w->l->kernels, w->l->kernel_count, sizeof(*w->l->kernels), by_place);
    low_size_storage(w);
    status = low_find_changes(w, err);
    for (uint32_t i = 0; status == DDP_OK && i < w->l->kernel_count; i++) describe_kernel(w, i);
    return status;
}

ddp_status low_lower(const low_target *t, ddp_device *d, const ddp_program *p, ddp_lowered **out, ddp_err *err)
{
    low_lowering w = {.target = t, .device = d, .p = p};
    ddp_lowered *lowered = calloc(1, sizeof(*lowered));
    ddp_status status;

    if (lowered != NULL && lowering_reserve(&w))
        status = lowering_run(&w, err);
    else
        status = ddp_fail(err, DDP_ERR_NOMEM, "device \"%s\": out of memory while lowering %u nodes", t->name,
                          p->node_count);
    lowering_release(&w);
    if (status != DDP_OK || lowered == NULL) {
        lowered_release(w.l);
        free(lowered);
        return status;
    }
    *lowered = (ddp_lowered){.struct_size = sizeof(*lowered),
                             .kernel_count = w.l->kernel_count,
                             .private_count = w.l->private_count,
                             .kernel_size = sizeof(*w.l->table),
                             .storage_size = sizeof(*w.l->storage),
                             .private_size = sizeof(*w.l->privates),
                             .kernels = w.l->table,
                             .storage = w.l->storage,
                             .privates = w.l->privates,
                             .device_data = w.l};
    *out = lowered;
    return DDP_OK;
}

void low_free(ddp_lowered *l)
{
    if (l == NULL) return;
    lowered_release(l->device_data);
    free(l);
}
