/* conform/hook/group.c -- the collectives that a hook under test gets: plain ones between the rank processes through
 * shared memory, which see to it that all ranks come for the same, from the right thread, with buffers that
 * backend.h allows.
 *
 * Numbers are added in the order of the ranks and rounded once. Who finds a fault fails its case and gives up; the
 * others' waits end by that. */
#include "conform/hook/group.h"
#include "conform/backend/pattern.h"
#include <limits.h>
#include <linux/futex.h>
#include <malloc.h>
#include <math.h>
#include <string.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

enum { AGREE = DDP_SLOT_END, LOOK_MS = 20 /* for who has given up, and wakes nobody */ };

size_t hook_heap(void)
{
    struct mallinfo2 m = mallinfo2();

    return m.uordblks + m.hblkhd;
}

void hook_give_up(ddp_hook_trial *t)
{
    t->a->broken = true;
    atomic_store(&t->a->shared->given_up, 1);
}

/* ---- between the ranks ------------------------------------------------------------------------------------------- */
/* False: a rank has given up. A hang is the parent's affair. Who waits sleeps: one that yields instead is put behind
 * all other processes of a busy machine, each time. */
static bool barrier(ddp_hook_trial *t)
{
    const struct timespec look = {.tv_nsec = LOOK_MS * 1000000L};
    ddp_exchange *x = t->x;
    unsigned round = atomic_load(&x->round);

    if (atomic_fetch_add(&x->arrived, 1) + 1 == t->a->world) {
        atomic_store(&x->arrived, 0);
        atomic_store(&x->round, round + 1);
        (void)syscall(SYS_futex, &x->round, FUTEX_WAKE, INT_MAX, NULL, NULL, 0); /* not private: of several processes */
        return atomic_load(&t->a->shared->given_up) == 0;
    }
    while (atomic_load(&x->round) == round) {
        if (atomic_load(&t->a->shared->given_up) != 0) return false;
        (void)syscall(SYS_futex, &x->round, FUTEX_WAIT, round, &look, NULL, 0);
    }
    return true;
}

static void describe(const ddp_exchange *x, uint32_t rank, char *out, size_t capacity)
{
    uint32_t slot = x->calls[rank].slot;
    char more[32] = "";

    if (slot == AGREE) {
        ddp_copy_text(out, capacity, "is done with its calls");
        return;
    }
    if (slot == DDP_SLOT_ALL_REDUCE) (void)snprintf(more, sizeof(more), ", %s", ddp_op_text(x->calls[rank].op));
    if (slot == DDP_SLOT_BROADCAST) (void)snprintf(more, sizeof(more), " from rank %u", x->calls[rank].root);
    (void)snprintf(out, capacity, "calls %s of %llu %s%s", ddp_slot_info_of(slot)->name,
                   (unsigned long long)x->calls[rank].count, ddp_dtype_name(x->calls[rank].dtype), more);
}

/* Every rank has come, for the same. */
static bool enter(ddp_hook_trial *t, uint32_t slot, const ddp_coll *c)
{
    ddp_exchange *x = t->x;
    uint32_t rank = t->a->rank;
    char own[96], other[96];

    memset(&x->calls[rank], 0, sizeof(x->calls[rank]));
    x->calls[rank].slot = slot;
    x->calls[rank].dtype = c->dtype;
    x->calls[rank].count = c->count;
    if (slot == DDP_SLOT_ALL_REDUCE) x->calls[rank].op = c->op;
    if (slot == DDP_SLOT_BROADCAST) x->calls[rank].root = c->root;
    if (!barrier(t)) return false;
    for (uint32_t r = 0; r < t->a->world; r++) {
        if (memcmp(&x->calls[r], &x->calls[rank], sizeof(x->calls[r])) == 0) continue;
        describe(x, rank, own, sizeof(own));
        describe(x, r, other, sizeof(other));
        return DDP_HOOK_EXPECT(t, false, "it %s where rank %u %s", own, r, other);
    }
    return barrier(t); /* before anyone writes down the next */
}

bool hook_agree(ddp_hook_trial *t, uint64_t value, const char *what)
{
    const ddp_coll none = {.struct_size = sizeof(none)};
    uint64_t theirs;

    if (!enter(t, AGREE, &none)) goto given_up;
    memcpy(t->x->bytes[t->a->rank], &value, sizeof(value));
    if (!barrier(t)) goto given_up;
    for (uint32_t r = 0; r < t->a->world; r++) {
        memcpy(&theirs, t->x->bytes[r], sizeof(theirs));
        if (!DDP_HOOK_EXPECT(t, theirs == value, "%s differs from rank %u's", what, r)) return false;
    }
    if (barrier(t)) return true;
given_up:
    return DDP_HOOK_EXPECT(t, false, "another rank has given up");
}

/* ---- what a rank may ask for ------------------------------------------------------------------------------------- */
static bool apart(const void *p, size_t a, const void *q, size_t b)
{
    return a == 0 || b == 0 || (uintptr_t)p + a <= (uintptr_t)q || (uintptr_t)q + b <= (uintptr_t)p;
}

static bool buffers_hold(ddp_hook_trial *t, uint32_t slot, const ddp_coll *c)
{
    size_t bytes = c->count * ddp_dtype_size(c->dtype), all = bytes * t->a->world;
    const char *own = (const char *)c->recv + t->a->rank * bytes;

    switch (slot) {
    case DDP_SLOT_ALL_REDUCE: return c->send == c->recv || apart(c->send, bytes, c->recv, bytes);
    case DDP_SLOT_ALL_GATHER: return c->send == own || apart(c->send, bytes, c->recv, all);
    case DDP_SLOT_ALL_TO_ALL: return apart(c->send, all, c->recv, all);
    default: return true;
    }
}

static bool may_call(ddp_hook_trial *t, uint32_t slot, const ddp_coll *c)
{
    const ddp_slot_info *s = ddp_slot_info_of(slot);

    return DDP_HOOK_EXPECT(t, pthread_equal(pthread_self(), t->thread), "%s is called outside `exchange`", s->name) &&
           DDP_HOOK_EXPECT(t, (t->ops->needs & s->cap) != 0, "exchange calls %s, which `needs` does not name",
                           s->name) &&
           DDP_HOOK_EXPECT(t, c->struct_size >= sizeof(uint32_t), "%s: struct_size of the ddp_coll is not set",
                           s->name) &&
           DDP_HOOK_EXPECT(t, ddp_dtype_size(c->dtype) > 0, "%s: dtype %u does not exist", s->name, c->dtype) &&
           DDP_HOOK_EXPECT(t, !s->reduces || (c->op >= DDP_SUM && c->op < DDP_REDUCE_OP_END_),
                           "%s: operation %u does not exist", s->name, c->op) &&
           DDP_HOOK_EXPECT(t, !s->rooted || c->root < t->a->world, "%s: root %u is no rank", s->name, c->root) &&
           DDP_HOOK_EXPECT(t, c->count == 0 || (c->recv != NULL && (s->rooted || c->send != NULL)),
                           "%s: a buffer is NULL", s->name) &&
           DDP_HOOK_EXPECT(t, buffers_hold(t, slot, c), "%s: send and recv overlap, and that is not in place", s->name);
}

/* ---- the collectives --------------------------------------------------------------------------------------------- */
enum { ELEMENTS = DDP_EXCHANGE_BYTES / 8 };

static bool reduce_piece(ddp_hook_trial *t, const ddp_coll *c, size_t at, size_t n)
{
    size_t size = ddp_dtype_size(c->dtype);
    double sum[ELEMENTS] = {0}, v[ELEMENTS] = {0};

    memcpy(t->x->bytes[t->a->rank], (const char *)c->send + at * size, n * size);
    if (!barrier(t)) return false;
    ddp_pattern_get(c->dtype, t->x->bytes[0], n, sum);
    for (uint32_t r = 1; r < t->a->world; r++) {
        ddp_pattern_get(c->dtype, t->x->bytes[r], n, v);
        for (size_t i = 0; i < n; i++) {
            if (c->op == DDP_MIN || c->op == DDP_MAX)
                sum[i] = (v[i] < sum[i]) == (c->op == DDP_MIN) ? v[i] : sum[i];
            else
                sum[i] += v[i];
        }
    }
    for (size_t i = 0; i < n; i++) {
        if (c->op == DDP_AVG) sum[i] /= t->a->world;
        if (c->dtype == DDP_U8) sum[i] = fmod(sum[i], 256.0);
    }
    ddp_pattern_put(c->dtype, sum, n, (char *)c->recv + at * size);
    return barrier(t);
}

/* Bytes at .. of the part of each rank that is for this one. */
static bool move_piece(ddp_hook_trial *t, uint32_t slot, const ddp_coll *c, size_t at, size_t n)
{
    size_t part = c->count * ddp_dtype_size(c->dtype);
    uint32_t rank = t->a->rank, world = t->a->world, shifts = slot == DDP_SLOT_ALL_TO_ALL ? world : 1;
    const char *from = slot == DDP_SLOT_BROADCAST ? c->recv : c->send;
    char *to = c->recv;

    for (uint32_t s = 0; s < shifts; s++) {
        size_t block = slot == DDP_SLOT_ALL_TO_ALL ? (rank + s) % world * part : 0;

        memcpy(t->x->bytes[rank], from + block + at, n);
        if (!barrier(t)) return false;
        if (slot == DDP_SLOT_BROADCAST) memcpy(to + at, t->x->bytes[c->root], n);
        for (uint32_t r = 0; r < world && slot == DDP_SLOT_ALL_GATHER; r++)
            memcpy(to + r * part + at, t->x->bytes[r], n);
        if (slot == DDP_SLOT_ALL_TO_ALL) {
            uint32_t r = (rank + world - s) % world;
            memcpy(to + r * part + at, t->x->bytes[r], n);
        }
        if (!barrier(t)) return false;
    }
    return true;
}

static ddp_status collective(ddp_hook_trial *t, uint32_t slot, const ddp_coll *c, ddp_err *err)
{
    size_t whole, n;
    bool good;

    if (t->watch) t->most = DDP_MAX_OF(t->most, hook_heap());
    if (!may_call(t, slot, c))
        return ddp_fail(err, DDP_ERR_INVALID, "%s: not as the contract has it", ddp_slot_info_of(slot)->name);
    if (slot == DDP_SLOT_ALL_REDUCE && c->dtype == DDP_I64)
        return ddp_fail(err, DDP_ERR_UNSUPPORTED, "no reductions of i64 here");
    good = enter(t, slot, c);
    whole = slot == DDP_SLOT_ALL_REDUCE ? c->count : c->count * ddp_dtype_size(c->dtype);
    for (size_t at = 0; at < whole && good; at += n) {
        n = DDP_MIN_OF(whole - at, (size_t)(slot == DDP_SLOT_ALL_REDUCE ? ELEMENTS : DDP_EXCHANGE_BYTES));
        good = slot == DDP_SLOT_ALL_REDUCE ? reduce_piece(t, c, at, n) : move_piece(t, slot, c, at, n);
    }
    return good ? DDP_OK : ddp_fail(err, DDP_ERR_ABORTED, "another rank has given up");
}

#define COLLECTIVE(name, SLOT)                                                                                         \
    static ddp_status name(void *ctx, const ddp_coll *c, ddp_err *err) { return collective(ctx, SLOT, c, err); }
COLLECTIVE(all_reduce, DDP_SLOT_ALL_REDUCE)
COLLECTIVE(broadcast, DDP_SLOT_BROADCAST)
COLLECTIVE(all_gather, DDP_SLOT_ALL_GATHER)
COLLECTIVE(all_to_all, DDP_SLOT_ALL_TO_ALL)

void hook_group_open(ddp_hook_trial *t)
{
    t->group = (ddp_hook_group){.struct_size = sizeof(t->group),
                                .rank = t->a->rank,
                                .world_size = t->a->world,
                                .ctx = t,
                                .all_reduce = all_reduce,
                                .broadcast = broadcast,
                                .all_gather = all_gather,
                                .all_to_all = (t->ops->needs & DDP_CAP_ALL_TO_ALL) != 0 ? all_to_all : NULL};
}
