/* graph/graph.h -- from a model's description to a program with its gradients and a memory plan. All local, no device.
 *
 *   builder.c      the ddp_graph_api that models call, with shapes by the op table
 *   describe.c     a graph's operations as text, for the comparison of ranks
 *   summary.c      a model as a table, for people
 *   adapt.c        low-rank adapters on its linear layers
 *   finish.c       checks a graph that is built; frozen parameters
 *   ops/           the op table, one row an op: shape, gradient, FLOPs, scalar reference; ops/reference.c runs a
 *                  program by these references, in double: the meaning that devices are tested against
 *   autodiff.c     appends gradient nodes; program.c makes the program for one N
 *   cached.c       the outputs' program for a few tokens, with keys and values of those before in a cache
 *   recompute.c    computes cheap activations again for the gradients instead of keeping them
 *   recompute_blocks.c   whole blocks
 *   fold.c         batch norms that go into convolutions, where nothing is trained
 *   head.c         the output layer of a classifier, and the program of some of its classes
 *   layout.c       offsets of parameters and gradients in the arenas, and the buckets
 *   lowered.c      checks what a device made of a program
 *   metrics.c      the engine's metrics by name, and their values from an evaluation's sums
 *   place.c        cuts a graph into stages, where its model does not
 *   plan.c         offsets of the activations over the kernels of a lowered program
 *   stages.c       cuts a program into stages for several devices
 *   state.c        parameters, buffers, and their first values */
#pragma once

#include "base/base.h"
#include <ddpengine/dataset.h>
#include <ddpengine/layers.h>

/* ---- op table ---------------------------------------------------------------------------------------------------- */
/* A tensor of the reference: doubles, also for integer fields. */
typedef struct ddp_ref_tensor {
    double *data; /* of a BUFFER: its node may write it */
    uint32_t rank;
    const int64_t *dims;
    int64_t elements;
} ddp_ref_tensor;

struct ddp_grad_context; /* autodiff.c */
struct ddp_shape;

typedef struct ddp_op_row {
    uint32_t op;
    const char *name;
    uint32_t min_in, max_in;
    uint32_t outs; /* that the node has; 0 is 1 */
    bool view;     /* the same elements: no arithmetic */
    bool loss;     /* the mean over the batch of what is trained; its gradient is taken to be 1 */
    /* Writes rank, dims and dtype of each output; complains with the shapes on a mismatch. dims[0] may be DDP_N times a
     * factor: see ddp_shape. NULL for gradient ops, whose shapes autodiff knows. */
    ddp_status (*shape)(const ddp_attrs *attrs, uint32_t in_count, const struct ddp_shape *const *in,
                        struct ddp_shape *out, ddp_err *err);
    /* Adds the nodes that give the gradient of each input that needs one. NULL: not differentiable. */
    ddp_status (*gradient)(struct ddp_grad_context *c, const ddp_node *node, int32_t grad_out, ddp_err *err);
    uint64_t (*flops)(const ddp_node *node, const ddp_value *values); /* multiply and add count as two */
    /* What the values of its inputs must satisfy, labels and indices; NULL: nothing. DDP_ERR_DATA. */
    ddp_status (*check)(const ddp_node *node, const ddp_ref_tensor *in, ddp_err *err);
    /* An input that is absent and an output that nobody wants have data NULL. */
    void (*reference)(const ddp_node *node, const ddp_ref_tensor *in, ddp_ref_tensor *out);
    /* Instead of it, for an op that draws random numbers. */
    void (*reference_random)(const ddp_node *node, const ddp_random *random, const ddp_ref_tensor *in,
                             ddp_ref_tensor *out);
} ddp_op_row;

typedef struct ddp_shape {
    uint32_t dtype, rank;
    int64_t dims[DDP_MAX_DIMS]; /* with `batched`, dims[0] is times N */
    bool batched;
} ddp_shape;

const ddp_op_row *ddp_op_find(uint32_t op); /* NULL when unknown */
const char *ddp_op_name(uint32_t op);
static inline uint32_t ddp_op_outs(const ddp_op_row *row) { return row->outs > 0 ? row->outs : 1; }
/* Distinguishes ops that draw random numbers within a model: `place` goes into the attributes. */
void ddp_op_place(uint32_t op, uint32_t place, ddp_attrs *attrs);
/* What dropout of probability p multiplies the element with: 0 or 1 / (1 - p). */
double ddp_dropout_factor(const ddp_random *random, uint32_t place, uint64_t element, double p);
/* Elements read and written, times their size, each value once. */
uint64_t ddp_node_bytes(const ddp_node *node, const ddp_value *values);

/* ---- graph ------------------------------------------------------------------------------------------------------- */
typedef struct ddp_param_info {
    const char *name; /* "fc1.weight" */
    uint32_t rank;
    int64_t dims[DDP_MAX_DIMS];
    uint64_t elements;
    uint32_t first_use; /* index of the first node that reads it */
    uint32_t stage;     /* device of that node */
    bool frozen;        /* not trained: it has no gradient and no optimiser state */
    bool adapter;       /* A or B of an adapter, beside the model's own; see adapt.c */
    bool rounds; /* frozen beside adapters, and read by linear layers and embeddings alone: with products in bf16 it has
                  * no more than bf16 to give */
    bool half;   /* of those: programs have it in bf16 */
} ddp_param_info;

/* State that is not trained: part of state_dict, saved, and sent from rank 0. */
typedef struct ddp_buffer_info {
    const char *name; /* "bn1.running_mean" */
    uint32_t dtype;   /* DDP_F32: a slice of the buffer arena; DDP_I64: a count of the training programs run so far */
    uint32_t rank;
    int64_t dims[DDP_MAX_DIMS];
    uint64_t elements, offset; /* of the arena; multiples of 16 */
    double initial;
    uint32_t after_param; /* parameters declared before it: its position in state_dict's order */
} ddp_buffer_info;

/* `fields` of the dataset outlive the graph. The model's build is then called with the result. */
ddp_status ddp_graph_create(const ddp_field *fields, uint32_t field_count, ddp_graph **out, ddp_err *err);
void ddp_graph_free(ddp_graph *g);
/* After build: there is a loss, every parameter gets a gradient (else the first that does not is named), integer labels
 * of known range fit the classes (DDP_ERR_DATA). Declaration order = state_dict order. */
ddp_status ddp_graph_finish(ddp_graph *g, ddp_err *err);
/* Whether the model has asked for a field of the samples. */
bool ddp_graph_reads(const ddp_graph *g, const char *field);
/* After finish: the parameters that one of the patterns names, in which * is any text and ? any character, are not
 * trained. DDP_ERR_CONFIG: a pattern that fits none, or nothing left to train. */
ddp_status ddp_graph_freeze(ddp_graph *g, const ddp_list *patterns, ddp_err *err);
/* ---- adapters, as PEFT's LoRA */
typedef struct ddp_adapter_spec {
    const char *const *layers; /* names of linear layers that get one */
    uint32_t layer_count;
    int64_t rank;
    double scale, dropout; /* of B A x; of x */
} ddp_adapter_spec;
typedef struct ddp_adapted {
    const char *layer;
    uint32_t weight, a, b; /* parameters: of the layer; (rank, in); (out, rank) */
    bool transposed;       /* the weight is (in, out) */
    double scale;
} ddp_adapted;
typedef struct ddp_linear_layer {
    const char *name;
    bool output; /* the loss reads its result */
} ddp_linear_layer;
/* Before the model's build, which `spec` outlives. */
ddp_status ddp_graph_adapt(ddp_graph *g, const ddp_adapter_spec *spec, ddp_err *err);
/* After build: the layers with an adapter. The linear layers, in the order of the model's calls. */
uint32_t ddp_graph_adapted(const ddp_graph *g, const ddp_adapted **out);
ddp_status ddp_graph_linear_layers(const ddp_graph *g, ddp_pool *pool, const ddp_linear_layer **out, uint32_t *count,
                                   ddp_err *err);
/* The pattern fits the name, or its end after a dot, as "c_attn" or "h.0.*" that of "transformer.h.0.attn.c_attn". */
bool ddp_layer_named(const char *pattern, const char *layer);
/* After finish: all but the adapters, and the layers that a pattern names, is not trained. DDP_ERR_CONFIG: a pattern
 * fits none. */
ddp_status ddp_graph_train_adapters(ddp_graph *g, const ddp_list *modules_to_save, ddp_err *err);
/* After that, before the programs: they have the parameters in bf16 that can be. False: there is none. */
bool ddp_graph_hold_half(ddp_graph *g);

/* Before finish: the metrics of these names that the model has not declared, see ddp_measure. DDP_ERR_CONFIG: one is
 * unknown, or the loss has no such. */
ddp_status ddp_graph_measure(ddp_graph *g, const ddp_list *names, ddp_err *err);
uint32_t ddp_graph_params(const ddp_graph *g, const ddp_param_info **out);
uint32_t ddp_graph_buffers(const ddp_graph *g, const ddp_buffer_info **out);
uint64_t ddp_graph_buffer_elements(const ddp_graph *g); /* of the buffer arena */

/* Operations in the order of the model's calls, and one of them: "gelu tanh of fc1", all that its result depends on but
 * for shapes. */
uint32_t ddp_graph_operations(const ddp_graph *g);
void ddp_graph_operation_text(const ddp_graph *g, uint32_t operation, ddp_text *out);
/* The same of all operations that training needs, in short: "7 operations, hash 5f3a..". */
void ddp_graph_identity(const ddp_graph *g, ddp_text *out);

/* After finish: the labels that the loss is a mean over, where it is one cross_entropy and they are a field. */
typedef struct ddp_loss_labels {
    int32_t field;  /* of the dataset; -1: the loss is something else */
    bool ignores;   /* a label of ignore_index counts for nothing */
    int64_t labels; /* of a sample */
    int64_t ignore_index;
    int64_t classes;     /* that have a weight; 0: all labels count alike */
    const float *weight; /* by class, of the graph; NULL: all are 1 */
} ddp_loss_labels;
void ddp_graph_loss_labels(const ddp_graph *g, ddp_loss_labels *out);
/* What the mean divides by: the weights of the labels that count, which are 1 without weights. `count`: of label. */
double ddp_loss_labels_counted(const ddp_loss_labels *l, const int64_t *label, int64_t count);

/* 1 + the highest device that the model has assigned layers to; 0: it assigns none. */
uint32_t ddp_graph_places(const ddp_graph *g);
bool ddp_graph_place_trains(const ddp_graph *g, uint32_t device); /* the loss needs something that is there */
/* The first parameter that nodes of two devices read; *second: the later device. NULL: there is none. */
const char *ddp_graph_param_of_two_places(const ddp_graph *g, uint32_t *second);

/* ---- place.c: the same where the model assigns none; after finish, nodes in the order of the model's calls */
uint32_t ddp_graph_nodes(const ddp_graph *g);
const char *ddp_graph_node_name(const ddp_graph *g, uint32_t node);
/* Before which nodes the graph can be cut in two that both train something, so that one computed value crosses, and no
 * parameter is of both: ascending, into `cuts`, which has room for all nodes. */
ddp_status ddp_graph_cuts(const ddp_graph *g, uint32_t *cuts, uint32_t *count, ddp_err *err);
/* Device k gets the nodes from first[k] on; first[0] is 0. Layout and programs are to be made again. */
void ddp_graph_place_nodes(ddp_graph *g, const uint32_t *first, uint32_t count);
/* Node k is on device k, so that nodes of a program, gradients too, say by their device whose they are. */
void ddp_graph_place_each(ddp_graph *g);
/* The first node of a layer or of a scope, "h.6" or "layers.3.mlp"; the number of nodes: there is none. */
uint32_t ddp_graph_layer(const ddp_graph *g, const char *layer, size_t length);

/* ---- layout: one flat arena each for parameters, gradients, optimiser states ------------------------------------- */
typedef struct ddp_bucket {
    uint64_t first, count;             /* elements of the arena; count is a multiple of world x 16 */
    uint32_t first_param, param_count; /* into `order` */
    int64_t first_row, rows;           /* of its one parameter, of which it is a part; rows 0: whole parameters */
} ddp_bucket;
typedef struct ddp_layout {
    uint64_t elements;       /* of an arena of gradients, or of optimiser state */
    uint64_t param_elements; /* of the parameters' arena: those that are not trained come after the others */
    uint64_t half_first;     /* from here on, last of all, lie those that round: programs may have them in bf16 */
    uint32_t param_count, bucket_count;
    uint32_t trained; /* parameters in buckets: the first of `order` */
    uint64_t *offset; /* by parameter, in elements, multiples of 16 (64 bytes) */
    uint32_t *order;  /* parameters in arena order: reverse of first use, then those that are not trained */
    ddp_bucket *buckets;
    uint64_t extra_offset; /* DDP_EXTRA elements at the end of the last bucket, for piggy-backed scalars */
} ddp_layout;
#define DDP_EXTRA            16
#define DDP_FROZEN_ALIGNMENT 16384 /* elements, 64 KiB: what is not trained begins a page of memory */
/* Elements of a bucket that hold gradients: the last one ends with the piggy-backed scalars. */
static inline uint64_t ddp_bucket_elements(const ddp_layout *l, uint32_t b)
{
    return b + 1 == l->bucket_count ? l->extra_offset - l->buckets[b].first : l->buckets[b].count;
}
/* torch's compute_bucket_assignment_by_size: a bucket closes once it holds at least its limit; the first one's limit is
 * `first_bytes`, the others' `bytes`. */
ddp_status ddp_layout_create(const ddp_graph *g, uint64_t first_bytes, uint64_t bytes, uint32_t world, ddp_layout **out,
                             ddp_err *err);
/* The same for a group that overlaps: a parameter of at least two buckets' bytes is cut by rows into buckets of its
 * own, so that no bucket is much larger than `bytes` and the parameters before it need not wait for it. */
ddp_status ddp_layout_create_cut(const ddp_graph *g, uint64_t first_bytes, uint64_t bytes, uint32_t world,
                                 ddp_layout **out, ddp_err *err);
void ddp_layout_free(ddp_layout *l);
/* A table as torchinfo prints it: layers, shapes with N for the batch, parameters, and the arithmetic of one sample. */
ddp_status ddp_graph_summary(const ddp_graph *g, const ddp_layout *l, ddp_text *out, ddp_err *err);

/* ---- program ----------------------------------------------------------------------------------------------------- */
/* training: forward, then gradients in an order that completes buckets in index order as early as it can; else forward
 * and metrics. */
ddp_status ddp_program_create(const ddp_graph *g, const ddp_layout *l, int64_t batch, bool training, ddp_program **out,
                              ddp_err *err);
/* What the model's outputs need and no more, neither loss nor metrics; program->metrics are the outputs. */
ddp_status ddp_program_create_outputs(const ddp_graph *g, const ddp_layout *l, int64_t batch, ddp_program **out,
                                      ddp_err *err);
/* The same outputs for `positions` tokens of one sample, at most the context, that come after those of earlier runs.
 * Attention keeps keys and values in BUFFERs, which are all that the program has; a field after those of the dataset,
 * "start" (1) i64, counts the tokens before. DDP_ERR_UNSUPPORTED: the layer that sees other positions otherwise. */
ddp_status ddp_program_create_cached(const ddp_graph *g, const ddp_layout *l, int64_t positions, ddp_program **out,
                                     ddp_err *err);
uint64_t ddp_program_buffer_elements(const ddp_program *p); /* of the arena that its BUFFERs need */
/* Changes a training program: the outputs of gelu and layer norm are computed again for the gradients that read them,
 * from inputs that are kept anyway, instead of being kept from the forward pass on. The gradients have the same bits on
 * a device that rounds an op alone as it does after another. */
ddp_status ddp_program_recompute(ddp_program *p, ddp_err *err);
/* Changes a training program: the first `count` of its blocks are computed again as a whole for their gradients, and of
 * what they compute only their output is kept. A block is what the model has in a scope with a number, "h.3" or
 * "model.layers.3"; those with a batch norm are none. The gradients have the same bits as above. */
ddp_status ddp_program_recompute_blocks(ddp_program *p, uint32_t count, ddp_err *err);
uint32_t ddp_program_blocks(const ddp_program *p); /* how many there are */
/* Changes a program: cross_entropy and its gradient are the sum over the labels that count, divided by this number. */
void ddp_program_loss_over(ddp_program *p, double divisor);
/* A batch norm that has become part of the convolution before it; offsets in elements of the arenas. */
typedef struct ddp_fold {
    uint64_t weight, bias, gamma, beta; /* of the parameters */
    uint64_t mean, var;                 /* of the buffers */
    uint64_t channels, per_channel;     /* per_channel: elements of the weight */
    double eps;
    bool has_bias;
} ddp_fold;
/* Changes a program that does not train: a batch norm whose input is a convolution's output, which nothing else reads,
 * goes into the convolution. Returns how many; `out` has room for all nodes. It computes the same with parameters that
 * ddp_fold_params has changed once for each of them, but for rounding. */
uint32_t ddp_program_fold(ddp_program *p, ddp_fold *out);
void ddp_fold_params(const ddp_fold *f, float *params, const float *buffers);
void ddp_program_free(ddp_program *p);
uint64_t ddp_program_flops(const ddp_program *p);
uint64_t ddp_program_bytes(const ddp_program *p); /* as if no two nodes were fused */
uint64_t ddp_kernel_flops(const ddp_program *p, const ddp_kernel *k);
/* What it reads and writes at the least, each value once and as wide as it is stored: nothing of values inside it. */
uint64_t ddp_kernel_bytes(const ddp_program *p, const ddp_lowered *l, const ddp_kernel *k);

/* Checks a device's lowering: every node in exactly one kernel, order, storage of every value that crosses kernels,
 * aliases and in-place pairs that make sense. DDP_ERR_INTERNAL names kernel and value. */
ddp_status ddp_lowered_check(const ddp_program *p, const ddp_lowered *l, ddp_err *err);
typedef struct ddp_planned {
    ddp_plan plan;
    uint64_t peak_bytes; /* of live storage: the lower bound of arena_bytes */
    uint32_t peak_kernel;
    uint32_t *bucket_ready; /* by bucket: the kernel after which all its gradients are final, as run()'s `last` */
    uint32_t *bucket_used;  /* by bucket: the first kernel that uses a parameter of it or of one before it */
} ddp_planned;
/* Lifetimes over kernels, in-place reuse, best-fit offsets. The loss and the metrics live to the end. `l` NULL: neither
 * bucket_ready nor bucket_used. */
ddp_status ddp_plan_create(const ddp_program *p, const ddp_lowered *lowered, const ddp_layout *l, ddp_planned **out,
                           ddp_err *err);
void ddp_plan_free(ddp_planned *p);

/* ---- metrics ----------------------------------------------------------------------------------------------------- */
/* A metric of an evaluation program: `floats` of a batch become `sums`, which are added over batches and ranks; from
 * those comes its value. */
#define DDP_METRICS_MAX 16 /* that a model can have */
typedef struct ddp_metric_info {
    const char *name; /* the program's */
    int32_t value;    /* of the program */
    uint32_t op;      /* that gives it */
    uint64_t floats, sums;
    uint64_t classes; /* of a confusion matrix, in which rows are labels and columns predictions; else 0 */
} ddp_metric_info;
void ddp_metric_of(const ddp_program *p, uint32_t i, ddp_metric_info *out);
void ddp_metric_add(const ddp_metric_info *m, const float *batch, double *sums);
bool ddp_metric_is_number(const ddp_metric_info *m); /* and not a matrix */
/* sklearn's, of a scalar metric its mean over the samples; NaN: the matrix itself, or nothing to measure. */
double ddp_metric_value(const ddp_metric_info *m, const double *sums, double samples);
double ddp_metric_class_f1(const ddp_metric_info *m, const double *counts, uint64_t class); /* NaN: it does not occur */

/* ---- stages: a program divided over devices ---------------------------------------------------------------------- */
/* A value of the whole program that one stage computes and another reads: an activation, forward, or a gradient,
 * backward. For the stage that reads it, it is a field of the batch, after those of the dataset. */
typedef struct ddp_crossing {
    uint32_t from, to;
    int32_t value;         /* of the whole program */
    int32_t sent;          /* in programs[from], among its metrics; -1: a field of the batch, which stage 0 passes on */
    uint32_t field, input; /* that field; the field of programs[to] that it becomes */
    uint64_t bytes;
} ddp_crossing;
/* The gradient of a parameter that two stages use: the later stage's is in the parameter's slice, this part is after
 * the arena and is to be added, in the order of the table. */
typedef struct ddp_extra_grad {
    uint32_t param, stage;
    uint64_t offset, elements; /* of the gradient arena */
} ddp_extra_grad;
/* A metric of the whole program. */
typedef struct ddp_stage_metric {
    uint32_t stage;
    int32_t value; /* of programs[stage], among its metrics */
} ddp_stage_metric;
typedef struct ddp_stages {
    uint32_t count, crossing_count, extra_count;
    ddp_stage_metric *metrics;            /* by metric of the whole program */
    uint32_t *param_stage, *buffer_stage; /* by number, below `owners`: the first one that has it */
    uint32_t owners;
    ddp_program **programs;  /* by stage */
    uint32_t *inputs;        /* by stage: fields of its batch, those that it receives among them */
    ddp_crossing *crossings; /* ordered by from, to, value */
    ddp_extra_grad *extras;
    uint64_t grad_elements; /* of the gradient arena with these gradients after it */
} ddp_stages;
/* `whole` outlives the stages; `fields` of the dataset. Every stage has nodes. */
ddp_status ddp_stages_create(const ddp_program *whole, const ddp_layout *l, uint32_t count, uint32_t fields,
                             ddp_stages **out, ddp_err *err);
void ddp_stages_free(ddp_stages *s);
/* How a stage's kernels divide into its forward and its backward pass: those before *split read nothing that a later
 * stage sends, and give all that it is sent. */
ddp_status ddp_stages_split(const ddp_stages *s, uint32_t stage, const ddp_lowered *l, uint32_t *split, ddp_err *err);

/* ---- the output layer of a classifier, whose classes can be divided among ranks: head.c -------------------------- */
typedef struct ddp_head {
    uint32_t node;     /* of the graph, in the order of the model's calls; all that trains is before it */
    const char *layer; /* its name; the graph's */
    uint32_t weight;   /* parameter (classes, features) */
    int32_t bias;      /* parameter (classes); -1: it has none */
    int64_t classes, features;
    ddp_loss_labels labels; /* of the loss */
} ddp_head;
/* After finish. DDP_ERR_CONFIG: why the model has none that can be. */
ddp_status ddp_graph_head(const ddp_graph *g, ddp_head *out, ddp_err *err);
/* Its program for `rows` rows of features and the classes first .. first + count - 1; parameters and gradients lie in
 * the arenas of the whole model. Fields of its batch: */
enum { DDP_HEAD_FEATURES, DDP_HEAD_LABEL, DDP_HEAD_TERMS, DDP_HEAD_FIELDS };
typedef struct ddp_head_slice {
    int64_t rows, first, count;
} ddp_head_slice;
typedef struct ddp_head_program {
    const ddp_program *program;
    int32_t parts, dfeatures; /* its results: see DDP_OP_SOFTMAX_PARTS; gradients of the features by these classes */
} ddp_head_program;
ddp_status ddp_head_program_create(const ddp_layout *l, const ddp_head *h, const ddp_head_slice *s, uint32_t params,
                                   ddp_head_program **out, ddp_err *err);
void ddp_head_program_free(ddp_head_program *p);
/* Kernels before *split give the parts and read no terms. */
ddp_status ddp_head_split(const ddp_head_program *p, const ddp_lowered *l, uint32_t *split, ddp_err *err);

/* ---- parameters -------------------------------------------------------------------------------------------------- */
/* Draws every parameter, in order of declaration, into the arena (host memory, `layout->param_elements` floats, padding
 * zero). */
void ddp_initial_params(const ddp_graph *g, const ddp_layout *l, uint64_t seed, float *arena);
/* The same numbers, of which only some elements of some parameters are wanted: the arena is zero, and touched nowhere
 * else. `kept`: of `kept_count` parameters, the elements first .. end - 1; all of the others. */
typedef struct ddp_kept_elements {
    uint32_t param;
    uint64_t first, end;
} ddp_kept_elements;
void ddp_initial_params_kept(const ddp_graph *g, const ddp_layout *l, uint64_t seed, const ddp_kept_elements *kept,
                             uint32_t kept_count, float *arena);
bool ddp_initial_equal(const ddp_graph *a, const ddp_graph *b); /* the same draws in the same order */
void ddp_initial_buffers(const ddp_graph *g, float *arena);     /* ddp_graph_buffer_elements() floats */

/* ---- reference --------------------------------------------------------------------------------------------------- */
/* Runs the whole program; values[i].data is storage for value i (elements doubles), INPUT, PARAM and BUFFER filled by
 * the caller. */
ddp_status ddp_reference_run(const ddp_program *p, const ddp_random *random, ddp_ref_tensor *values, ddp_err *err);
