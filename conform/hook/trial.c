/* conform/hook/trial.c -- an opened hook with the buckets that it is tested by: tensors of odd sizes with gaps
 * between them, guards around each bucket, and the two threads that call it, one for the gradients and one for the
 * wire. */
#include "conform/hook/trial.h"
#include "conform/backend/pattern.h"
#include "conform/hook/group.h"
#include <math.h>
#include <stdlib.h>
#include <string.h>

/* ---- the buckets ------------------------------------------------------------------------------------------------- */
enum { GUARD = 64, TENSORS = 8, FILLER = 0x5a }; /* GUARD: elements on either side, which keep buckets at 64 bytes */

static const uint64_t counts[DDP_HOOK_BUCKETS] = {3392, 7056, 1, 603};

static const struct {
    uint32_t bucket, rank;
    const char *name;
    uint64_t offset;
    int64_t dims[DDP_MAX_DIMS];
} tensors[TENSORS] = {
    {0, 2, "a.weight", 0, {3, 5}}, {0, 1, "a.bias", 16, {1}},          {0, 2, "b.weight", 32, {64, 48}},
    {0, 1, "b.bias", 3104, {257}}, {1, 2, "c.weight", 0, {1000, 7}},   {1, 1, "c.scale", 7008, {33}},
    {2, 1, "d", 0, {1}},           {3, 4, "e.weight", 3, {8, 3, 5, 5}}};

uint64_t hook_count(uint32_t bucket) { return counts[bucket]; }

static uint64_t elements_of(uint32_t tensor)
{
    uint64_t n = 1;

    for (uint32_t d = 0; d < tensors[tensor].rank; d++) n *= (uint64_t)tensors[tensor].dims[d];
    return n;
}

bool hook_checked_tensor(uint32_t bucket, uint32_t i, const char **name, uint64_t *offset, uint64_t *elements)
{
    for (uint32_t k = 0; k < TENSORS; k++) {
        if (tensors[k].bucket != bucket || i-- > 0) continue;
        *name = tensors[k].name;
        *offset = tensors[k].offset;
        *elements = elements_of(k);
        return true;
    }
    return false;
}

/* With the strides of `params`; what follows the known fields is 0xff. */
static void describe_tensors(ddp_hook_trial *t)
{
    char *at = t->tables[1];

    for (uint32_t i = 0; i < TENSORS; i++, at += t->params.tensor_size) {
        ddp_hook_tensor own = {
            .name = tensors[i].name, .offset = tensors[i].offset, .elements = elements_of(i), .rank = tensors[i].rank};

        memcpy(own.dims, tensors[i].dims, sizeof(own.dims));
        memset(at, 0xff, t->params.tensor_size);
        memcpy(at, &own, sizeof(own));
    }
}

static void describe_buckets(ddp_hook_trial *t, uint32_t dtype)
{
    char *at = t->tables[0], *tensor = t->tables[1];

    for (uint32_t b = 0; b < DDP_HOOK_BUCKETS; b++, at += t->params.bucket_size) {
        ddp_hook_bucket own = {.count = counts[b], .tensors = (const ddp_hook_tensor *)(void *)tensor, .dtype = dtype};

        for (uint32_t i = 0; i < TENSORS; i++) own.tensor_count += tensors[i].bucket == b;
        tensor += (size_t)own.tensor_count * t->params.tensor_size;
        memset(at, 0xff, t->params.bucket_size);
        memcpy(at, &own, sizeof(own));
    }
}

/* ---- opening ----------------------------------------------------------------------------------------------------- */
static uint64_t all_elements(uint64_t apart)
{
    uint64_t n = apart;

    for (uint32_t b = 0; b < DDP_HOOK_BUCKETS; b++) n += ddp_round_up(counts[b], 16) + apart;
    return n;
}

static bool alloc(ddp_hook_trial *t, size_t later)
{
    size_t floats = all_elements(GUARD), doubles = all_elements(0);
    ddp_err err = {0};
    float *at;
    double *mean;

    t->tables[0] = ddp_alloc_aligned(DDP_HOOK_BUCKETS * (sizeof(ddp_hook_bucket) + later), &err);
    t->tables[1] = ddp_alloc_aligned(TENSORS * (sizeof(ddp_hook_tensor) + later), &err);
    t->blocks[0] = at = ddp_alloc_aligned(floats * sizeof(float), &err);
    t->blocks[1] = mean = ddp_alloc_aligned(doubles * sizeof(double), &err);
    t->other = ddp_alloc_aligned(doubles * sizeof(float), &err);
    if (t->tables[0] == NULL || t->tables[1] == NULL || at == NULL || mean == NULL || t->other == NULL) {
        DDP_SKIP(t->a, "%.200s", err.msg);
        hook_give_up(t);
        return false;
    }
    memset(at, FILLER, floats * sizeof(float));
    for (uint32_t b = 0; b < DDP_HOOK_BUCKETS; b++) {
        t->grads[b] = at + GUARD;
        t->mean[b] = mean;
        at += GUARD + ddp_round_up(counts[b], 16);
        mean += ddp_round_up(counts[b], 16);
    }
    return true;
}

static void release(ddp_hook_trial *t)
{
    for (uint32_t i = 0; i < 2; i++) {
        free(t->tables[i]);
        free(t->blocks[i]);
    }
    free(t->other);
}

/* Everything but the hook and its thread. */
static bool prepare(ddp_hook_trial *t, ddp_rank_process *a, uint32_t index, bool later, uint32_t dtype)
{
    uint32_t more = later ? DDP_HOOK_LATER : 0;

    *t = (ddp_hook_trial){.a = a, .ops = a->plugin->ops, .x = &a->shared->exchanges[index], .update = DDP_HOOK_BEGUN};
    t->params = (ddp_hook_params){.struct_size = (uint32_t)sizeof(t->params) + more,
                                  .bucket_size = (uint32_t)sizeof(ddp_hook_bucket) + more,
                                  .tensor_size = (uint32_t)sizeof(ddp_hook_tensor) + more,
                                  .bucket_count = DDP_HOOK_BUCKETS,
                                  .seed = 7};
    if (!alloc(t, more)) return false;
    t->params.buckets = t->tables[0];
    t->params.group = &t->group;
    describe_tensors(t);
    describe_buckets(t, dtype);
    hook_group_open(t);
    return true;
}

/* The struct lies where a later release would have more of it. */
static ddp_status call_open(ddp_hook_trial *t, ddp_err *err)
{
    struct {
        ddp_hook_params p;
        unsigned char later[DDP_HOOK_LATER];
    } grown;

    memset(&grown, 0xff, sizeof(grown));
    grown.p = t->params;
    return t->ops->open(&t->a->host, t->a->config, &grown.p, &t->hook, err);
}

static void *exchange_main(void *arg)
{
    ddp_hook_trial *t = arg;

    (void)pthread_mutex_lock(&t->lock);
    for (;;) {
        uint32_t b;
        ddp_err err = {0};
        ddp_status st;

        while (t->done == t->submitted && !t->stop) (void)pthread_cond_wait(&t->changed, &t->lock);
        if (t->stop) break;
        b = t->done;
        (void)pthread_mutex_unlock(&t->lock);
        st = t->ops->exchange(t->hook, b, t->update, t->grads[b], &err);
        (void)pthread_mutex_lock(&t->lock);
        if (st != DDP_OK && t->status == DDP_OK) {
            t->status = st;
            t->err = err;
        }
        t->done++;
        (void)pthread_cond_broadcast(&t->changed);
    }
    (void)pthread_mutex_unlock(&t->lock);
    return NULL;
}

bool hook_instance_open(ddp_hook_trial *t, ddp_rank_process *a, uint32_t index, bool later)
{
    ddp_err err = {0};
    ddp_status st;

    if (!prepare(t, a, index, later, DDP_F32)) return false;
    st = call_open(t, &err);
    if (st != DDP_OK) {
        (void)ddp_rank_process_fail_call(a, "open", st, &err);
        hook_give_up(t);
        return false;
    }
    if (!DDP_HOOK_EXPECT(t, t->hook != NULL, "open gives no hook")) return false;
    (void)pthread_mutex_init(&t->lock, NULL);
    (void)pthread_cond_init(&t->changed, NULL);
    if (ddp_thread_start(&t->thread, "conform-wire", exchange_main, t, &err) == DDP_OK) return t->started = true;
    DDP_SKIP(a, "%.200s", err.msg);
    hook_give_up(t);
    return false;
}

/* After a failure the hook stays as it is: the process ends. */
void hook_instance_close(ddp_hook_trial *t)
{
    if (t->started) {
        (void)pthread_mutex_lock(&t->lock);
        t->stop = true;
        (void)pthread_cond_broadcast(&t->changed);
        (void)pthread_mutex_unlock(&t->lock);
        (void)pthread_join(t->thread, NULL);
        (void)pthread_cond_destroy(&t->changed);
        (void)pthread_mutex_destroy(&t->lock);
    }
    if (t->a->broken) return;
    if (t->hook != NULL) t->ops->close(t->hook);
    release(t);
}

ddp_status hook_open_i32(ddp_rank_process *a, ddp_err *err)
{
    ddp_hook_trial t;
    ddp_status st;

    if (!prepare(&t, a, 0, false, DDP_I32)) return DDP_ERR_NOMEM;
    st = call_open(&t, err);
    if (st == DDP_OK) t.ops->close(t.hook);
    release(&t);
    return st;
}

/* ---- gradients --------------------------------------------------------------------------------------------------- */
static void gradients(uint64_t seed, bool zero, uint32_t world, uint32_t rank, uint32_t bucket, float *out)
{
    const ddp_pattern p = {
        .dtype = DDP_F32, .op = DDP_SUM, .world = world, .random = true, .seed = seed * 8 + bucket + 1};

    memset(out, 0, counts[bucket] * sizeof(float));
    for (uint32_t i = 0; i < TENSORS && !zero; i++)
        if (tensors[i].bucket == bucket)
            ddp_pattern_fill(&p, rank, tensors[i].offset, elements_of(i), out + tensors[i].offset);
}

void hook_fill(ddp_hook_trial *t, uint64_t seed, bool zero)
{
    uint32_t world = t->a->world;

    for (uint32_t b = 0; b < DDP_HOOK_BUCKETS; b++) {
        double squares = 0.0;

        t->largest[b] = 0.0;
        memset(t->mean[b], 0, counts[b] * sizeof(double));
        for (uint32_t r = 0; r < world; r++) {
            gradients(seed, zero, world, r, b, t->other);
            if (r == t->a->rank) memcpy(t->grads[b], t->other, counts[b] * sizeof(float));
            for (uint64_t i = 0; i < counts[b]; i++) {
                double v = (double)t->other[i];

                t->mean[b][i] += v / world;
                t->largest[b] = DDP_MAX_OF(t->largest[b], fabs(v));
                squares += v * v;
            }
        }
        t->rms[b] = sqrt(squares / ((double)counts[b] * world));
    }
}

/* ---- an update --------------------------------------------------------------------------------------------------- */
static bool compress(ddp_hook_trial *t, uint32_t b)
{
    ddp_err err = {0};
    ddp_status st = t->ops->compress(t->hook, b, t->update, t->grads[b], &err);

    if (st == DDP_OK) return true;
    (void)ddp_rank_process_fail_call(t->a, "compress", st, &err);
    hook_give_up(t);
    return false;
}

/* So many buckets may be exchanged. */
static void submit(ddp_hook_trial *t, uint32_t buckets)
{
    (void)pthread_mutex_lock(&t->lock);
    t->submitted = buckets;
    (void)pthread_cond_broadcast(&t->changed);
    (void)pthread_mutex_unlock(&t->lock);
}

static bool wait_for(ddp_hook_trial *t, uint32_t buckets)
{
    (void)pthread_mutex_lock(&t->lock);
    while (t->done < buckets) (void)pthread_cond_wait(&t->changed, &t->lock);
    (void)pthread_mutex_unlock(&t->lock);
    if (t->status == DDP_OK) return true;
    (void)ddp_rank_process_fail_call(t->a, "exchange", t->status, &t->err);
    hook_give_up(t);
    return false;
}

static bool decompress(ddp_hook_trial *t, uint32_t b)
{
    ddp_err err = {0};
    ddp_status st = wait_for(t, b + 1) ? t->ops->decompress(t->hook, b, t->update, t->grads[b], &err) : DDP_ERR_ABORTED;

    if (st == DDP_OK) return true;
    (void)ddp_rank_process_fail_call(t->a, "decompress", st, &err);
    hook_give_up(t);
    return false;
}

static bool make_calls(ddp_hook_trial *t, ddp_hook_way way)
{
    for (uint32_t b = 0; b < DDP_HOOK_BUCKETS; b++) {
        if (!compress(t, b)) return false;
        if (way != DDP_WAY_BY_CALL) submit(t, b + 1);
        if (way == DDP_WAY_ONE_BY_ONE && !decompress(t, b)) return false;
    }
    if (way == DDP_WAY_ONE_BY_ONE) return true;
    if (way == DDP_WAY_BY_CALL) submit(t, DDP_HOOK_BUCKETS);
    if (way == DDP_WAY_BY_CALL && !wait_for(t, DDP_HOOK_BUCKETS)) return false;
    for (uint32_t b = 0; b < DDP_HOOK_BUCKETS; b++)
        if (!decompress(t, b)) return false;
    return true;
}

/* ---- what it has left -------------------------------------------------------------------------------------------- */
static bool is_filler(const float *p, uint64_t count)
{
    const unsigned char *bytes = (const unsigned char *)p;

    for (uint64_t i = 0; i < count * sizeof(float); i++)
        if (bytes[i] != FILLER) return false;
    return true;
}

static bool in_a_tensor(uint32_t bucket, uint64_t i)
{
    for (uint32_t k = 0; k < TENSORS; k++)
        if (tensors[k].bucket == bucket && i >= tensors[k].offset && i < tensors[k].offset + elements_of(k))
            return true;
    return false;
}

static bool nothing_else_written(ddp_hook_trial *t)
{
    for (uint32_t b = 0; b < DDP_HOOK_BUCKETS; b++) {
        uint64_t after = GUARD + ddp_round_up(counts[b], 16) - counts[b];

        if (!DDP_HOOK_EXPECT(t, is_filler(t->grads[b] - GUARD, GUARD) && is_filler(t->grads[b] + counts[b], after),
                             "update %llu: memory outside bucket %u was written", (unsigned long long)t->update, b))
            return false;
        for (uint64_t i = 0; i < counts[b]; i++)
            if (!DDP_HOOK_EXPECT(t, t->grads[b][i] == 0.0f || in_a_tensor(b, i),
                                 "update %llu: element %llu of bucket %u, between its tensors, is no longer 0",
                                 (unsigned long long)t->update, (unsigned long long)i, b))
                return false;
    }
    return true;
}

uint64_t hook_bits(const ddp_hook_trial *t)
{
    uint64_t hash = 0;

    for (uint32_t b = 0; b < DDP_HOOK_BUCKETS; b++) hash = ddp_hash64(t->grads[b], counts[b] * sizeof(float), hash);
    return hash;
}

bool hook_update(ddp_hook_trial *t, ddp_hook_way way)
{
    char what[96];

    (void)pthread_mutex_lock(&t->lock); /* its thread sleeps: all was done */
    t->update++;
    t->submitted = t->done = 0;
    (void)pthread_mutex_unlock(&t->lock);
    if (!make_calls(t, way) || !nothing_else_written(t)) return false;
    for (uint32_t b = 0; b < DDP_HOOK_BUCKETS; b++) {
        (void)snprintf(what, sizeof(what), "update %llu: what is left in bucket %u", (unsigned long long)t->update, b);
        if (!hook_agree(t, ddp_hash64(t->grads[b], counts[b] * sizeof(float), 0), what)) return false;
    }
    return true;
}

bool hook_next(ddp_hook_trial *t, uint64_t seed, ddp_hook_way way)
{
    hook_fill(t, seed, false);
    return hook_update(t, way);
}

/* ---- its state --------------------------------------------------------------------------------------------------- */
uint32_t hook_instance_states(const ddp_hook_trial *t, const ddp_hook_state **out)
{
    *out = NULL;
    return t->ops->states == NULL ? 0 : t->ops->states(t->hook, out);
}

bool hook_remembers(const ddp_hook_trial *t)
{
    const ddp_hook_state *s;
    uint32_t n = hook_instance_states(t, &s);

    for (uint32_t i = 0; i < n; i++)
        if (ddp_hook_state_at(t->ops, s, i)->shared == 0) return true;
    return false;
}
