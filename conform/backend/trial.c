/* conform/backend/trial.c -- one collective, prepared, called and checked to the last byte.
 *
 * Buffers stand between guards; what no result may touch is filled with a pattern and must keep it. The expected
 * values come from pattern.c, never from another collective. */
#include "conform/backend/trial.h"
#include "conform/backend/pattern.h"
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { GUARD = 128, LATE_US = 5000, FILLER = 0xc3 };

/* ---- communicator ------------------------------------------------------------------------------------------------ */
ddp_status ddp_trial_open(ddp_trial *t, ddp_rank_process *a, const char *name, int64_t timeout_ms, ddp_err *err)
{
    char group[96];
    const ddp_store *store;
    ddp_comm_params p;

    *t = (ddp_trial){.a = a, .rank = a->rank, .world = a->world};
    (void)snprintf(group, sizeof(group), "case-%u.%s", (unsigned)(a->c - a->shared->cases), name);
    store = ddp_group_store(a->group, group, err);
    if (store == NULL) return err->status;
    DDP_TRY(a->ops->open(&a->host, a->config, &t->backend, err));
    ddp_group_comm_params(a->group, group, store, timeout_ms, &p);
    p.connect_timeout_ms = timeout_ms;
    if (a->ops->comm_create(t->backend, &p, &t->comm, err) == DDP_OK) return DDP_OK;
    a->ops->close(t->backend);
    t->backend = NULL;
    return err->status;
}

void ddp_trial_close(ddp_trial *t)
{
    t->a->ops->comm_destroy(t->comm);
    t->a->ops->close(t->backend);
    t->comm = NULL;
    t->backend = NULL;
}

ddp_trial backend_trial_shared(ddp_rank_process *a)
{
    return (ddp_trial){.a = a, .backend = a->backend, .comm = a->comm, .rank = a->rank, .world = a->world};
}

ddp_case backend_trial_sum(const ddp_rank_process *a, uint64_t count)
{
    return (ddp_case){.suite = a->c->suite,
                      .slot = DDP_SLOT_ALL_REDUCE,
                      .dtype = DDP_F32,
                      .op = DDP_SUM,
                      .count = count,
                      .seed = a->c->seed};
}

bool backend_trial_can(const ddp_trial *t, uint32_t slot)
{
    if (slot == DDP_SLOT_SEND_RECV && t->world == 1) return false;
    return (t->a->ops->caps & ddp_slot_info_of(slot)->cap) != 0;
}

/* ---- the call ---------------------------------------------------------------------------------------------------- */
static ddp_status finish(const ddp_backend_ops *ops, ddp_status status, ddp_work *work, ddp_err *err)
{
    if (status != DDP_OK || work == NULL || (ops->caps & DDP_CAP_ASYNC) == 0) return status;
    status = ops->work_wait(work, DDP_TRIAL_TIMEOUT_MS, err);
    ops->work_free(work);
    return status;
}

/* Rank r sends to r + 1 and receives from r - 1; even ranks send first, so that blocking calls cannot wait in a
 * ring. */
static ddp_status send_recv(const ddp_trial *t, const ddp_coll *args, ddp_err *err)
{
    const ddp_backend_ops *ops = t->a->ops;
    ddp_coll out = *args, in = *args;

    out.root = (t->rank + 1) % t->world;
    in.root = (t->rank + t->world - 1) % t->world;
    for (uint32_t i = 0; i < 2; i++) {
        bool sending = (t->rank + i) % 2 == 0;
        ddp_work *work = NULL;
        ddp_status st = sending ? ops->send(t->comm, &out, &work, err) : ops->recv(t->comm, &in, &work, err);

        DDP_TRY(finish(ops, st, work, err));
    }
    return DDP_OK;
}

ddp_status backend_trial_call(const ddp_trial *t, uint32_t slot, const ddp_coll *args, ddp_err *err)
{
    const ddp_backend_ops *ops = t->a->ops;
    const ddp_collective calls[DDP_SLOT_END] = {
        [DDP_SLOT_ALL_REDUCE] = ops->all_reduce, [DDP_SLOT_BROADCAST] = ops->broadcast,
        [DDP_SLOT_ALL_GATHER] = ops->all_gather, [DDP_SLOT_REDUCE_SCATTER] = ops->reduce_scatter,
        [DDP_SLOT_REDUCE] = ops->reduce,         [DDP_SLOT_GATHER] = ops->gather,
        [DDP_SLOT_SCATTER] = ops->scatter,       [DDP_SLOT_ALL_TO_ALL] = ops->all_to_all};
    ddp_work *work = NULL;
    ddp_status st;

    memset(err, 0, sizeof(*err));
    if (slot == DDP_SLOT_SEND_RECV) return send_recv(t, args, err);
    st = slot == DDP_SLOT_BARRIER ? ops->barrier(t->comm, &work, err) : calls[slot](t->comm, args, &work, err);
    return finish(ops, st, work, err);
}

/* ---- buffers ----------------------------------------------------------------------------------------------------- */
typedef struct region {
    unsigned char *base, *data; /* guards around data[0 .. bytes-1] */
    size_t bytes, total;
    bool own; /* the backend's */
} region;

/* Of the backend's memory all ranks take the same: capacity for `most` bytes. */
static bool region_open(const ddp_trial *t, const ddp_case *c, size_t bytes, size_t most, region *r)
{
    size_t shift = c->odd_address ? ddp_dtype_size(c->dtype) : 0, capacity = c->own_memory ? most : bytes;
    ddp_err err = {0};
    void *p = NULL;

    *r =
        (region){.bytes = bytes, .total = ddp_round_up(capacity + (size_t)2 * GUARD + shift, 64), .own = c->own_memory};
    if (r->own) {
        if (t->a->ops->mem_alloc(t->comm, r->total, &p, &err) != DDP_OK)
            return DDP_BREAK(t->a, "mem_alloc of %zu bytes: %.180s", r->total, err.msg);
    } else {
        p = ddp_alloc_aligned(r->total, &err);
        if (p == NULL) {
            DDP_SKIP(t->a, "%.200s", err.msg);
            t->a->broken = true;
            return false;
        }
    }
    r->base = p;
    r->data = r->base + GUARD + shift;
    memset(r->base, FILLER, r->total);
    return true;
}

static void region_close(const ddp_trial *t, region *r)
{
    if (r->base == NULL) return;
    if (r->own)
        t->a->ops->mem_free(t->comm, r->base);
    else
        free(r->base);
    r->base = NULL;
}

static bool all_filler(const unsigned char *p, size_t n)
{
    return n == 0 || (p[0] == FILLER && memcmp(p, p + 1, n - 1) == 0); /* each byte is what the next one is */
}

static bool guards_hold(const region *r)
{
    return all_filler(r->base, (size_t)(r->data - r->base)) &&
           all_filler(r->data + r->bytes, r->total - (size_t)(r->data - r->base) - r->bytes);
}

/* ---- shapes ------------------------------------------------------------------------------------------------------ */
/* One collective under test. Two regions; in place only `out`, within which the input lies. */
typedef struct play {
    const ddp_trial *t;
    const ddp_case *c;
    ddp_pattern p;
    size_t n, element;
    size_t in, out;        /* elements of the two buffers; 0: this rank has none */
    size_t in_at;          /* in place: where the input lies in the region, in elements */
    size_t out_at;         /* in place: where the result lies */
    bool in_place, writes; /* `writes`: this rank gets a result */
    region send, recv;
    ddp_coll args;
} play;

static void shape(play *p)
{
    const ddp_trial *t = p->t;
    size_t n = p->n, all = n * t->world, mine = n * t->rank;
    bool root = p->c->root == t->rank;

    p->writes = true;
    p->in = p->out = n;
    switch (p->c->slot) {
    case DDP_SLOT_BROADCAST:
        p->in_place = true; /* always */
        break;
    case DDP_SLOT_ALL_GATHER:
        p->out = all;
        p->in_at = mine;
        break;
    case DDP_SLOT_REDUCE_SCATTER:
        p->in = all;
        p->out_at = mine;
        break;
    case DDP_SLOT_REDUCE: p->writes = root; break;
    case DDP_SLOT_GATHER:
        p->writes = root;
        p->out = root ? all : 0;
        p->in_at = root ? mine : 0;
        break;
    case DDP_SLOT_SCATTER:
        p->in = root ? all : 0;
        p->out_at = root ? mine : 0;
        break;
    case DDP_SLOT_ALL_TO_ALL: p->in = p->out = all; break;
    default: break;
    }
}

static bool open_regions(play *p)
{
    size_t most = p->n * p->t->world * p->element;
    size_t both = DDP_MAX_OF(p->in, p->out); /* in place: the larger buffer */

    if (p->in_place) return region_open(p->t, p->c, both * p->element, most, &p->recv);
    return region_open(p->t, p->c, p->in * p->element, most, &p->send) &&
           region_open(p->t, p->c, p->out * p->element, most, &p->recv);
}

static void fill(play *p)
{
    unsigned char *in = p->in_place ? p->recv.data + p->in_at * p->element : p->send.data;
    unsigned char *out = p->recv.data + (p->in_place ? p->out_at * p->element : 0);
    bool has_input = p->c->slot != DDP_SLOT_BROADCAST || p->c->root == p->t->rank;
    bool nothing = p->n == 0 && p->c->odd_address; /* count 0 needs no buffers */

    if (has_input) ddp_pattern_fill(&p->p, p->t->rank, 0, p->in, in);
    p->args = (ddp_coll){.struct_size = sizeof(p->args),
                         .dtype = p->c->dtype,
                         .op = p->c->op,
                         .root = p->c->root,
                         .send = nothing || p->c->slot == DDP_SLOT_BROADCAST ? NULL : in,
                         .recv = nothing ? NULL : out,
                         .count = p->n};
}

/* ---- checks ------------------------------------------------------------------------------------------------------ */
static bool check_values(const play *p, const unsigned char *got, char *text, size_t capacity)
{
    const ddp_trial *t = p->t;
    size_t n = p->n, block = n * p->element;
    uint32_t before = (t->rank + t->world - 1) % t->world;

    switch (p->c->slot) {
    case DDP_SLOT_ALL_REDUCE:
    case DDP_SLOT_REDUCE: return backend_pattern_reduced(&p->p, 0, n, got, text, capacity);
    case DDP_SLOT_REDUCE_SCATTER: return backend_pattern_reduced(&p->p, n * t->rank, n, got, text, capacity);
    case DDP_SLOT_BROADCAST: return backend_pattern_copied(&p->p, p->c->root, 0, n, got, text, capacity);
    case DDP_SLOT_SCATTER: return backend_pattern_copied(&p->p, p->c->root, n * t->rank, n, got, text, capacity);
    case DDP_SLOT_SEND_RECV: return backend_pattern_copied(&p->p, before, 0, n, got, text, capacity);
    default: break;
    }
    for (uint32_t r = 0; r < t->world; r++) {
        size_t first = p->c->slot == DDP_SLOT_ALL_TO_ALL ? n * t->rank : 0;
        char why[160];

        if (backend_pattern_copied(&p->p, r, first, n, got + r * block, why, sizeof(why))) continue;
        (void)snprintf(text, capacity, "in the part of rank %u %s", r, why);
        return false;
    }
    return true;
}

/* In place the input alone, else all of its region. */
static uint64_t hash_input(const play *p)
{
    if (!p->in_place) return ddp_hash64(p->send.base, p->send.total, 0);
    return ddp_hash64(p->recv.data + p->in_at * p->element, p->in * p->element, 0);
}

static bool same_everywhere(uint32_t slot)
{
    return slot == DDP_SLOT_ALL_REDUCE || slot == DDP_SLOT_BROADCAST || slot == DDP_SLOT_ALL_GATHER;
}

/* `before`: hash of the input's region as it was. */
static bool check(play *p, uint64_t before)
{
    ddp_rank_process *a = p->t->a;
    unsigned char *got = p->recv.data + (p->in_place ? p->out_at * p->element : 0);
    char text[200];

    if (!DDP_EXPECT(a, guards_hold(&p->recv), "bytes outside the result were written")) return false;
    if (!p->in_place && !DDP_EXPECT(a, hash_input(p) == before, "the input was written, out of place")) return false;
    if (!p->writes) {
        bool same = p->in_place ? hash_input(p) == before : all_filler(p->recv.data, p->recv.bytes);
        return DDP_EXPECT(a, same, "recv was written on a rank that gets no result");
    }
    if (!check_values(p, got, text, sizeof(text))) return DDP_FAIL(a, "%s", text);
    return true;
}

/* What `supports` refuses is refused by the call: DDP_ERR_UNSUPPORTED with a reason, and nothing written. */
static bool check_refused(play *p, uint64_t before, ddp_status status, const ddp_err *err)
{
    ddp_rank_process *a = p->t->a;
    bool kept = p->in_place ? hash_input(p) == before : all_filler(p->recv.base, p->recv.total);

    a->v->refused = true;
    return DDP_EXPECT(a, status == DDP_ERR_UNSUPPORTED, "supports() says no, and the call answers \"%s\", not \"%s\"",
                      ddp_status_text(status), ddp_status_text(DDP_ERR_UNSUPPORTED)) &&
           DDP_EXPECT(a, err->msg[0] != '\0', "refused without a reason: ddp_fail() was not called") &&
           DDP_EXPECT(a, kept, "refused, but recv was written");
}

static bool call_and_check(play *p)
{
    const ddp_trial *t = p->t;
    const ddp_slot_info *s = ddp_slot_info_of(p->c->slot);
    bool supported = !s->reduces || t->a->ops->supports(t->comm, p->c->dtype, p->c->op) == DDP_OK;
    uint64_t before = hash_input(p);
    ddp_err err;
    ddp_status status;

    if (p->c->late == t->rank + 1) (void)usleep(LATE_US);
    status = backend_trial_call(t, p->c->slot, &p->args, &err);
    if (!supported) return check_refused(p, before, status, &err);
    if (status != DDP_OK) {
        return DDP_BREAK(t->a, "\"%s\": %.180s", ddp_status_text(status),
                         err.msg); /* the ranks no longer agree on what is next */
    }
    return check(p, before);
}

/* Nobody leaves a barrier before all have come. */
static bool barrier(const ddp_trial *t, const ddp_case *c)
{
    uint32_t number = (uint32_t)(t->a->c - t->a->shared->cases);
    atomic_uint *entered = &ddp_shared_results_get(t->a->shared, 0, number)->entered[t->index];
    uint32_t all = (atomic_load(entered) / t->world + 1) * t->world, seen;
    const ddp_coll none = {.struct_size = sizeof(none)};
    ddp_err err;

    if (c->late == t->rank + 1) (void)usleep(LATE_US);
    (void)atomic_fetch_add(entered, 1);
    if (backend_trial_call(t, DDP_SLOT_BARRIER, &none, &err) != DDP_OK)
        return DDP_BREAK(t->a, "barrier: %.200s", err.msg);
    seen = atomic_load(entered);
    return DDP_EXPECT(t->a, seen >= all, "left the barrier when %u of %u ranks had come", seen + t->world - all,
                      t->world);
}

bool backend_trial_collective(ddp_trial *t, const ddp_case *c)
{
    play p = {.t = t,
              .c = c,
              .p = {.dtype = c->dtype, .op = c->op, .world = t->world, .seed = c->seed},
              .n = c->count,
              .element = ddp_dtype_size(c->dtype),
              .in_place = c->in_place};
    bool passed;

    if (c->slot == DDP_SLOT_BARRIER) return barrier(t, c);
    p.p.random = c->random_values && c->op != 0 && (c->dtype == DDP_F32 || c->dtype == DDP_BF16 || c->dtype == DDP_F64);
    shape(&p);
    passed = open_regions(&p);
    if (passed) {
        fill(&p);
        passed = call_and_check(&p);
    }
    if (passed && same_everywhere(c->slot) && !t->a->v->refused)
        t->hash = ddp_hash64(p.recv.data, p.out * p.element, t->hash);
    if (!t->a->broken) {
        region_close(t, &p.send);
        region_close(t, &p.recv);
    }
    return passed;
}
