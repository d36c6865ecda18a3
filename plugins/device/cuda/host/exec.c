/* plugins/device/cuda/host/exec.c -- compiles a lowered program and binds instances to memory: everything that a
 * kernel is called with is found here, once, as fields of the batch have memory of the instance's own, twice, and
 * kernels are called with either. */
#include "instance.h"

#include <stdlib.h>
#include <string.h>

ddp_status cu_started(const cu_call *c, cudaError_t result, ddp_err *err)
{
    if (result == cudaSuccess) return DDP_OK;
    return cu_fail(result, err, "device \"cuda:%d\", kernel \"%.60s\" of layer \"%.60s\"", c->device->ordinal,
                   c->k->name, c->k->layer);
}

/* ---- fields of the batch ----------------------------------------------------------------------------------------- */
/* -1: the value is no field, nor a view of one. */
static int32_t field_of(const ddp_exec *e, int32_t v)
{
    const ddp_value *value = low_value(e->program, low_root_of(e->lowered, v));

    return value->kind == DDP_VALUE_INPUT ? value->index : -1;
}

static bool is_free_view(const ddp_exec *e, const low_kernel *k)
{
    return k->family == &cu_family_view.base && e->lowered->storage[k->out[0]].alias_of >= 0;
}

static bool reads_field(const ddp_exec *e, const low_kernel *k, uint32_t field)
{
    for (uint32_t i = 0; i < LOW_MAX_VALUES && !is_free_view(e, k); i++)
        if (k->in[i] >= 0 && field_of(e, k->in[i]) == (int32_t)field) return true;
    return false;
}

static void count_fields(ddp_exec *e)
{
    for (uint32_t v = 0; v < e->program->value_count; v++) {
        const ddp_value *value = low_value(e->program, (int32_t)v);
        if (value->kind == DDP_VALUE_INPUT && value->index >= (int32_t)e->field_count)
            e->field_count = (uint32_t)value->index + 1;
    }
}

static ddp_status find_fields(ddp_exec *e, ddp_err *err)
{
    uint32_t kernels = e->lowered->kernel_count;

    count_fields(e);
    e->stage_bytes = cu_round(sizeof(cu_head));
    e->field_at = calloc(e->field_count + 1, sizeof(*e->field_at));
    e->field_bytes = calloc(e->field_count + 1, sizeof(*e->field_bytes));
    e->next_reader = calloc((size_t)e->field_count * (kernels + 1) + 1, sizeof(*e->next_reader));
    if (e->field_at == NULL || e->field_bytes == NULL || e->next_reader == NULL)
        return ddp_fail(err, DDP_ERR_NOMEM, "device \"cuda\": out of memory while compiling");
    for (uint32_t v = 0; v < e->program->value_count; v++) {
        const ddp_value *value = low_value(e->program, (int32_t)v);
        uint64_t bytes = (uint64_t)value->elements * ddp_dtype_size(value->dtype);
        if (value->kind == DDP_VALUE_INPUT && bytes > e->field_bytes[value->index])
            e->field_bytes[value->index] = bytes;
    }
    for (uint32_t f = 0; f < e->field_count; f++) {
        uint32_t *next = e->next_reader + (size_t)f * (kernels + 1);
        next[kernels] = UINT32_MAX;
        for (uint32_t k = kernels; k-- > 0;) next[k] = reads_field(e, &e->lowered->kernels[k], f) ? k : next[k + 1];
        e->field_at[f] = e->stage_bytes;
        e->stage_bytes += cu_round(e->field_bytes[f]);
    }
    return DDP_OK;
}

/* ---- compile ----------------------------------------------------------------------------------------------------- */
static void find_random(ddp_exec *e)
{
    for (uint32_t i = 0; i < e->program->node_count; i++) {
        const ddp_node *n = low_node(e->program, i);
        bool attention = n->op == DDP_OP_ATTENTION || n->op == DDP_OP_ATTENTION_GRAD ||
                         n->op == DDP_OP_ATTENTION_APART || n->op == DDP_OP_ATTENTION_APART_GRAD;
        if (n->op == DDP_OP_DROPOUT || n->op == DDP_OP_DROPOUT_GRAD || (attention && n->attrs.attention.dropout > 0.0))
            e->random = true;
    }
}

ddp_status cu_compile(ddp_device *d, const ddp_program *p, const ddp_lowered *l, const ddp_plan *plan, ddp_exec **out,
                      ddp_err *err)
{
    const low_lowered *own = l->device_data;
    const cu_building b = {.device = d, .program = p, .type = own->type};
    ddp_exec *e = calloc(1, sizeof(*e));
    ddp_status status = cu_enter(d, err);

    if (e == NULL) return ddp_fail(err, DDP_ERR_NOMEM, "device \"cuda\": out of memory while compiling");
    *e = (ddp_exec){.device = d, .program = p, .lowered = own, .plan = plan, .first_site = d->next_site};
    for (uint32_t i = 0; status == DDP_OK && i < own->kernel_count; i++) {
        const low_kernel *k = &own->kernels[i];
        if (cu_family_of(k)->build != NULL) status = cu_family_of(k)->build(&b, k, err);
    }
    if (status == DDP_OK) status = find_fields(e, err);
    find_random(e);
    e->next = d->execs;
    d->execs = e;
    if (status != DDP_OK) {
        cu_exec_free(e);
        return status;
    }
    d->next_site += own->kernel_count;
    *out = e;
    return DDP_OK;
}

void cu_exec_free(ddp_exec *e)
{
    ddp_exec **at;

    if (e == NULL) return;
    for (at = &e->device->execs; *at != NULL && *at != e; at = &(*at)->next) continue;
    if (*at == e) *at = e->next;
    free(e->field_at);
    free(e->field_bytes);
    free(e->next_reader);
    free(e);
}

/* ---- an instance: addresses -------------------------------------------------------------------------------------- */
static void *address_of(const ddp_instance *in, const ddp_bind *bind, const cu_stage *stage, int32_t v)
{
    const ddp_exec *e = in->exec;
    int32_t root = low_root_of(e->lowered, v);
    const ddp_value *value = low_value(e->program, root);
    uint64_t offset = e->plan->value_offset[root];

    switch (value->kind) {
    case DDP_VALUE_INPUT: return stage->at + e->field_at[value->index];
    case DDP_VALUE_PARAM: /* only read; views are shared with what is written */
        return (void *)(bind->params + value->offset);
    case DDP_VALUE_GRAD: return bind->grads != NULL ? bind->grads + value->offset : NULL;
    case DDP_VALUE_BUFFER: return bind->buffers != NULL ? bind->buffers + value->offset : NULL;
    default: return offset == DDP_NO_OFFSET ? NULL : in->arena + offset;
    }
}

static uint16_t *half_of(const ddp_instance *in, int32_t v)
{
    const ddp_value *value = low_value(in->exec->program, low_root_of(in->exec->lowered, v));

    return value->kind == DDP_VALUE_PARAM && in->mirror != NULL ? in->mirror->half + value->offset : NULL;
}

static char *scratch_of(const ddp_instance *in, uint32_t index)
{
    uint64_t offset = in->exec->plan->scratch_offset[index];
    uintptr_t at;

    if (offset == DDP_NO_OFFSET) return NULL;
    at = (uintptr_t)(in->arena + offset);
    return in->arena + offset + (cu_round(at) - at);
}

static void resolve_values(const ddp_instance *in, const ddp_bind *bind, const cu_stage *stage, cu_call *c)
{
    const low_lowered *l = in->exec->lowered;
    const low_kernel *k = c->k;

    for (uint32_t i = 0; i < LOW_MAX_VALUES; i++) {
        if (k->in[i] >= 0) {
            c->in[i] = (cu_view){address_of(in, bind, stage, k->in[i]), l->type[k->in[i]]};
            c->half[i] = half_of(in, k->in[i]);
        }
        if (k->out[i] < 0) continue;
        c->out[i] = (cu_view){address_of(in, bind, stage, k->out[i]), l->type[k->out[i]]};
        if (low_value(c->program, k->out[i])->kind == DDP_VALUE_GRAD) c->grads |= 1u << i;
    }
}

/* Puts the converted value where the value's own was. */
static void resolve_changes(const ddp_instance *in, uint32_t index, cu_call *c)
{
    const low_lowered *l = in->exec->lowered;
    bool changed[LOW_MAX_VALUES] = {false};

    for (uint32_t i = 0; i < l->change_count[index]; i++) {
        const low_change *x = &l->changes[index][i];
        cu_view *at = x->output ? &c->out[x->slot] : &c->in[x->slot], value = *at;
        char *converted = x->own >= 0 ? in->arena + in->exec->plan->private_offset[x->own] : c->scratch + x->offset;
        int32_t v = x->output ? c->k->out[x->slot] : c->k->in[x->slot];
        cu_move move = {.how = x->how, .slot = x->slot, .value = low_value(c->program, v)};
        *at = (cu_view){converted, x->type};
        move.from = x->output ? *at : value;
        move.to = x->output ? value : *at;
        if (x->output) {
            c->changed |= 1u << x->slot;
            c->after[c->after_count++] = move;
        } else {
            changed[x->slot] = true;
            if (!x->ready) c->before[c->before_count++] = move;
        }
    }
    for (uint32_t i = 0; i < LOW_MAX_VALUES; i++)
        if (!changed[i] && c->k->in[i] >= 0 && c->k->in_type[i] == CU_BF16 && c->in[i].type == CU_F32 &&
            c->half[i] != NULL)
            c->in[i] = (cu_view){c->half[i], CU_BF16};
}

static void resolve(const ddp_instance *in, const ddp_bind *bind, const cu_stage *stage)
{
    const ddp_exec *e = in->exec;

    for (uint32_t i = 0; i < e->lowered->kernel_count; i++) {
        cu_call *c = &stage->calls[i];
        *c = (cu_call){.device = e->device,
                       .program = e->program,
                       .k = &e->lowered->kernels[i],
                       .stream = cu_compute(e->device),
                       .scratch = scratch_of(in, i),
                       .params = &((const cu_head *)(const void *)stage->at)->random,
                       .fault = e->device->fault_at,
                       .site = e->first_site + i};
        for (uint32_t p = 0; p < c->k->private_count; p++)
            c->kept[p] = in->arena + e->plan->private_offset[c->k->privates[p]];
        if (c->k->half >= 0) c->copy = (cu_view){in->arena + e->plan->private_offset[c->k->half], CU_BF16};
        resolve_values(in, bind, stage, c);
        resolve_changes(in, i, c);
    }
}

/* ---- an instance: memory ----------------------------------------------------------------------------------------- */
static uint64_t param_elements(const ddp_program *p)
{
    uint64_t elements = 0;

    for (uint32_t v = 0; v < p->value_count; v++) {
        const ddp_value *value = low_value(p, (int32_t)v);
        if (value->kind == DDP_VALUE_PARAM && value->offset + (uint64_t)value->elements > elements)
            elements = value->offset + (uint64_t)value->elements;
    }
    return elements;
}

static ddp_status reserve(ddp_instance *in, const ddp_bind *bind, ddp_err *err)
{
    const ddp_exec *e = in->exec;
    void *own;
    ddp_status status;

    status = cu_memory(e->device, CU_STAGES * e->stage_bytes, "the fields of a batch", &own, err);
    if (status != DDP_OK) return status;
    in->own = own;
    in->uploaded = calloc(e->field_count + 1, sizeof(*in->uploaded));
    for (uint32_t i = 0; i < CU_STAGES; i++) {
        cu_stage *s = &in->stages[i];
        cudaError_t result = cudaEventCreateWithFlags(&s->there, cudaEventDisableTiming);
        if (result == cudaSuccess) result = cudaEventCreateWithFlags(&s->taken, cudaEventDisableTiming);
        if (result != cudaSuccess) return cu_fail(result, err, "device \"cuda:%d\": no event", e->device->ordinal);
        s->at = in->own + i * e->stage_bytes;
        s->calls = calloc(e->lowered->kernel_count + 1, sizeof(*s->calls));
        if (s->calls == NULL || in->uploaded == NULL)
            return ddp_fail(err, DDP_ERR_NOMEM, "device \"cuda\": out of memory for an instance");
    }
    if (!e->lowered->mirrored) return DDP_OK;
    return cu_mirror_use(e->device, bind->params, param_elements(e->program), &in->mirror, err);
}

ddp_status cu_instance_create(ddp_exec *e, const ddp_bind *bind, ddp_instance **out, ddp_err *err)
{
    ddp_instance *in = calloc(1, sizeof(*in));
    ddp_status status = cu_enter(e->device, err);

    if (in == NULL) return ddp_fail(err, DDP_ERR_NOMEM, "device \"cuda\": out of memory for an instance");
    in->exec = e;
    in->arena = bind->arena;
    in->ended = UINT32_MAX;
    if (status == DDP_OK) status = reserve(in, bind, err);
    if (status != DDP_OK) {
        cu_instance_free(in);
        return status;
    }
    for (uint32_t i = 0; i < CU_STAGES; i++) resolve(in, bind, &in->stages[i]);
    *out = in;
    return DDP_OK;
}

void cu_instance_free(ddp_instance *in)
{
    ddp_err err;

    if (in == NULL) return;
    (void)cu_enter(in->exec->device, &err);
    (void)cudaStreamSynchronize(in->exec->device->input);
    (void)cudaStreamSynchronize(cu_compute(in->exec->device));
    for (uint32_t i = 0; i < CU_STAGES; i++) {
        if (in->stages[i].there != NULL) (void)cudaEventDestroy(in->stages[i].there);
        if (in->stages[i].taken != NULL) (void)cudaEventDestroy(in->stages[i].taken);
        free(in->stages[i].calls);
    }
    for (uint32_t i = 0; i < in->graph_count; i++) cu_graph_free(in->exec->device, &in->graphs[i]);
    for (uint32_t i = 0; i < in->ending_count; i++) cu_ending_free(&in->endings[i]);
    cu_mirror_release(in->exec->device, in->mirror);
    (void)cudaFree(in->own);
    free(in->uploaded);
    free(in);
}
