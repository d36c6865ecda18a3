/* plugins/device/cpu/exec.c -- compiles a lowered program, binds instances to memory, runs kernels.
 *
 * An instance resolves every value to a pointer once; fields of the batch are the only pointers that change between
 * runs. cpu_run is a straight line over kernels: no allocation, no lookup. */
#include "cpu.h"

#include <stdlib.h>
#include <string.h>

struct ddp_exec {
    ddp_device *device;
    const ddp_program *program;
    const low_lowered *lowered;
    const ddp_plan *plan;
};

typedef struct input_slot {
    int32_t value; /* an INPUT or a view of one */
    int32_t field;
} input_slot;

struct ddp_instance {
    ddp_exec *exec;
    char *arena;
    void **at; /* by value: where it lies; NULL for an inner one */
    input_slot *inputs;
    uint32_t input_count;
    void **bound;   /* by kernel: what its family bound */
    char **scratch; /* by kernel; NULL for none */
};

ddp_status cpu_compile(ddp_device *d, const ddp_program *p, const ddp_lowered *l, const ddp_plan *plan, ddp_exec **out,
                       ddp_err *err)
{
    const low_lowered *own = l->device_data;
    ddp_exec *e;

    for (uint32_t i = 0; i < own->kernel_count; i++) {
        const low_kernel *k = &own->kernels[i];
        const cpu_family *f = cpu_family_of(k);
        ddp_status status = f->build != NULL ? f->build(k, err) : DDP_OK;
        if (status != DDP_OK) return status;
    }
    e = calloc(1, sizeof(*e));
    if (e == NULL) return ddp_fail(err, DDP_ERR_NOMEM, "device \"cpu\": out of memory while compiling");
    *e = (ddp_exec){d, p, own, plan};
    *out = e;
    return DDP_OK;
}

void cpu_exec_free(ddp_exec *e) { free(e); }

/* ---- instances --------------------------------------------------------------------------------------------------- */
static void resolve(ddp_instance *in, const ddp_bind *bind)
{
    const ddp_exec *e = in->exec;

    in->arena = bind->arena;
    for (uint32_t v = 0; v < e->program->value_count; v++) {
        int32_t root = low_root_of(e->lowered, (int32_t)v);
        const ddp_value *value = low_value(e->program, root);
        uint64_t offset = e->plan->value_offset[root];
        switch (value->kind) {
        case DDP_VALUE_INPUT: in->inputs[in->input_count++] = (input_slot){(int32_t)v, value->index}; break;
        case DDP_VALUE_PARAM: /* only read; the table of pointers is shared with what is written */
            in->at[v] = value->dtype == DDP_BF16 ? (void *)((const uint16_t *)bind->frozen + value->offset)
                                                 : (void *)(bind->params + value->offset);
            break;
        case DDP_VALUE_GRAD: in->at[v] = bind->grads != NULL ? bind->grads + value->offset : NULL; break;
        case DDP_VALUE_BUFFER: in->at[v] = bind->buffers != NULL ? bind->buffers + value->offset : NULL; break;
        default: in->at[v] = offset == DDP_NO_OFFSET ? NULL : in->arena + offset; break;
        }
    }
}

static cpu_call call_of(const ddp_instance *in, uint32_t index)
{
    const ddp_exec *e = in->exec;

    return (cpu_call){.device = e->device,
                      .program = e->program,
                      .k = &e->lowered->kernels[index],
                      .at = in->at,
                      .scratch = in->scratch[index],
                      .bound = in->bound[index],
                      .arena = in->arena,
                      .plan = e->plan};
}

static ddp_status bind_kernels(ddp_instance *in, ddp_err *err)
{
    const ddp_exec *e = in->exec;

    for (uint32_t i = 0; i < e->lowered->kernel_count; i++) {
        const cpu_family *f = cpu_family_of(&e->lowered->kernels[i]);
        uint64_t offset = e->plan->scratch_offset[i];
        cpu_call c;
        in->scratch[i] = offset == DDP_NO_OFFSET ? NULL : in->arena + offset;
        c = call_of(in, i);
        if (f->bind != NULL) {
            ddp_status status = f->bind(&c, &in->bound[i], err);
            if (status != DDP_OK) return status;
        }
    }
    return DDP_OK;
}

ddp_status cpu_instance_create(ddp_exec *e, const ddp_bind *bind, ddp_instance **out, ddp_err *err)
{
    ddp_instance *in = calloc(1, sizeof(*in));
    size_t values = e->program->value_count, kernels = e->lowered->kernel_count;
    ddp_status status;

    if (in == NULL) return ddp_fail(err, DDP_ERR_NOMEM, "device \"cpu\": out of memory for an instance");
    in->exec = e;
    in->at = calloc(values + 1, sizeof(void *));
    in->inputs = calloc(values + 1, sizeof(*in->inputs));
    in->bound = calloc(kernels + 1, sizeof(void *));
    in->scratch = calloc(kernels + 1, sizeof(void *));
    if (in->at == NULL || in->inputs == NULL || in->bound == NULL || in->scratch == NULL) {
        status = ddp_fail(err, DDP_ERR_NOMEM, "device \"cpu\": out of memory for an instance");
    } else {
        resolve(in, bind);
        status = bind_kernels(in, err);
    }
    if (status != DDP_OK) {
        cpu_instance_free(in);
        return status;
    }
    *out = in;
    return DDP_OK;
}

void cpu_instance_free(ddp_instance *in)
{
    if (in == NULL) return;
    for (uint32_t i = 0; in->bound != NULL && i < in->exec->lowered->kernel_count; i++) {
        const cpu_family *f = cpu_family_of(&in->exec->lowered->kernels[i]);
        if (f->unbind != NULL) f->unbind(in->bound[i]);
    }
    free(in->bound);
    free(in->scratch);
    free(in->inputs);
    free(in->at);
    free(in);
}

/* ---- running ----------------------------------------------------------------------------------------------------- */
/* Which outputs the kernel adds to: those that the program says, and with the run's flag all of the gradient arena. */
static uint32_t adds(const ddp_program *p, const low_kernel *k, uint32_t flags)
{
    uint32_t mask = k->adds;

    for (uint32_t i = 0; (flags & DDP_RUN_GRAD_ADD) != 0 && i < LOW_MAX_VALUES; i++)
        if (k->out[i] >= 0 && low_value(p, k->out[i])->kind == DDP_VALUE_GRAD) mask |= 1u << i;
    return mask;
}

static void convert(const cpu_call *c, const ddp_value *x, low_conversion how, float *to, const float *from, bool add)
{
    const cpu_kernels *f = c->device->kernels;

    if (how == LOW_TO_IMAGE)
        f->channels_last(to, from, x->dims[0], x->dims[1], x->dims[2] * x->dims[3]);
    else if (how == LOW_TO_PLAIN)
        f->channels_first(to, from, x->dims[0], x->dims[1], x->dims[2] * x->dims[3], add);
    else if (add)
        f->add(to, to, from, x->elements);
    else
        memcpy(to, from, (size_t)x->elements * sizeof(*to));
}

/* The family sees the converted values in place of its own. */
static ddp_status run_converted(ddp_instance *in, uint32_t index, cpu_call *c, ddp_err *err)
{
    const low_lowered *l = in->exec->lowered;
    const low_change *list = l->changes[index];
    uint32_t count = l->change_count[index], all = c->adds;
    void *kept[2 * LOW_MAX_VALUES];
    ddp_status status;

    for (uint32_t i = 0; i < count; i++) {
        int32_t v = list[i].output ? c->k->out[list[i].slot] : c->k->in[list[i].slot];
        char *scratch = in->scratch[index] + list[i].offset;
        if (list[i].output)
            c->adds &= ~(1u << list[i].slot);
        else
            convert(c, low_value(c->program, v), list[i].how, (float *)(void *)scratch, in->at[v], false);
        kept[i] = in->at[v];
        in->at[v] = scratch;
    }
    status = cpu_family_of(c->k)->run(c, err);
    for (uint32_t i = count; i-- > 0;) {
        int32_t v = list[i].output ? c->k->out[list[i].slot] : c->k->in[list[i].slot];
        const float *scratch = in->at[v];
        in->at[v] = kept[i];
        if (list[i].output && status == DDP_OK)
            convert(c, low_value(c->program, v), list[i].how, kept[i], scratch, (all >> list[i].slot & 1u) != 0);
    }
    return status;
}

ddp_status cpu_run(ddp_instance *in, const ddp_run *r, uint32_t first, uint32_t last, ddp_err *err)
{
    const low_lowered *l = in->exec->lowered;

    if (first > last || last > l->kernel_count)
        return ddp_fail(err, DDP_ERR_INVALID, "device \"cpu\": run of kernels %u to %u, but the program has %u", first,
                        last, l->kernel_count);
    for (uint32_t i = 0; i < in->input_count; i++) in->at[in->inputs[i].value] = r->inputs[in->inputs[i].field];
    for (uint32_t i = first; i < last; i++) {
        cpu_call c = call_of(in, i);
        ddp_status status;
        c.random = &r->random;
        c.adds = adds(c.program, c.k, r->flags);
        status = l->change_count[i] > 0 ? run_converted(in, i, &c, err) : cpu_family_of(c.k)->run(&c, err);
        if (status != DDP_OK) return status;
    }
    return DDP_OK;
}
