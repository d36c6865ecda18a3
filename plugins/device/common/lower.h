/* plugins/device/common/lower.h -- what the devices of this folder have in common: how a program becomes kernels.
 *
 *   lower.c      groups a program's nodes into kernels, says what storage and scratch they need
 *   layout.c     how values lie, and the copies where they lie otherwise than a kernel has them
 *   norm.c       what joins a batch norm, and its gradient
 *   join.c       what joins a layer norm or an RMS norm, and a loss
 *
 * A device brings its families of kernels, one for each op. Images lie channels last, (N, H, W, C): so every kernel
 * but a convolution or a pooling sees rows of channels. A field of the batch, a parameter, a gradient and a buffer
 * keep PyTorch's order. A value may be stored in bf16 where the device says so. Nothing here touches a device's
 * memory. */
#pragma once

#include <ddpengine/device.h>
#include <stdbool.h>
#include <stddef.h>

/* How a value lies in memory; ddp_storage.layout. */
enum { LOW_PLAIN = 0, /* row-major in the program's shape */ LOW_CHANNELS_LAST /* rank 4: (N, H, W, C) */ };
/* What it is stored as, where the program has f32; of a kernel's side: whichever that is. */
enum { LOW_F32 = 0, LOW_BF16, LOW_AS_IT_LIES };

enum { LOW_MAX_VALUES = 8, LOW_MAX_NODES = 6, LOW_MAX_PRIVATES = 4 };

typedef struct low_lowering low_lowering;
typedef struct low_kernel low_kernel;

/* The first member of a device's family of kernels, which has besides how they run. */
typedef struct low_family {
    /* Makes k the kernel of `node`, which it has already, and of the nodes it takes besides. */
    ddp_status (*group)(low_lowering *w, low_kernel *k, uint32_t node, ddp_err *err);
    void (*release)(void *state); /* takes NULL; may be NULL */
} low_family;

/* What a device is to the lowering. */
typedef struct low_target {
    const char *name;                  /* "cpu", for errors */
    const low_family *const *families; /* by op; NULL: not supported */
    uint64_t alignment;                /* of a kernel's scratch and of its parts, a power of 2 from 64 */
    /* A conversion of an input that several kernels want is made once, by the first of them, and kept in a private
     * value; one to bf16 by the kernel that writes the value, where that can (low_kernel.half_of). */
    bool shares;
    uint32_t (*frozen_dtypes)(ddp_device *d); /* the device's; NULL: there are none */
    /* Sets w->type, which is LOW_F32 all over; NULL: it stays so. */
    void (*choose_types)(low_lowering *w);
} low_target;

struct low_kernel {
    const low_family *family;
    const char *name;                                /* "linear+bias+relu" */
    const char *layer;                               /* "fc1" */
    int32_t in[LOW_MAX_VALUES], out[LOW_MAX_VALUES]; /* values by the family's own numbering; -1: absent */
    uint8_t in_type[LOW_MAX_VALUES];                 /* LOW_*: what it takes, and gives; else there is a conversion */
    uint8_t out_type[LOW_MAX_VALUES];
    uint32_t adds;                /* bit i: the program adds to out[i], a gradient that is set before */
    bool plain;                   /* it takes and gives all of them row-major; else images channels last */
    uint32_t plain_in, plain_out; /* bit i: in[i] or out[i] row-major whatever the others are: weights */
    uint32_t reads_any;           /* bit i: takes in[i] as it lies; else it is converted */
    uint32_t writes_any;          /* bit i: gives out[i] as it lies; else it is converted, but for a gradient */
    uint32_t
        writes_grad;    /* bit i: where out[i] is a slice of the gradient arena it writes there itself, set or added */
    uint32_t kind, act; /* the family's own */
    int64_t rows, inner, cols; /* of the matrix it works on: (rows, cols), or (rows, inner) -> (rows, cols) */
    int64_t limit;             /* labels or indices are below */
    uint64_t scratch_bytes;    /* the family's own */
    int32_t inplace_out[2], inplace_in[2];
    uint32_t inplace_count;
    int32_t half_of;                    /* slot of an output that it can give in bf16 besides f32; -1 */
    int32_t half;                       /* private where it gives that; -1: nobody near wants it */
    int32_t privates[LOW_MAX_PRIVATES]; /* low_private_add, low_private_use */
    uint32_t private_count;
    void *state;                       /* the family's own, freed by its release */
    uint32_t nodes[LOW_MAX_NODES];     /* that it computes, in program order */
    uint32_t node_count, position, id; /* runs where node `position` would; id: in order of creation */
};

/* ---- the result -------------------------------------------------------------------------------------------------- */
/* A value that is elsewhere, or of another type, for one kernel: an input converted before it, an output
 * after it. */
typedef enum low_conversion { LOW_COPY, LOW_TO_PLAIN, LOW_TO_IMAGE } low_conversion;
typedef struct low_change {
    uint32_t slot;
    bool output;
    bool ready; /* an earlier kernel has made it, or the one that writes the value */
    low_conversion how;
    uint8_t type;    /* of the kernel's side */
    int32_t own;     /* private that has it for later kernels too; -1: in the scratch */
    uint64_t offset; /* in the kernel's scratch, after the family's own */
} low_change;

/* ddp_lowered.device_data */
typedef struct low_lowered {
    low_kernel *kernels;
    ddp_kernel *table; /* what the core sees */
    ddp_storage *storage;
    ddp_private *privates;
    uint8_t *type; /* by value */
    uint32_t kernel_count, private_count, private_capacity;
    low_change (*changes)[2 * LOW_MAX_VALUES]; /* by kernel */
    uint32_t *change_count;
    bool mirrored; /* a kernel takes a parameter in bf16: no conversion, the device keeps one */
} low_lowered;

/* Groups p's nodes. Errors: DDP_ERR_UNSUPPORTED with the op and its layer, what a family says, DDP_ERR_NOMEM. *out
 * is for low_free. */
ddp_status low_lower(const low_target *t, ddp_device *d, const ddp_program *p, ddp_lowered **out, ddp_err *err);
void low_free(ddp_lowered *l); /* takes NULL */
/* The value whose memory v lies in: v itself, or the end of its chain of views. */
int32_t low_root_of(const low_lowered *l, int32_t v);

/* ---- for the families -------------------------------------------------------------------------------------------- */
struct low_lowering {
    const low_target *target;
    ddp_device *device;
    const ddp_program *p;
    low_lowered *l;
    uint32_t *readers; /* by value: nodes that read it */
    bool *kept;        /* by value: the loss and the metrics */
    bool *taken;       /* by node */
    bool *inner;       /* by value: never leaves its kernel, no storage */
    uint32_t *layout;  /* by value */
    uint8_t *type;     /* by value: LOW_F32 or LOW_BF16, as it is stored; the lowered program's */
};

static inline const ddp_value *low_value(const ddp_program *p, int32_t v) { return ddp_value_at(p, (uint32_t)v); }
static inline const ddp_node *low_node(const ddp_program *p, uint32_t n) { return ddp_node_at(p, n); }
/* Of the batch, a parameter, a gradient or a buffer: not computed, so that a kernel may read it wherever it stands,
 * and it lies as the program has it. */
static inline bool low_outside(const ddp_value *v) { return v->kind != DDP_VALUE_ACT; }
static inline int64_t low_last_dim(const ddp_value *v) { return v->rank > 0 ? v->dims[v->rank - 1] : 1; }
static inline uint64_t low_stored_bytes(const ddp_value *v, uint8_t type)
{
    return (uint64_t)v->elements * (v->dtype == DDP_F32 && type == LOW_BF16 ? 2 : ddp_dtype_size(v->dtype));
}

/* Rows of channels, as the value lies: the channels of an image, else the last dimension. */
void low_matrix(const low_lowering *w, int32_t v, int64_t *rows, int64_t *cols);
/* The kernel takes and gives everything row-major: rows of the value's last dimension. */
void low_rows(const low_lowering *w, low_kernel *k, int32_t v);
/* The kernel also computes `node`. One that reads a value which does not exist at the kernel's position moves it
 * there. */
void low_take(low_lowering *w, low_kernel *k, uint32_t node);
void low_take_and_move(low_lowering *w, low_kernel *k, uint32_t node);
/* The first free node after `from` whose op is in the list and whose input `slot` is `value`; -1 if none. */
int64_t low_find_reader(const low_lowering *w, uint32_t from, int32_t value, uint32_t slot, const uint32_t *ops,
                        uint32_t op_count);
/* One node alone reads it, and it is no result: a kernel that has both needs no storage for it. */
bool low_read_once(const low_lowering *w, int32_t v);
/* out may lie where in lies if nobody needs that later. Of several pairs of one output the first that can be is
 * taken. */
void low_may_replace(low_kernel *k, int32_t out, int32_t in);
/* Memory of the device's own, from this kernel to the last that uses it. Returns its number. */
ddp_status low_private_add(low_lowering *w, low_kernel *k, uint64_t bytes, int32_t *number, ddp_err *err);
void low_private_use(low_kernel *k, int32_t number);
/* The kernel, of those made so far, that computes `node`; NULL. */
const low_kernel *low_kernel_of(const low_lowering *w, uint32_t node);
/* The node that writes the value; -1. */
int64_t low_writer(const low_lowering *w, int32_t v);
ddp_status low_refuse(const low_lowering *w, const ddp_node *n, const char *why, ddp_err *err);

/* ---- norm.c: kernels of a batch norm and what stands between it and the next convolution ------------------------- */
enum { LOW_NORM_X, LOW_NORM_W, LOW_NORM_B, LOW_NORM_RUNNING_MEAN, LOW_NORM_RUNNING_VAR, LOW_NORM_OTHER }; /* in */
enum { LOW_NORM_Y, LOW_NORM_MEAN, LOW_NORM_INVSTD }; /* out; Y: of the last node taken; OTHER: is added before */
/* Takes the add of the batch norm's output and OTHER, if nobody else needs that output. */
bool low_norm_take_add(low_lowering *w, low_kernel *k, uint32_t node);
/* The relu after it that may be taken so; -1. */
int64_t low_norm_relu(const low_lowering *w, const low_kernel *k, uint32_t node);
void low_norm_take_relu(low_lowering *w, low_kernel *k, uint32_t relu);

/* The gradient, of dy + MORE where REF, the relu's output, is not 0. MASKED: what reaches the batch norm, for
 * others. */
enum {
    LOW_NORM_DY,
    LOW_NORM_GRAD_X,
    LOW_NORM_GRAD_W,
    LOW_NORM_GRAD_MEAN,
    LOW_NORM_GRAD_INVSTD,
    LOW_NORM_MORE,
    LOW_NORM_REF
};
enum { LOW_NORM_DX, LOW_NORM_DW, LOW_NORM_DB, LOW_NORM_MASKED };
/* Whether a batch norm's gradient joins `node`, the gradient of a relu or the add before that. */
bool low_norm_grad_takes(const low_lowering *w, uint32_t node);
/* Then k, the kernel of `node`, becomes that of the batch norm's gradient: its values, its nodes and its name. */
void low_norm_grad_join(low_lowering *w, low_kernel *k, uint32_t node);
/* For each gradient of a batch norm, joined or not: its matrix, what it writes and replaces. */
void low_norm_grad_finish(const low_lowering *w, low_kernel *k);
/* Refuses training on one value a channel. */
ddp_status low_norm_check(const low_lowering *w, const low_kernel *k, const ddp_node *n, ddp_err *err);

/* ---- join.c: kernels of a layer norm or an RMS norm, and of a loss, with what they take in ----------------------- */
/* An RMS norm has no B, MEAN, GRAD_MEAN and DB; kind is the norm's op. */
enum { LOW_LAYER_X, LOW_LAYER_W, LOW_LAYER_B, LOW_LAYER_RESIDUAL };    /* in */
enum { LOW_LAYER_Y, LOW_LAYER_MEAN, LOW_LAYER_INVSTD, LOW_LAYER_SUM }; /* out; SUM with a residual */
enum { LOW_LAYER_DY, LOW_LAYER_GRAD_X, LOW_LAYER_GRAD_W, LOW_LAYER_GRAD_MEAN, LOW_LAYER_GRAD_INVSTD, LOW_LAYER_PASSED };
enum { LOW_LAYER_DX, LOW_LAYER_DW, LOW_LAYER_DB }; /* DX: with PASSED added */
void low_layer_norm(low_lowering *w, low_kernel *k, uint32_t node);
/* Makes k, the kernel of the add, one of add and layer norm, of `family`, where the sum is normalised. */
bool low_layer_norm_join(low_lowering *w, low_kernel *k, uint32_t add, const low_family *family);
void low_layer_norm_grad(low_lowering *w, low_kernel *k, uint32_t node);

enum { LOW_LOSS_X, LOW_LOSS_TARGET, LOW_LOSS_OTHER, LOW_LOSS_LAMBDA }; /* in; the last two of mixed labels */
enum { LOW_LOSS, LOW_LOSS_GRAD };                                      /* out */
/* kind is the loss's op; takes the other one of a loss and its gradient. */
void low_loss_group(low_lowering *w, low_kernel *k, uint32_t node);

/* ---- layout.c, in this order: before the nodes are grouped; after that; when all kernels are in order -------- */
void low_describe_layouts(low_lowering *w);
void low_size_storage(low_lowering *w);
ddp_status low_find_changes(low_lowering *w, ddp_err *err);
/* lower.c: one more private value, of no kernel yet. */
ddp_status low_private_new(low_lowering *w, uint64_t bytes, int32_t *number, ddp_err *err);
