/* plugins/device/cuda/host/side.c -- kernels that nobody waits for, beside those that follow them: in a graph, what
 * gives gradients of parameters alone goes to a second stream. Each starts behind all kernels before it; one of the
 * first stream that touches memory which a kernel of the second is still using waits for that, and so does the end of
 * the range for all of them. Memory is compared by address, so that neither the plan nor a family has to know. */
#include "instance.h"

#include <string.h>

/* ---- the stream of a device -------------------------------------------------------------------------------------- */
ddp_status cu_side_open(ddp_device *d, ddp_err *err)
{
    cu_side *s = &d->side;
    cudaError_t result = cudaStreamCreateWithFlags(&s->stream, cudaStreamNonBlocking);

    if (result == cudaSuccess) result = cudaEventCreateWithFlags(&s->before, cudaEventDisableTiming);
    for (int i = 0; result == cudaSuccess && i < CU_SIDE_EVENTS; i++)
        result = cudaEventCreateWithFlags(&s->done[i], cudaEventDisableTiming);
    if (result == cudaSuccess) result = cudaEventCreate(&s->from);
    if (result == cudaSuccess) result = cudaEventCreate(&s->to);
    return result == cudaSuccess ? DDP_OK
                                 : cu_fail(result, err, "device \"cuda:%d\": no second stream for kernels", d->ordinal);
}

void cu_side_close(ddp_device *d)
{
    cu_side *s = &d->side;

    if (s->from != NULL) (void)cudaEventDestroy(s->from);
    if (s->to != NULL) (void)cudaEventDestroy(s->to);
    if (s->before != NULL) (void)cudaEventDestroy(s->before);
    for (int i = 0; i < CU_SIDE_EVENTS; i++)
        if (s->done[i] != NULL) (void)cudaEventDestroy(s->done[i]);
    if (s->stream != NULL) (void)cudaStreamDestroy(s->stream);
    *s = (cu_side){0};
}

/* ---- memory that a kernel touches -------------------------------------------------------------------------------- */
static void touch(cu_touched *t, const void *at, uint64_t bytes, bool written)
{
    if (at == NULL || bytes == 0) return;
    t->spans[t->count++] = (cu_span){at, (const char *)at + bytes, written};
}

static uint64_t stored_bytes(const ddp_value *v, uint32_t type)
{
    return low_stored_bytes(v, type == CU_BF16 ? LOW_BF16 : LOW_F32);
}

/* At the most: of a view, all that it is a view of. */
static uint64_t bytes_of(const cu_call *c, const low_lowered *l, int32_t v, uint32_t type)
{
    uint64_t own = stored_bytes(low_value(c->program, v), type),
             root = stored_bytes(low_value(c->program, low_root_of(l, v)), type);

    return own > root ? own : root;
}

static void touch_moves(cu_touched *t, const cu_move *moves, uint32_t count)
{
    for (uint32_t i = 0; i < count; i++) {
        touch(t, moves[i].from.at, stored_bytes(moves[i].value, moves[i].from.type), false);
        touch(t, moves[i].to.at, stored_bytes(moves[i].value, moves[i].to.type), true);
    }
}

static void look_at(const ddp_instance *in, const cu_call *c, cu_touched *t)
{
    const low_lowered *l = in->exec->lowered;
    const low_kernel *k = c->k;

    t->count = 0;
    for (uint32_t i = 0; i < LOW_MAX_VALUES; i++) {
        if (k->in[i] >= 0) touch(t, c->in[i].at, bytes_of(c, l, k->in[i], c->in[i].type), false);
        if (k->out[i] >= 0) touch(t, c->out[i].at, bytes_of(c, l, k->out[i], c->out[i].type), true);
    }
    for (uint32_t i = 0; i < k->private_count; i++) touch(t, c->kept[i], l->privates[k->privates[i]].bytes, true);
    if (k->half >= 0) touch(t, c->copy.at, l->privates[k->half].bytes, true);
    touch(t, c->scratch, l->table[k - l->kernels].scratch_bytes, true);
    touch_moves(t, c->before, c->before_count);
    touch_moves(t, c->after, c->after_count);
}

static bool clash(const cu_touched *a, const cu_touched *b)
{
    for (uint32_t i = 0; i < a->count; i++)
        for (uint32_t j = 0; j < b->count; j++) {
            const cu_span *x = &a->spans[i], *y = &b->spans[j];
            if ((x->written || y->written) && x->from < y->to && y->from < x->to) return true;
        }
    return false;
}

/* ---- a range that is captured ------------------------------------------------------------------------------------ */
static bool gives_gradients_alone(const cu_call *c)
{
    bool any = false;

    for (uint32_t i = 0; i < LOW_MAX_VALUES; i++) {
        if (c->k->out[i] < 0) continue;
        if ((c->grads >> i & 1u) == 0) return false;
        any = true;
    }
    return any;
}

/* What is used on the second stream up to kernel `last` of those that wait is past for the first. */
static cudaError_t wait_for(cu_beside *b, uint32_t last)
{
    const ddp_device *d = b->in->exec->device;
    cudaError_t result = cudaStreamWaitEvent(cu_compute(d), d->side.done[(b->first + last) % CU_SIDE_EVENTS], 0);

    b->first += last + 1;
    b->count -= last + 1;
    memmove(b->pending, b->pending + last + 1, b->count * sizeof(b->pending[0]));
    return result;
}

cudaError_t cu_beside_begin(cu_beside *b, const cu_call *c, cudaStream_t *stream)
{
    const ddp_device *d = b->in->exec->device;
    cudaError_t result = cudaSuccess;
    cu_touched *mine = &b->pending[b->count];

    look_at(b->in, c, mine);
    b->aside = gives_gradients_alone(c);
    *stream = b->aside ? d->side.stream : cu_compute(d);
    if (b->aside) {
        b->total++;
        result = cudaEventRecord(d->side.before, cu_compute(d));
        return result == cudaSuccess ? cudaStreamWaitEvent(d->side.stream, d->side.before, 0) : result;
    }
    for (uint32_t i = b->count; i-- > 0;)
        if (clash(&b->pending[i], mine)) {
            b->waits++;
            return wait_for(b, i);
        }
    return result;
}

cudaError_t cu_beside_end(cu_beside *b)
{
    const ddp_device *d = b->in->exec->device;
    cudaError_t result;

    if (!b->aside) return cudaSuccess;
    result = cudaEventRecord(d->side.done[(b->first + b->count) % CU_SIDE_EVENTS], d->side.stream);
    b->count++;
    return result == cudaSuccess && b->count == CU_SIDE_EVENTS ? wait_for(b, 0) : result;
}

cudaError_t cu_beside_join(cu_beside *b) { return b->count > 0 ? wait_for(b, b->count - 1) : cudaSuccess; }
