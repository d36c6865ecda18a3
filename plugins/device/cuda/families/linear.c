/* plugins/device/cuda/families/linear.c -- linear layers, each one product of cuBLASLt with what its epilogue can do
 * besides:
 *
 *   linear + bias + relu or gelu             the pre-activation has no storage unless somebody else reads it (gelu's
 *                                            gradient does)
 *   linear_grad_input + gelu_grad            gelu's slope by the epilogue; in bf16 with the gradient of the bias of the
 *                                            layer in front, the sums of what it writes
 *   linear_grad_weight + linear_grad_bias    the sums of dy's columns while the product reads it
 *
 * What the library has no epilogue for, or does slower with it than without, is done by a kernel of our own after
 * the product. A weight may be (O, I), torch's, or transposed (I, O), Conv1D's. With precision bf16 weights come
 * from the mirror, and biases where the library wants them so. */
#include "host/cu.h"

#include <stdlib.h>

enum { X, W, B };        /* forward: in */
enum { Y, ACTIVATED };   /* forward: out */
enum { DY, OTHER, AUX }; /* gradients: in; the weight or x; what gelu's gradient reads */
enum { DX, SUMS };       /* gradient of the input: out; SUMS: of the bias in front of gelu */
enum { DW, DB };         /* gradient of the weight: out */

enum { ALL_FUSED = 0, BIAS_FUSED /* or there is none */, NOT_FUSED }; /* how the forward kernel is done */

typedef struct linear_state {
    bool transposed;
    bool pre;  /* the pre-activation is stored */
    bool sums; /* the gradient of the input: `fused` gives SUMS too */
    uint32_t way;
    cu_product *fused, *plain; /* either may be NULL; plain can add */
} linear_state;

static void linear_release(void *state)
{
    linear_state *t = state;

    if (t == NULL) return;
    cu_product_free(t->fused);
    cu_product_free(t->plain);
    free(t);
}

static ddp_status make_state(low_lowering *w, low_kernel *k, uint32_t node, ddp_err *err)
{
    linear_state *t = cu_state(k, sizeof(*t), err);

    if (t == NULL) return err->status;
    t->transposed = low_node(w->p, node)->attrs.linear.transposed != 0;
    return DDP_OK;
}

/* *out stays NULL where the library cannot do it, or takes or gives a bias of a type that will not do. */
static ddp_status try_product(const cu_building *b, const cu_product_params *p, bool half_bias, cu_product **out,
                              ddp_err *err)
{
    ddp_status status = cu_product_create(b->device->products, p, out, err);

    if (status == DDP_ERR_UNSUPPORTED) {
        *out = NULL;
        return DDP_OK;
    }
    if (status == DDP_OK && p->has_bias && cu_product_bias_type(*out) == CU_BF16 && !half_bias) {
        cu_product_free(*out);
        *out = NULL;
    }
    return status;
}

enum { KERNEL_NS = 3000 /* of one more kernel, beside what it moves */ };

/* Of the product with its epilogue and the one without, measured: whether the first takes less time than the second
 * and a kernel after it that moves `bytes`. Unmeasured, `otherwise`. */
static bool pays(const cu_building *b, const cu_product *fused, const cu_product *plain, double bytes, bool otherwise)
{
    uint64_t with = fused != NULL ? cu_product_nanoseconds(fused) : 0;
    uint64_t without = plain != NULL ? cu_product_nanoseconds(plain) : 0;

    if (fused == NULL || plain == NULL) return fused != NULL;
    if (with == 0 || without == 0) return otherwise;
    return (double)with <= (double)without + KERNEL_NS + bytes / b->device->bytes_per_ns;
}

static void drop(cu_product **p)
{
    cu_product_free(*p);
    *p = NULL;
}

/* ---- forward ----------------------------------------------------------------------------------------------------- */
static const char *forward_name(bool bias, uint32_t act)
{
    static const char *const names[2][4] = {
        {"linear", "linear+relu", "linear+gelu", "linear+gelu"},
        {"linear+bias", "linear+bias+relu", "linear+bias+gelu", "linear+bias+gelu"}};

    return names[bias][act];
}

static ddp_status group_forward(low_lowering *w, low_kernel *k, uint32_t node, ddp_err *err)
{
    static const uint32_t acts[] = {DDP_OP_RELU, DDP_OP_GELU};
    const ddp_value *weight = low_value(w->p, k->in[W]);
    int64_t act = low_find_reader(w, node, k->out[Y], 0, acts, 2);
    linear_state *t;
    ddp_status status;

    if (cu_head_takes(w, node)) return cu_head_group(w, k, node, err);
    status = make_state(w, k, node, err);
    if (status != DDP_OK) return status;
    t = k->state;
    k->plain = true;
    k->inner = weight->dims[t->transposed ? 0 : 1];
    k->cols = weight->dims[t->transposed ? 1 : 0];
    k->rows = low_value(w->p, k->out[Y])->elements / k->cols;
    k->in_type[X] = k->in_type[W] = cu_operand(w->device);
    if (act >= 0) {
        k->act = cu_act_of(low_node(w->p, (uint32_t)act));
        k->out[ACTIVATED] = low_node(w->p, (uint32_t)act)->out[0];
        w->inner[k->out[Y]] = low_read_once(w, k->out[Y]);
        t->pre = !w->inner[k->out[Y]];
        low_take(w, k, (uint32_t)act);
    }
    if (w->device->half && k->in[B] >= 0 && low_value(w->p, k->in[B])->kind == DDP_VALUE_PARAM) w->l->mirrored = true;
    k->name = forward_name(k->in[B] >= 0, k->act);
    return DDP_OK;
}

/* The epilogue that does all; NONE where there is none. */
static uint32_t whole_epilogue(const cu_building *b, const low_kernel *k)
{
    const linear_state *t = k->state;

    if (k->act == CU_ACT_NONE) return k->in[B] >= 0 ? CU_EPILOGUE_BIAS : CU_EPILOGUE_NONE;
    if (k->act == CU_ACT_RELU) return t->pre ? CU_EPILOGUE_NONE : CU_EPILOGUE_RELU_BIAS;
    if (k->act != CU_ACT_GELU_TANH) return CU_EPILOGUE_NONE;
    if (!t->pre) return CU_EPILOGUE_GELU_BIAS;
    return b->type[k->out[Y]] == b->type[k->out[ACTIVATED]] ? CU_EPILOGUE_GELU_AUX_BIAS : CU_EPILOGUE_NONE;
}

/* The product, with the bias if the library can, whose activation is a kernel of its own. */
static ddp_status build_apart(const cu_building *b, const low_kernel *k, cu_product_params p, cu_product **out,
                              ddp_err *err)
{
    const linear_state *t = k->state;
    bool half_bias = p.has_bias && low_value(b->program, k->in[B])->kind == DDP_VALUE_PARAM;

    p.epilogue = p.has_bias ? CU_EPILOGUE_BIAS : CU_EPILOGUE_NONE;
    p.c_type = b->type[t->pre ? k->out[Y] : k->out[ACTIVATED]];
    return try_product(b, &p, half_bias, out, err);
}

static ddp_status build_forward(const cu_building *b, const low_kernel *k, ddp_err *err)
{
    linear_state *t = k->state;
    bool bias = k->in[B] >= 0, half_bias = bias && low_value(b->program, k->in[B])->kind == DDP_VALUE_PARAM;
    int32_t activated = k->act != CU_ACT_NONE ? k->out[ACTIVATED] : k->out[Y];
    cu_product_params p = {.m = k->rows,
                           .n = k->cols,
                           .k = k->inner,
                           .b_transposed = !t->transposed,
                           .a_type = k->in_type[X],
                           .b_type = k->in_type[W],
                           .c_type = b->type[activated],
                           .epilogue = whole_epilogue(b, k),
                           .has_bias = bias};
    cu_product *apart = NULL;
    ddp_status status = DDP_OK;

    if (p.epilogue != CU_EPILOGUE_NONE) status = try_product(b, &p, half_bias, &t->fused, err);
    if (status == DDP_OK && bias && k->act != CU_ACT_NONE) status = build_apart(b, k, p, &apart, err);
    t->way = ALL_FUSED;
    if (!pays(b, t->fused, apart, 2.0 * (double)low_stored_bytes(low_value(b->program, activated), (uint8_t)p.c_type),
              true) &&
        apart != NULL) {
        drop(&t->fused);
        t->fused = apart;
        t->way = BIAS_FUSED;
    } else {
        drop(&apart);
    }
    if (status == DDP_OK && t->fused == NULL) {
        t->way = bias ? NOT_FUSED : BIAS_FUSED;
        p.epilogue = CU_EPILOGUE_NONE;
        p.has_bias = false;
        p.c_type = b->type[t->pre && !bias ? k->out[Y] : activated];
        status = cu_product_create(b->device->products, &p, &t->plain, err);
    }
    return cu_in_kernel(k, status, err);
}

/* The product goes to the activation's storage, but with BIAS_FUSED to the pre-activation's where there is one. */
static ddp_status run_forward(const cu_call *c, ddp_err *err)
{
    const low_kernel *k = c->k;
    const linear_state *t = k->state;
    cu_view y = k->act != CU_ACT_NONE ? c->out[ACTIVATED] : c->out[Y], none = {NULL, CU_F32};
    cu_view pre = t->pre ? c->out[Y] : none, to = t->way == BIAS_FUSED && t->pre ? pre : y;
    const cu_product *p = t->fused != NULL ? t->fused : t->plain;
    void *bias = c->in[B].at, *x = c->in[X].at, *w = c->in[W].at;
    ddp_status status;

    if (t->fused != NULL && bias != NULL && cu_product_bias_type(p) == CU_BF16) bias = c->half[B];
    status = cu_product_run(p, c->stream, x, w, to.at, t->fused != NULL ? bias : NULL,
                            t->way == ALL_FUSED ? pre.at : NULL, false, err);
    if (status != DDP_OK) return cu_in_kernel(k, status, err);
    if (t->way == ALL_FUSED || (t->way == BIAS_FUSED && k->act == CU_ACT_NONE)) return DDP_OK;
    if (t->way == BIAS_FUSED) return cu_started(c, cu_act(c->stream, k->act, to, y, k->rows * k->cols), err);
    return cu_started(c, cu_bias_act(c->stream, k->act, y, bias, pre, y, k->rows, k->cols), err);
}

const cu_family cu_family_linear = {
    .base.group = group_forward, .build = build_forward, .run = run_forward, .base.release = linear_release};

/* ---- gradient of the input --------------------------------------------------------------------------------------- */
/* The gradient of the bias in front of the gelu, whose node follows. Its sums come in bf16 and go through scratch. */
static void take_bias(low_lowering *w, low_kernel *k, uint32_t gelu)
{
    const ddp_node *n = gelu + 1 < w->p->node_count ? low_node(w->p, gelu + 1) : NULL;

    if (!w->device->half || k->inner % 8 != 0 || n == NULL || n->op != DDP_OP_LINEAR_GRAD_BIAS) return;
    if (n->in[0] != k->out[DX]) return;
    k->out[SUMS] = n->out[0];
    k->out_type[SUMS] = CU_F32;
    k->adds |= (n->accumulate & 1u) << SUMS;
    k->writes_grad |= 1u << SUMS;
    k->scratch_bytes = cu_round((uint64_t)k->inner * cu_size(CU_BF16)) + cu_column_sums_scratch(k->rows, k->inner);
    k->name = "linear_grad_input+gelu_grad+bias";
    low_take(w, k, gelu + 1);
}

/* The gradient of a gelu whose output nobody else uses. */
static void take_gelu(low_lowering *w, low_kernel *k, uint32_t node)
{
    static const uint32_t ops[] = {DDP_OP_GELU_GRAD};
    int64_t gelu = low_read_once(w, k->out[DX]) ? low_find_reader(w, node, k->out[DX], 0, ops, 1) : -1;
    const ddp_node *n = gelu >= 0 ? low_node(w->p, (uint32_t)gelu) : NULL;

    if (n == NULL || !n->attrs.gelu.tanh || low_value(w->p, n->out[0])->kind != DDP_VALUE_ACT) return;
    if (low_value(w->p, k->out[DX])->kind != DDP_VALUE_ACT || gelu != (int64_t)node + 1) return;
    w->inner[k->out[DX]] = true;
    k->in[AUX] = n->in[1];
    k->out[DX] = n->out[0];
    k->in_type[AUX] = w->type[n->out[0]];
    k->act = CU_ACT_GELU_TANH;
    k->name = "linear_grad_input+gelu_grad";
    low_take(w, k, (uint32_t)gelu);
    take_bias(w, k, (uint32_t)gelu);
}

static ddp_status group_grad_input(low_lowering *w, low_kernel *k, uint32_t node, ddp_err *err)
{
    ddp_status status = make_state(w, k, node, err);

    if (status != DDP_OK) return status;
    low_rows(w, k, k->in[DY]);
    k->inner = low_value(w->p, k->out[DX])->elements / k->rows;
    k->in_type[DY] = k->in_type[OTHER] = cu_operand(w->device);
    k->writes_grad = 1u << DX;
    take_gelu(w, k, node);
    return DDP_OK;
}

/* The product that gives SUMS too, where that takes less time than reading dx once more. Unmeasured it does not, and
 * the sums are exact. */
static ddp_status build_sums(const cu_building *b, const low_kernel *k, cu_product_params p, ddp_err *err)
{
    linear_state *t = k->state;
    cu_product *whole = NULL;
    ddp_status status;

    p.epilogue = CU_EPILOGUE_DGELU_BGRAD;
    status = try_product(b, &p, false, &whole, err);
    if (status != DDP_OK) return status;
    t->sums = pays(b, whole, t->fused, (double)(k->rows * k->inner) * (double)cu_size(p.c_type), false);
    drop(t->sums ? &t->fused : &whole);
    if (t->sums) t->fused = whole;
    return DDP_OK;
}

static ddp_status build_grad_input(const cu_building *b, const low_kernel *k, ddp_err *err)
{
    linear_state *t = k->state;
    cu_product_params p = {.m = k->rows,
                           .n = k->inner,
                           .k = k->cols,
                           .b_transposed = t->transposed,
                           .a_type = k->in_type[DY],
                           .b_type = k->in_type[OTHER],
                           .c_type = b->type[k->out[DX]],
                           .epilogue = CU_EPILOGUE_DGELU};
    double moved = 3.0 * (double)low_stored_bytes(low_value(b->program, k->out[DX]), (uint8_t)p.c_type);
    ddp_status status = k->in[AUX] >= 0 ? try_product(b, &p, false, &t->fused, err) : DDP_OK;

    if (status == DDP_OK && k->out[SUMS] >= 0) status = build_sums(b, k, p, err);
    p.epilogue = CU_EPILOGUE_NONE;
    p.add = low_value(b->program, k->out[DX])->kind == DDP_VALUE_GRAD;
    if (status == DDP_OK) status = cu_product_create(b->device->products, &p, &t->plain, err);
    if (status == DDP_OK) drop(pays(b, t->fused, t->plain, moved, true) ? &t->plain : &t->fused);
    t->sums = t->sums && t->fused != NULL;
    return cu_in_kernel(k, status, err);
}

/* What the product has not done of gelu's gradient and SUMS. The sum of one row is that row. */
static cudaError_t start_sums(const cu_call *c, cu_view dx, cu_view saved)
{
    const low_kernel *k = c->k;
    const linear_state *t = k->state;
    const cu_view half = {c->scratch, CU_BF16};
    char *rest = c->scratch + cu_round((uint64_t)k->inner * cu_size(CU_BF16));
    float *to = c->out[SUMS].at;

    if (t->sums) return cu_column_sums(c->stream, half, to, 1, k->inner, cu_adds(c, SUMS), rest);
    if (t->fused != NULL) return cu_column_sums(c->stream, dx, to, k->rows, k->inner, cu_adds(c, SUMS), rest);
    return cu_act_grad_sums(c->stream, k->act, dx, saved, dx, to, k->rows, k->inner, cu_adds(c, SUMS), rest);
}

static ddp_status run_grad_input(const cu_call *c, ddp_err *err)
{
    const low_kernel *k = c->k;
    const linear_state *t = k->state;
    cu_view dx = c->out[DX], saved = c->in[AUX];
    ddp_status status =
        cu_product_run(t->fused != NULL ? t->fused : t->plain, c->stream, c->in[DY].at, c->in[OTHER].at, dx.at,
                       t->sums ? c->scratch : NULL, t->fused != NULL ? saved.at : NULL, cu_adds(c, DX), err);

    if (status != DDP_OK) return cu_in_kernel(k, status, err);
    if (k->out[SUMS] >= 0) return cu_started(c, start_sums(c, dx, saved), err);
    if (t->fused != NULL || k->in[AUX] < 0) return DDP_OK;
    return cu_started(c, cu_act_grad(c->stream, k->act, dx, saved, dx, k->rows * k->inner, false), err);
}

const cu_family cu_family_linear_grad_input = {
    .base.group = group_grad_input, .build = build_grad_input, .run = run_grad_input, .base.release = linear_release};

/* ---- gradients of the weight and the bias ------------------------------------------------------------------------ */
static ddp_status group_grad_weight(low_lowering *w, low_kernel *k, uint32_t node, ddp_err *err)
{
    ddp_status status = make_state(w, k, node, err);

    if (status != DDP_OK) return status;
    low_rows(w, k, k->in[DY]);
    k->inner = low_value(w->p, k->in[OTHER])->elements / k->rows;
    k->in_type[DY] = k->in_type[OTHER] = cu_operand(w->device);
    k->writes_grad = 1u << DW | 1u << DB;
    if (k->out[DB] >= 0) k->scratch_bytes = cu_column_sums_scratch(k->rows, k->cols);
    return DDP_OK;
}

/* The two stand side by side, so that neither moves past another that adds to the same slice. */
static bool takes_weight(const low_lowering *w, uint32_t bias)
{
    static const uint32_t ops[] = {DDP_OP_LINEAR_GRAD_WEIGHT};

    return low_find_reader(w, bias, low_node(w->p, bias)->in[0], DY, ops, 1) == (int64_t)bias + 1;
}

static ddp_status group_column_sums(low_lowering *w, low_kernel *k, uint32_t node, ddp_err *err)
{
    const ddp_node *n = low_node(w->p, node), *weight = takes_weight(w, node) ? low_node(w->p, node + 1) : NULL;

    if (n->op == DDP_OP_CONV2D_GRAD_BIAS)
        low_matrix(w, k->in[DY], &k->rows, &k->cols);
    else
        low_rows(w, k, k->in[DY]);
    k->scratch_bytes = cu_column_sums_scratch(k->rows, k->cols);
    k->writes_grad = 1;
    k->out_type[0] = CU_F32;
    if (n->op == DDP_OP_CONV2D_GRAD_BIAS || weight == NULL) return DDP_OK;
    k->in[OTHER] = weight->in[1];
    k->out[DB] = k->out[0];
    k->out[DW] = weight->out[0];
    k->adds = k->adds << DB | (weight->accumulate & 1u) << DW;
    k->family = &cu_family_linear_grad_weight.base;
    k->name = "linear_grad_weight+bias";
    low_take(w, k, node + 1);
    return group_grad_weight(w, k, node + 1, err);
}

/* dw = dy^T x, or transposed x^T dy */
static ddp_status build_grad_weight(const cu_building *b, const low_kernel *k, ddp_err *err)
{
    linear_state *t = k->state;
    cu_product_params p = {.m = t->transposed ? k->inner : k->cols,
                           .n = t->transposed ? k->cols : k->inner,
                           .k = k->rows,
                           .a_transposed = true,
                           .a_type = k->in_type[DY],
                           .b_type = k->in_type[DY],
                           .c_type = b->type[k->out[DW]],
                           .epilogue = t->transposed ? CU_EPILOGUE_BGRAD_B : CU_EPILOGUE_BGRAD_A,
                           .has_bias = true,
                           .bias_type = CU_F32};
    ddp_status status = k->out[DB] >= 0 ? try_product(b, &p, false, &t->fused, err) : DDP_OK;

    if (status == DDP_OK) {
        p.epilogue = CU_EPILOGUE_NONE;
        p.has_bias = false;
        p.add = low_value(b->program, k->out[DW])->kind == DDP_VALUE_GRAD;
        status = cu_product_create(b->device->products, &p, &t->plain, err);
    }
    /* reading dy again is cheap, and an unmeasured product with sums may be far slower */
    if (status == DDP_OK &&
        !pays(b, t->fused, t->plain, (double)(k->rows * k->cols) * (double)cu_size(p.a_type), false))
        drop(&t->fused);
    return cu_in_kernel(k, status, err);
}

static ddp_status run_grad_weight(const cu_call *c, ddp_err *err)
{
    const low_kernel *k = c->k;
    const linear_state *t = k->state;
    cu_view dy = c->in[DY];
    const void *x = c->in[OTHER].at, *a = t->transposed ? x : dy.at, *b = t->transposed ? dy.at : x;
    bool fused = t->fused != NULL && !cu_adds(c, DW) && !cu_adds(c, DB);
    ddp_status status = cu_product_run(fused ? t->fused : t->plain, c->stream, a, b, c->out[DW].at,
                                       fused ? c->out[DB].at : NULL, NULL, cu_adds(c, DW), err);

    if (status != DDP_OK || fused || k->out[DB] < 0) return cu_in_kernel(k, status, err);
    return cu_started(c, cu_column_sums(c->stream, dy, c->out[DB].at, k->rows, k->cols, cu_adds(c, DB), c->scratch),
                      err);
}

const cu_family cu_family_linear_grad_weight = {.base.group = group_grad_weight,
                                                .build = build_grad_weight,
                                                .run = run_grad_weight,
                                                .base.release = linear_release};

/* ---- the gradient of a bias alone -------------------------------------------------------------------------------- */
static ddp_status run_column_sums(const cu_call *c, ddp_err *err)
{
    const low_kernel *k = c->k;

    return cu_started(
        c, cu_column_sums(c->stream, c->in[DY], c->out[0].at, k->rows, k->cols, cu_adds(c, 0), c->scratch), err);
}

const cu_family cu_family_column_sums = {.base.group = group_column_sums, .run = run_column_sums};
