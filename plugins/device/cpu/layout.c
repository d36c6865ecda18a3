/* layout.c -- how values lie: which of them channels last, which reshapes are views, and what a kernel has converted around it
 * because it takes or gives a value otherwise than that lies. */
#include "cpu.h"

/* Ops whose kernels have images channels last; the others have everything in the program's order (cpu_kernel.plain). */
static bool takes_images(uint32_t op)
{
    switch (op) {
    case DDP_OP_RELU:
    case DDP_OP_RELU_GRAD:
    case DDP_OP_GELU:
    case DDP_OP_GELU_GRAD:
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

/* Channels last what any kernel has as an image. Between a dropout and a flattening nobody does: one copy in the program's order
 * is made where the last image is read, and none behind it. */
static void choose_layouts(cpu_lowering *w)
{
    const ddp_program *p = w->p;

    for (uint32_t i = 0; i < p->node_count; i++) {
        const ddp_node *n = cpu_node(p, i);
        if (!takes_images(n->op)) continue;
        for (uint32_t j = 0; j < n->in_count + n->out_count; j++) {
            int32_t v = j < n->in_count ? n->in[j] : n->out[j - n->in_count];
            const ddp_value *value = v >= 0 ? cpu_value(p, v) : NULL;
            if (value != NULL && is_image(value) && !cpu_outside(value) && !w->kept[v])
                w->layout[v] = CPU_CHANNELS_LAST;
        }
    }
}

/* An image with one channel, or of one pixel, lies the same both ways. */
static bool lies_the_same(const ddp_value *v)
{
    return !is_image(v) || v->dims[1] == 1 || v->dims[2] * v->dims[3] == 1;
}

/* Results lie plain, whoever asks for them. A reshape is a view where both sides lie in the order of their elements. */
static bool is_view(const cpu_lowering *w, const ddp_node *n)
{
    const ddp_value *x = cpu_value(w->p, n->in[0]), *y = cpu_value(w->p, n->out[0]);

    if (n->op != DDP_OP_RESHAPE || y->kind != DDP_VALUE_ACT) return false;
    return (w->layout[n->in[0]] == CPU_PLAIN || lies_the_same(x)) &&
           (w->layout[n->out[0]] == CPU_PLAIN || lies_the_same(y));
}

void cpu_describe_layouts(cpu_lowering *w)
{
    const ddp_program *p = w->p;

    for (uint32_t v = 0; v < p->value_count; v++) {
        w->l->storage[v].alias_of = -1;
        w->layout[v] = CPU_PLAIN;
    }
    choose_layouts(w);
    for (uint32_t i = 0; i < p->node_count; i++) {
        const ddp_node *n = cpu_node(p, i);
        if (!is_view(w, n)) continue;
        w->l->storage[n->out[0]].alias_of = n->in[0];
    }
}

int32_t cpu_root_of(const cpu_lowering *w, int32_t v)
{
    while (w->l->storage[v].alias_of >= 0) v = w->l->storage[v].alias_of;
    return v;
}

void cpu_size_storage(cpu_lowering *w)
{
    for (uint32_t v = 0; v < w->p->value_count; v++) {
        const ddp_value *value = cpu_value(w->p, (int32_t)v);
        ddp_storage *s = &w->l->storage[v];
        if (!cpu_outside(value) && !w->inner[v] && s->alias_of < 0)
            s->bytes = (uint64_t)value->elements * ddp_dtype_size(value->dtype);
        s->layout = w->layout[v];
    }
}

/* ---- conversions around a kernel ------------------------------------------------------------------------------------ */
static void add_convert(cpu_lowering *w, uint32_t index, uint32_t slot, bool output, cpu_conversion how,
                        uint64_t *scratch)
{
    const cpu_kernel *k = &w->l->kernels[index];
    int32_t v = output ? k->out[slot] : k->in[slot];

    w->l->converts[index][w->l->convert_count[index]++] = (cpu_convert){slot, output, how, *scratch};
    *scratch += ((uint64_t)cpu_value(w->p, v)->elements * sizeof(float) + 63) / 64 * 64;
}

/* From how the value lies to how the kernel has it, for an input; the other way round for an output. */
static cpu_conversion conversion(const cpu_lowering *w, const cpu_kernel *k, int32_t v, bool output)
{
    const ddp_value *value = cpu_value(w->p, v);
    bool lies_plain = cpu_outside(cpu_value(w->p, cpu_root_of(w, v))) || w->layout[v] == CPU_PLAIN;

    if (lies_the_same(value) || lies_plain == k->plain) return CPU_COPY;
    return lies_plain == output ? CPU_TO_PLAIN : CPU_TO_IMAGE;
}

/* Inputs and outputs that lie otherwise than the kernel has them; gradients that it cannot add to. */
void cpu_find_converts(cpu_lowering *w, uint32_t index, uint64_t *scratch)
{
    const cpu_kernel *k = &w->l->kernels[index];

    *scratch = (k->scratch_bytes + 63) / 64 * 64;
    for (uint32_t i = 0; i < CPU_MAX_VALUES; i++) {
        cpu_conversion how = k->in[i] >= 0 ? conversion(w, k, k->in[i], false) : CPU_COPY;
        if (how != CPU_COPY && !(k->reads_any >> i & 1u)) add_convert(w, index, i, false, how, scratch);
    }
    for (uint32_t i = 0; i < CPU_MAX_VALUES; i++) {
        cpu_conversion how = k->out[i] >= 0 ? conversion(w, k, k->out[i], true) : CPU_COPY;
        bool grad = k->out[i] >= 0 && cpu_value(w->p, k->out[i])->kind == DDP_VALUE_GRAD;
        if (grad ? !(k->writes_grad >> i & 1u) : how != CPU_COPY && !(k->writes_any >> i & 1u) && !w->inner[k->out[i]])
            add_convert(w, index, i, true, how, scratch);
    }
}
