/* plugins/device/common/layout.c -- how values lie: which of them channels last, which reshapes are views, and what
 * a kernel has converted around it because it takes or gives a value otherwise, or of another type, than that lies. */
#include "lower.h"

#include <stdlib.h>

/* Ops whose kernels have images channels last; the others have everything in the program's order (low_kernel.plain). */
static bool takes_images(uint32_t op)
{
    switch (op) {
    case DDP_OP_RELU:
    case DDP_OP_RELU_GRAD:
    case DDP_OP_LEAKY_RELU:
    case DDP_OP_LEAKY_RELU_GRAD:
    case DDP_OP_SCALE:
    case DDP_OP_GELU:
    case DDP_OP_GELU_GRAD:
    case DDP_OP_SILU:
    case DDP_OP_SILU_GRAD:
    case DDP_OP_MUL:
    case DDP_OP_ADD:
    case DDP_OP_CONV2D:
    case DDP_OP_CONV2D_GRAD_INPUT:
    case DDP_OP_CONV2D_GRAD_WEIGHT:
    case DDP_OP_CONV2D_GRAD_BIAS:
    case DDP_OP_BATCH_NORM:
    case DDP_OP_BATCH_NORM_GRAD:
    case DDP_OP_MAX_POOL2D:
    case DDP_OP_MAX_POOL2D_GRAD:
    case DDP_OP_AVG_POOL2D:
    case DDP_OP_AVG_POOL2D_GRAD:
    case DDP_OP_ADAPTIVE_AVG_POOL2D:
    case DDP_OP_ADAPTIVE_AVG_POOL2D_GRAD: return true;
    default: return false;
    }
}

static bool is_image(const ddp_value *v) { return v->rank == 4 && v->dtype == DDP_F32; }

/* Channels last what any kernel has as an image. Between a dropout and a flattening nobody does: one copy in the
 * program's order is made where the last image is read, and none after it. */
static void choose_layouts(low_lowering *w)
{
    const ddp_program *p = w->p;

    for (uint32_t i = 0; i < p->node_count; i++) {
        const ddp_node *n = low_node(p, i);
        if (!takes_images(n->op)) continue;
        for (uint32_t j = 0; j < n->in_count + n->out_count; j++) {
            int32_t v = j < n->in_count ? n->in[j] : n->out[j - n->in_count];
            const ddp_value *value = v >= 0 ? low_value(p, v) : NULL;
            if (value != NULL && is_image(value) && !low_outside(value) && !w->kept[v])
                w->layout[v] = LOW_CHANNELS_LAST;
        }
    }
}

/* An image with one channel, or of one pixel, lies the same both ways. */
static bool lies_the_same(const ddp_value *v)
{
    return !is_image(v) || v->dims[1] == 1 || v->dims[2] * v->dims[3] == 1;
}

/* Results lie plain and in f32, for any reader. A reshape is a view where both sides lie in the order of
 * their elements. */
static bool is_view(const low_lowering *w, const ddp_node *n)
{
    const ddp_value *x = low_value(w->p, n->in[0]), *y = low_value(w->p, n->out[0]);

    if (n->op != DDP_OP_RESHAPE || y->kind != DDP_VALUE_ACT || w->type[n->in[0]] != w->type[n->out[0]]) return false;
    return (w->layout[n->in[0]] == LOW_PLAIN || lies_the_same(x)) &&
           (w->layout[n->out[0]] == LOW_PLAIN || lies_the_same(y));
}

void low_describe_layouts(low_lowering *w)
{
    const ddp_program *p = w->p;

    for (uint32_t v = 0; v < p->value_count; v++) {
        w->l->storage[v].alias_of = -1;
        w->layout[v] = LOW_PLAIN;
    }
    choose_layouts(w);
    for (uint32_t i = 0; i < p->node_count; i++) {
        const ddp_node *n = low_node(p, i);
        if (!is_view(w, n)) continue;
        w->l->storage[n->out[0]].alias_of = n->in[0];
    }
}

int32_t low_root_of(const low_lowered *l, int32_t v)
{
    while (l->storage[v].alias_of >= 0) v = l->storage[v].alias_of;
    return v;
}

void low_size_storage(low_lowering *w)
{
    for (uint32_t v = 0; v < w->p->value_count; v++) {
        const ddp_value *value = low_value(w->p, (int32_t)v);
        ddp_storage *s = &w->l->storage[v];
        if (!low_outside(value) && !w->inner[v] && s->alias_of < 0) s->bytes = low_stored_bytes(value, w->type[v]);
        s->layout = w->layout[v];
    }
}

/* ---- conversions around a kernel --------------------------------------------------------------------------------- */
/* From how the value lies to how the kernel has it, for an input; the other way round for an output. */
static low_conversion conversion(const low_lowering *w, const low_kernel *k, uint32_t slot, bool output)
{
    int32_t v = output ? k->out[slot] : k->in[slot];
    const ddp_value *value = low_value(w->p, v);
    bool lies_plain = low_outside(low_value(w->p, low_root_of(w->l, v))) || w->layout[v] == LOW_PLAIN;
    bool plain = k->plain || ((output ? k->plain_out : k->plain_in) >> slot & 1u) != 0;

    if (lies_the_same(value) || lies_plain == plain) return LOW_COPY;
    return lies_plain == output ? LOW_TO_PLAIN : LOW_TO_IMAGE;
}

static bool has_mirror(const low_lowering *w, int32_t v)
{
    return low_value(w->p, low_root_of(w->l, v))->kind == DDP_VALUE_PARAM;
}

/* Two kernels that want this of the same memory want the same bytes. */
typedef struct wish {
    uint32_t kernel;
    int32_t source; /* the root, or where the order of a shape changes the value itself */
    low_change *change;
} wish;

typedef struct wishes {
    wish *list;
    uint32_t count;
} wishes;

static void want_input(low_lowering *w, uint32_t index, uint32_t slot, wishes *all)
{
    const low_kernel *k = &w->l->kernels[index];
    int32_t v = k->in[slot];
    low_conversion how = k->reads_any >> slot & 1u ? LOW_COPY : conversion(w, k, slot, false);
    uint8_t lies = w->type[v], want = k->in_type[slot] == LOW_AS_IT_LIES ? lies : k->in_type[slot];
    low_change *c = &w->l->changes[index][w->l->change_count[index]];

    if (low_value(w->p, v)->dtype != DDP_F32 || (how == LOW_COPY && want == lies)) return;
    if (how == LOW_COPY && want == LOW_BF16 && has_mirror(w, v)) {
        w->l->mirrored = true;
        return;
    }
    *c = (low_change){.slot = slot, .how = how, .type = want, .own = -1};
    w->l->change_count[index]++;
    all->list[all->count++] = (wish){index, how == LOW_COPY ? low_root_of(w->l, v) : v, c};
}

static void want_output(low_lowering *w, uint32_t index, uint32_t slot)
{
    const low_kernel *k = &w->l->kernels[index];
    int32_t v = k->out[slot];
    bool grad = low_value(w->p, v)->kind == DDP_VALUE_GRAD;
    low_conversion how = conversion(w, k, slot, true);
    uint8_t lies = w->type[v], gives = k->out_type[slot] == LOW_AS_IT_LIES ? lies : k->out_type[slot];

    if (w->inner[v]) return;
    if (k->writes_any >> slot & 1u) how = LOW_COPY;
    if (how == LOW_COPY && gives == lies && (!grad || (k->writes_grad >> slot & 1u))) return;
    w->l->changes[index][w->l->change_count[index]++] =
        (low_change){.slot = slot, .output = true, .how = how, .type = gives, .own = -1};
}

static bool same_wish(const wish *a, const wish *b)
{
    return a->source == b->source && a->change->how == b->change->how && a->change->type == b->change->type;
}

/* A private value for what kernel `maker` converts for `first`. */
static ddp_status keep(low_lowering *w, uint32_t maker, const wish *first, ddp_err *err)
{
    int32_t v = w->l->kernels[first->kernel].in[first->change->slot];
    ddp_status status =
        low_private_new(w, low_stored_bytes(low_value(w->p, v), first->change->type), &first->change->own, err);

    if (status != DDP_OK) return status;
    w->l->privates[first->change->own].first_kernel = maker;
    w->l->privates[first->change->own].last_kernel = first->kernel;
    return DDP_OK;
}

/* How far apart a value's writer and its first reader may be for the writer to give it in bf16 too: what lies longer
 * takes memory of what is computed in between. */
enum { NEAR = 2 };

/* The kernel shortly before that writes the value as it lies and can give it in bf16 besides; -1. */
static int64_t half_writer(const low_lowering *w, const wish *first)
{
    if (first->change->how != LOW_COPY || first->change->type != LOW_BF16) return -1;
    for (uint32_t i = first->kernel; i-- > 0 && first->kernel - i <= NEAR;) {
        const low_kernel *k = &w->l->kernels[i];
        if (k->half_of < 0 || k->half >= 0 || k->out[k->half_of] != first->source) continue;
        for (uint32_t c = 0; c < w->l->change_count[i]; c++)
            if (w->l->changes[i][c].output && w->l->changes[i][c].slot == (uint32_t)k->half_of) return -1;
        return i;
    }
    return -1;
}

static ddp_status give_by_writer(low_lowering *w, const wish *first, ddp_err *err)
{
    int64_t writer = half_writer(w, first);

    if (writer < 0) return DDP_OK;
    DDP_TRY(keep(w, (uint32_t)writer, first, err));
    w->l->kernels[writer].half = first->change->own;
    first->change->ready = true;
    return DDP_OK;
}

/* The value's writer or the first kernel makes it, in a private value that lives to the last. One kernel that has it
 * twice converts twice. */
static ddp_status share(low_lowering *w, const wishes *all, ddp_err *err)
{
    for (uint32_t i = 0; i < all->count; i++) {
        wish *first = &all->list[i];
        if (first->change->own >= 0) continue;
        DDP_TRY(give_by_writer(w, first, err));
        for (uint32_t j = i + 1; j < all->count; j++) {
            wish *other = &all->list[j];
            if (other->change->own >= 0 || other->kernel == first->kernel || !same_wish(first, other)) continue;
            if (first->change->own < 0) {
                ddp_status status = keep(w, first->kernel, first, err);
                if (status != DDP_OK) return status;
            }
            w->l->privates[first->change->own].last_kernel = other->kernel;
            other->change->own = first->change->own;
            other->change->ready = true;
        }
    }
    return DDP_OK;
}

static uint64_t rounded(const low_lowering *w, uint64_t bytes)
{
    return (bytes + w->target->alignment - 1) / w->target->alignment * w->target->alignment;
}

static void place_in_scratch(low_lowering *w, uint32_t index)
{
    const low_kernel *k = &w->l->kernels[index];
    uint64_t bytes = rounded(w, k->scratch_bytes);

    for (uint32_t i = 0; i < w->l->change_count[index]; i++) {
        low_change *c = &w->l->changes[index][i];
        int32_t v = c->output ? k->out[c->slot] : k->in[c->slot];
        c->offset = bytes;
        if (c->own < 0) bytes += rounded(w, low_stored_bytes(low_value(w->p, v), c->type));
    }
    /* the plan aligns to 64 bytes only */
    w->l->table[index].scratch_bytes = bytes > 0 ? bytes + w->target->alignment - 64 : 0;
}

/* Inputs and outputs that lie otherwise than the kernel has them; gradients that it cannot add to. */
ddp_status low_find_changes(low_lowering *w, ddp_err *err)
{
    size_t kernels = w->l->kernel_count + 1;
    wishes all = {.list = calloc(kernels * LOW_MAX_VALUES, sizeof(*all.list))};
    ddp_status status = DDP_OK;

    if (all.list == NULL)
        return ddp_fail(err, DDP_ERR_NOMEM, "device \"%s\": out of memory while lowering", w->target->name);
    for (uint32_t k = 0; k < w->l->kernel_count; k++) {
        for (uint32_t i = 0; i < LOW_MAX_VALUES; i++)
            if (w->l->kernels[k].in[i] >= 0) want_input(w, k, i, &all);
        for (uint32_t i = 0; i < LOW_MAX_VALUES; i++)
            if (w->l->kernels[k].out[i] >= 0) want_output(w, k, i);
    }
    if (w->target->shares) status = share(w, &all, err);
    for (uint32_t k = 0; status == DDP_OK && k < w->l->kernel_count; k++) place_in_scratch(w, k);
    free(all.list);
    return status;
}
