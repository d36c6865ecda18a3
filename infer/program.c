/* infer/program.c -- see program.h. */
#include "infer/program.h"
#include "session/variants.h"
#include <stdlib.h>
#include <string.h>

enum { ALIGNMENT = 64 }; /* of what a device reads */

ddp_status infer_program_plan(ddp_session *s, infer_program *p, int64_t batch, ddp_err *err)
{
    p->variant.batch = batch;
    return session_variant_plan(s, &p->variant, err);
}

ddp_status infer_program_bind(const infer_model *m, infer_program *p, ddp_err *err)
{
    ddp_session *s = m->t.s;
    ddp_bind bind = {.struct_size = sizeof(bind), .params = m->t.mem.params, .buffers = m->t.mem.buffers};
    size_t bytes = (s->train.field_count + s->eval.field_count + 1) * sizeof(void *);

    DDP_TRY(ddp_device_alloc(&s->device, p->variant.planned->plan.arena_bytes, &p->arena, err));
    p->inputs = ddp_alloc(bytes, err);
    p->staging = ddp_alloc(bytes, err);
    if (p->inputs == NULL || p->staging == NULL) return err->status;
    bind.arena = p->arena;
    return ddp_variant_ready(s, &p->variant, &bind, err);
}

/* The device reads where the caller has it, or a copy. */
static ddp_status take_input(const infer_model *m, infer_program *p, const ddp_value *v, const void *from, ddp_err *err)
{
    ddp_session *s = m->t.s;
    size_t bytes = infer_value_bytes(v);

    if (!ddp_device_has_memory(&s->device) && (uintptr_t)from % ALIGNMENT == 0) {
        p->inputs[v->index] = (void *)from; /* which is only read */
        return DDP_OK;
    }
    if (p->staging[v->index] == NULL) DDP_TRY(ddp_device_host_alloc(&s->device, bytes, &p->staging[v->index], err));
    memcpy(p->staging[v->index], from, bytes);
    p->inputs[v->index] = p->staging[v->index];
    return DDP_OK;
}

ddp_status infer_program_run(const infer_model *m, infer_program *p, const void *const *inputs, void *const *outputs,
                             ddp_err *err)
{
    ddp_session *s = m->t.s;
    const ddp_program *program = p->variant.program;
    ddp_run run = {.struct_size = sizeof(run), .inputs = p->inputs};

    for (uint32_t i = 0; i < program->value_count; i++)
        if (program->values[i].kind == DDP_VALUE_INPUT)
            DDP_TRY(take_input(m, p, &program->values[i], inputs[program->values[i].index], err));
    DDP_TRY_AS(DDP_EXIT_DATA, err,
               ddp_device_run(&s->device, p->variant.instance, &run, 0, p->variant.lowered->kernel_count, err));
    DDP_TRY_AS(DDP_EXIT_DATA, err, ddp_device_sync(&s->device, err));
    for (uint32_t i = 0; i < program->metric_count; i++) {
        int32_t v = program->metrics[i];

        if (outputs[i] == NULL) continue;
        DDP_TRY_AS(DDP_EXIT_INTERNAL, err,
                   ddp_device_copy(&s->device, outputs[i],
                                   (const char *)p->arena + p->variant.planned->plan.value_offset[v],
                                   infer_value_bytes(&program->values[v]), DDP_COPY_TO_HOST, err));
    }
    return DDP_OK;
}

void infer_program_close(ddp_session *s, infer_program *p)
{
    uint32_t fields = s->train.field_count + s->eval.field_count;

    session_variant_free(s, &p->variant);
    ddp_device_free(&s->device, p->arena);
    for (uint32_t i = 0; p->staging != NULL && i < fields; i++) ddp_device_host_free(&s->device, p->staging[i]);
    free(p->staging);
    free(p->inputs);
    *p = (infer_program){0};
}
