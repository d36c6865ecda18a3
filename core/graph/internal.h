/* graph/internal.h -- for the files of this folder: the graph as built, and a program while autodiff adds to it. */
#pragma once

#include "graph/graph.h"

/* ---- the graph as built ------------------------------------------------------------------------------------------ */
#define DDP_SCOPE_DEPTH 32

typedef struct ddp_graph_value {
    uint32_t kind; /* DDP_VALUE_INPUT, _PARAM, _BUFFER or _ACT */
    int32_t index; /* field, parameter or buffer, else -1 */
    int32_t node;  /* that computes it, else -1 */
    ddp_shape shape;
    const char *name;
} ddp_graph_value;

typedef struct ddp_graph_node {
    const ddp_op_row *row;
    uint32_t in_count;                                  /* trailing absent inputs are dropped */
    int32_t in[DDP_NODE_MAX_IN], out[DDP_NODE_MAX_OUT]; /* row->outs of them, -1 after */
    ddp_attrs attrs;                                    /* of a reshape: with DDP_N, see ddp_shape_reshape */
    const char *name;
    uint32_t device; /* that it is placed on */
    /* The loss needs it; the loss or a metric; an output. Set by ddp_graph_finish */
    bool trains, evaluates, answers;
} ddp_graph_node;

/* Fills a parameter, in the order of the calls; a later draw of the same one overwrites. */
typedef struct ddp_graph_draw {
    int32_t param;
    ddp_init_spec init;
} ddp_graph_draw;

typedef struct ddp_graph_metric { /* or an output */
    const char *name;
    int32_t value;
} ddp_graph_metric;

typedef struct ddp_graph_core {
    struct ddp_graph head; /* what plugins see */
    ddp_err err;           /* the first error; status DDP_OK while there is none */
    ddp_pool pool;         /* names */
    const ddp_field *fields;
    uint32_t field_count;
    ddp_graph_value *values;
    ddp_graph_node *nodes; /* in the order of the calls, which is a topological one */
    ddp_param_info *params;
    ddp_buffer_info *buffers;
    ddp_graph_draw *draws;
    ddp_graph_metric *metrics, *outputs;
    uint32_t value_count, value_capacity, node_count, node_capacity, param_count, param_capacity;
    uint32_t buffer_count, buffer_capacity, draw_count, draw_capacity;
    uint64_t buffer_elements; /* of the buffer arena so far */
    uint32_t metric_count, metric_capacity, output_count, output_capacity;
    const ddp_adapter_spec *adapters; /* NULL: none are wanted */
    ddp_adapted *adapted;
    uint32_t adapted_count, adapted_capacity;
    int32_t loss;             /* value, -1 while there is none */
    uint32_t device, devices; /* of the next node; 1 + the highest that was asked for, 0: none was */
    bool finished;
    uint32_t unnamed[DDP_OP_END_]; /* nodes without a name so far, by op */
    char prefix[DDP_NAME_MAX];     /* of the open scopes, "h.0." */
    uint32_t scope_count;
    size_t scope_length[DDP_SCOPE_DEPTH]; /* of the prefix before each open scope */
} ddp_graph_core;

static inline ddp_graph_core *ddp_graph_of(ddp_graph *g) { return (ddp_graph_core *)g; }
static inline const ddp_graph_core *ddp_graph_view(const ddp_graph *g) { return (const ddp_graph_core *)g; }

static inline bool ddp_graph_broken(const ddp_graph_core *c) { return c->err.status != DDP_OK; }
static inline bool ddp_graph_is_tensor(const ddp_graph_core *c, ddp_tensor t)
{
    return t.id >= 0 && (uint32_t)t.id < c->value_count;
}
/* The name with the open scopes in front, of the graph's memory; NULL after a failure, which is kept. */
const char *graph_name(ddp_graph_core *c, const char *name);
ddp_tensor graph_add_value(ddp_graph_core *c, const ddp_graph_value *v);
/* Dimensions are positive and their product is small enough to count with. */
bool graph_countable(uint32_t rank, const int64_t *dims);
/* Of any shape. */
void graph_add_metric(ddp_graph_core *c, const char *name, ddp_tensor t);
/* adapt.c: what the model gets for the result `y` of a node that is there: y, or y with its adapter's. */
ddp_tensor graph_adapt(ddp_graph_core *c, const ddp_graph_node *node, ddp_tensor y);
/* The field that a label comes from, through reshapes; NULL when it is computed. */
const ddp_field *graph_label_field(const ddp_graph_core *c, int32_t value);
/* metrics.c: a slot of ddp_graph_api */
void graph_measure(ddp_graph *g, const char *name);
/* state.c: slots of ddp_graph_api */
ddp_tensor graph_param(ddp_graph *g, const char *name, uint32_t rank, const int64_t *dims, const ddp_init_spec *init);
ddp_tensor graph_buffer(ddp_graph *g, const char *name, uint32_t dtype, uint32_t rank, const int64_t *dims,
                        double initial);
void graph_init(ddp_graph *g, ddp_tensor param, const ddp_init_spec *init);

/* Makes room for one more item in *items, an array of `size`-byte items. */
ddp_status graph_grow(void *items, uint32_t *capacity, uint32_t count, size_t size, ddp_err *err);
/* "(N, 784)", "(28N, 3)", "(5, 2)", "()"; returns buf. */
const char *ddp_shape_text(const ddp_shape *s, char *buf, size_t capacity);
/* The same for a shape with DDP_N in it, as ddp_dims and ddp_reshape have it. */
const char *ddp_dims_text(uint32_t rank, const int64_t *dims, char *buf, size_t capacity);
#define DDP_SHAPE_TEXT 128

/* ---- a program while it is made ---------------------------------------------------------------------------------- */
/* Values that a gradient can be: another value, nothing yet, or the constant 1 of the loss. */
enum { DDP_GRAD_NONE = -1, DDP_GRAD_ONE = -2 };

typedef struct ddp_grad_context {
    ddp_value *values;
    ddp_node *nodes;
    uint32_t value_count, value_capacity, node_count, node_capacity;
    const ddp_layout *layout;
    int32_t *grad; /* by forward value: the sum of its gradients so far */
    const ddp_param_info *params;
    bool *wanted;        /* by forward value: it depends on a parameter that is trained */
    int32_t *param_grad; /* by parameter: its GRAD value once a node has set it, else -1 */
} ddp_grad_context;

ddp_status graph_program_value(ddp_grad_context *c, const ddp_value *v, int32_t *out, ddp_err *err);
ddp_status graph_program_node(ddp_grad_context *c, const ddp_node *n, ddp_err *err);
/* Appends the gradient nodes for `loss`; layout, values and nodes of the forward pass are set. */
ddp_status graph_autodiff(ddp_grad_context *c, uint32_t param_count, int32_t loss, ddp_err *err);

/* For the gradient rules. `node` is the forward node, `target` the input whose gradient it is. */
bool ddp_grad_wanted(const ddp_grad_context *c, int32_t target);
/* Adds a node `op`(in[0], in[1]) that gives the gradient; attributes and name are the forward node's. */
ddp_status ddp_grad_emit(ddp_grad_context *c, const ddp_node *node, uint32_t op, int32_t target, int32_t in0,
                         int32_t in1, ddp_err *err);
/* The same for a node of several inputs and outputs: output i is the gradient of targets[i], a forward input; where
 * that is -1 or not wanted, the node has no such output. */
ddp_status ddp_grad_emit_all(ddp_grad_context *c, const ddp_node *node, uint32_t op, uint32_t in_count,
                             const int32_t *in, uint32_t target_count, const int32_t *targets, ddp_err *err);
/* The gradient of `target` is `grad_out` itself, in target's shape. */
ddp_status ddp_grad_pass(ddp_grad_context *c, const ddp_node *node, int32_t target, int32_t grad_out, ddp_err *err);
/* A loss's gradient is the constant 1; anything else is a mistake that ddp_graph_finish has to refuse. */
ddp_status ddp_grad_require_one(const ddp_node *node, int32_t grad_out, ddp_err *err);

/* Of the forward pass, which come first: up to the loss. */
uint32_t graph_forward_nodes(const ddp_program *p);

/* ---- a lowered program ------------------------------------------------------------------------------------------- */
#define DDP_NEVER UINT32_MAX

/* When each value is touched, by kernel. */
typedef struct ddp_lifetimes {
    uint32_t *kernel_of; /* by node; DDP_NEVER: in no kernel */
    uint32_t *first;     /* by value: the kernel that writes it first; DDP_NEVER: none does */
    uint32_t *last; /* by value: the last kernel that reads or writes it; kernel_count for the loss and the metrics */
} ddp_lifetimes;

/* The nodes' indices are known to be in range. */
ddp_status graph_lifetimes_create(const ddp_program *p, const ddp_lowered *l, ddp_lifetimes *out, ddp_err *err);
void graph_lifetimes_free(ddp_lifetimes *t);
/* The value whose storage `value` has: itself, or the end of its chain of aliases. */
int32_t graph_storage_root(const ddp_lowered *l, int32_t value);

#define DDP_ADAPTER_NAME "base_model.model." /* in front of an adapted layer's name, as PEFT has it */

/* ---- rows of the op table, by family ----------------------------------------------------------------------------- */
extern const ddp_op_row ddp_row_linear, ddp_row_linear_grad_input, ddp_row_linear_grad_weight, ddp_row_linear_grad_bias;
extern const ddp_op_row ddp_row_leaky_relu, ddp_row_leaky_relu_grad;
extern const ddp_op_row ddp_row_rms_norm, ddp_row_rms_norm_grad, ddp_row_rope, ddp_row_rope_grad;
extern const ddp_op_row ddp_row_silu, ddp_row_silu_grad, ddp_row_mul, ddp_row_scale;
extern const ddp_op_row ddp_row_relu, ddp_row_relu_grad, ddp_row_gelu, ddp_row_gelu_grad, ddp_row_add, ddp_row_reshape;
extern const ddp_op_row ddp_row_cross_entropy, ddp_row_cross_entropy_grad, ddp_row_mse, ddp_row_mse_grad;
extern const ddp_op_row ddp_row_l1, ddp_row_l1_grad, ddp_row_smooth_l1, ddp_row_smooth_l1_grad;
extern const ddp_op_row ddp_row_bce_with_logits, ddp_row_bce_with_logits_grad;
extern const ddp_op_row ddp_row_accuracy, ddp_row_top_k, ddp_row_confusion, ddp_row_binary_confusion,
    ddp_row_regression;
extern const ddp_op_row ddp_row_conv2d, ddp_row_conv2d_grad_input, ddp_row_conv2d_grad_weight, ddp_row_conv2d_grad_bias;
extern const ddp_op_row ddp_row_max_pool2d, ddp_row_max_pool2d_grad, ddp_row_avg_pool2d, ddp_row_avg_pool2d_grad,
    ddp_row_adaptive_avg_pool2d, ddp_row_adaptive_avg_pool2d_grad;
extern const ddp_op_row ddp_row_batch_norm, ddp_row_batch_norm_grad, ddp_row_layer_norm, ddp_row_layer_norm_grad;
extern const ddp_op_row ddp_row_embedding, ddp_row_embedding_grad, ddp_row_position, ddp_row_position_grad;
extern const ddp_op_row ddp_row_attention, ddp_row_attention_grad, ddp_row_dropout, ddp_row_dropout_grad;
extern const ddp_op_row ddp_row_position_at, ddp_row_attention_cached;
extern const ddp_op_row ddp_row_softmax_parts, ddp_row_softmax_parts_grad;
extern const ddp_op_row ddp_row_attention_apart, ddp_row_attention_apart_grad, ddp_row_attention_apart_cached;

/* Defines the row of an op that has `least` to `most` inputs; what follows are further members. */
#define DDP_OP_ROW(NAME, name_, least, most, ...)                                                                      \
    const ddp_op_row ddp_row_##name_ = {                                                                               \
        .op = DDP_OP_##NAME, .name = #name_, .min_in = (least), .max_in = (most), __VA_ARGS__}

ddp_status ddp_dropout_check(double p, ddp_err *err); /* p is a probability */

/* Elements of one sample where batched, else of the whole. */
int64_t ddp_shape_elements(const ddp_shape *s);
bool ddp_shape_equal(const ddp_shape *a, const ddp_shape *b); /* dtype aside */
ddp_status ddp_shape_need(const ddp_shape *s, uint32_t dtype, const char *what, ddp_err *err);
void ddp_shape_scalar(ddp_shape *out);
/* Which labels a node may have: 0 .. classes - 1, and one that it leaves out. `columns` of its logits. */
typedef struct ddp_labels {
    int64_t classes, ignore_index;
    bool ignores;
} ddp_labels;
ddp_labels ddp_labels_of(uint32_t op, const ddp_attrs *attrs, int64_t columns);
ddp_status ddp_check_labels(const ddp_node *node, const ddp_ref_tensor *in, ddp_err *err); /* as a row's check */
/* As a row's shape: logits (N, .., C) with labels (N, ..); a prediction and a target alike. Both give a scalar. */
ddp_status ddp_shape_labelled(const ddp_attrs *attrs, uint32_t in_count, const ddp_shape *const *in, ddp_shape *out,
                              ddp_err *err);
ddp_status ddp_shape_pair(const ddp_attrs *attrs, uint32_t in_count, const ddp_shape *const *in, ddp_shape *out,
                          ddp_err *err);
/* Of a reference: the `count` positions from each sample's `start` on are in 0 .. capacity - 1. */
ddp_status ddp_ref_check_start(const ddp_node *node, const ddp_ref_tensor *start, int64_t count, int64_t capacity,
                               ddp_err *err);
/* op_conv.c: x is (N, C, H, W) in f32; and the height and width of what windows over x give. */
ddp_status ddp_shape_image(const ddp_shape *x, ddp_err *err);
ddp_status ddp_shape_windows(const ddp_shape *x, const int64_t kernel[2], const int64_t stride[2],
                             const int64_t padding[2], ddp_shape *out, ddp_err *err);
