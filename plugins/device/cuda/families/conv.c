/* plugins/device/cuda/families/conv.c -- convolutions, and the gradients of their input and weight, by cuDNN or by the
 * device's own kernels:
 *
 *   conv2d + bias + relu   the bias and the relu in one pass over the result
 *
 * cuDNN has weights in another order, (O, KH, KW, I), and in the type of the images. The program's first convolution
 * packs those of all in one launch, into a private value that the last one reads; the gradient of a weight is
 * unpacked after its kernel. */
#include "host/cu.h"

#include <stdlib.h>

enum { X, W, B };      /* forward: in */
enum { Y, ACTIVATED }; /* forward: out */
enum { DY, OTHER };    /* gradients: in; the weight or x */

/* A parameter in the private value. */
typedef struct packed_weight {
    int32_t value;
    int64_t o, i, khw;
    uint64_t at;
} packed_weight;

typedef struct conv_state {
    cu_conv conv;
    cu_dnn_conv *dnn;        /* NULL: the device's own kernel */
    uint64_t packed_at;      /* of the weight, in the private value */
    uint64_t gradient_bytes; /* of the weight's, packed, at the start of the scratch */
    packed_weight *weights;  /* of the kernel that packs: what it packs; else NULL */
    uint32_t weight_count;
    cu_pack *packs; /* the same with addresses, of the call in hand */
} conv_state;

static void conv_release(void *state)
{
    conv_state *t = state;

    if (t == NULL) return;
    cu_dnn_conv_free(t->dnn);
    free(t->weights);
    free(t->packs);
    free(t);
}

static void describe(const low_lowering *w, const ddp_node *n, int32_t x, int32_t weight, int32_t y, cu_conv *c)
{
    const ddp_value *vx = low_value(w->p, x), *vw = low_value(w->p, weight), *vy = low_value(w->p, y);

    c->in = (cu_image){.n = vx->dims[0], .h = vx->dims[2], .w = vx->dims[3], .c = vx->dims[1]};
    c->o = vy->dims[1];
    c->oh = vy->dims[2];
    c->ow = vy->dims[3];
    c->groups = n->attrs.conv.groups;
    c->bf16 = w->device->half;
    for (int i = 0; i < 2; i++) {
        c->w.kernel[i] = vw->dims[2 + i];
        c->w.stride[i] = n->attrs.conv.stride[i];
        c->w.padding[i] = n->attrs.conv.padding[i];
    }
}

static int64_t khw(const cu_conv *c) { return c->w.kernel[0] * c->w.kernel[1]; }

static uint64_t packed_bytes(const ddp_device *d, const cu_conv *c)
{
    return cu_round((uint64_t)(c->o * (c->in.c / c->groups) * khw(c)) * cu_size(cu_operand(d)));
}

/* ---- packed weights ---------------------------------------------------------------------------------------------- */
static bool is_param(const low_lowering *w, int32_t v) { return low_value(w->p, v)->kind == DDP_VALUE_PARAM; }

/* The first convolution by cuDNN, which stands in front of all others; k itself where there is none yet, or its
 * weight is computed. */
static low_kernel *packer(const low_lowering *w, low_kernel *k)
{
    if (!is_param(w, k->in[W])) return k;
    for (uint32_t i = 0; i < w->l->kernel_count; i++) {
        low_kernel *other = &w->l->kernels[i];
        const conv_state *t = other->state;
        if (other->family == &cu_family_conv.base && t != NULL && t->weights != NULL && is_param(w, other->in[W]))
            return other;
    }
    return k;
}

static ddp_status add_packed(low_lowering *w, low_kernel *first, const conv_state *t, int32_t weight, uint64_t *at,
                             ddp_err *err)
{
    conv_state *p = first->state;
    packed_weight *more = realloc(p->weights, (p->weight_count + 1) * sizeof(*more));
    cu_pack *packs = realloc(p->packs, (p->weight_count + 1) * sizeof(*packs));

    if (more != NULL) p->weights = more;
    if (packs != NULL) p->packs = packs;
    if (more == NULL || packs == NULL)
        return ddp_fail(err, DDP_ERR_NOMEM, "device \"cuda\": out of memory while lowering");
    *at = w->l->privates[first->privates[0]].bytes;
    more[p->weight_count++] = (packed_weight){
        .value = weight, .o = t->conv.o, .i = t->conv.in.c / t->conv.groups, .khw = khw(&t->conv), .at = *at};
    w->l->privates[first->privates[0]].bytes += packed_bytes(w->device, &t->conv);
    return DDP_OK;
}

/* Where k finds its weight: with that of an earlier convolution, or after all that are there. */
static ddp_status find_packed(low_lowering *w, low_kernel *k, int32_t weight, ddp_err *err)
{
    low_kernel *first = packer(w, k);
    const conv_state *p = first->state;
    conv_state *t = k->state;
    int32_t number;

    if (first != k)
        low_private_use(k, first->privates[0]);
    else if (low_private_add(w, k, 0, &number, err) != DDP_OK)
        return err->status;
    for (uint32_t i = 0; i < p->weight_count; i++)
        if (p->weights[i].value == weight) {
            t->packed_at = p->weights[i].at;
            return DDP_OK;
        }
    return add_packed(w, first, t, weight, &t->packed_at, err);
}

/* ---- lowering ---------------------------------------------------------------------------------------------------- */
/* Of cuDNN, or else of its own. `images`: the slots that cuDNN has in its type. */
static ddp_status choose(low_lowering *w, low_kernel *k, uint32_t images_in, bool image_out, ddp_err *err)
{
    conv_state *t = k->state;
    uint32_t type = cu_operand(w->device);
    ddp_status status = DDP_ERR_UNSUPPORTED;

    if (w->device->dnn != NULL) status = cu_dnn_conv_create(w->device->dnn, k->kind, &t->conv, type, &t->dnn, err);
    if (status != DDP_OK && status != DDP_ERR_UNSUPPORTED) return status;
    if (status == DDP_ERR_UNSUPPORTED) {
        t->dnn = NULL;
        if (w->device->dnn != NULL)
            cu_tell_own(w->device, CU_OWN_CONVOLUTION, k->name, k->layer, err->msg);
        else
            cu_tell_slow(w->device, k->name, k->layer, "there is no cuDNN");
        if (k->kind == CU_CONV_GRAD_WEIGHT) k->scratch_bytes = cu_conv_plain_grad_weight_scratch(&t->conv);
        return DDP_OK;
    }
    for (uint32_t i = 0; i < 2; i++)
        if (images_in >> i & 1u) k->in_type[i] = (uint8_t)type;
    if (image_out) k->out_type[0] = k->out_type[1] = (uint8_t)type;
    if (k->kind == CU_CONV_GRAD_WEIGHT) t->gradient_bytes = packed_bytes(w->device, &t->conv);
    k->scratch_bytes = t->gradient_bytes + cu_dnn_conv_workspace(t->dnn);
    return k->kind == CU_CONV_GRAD_WEIGHT ? DDP_OK : find_packed(w, k, k->in[W], err);
}

static void *workspace(const cu_call *c) { return c->scratch + ((const conv_state *)c->k->state)->gradient_bytes; }
static const void *packed(const cu_call *c) { return c->kept[0] + ((const conv_state *)c->k->state)->packed_at; }

/* Nothing where another kernel does it. All parameters are of one arena, so that the address of one gives those of
 * the others. */
static cudaError_t pack(const cu_call *c)
{
    const conv_state *t = c->k->state;
    const ddp_value *own = low_value(c->program, c->k->in[W]);

    for (uint32_t i = 0; i < t->weight_count; i++) {
        const packed_weight *p = &t->weights[i];
        int64_t away = (int64_t)low_value(c->program, p->value)->offset - (int64_t)own->offset;
        t->packs[i] = (cu_pack){
            .w = (const float *)c->in[W].at + away, .packed = c->kept[0] + p->at, .o = p->o, .i = p->i, .khw = p->khw};
    }
    return cu_conv_pack(c->stream, t->packs, t->weight_count, cu_operand(c->device));
}

/* ---- forward ----------------------------------------------------------------------------------------------------- */
static const char *forward_name(bool dnn, bool bias, bool relu)
{
    static const char *const names[2][2][2] = {
        {{"conv2d", "conv2d+relu"}, {"conv2d+bias", "conv2d+bias+relu"}},
        {{"conv2d(cudnn)", "conv2d(cudnn)+relu"}, {"conv2d(cudnn)+bias", "conv2d(cudnn)+bias+relu"}}};

    return names[dnn][bias][relu];
}

static ddp_status group_forward(low_lowering *w, low_kernel *k, uint32_t node, ddp_err *err)
{
    static const uint32_t acts[] = {DDP_OP_RELU};
    int64_t act = low_find_reader(w, node, k->out[Y], 0, acts, 1);
    conv_state *t = cu_state(k, sizeof(*t), err);
    ddp_status status;

    if (t == NULL) return err->status;
    k->kind = CU_CONV_FORWARD;
    k->plain_in = 1u << W;
    k->in_type[W] = CU_F32;
    describe(w, low_node(w->p, node), k->in[X], k->in[W], k->out[Y], &t->conv);
    if (act >= 0 && low_read_once(w, k->out[Y])) {
        k->act = CU_ACT_RELU;
        w->inner[k->out[Y]] = true;
        k->out[ACTIVATED] = low_node(w->p, (uint32_t)act)->out[0];
        low_take(w, k, (uint32_t)act);
    }
    k->cols = t->conv.o;
    k->rows = t->conv.in.n * t->conv.oh * t->conv.ow;
    status = choose(w, k, 1u << X, true, err);
    k->name = forward_name(t->dnn != NULL, k->in[B] >= 0, k->act != CU_ACT_NONE);
    return status;
}

static ddp_status run_forward(const cu_call *c, ddp_err *err)
{
    const low_kernel *k = c->k;
    const conv_state *t = k->state;
    cu_view y = k->act != CU_ACT_NONE ? c->out[ACTIVATED] : c->out[Y], none = {NULL, CU_F32};
    const float *bias = c->in[B].at;
    ddp_status status;

    if (t->dnn == NULL) {
        status = cu_started(c, cu_conv_plain(c->stream, &t->conv, c->in[X], c->in[W].at, bias, y), err);
        bias = NULL;
    } else {
        status = cu_started(c, pack(c), err);
        if (status == DDP_OK)
            status = cu_dnn_conv_run(t->dnn, c->stream, c->in[X].at, packed(c), y.at, workspace(c), err);
    }
    if (status != DDP_OK) return status;
    if (bias != NULL) return cu_started(c, cu_bias_act(c->stream, k->act, y, bias, none, y, k->rows, k->cols), err);
    if (k->act == CU_ACT_NONE) return DDP_OK;
    return cu_started(c, cu_act(c->stream, k->act, y, y, k->rows * k->cols), err);
}

const cu_family cu_family_conv = {.base.group = group_forward, .run = run_forward, .base.release = conv_release};

/* ---- gradients --------------------------------------------------------------------------------------------------- */
static ddp_status group_gradient(low_lowering *w, low_kernel *k, uint32_t node, ddp_err *err)
{
    const ddp_node *n = low_node(w->p, node);
    conv_state *t = cu_state(k, sizeof(*t), err);
    ddp_status status;

    if (t == NULL) return err->status;
    if (n->op == DDP_OP_CONV2D_GRAD_INPUT) {
        k->kind = CU_CONV_GRAD_INPUT;
        k->plain_in = 1u << OTHER;
        k->in_type[OTHER] = CU_F32;
        describe(w, n, k->out[0], k->in[OTHER], k->in[DY], &t->conv);
        status = choose(w, k, 1u << DY, true, err);
        if (t->dnn != NULL) k->name = "conv2d_grad_input(cudnn)";
        return status;
    }
    k->kind = CU_CONV_GRAD_WEIGHT;
    k->plain_out = k->writes_grad = 1;
    k->out_type[0] = CU_F32;
    describe(w, n, k->in[OTHER], k->out[0], k->in[DY], &t->conv);
    status = choose(w, k, 1u << DY | 1u << OTHER, false, err);
    if (t->dnn != NULL) k->name = "conv2d_grad_weight(cudnn)";
    return status;
}

static ddp_status run_grad_input(const cu_call *c, ddp_err *err)
{
    const conv_state *t = c->k->state;
    ddp_status status;

    if (t->dnn == NULL)
        return cu_started(
            c, cu_conv_plain_grad_input(c->stream, &t->conv, c->in[DY], c->in[OTHER].at, c->out[0], false), err);
    status = cu_started(c, pack(c), err);
    if (status != DDP_OK) return status;
    return cu_dnn_conv_run(t->dnn, c->stream, c->in[DY].at, packed(c), c->out[0].at, workspace(c), err);
}

static ddp_status run_grad_weight(const cu_call *c, ddp_err *err)
{
    const conv_state *t = c->k->state;
    const cu_conv *v = &t->conv;
    cu_view gradient = {c->scratch, cu_operand(c->device)};
    ddp_status status;

    if (t->dnn == NULL)
        return cu_started(
            c,
            cu_conv_plain_grad_weight(c->stream, v, c->in[DY], c->in[OTHER], c->out[0].at, cu_adds(c, 0), c->scratch),
            err);
    status = cu_dnn_conv_run(t->dnn, c->stream, c->in[DY].at, c->in[OTHER].at, c->scratch, workspace(c), err);
    if (status != DDP_OK) return status;
    return cu_started(
        c, cu_conv_unpack(c->stream, gradient, c->out[0].at, v->o, v->in.c / v->groups, khw(v), cu_adds(c, 0)), err);
}

static ddp_status run_gradient(const cu_call *c, ddp_err *err)
{
    return c->k->kind == CU_CONV_GRAD_INPUT ? run_grad_input(c, err) : run_grad_weight(c, err);
}

const cu_family cu_family_conv_grad = {.base.group = group_gradient, .run = run_gradient, .base.release = conv_release};
