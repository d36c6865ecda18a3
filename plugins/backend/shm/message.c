/* plugins/backend/shm/message.c -- send and recv: a message goes in pieces through the sender's two outboxes. A rank
 * sends one message at a time, and send returns when the receiver has taken it. */
#include "shm.h"
#include <string.h>

static size_t piece_at(const ddp_comm *c, size_t total, size_t at)
{
    return total - at < c->staging ? total - at : c->staging;
}

/* What a receiver that expects another message sets `taken` to, in one step; after that it looks at nothing of the
 * message. */
static bool is_refused(uint32_t taken, uint32_t first) { return taken == first - 1; }

/* Until fewer than `pieces` of the message that began with piece `first` wait to be taken, or it is refused. */
static ddp_status wait_taken(ddp_comm *c, const ddp_coll *a, uint32_t first, uint32_t put, uint32_t pieces,
                             uint32_t *taken, ddp_err *err)
{
    shm_channel *ch = &ddp_shm_rank(c, c->rank)->channel;
    ddp_status st = DDP_OK;

    for (;;) {
        *taken = atomic_load_explicit(&ch->taken.value, memory_order_acquire);
        if (st != DDP_OK || is_refused(*taken, first) || put - *taken < pieces) return st;
        st = ddp_shm_wait(c, &ch->taken, *taken, a->root, err);
    }
}

ddp_status ddp_shm_send(ddp_comm *c, const ddp_coll *a, ddp_err *err)
{
    shm_channel *ch = &ddp_shm_rank(c, c->rank)->channel;
    const size_t total = a->count * ddp_dtype_size(a->dtype);
    const uint32_t first = atomic_load(&ch->put.value);
    uint32_t put = first, taken = first;
    ddp_status st = ddp_shm_begin(c, "send", total, err);

    if (st != DDP_OK || total == 0) return st;
    ch->dtype = a->dtype;
    ch->count = a->count;
    atomic_store(&ch->to, a->root);
    for (size_t at = 0; at < total; at += c->staging) {
        st = wait_taken(c, a, first, put, 2, &taken, err);
        if (st != DDP_OK) return st;
        if (is_refused(taken, first)) break;
        memcpy(ddp_shm_stage(c, c->rank, 2 + (put & 1)), (const char *)a->send + at, piece_at(c, total, at));
        ddp_shm_set(&ch->put, ++put);
    }
    st = wait_taken(c, a, first, put, 1, &taken, err);
    if (st != DDP_OK || !is_refused(taken, first)) return st;
    atomic_store(&ch->taken.value, put);
    atomic_store(&ch->refused, 0);
    return ddp_fail(err, DDP_ERR_INVALID, "shm: send %llu of %zu elements (dtype %u): rank %u expects another message",
                    (unsigned long long)c->calls, a->count, a->dtype, a->root);
}

/* Waits until the sender has put a piece for this rank. */
static ddp_status wait_piece(ddp_comm *c, shm_channel *ch, uint32_t from, ddp_err *err)
{
    for (;;) {
        uint32_t put = atomic_load(&ch->put.value), taken = atomic_load(&ch->taken.value), to = atomic_load(&ch->to);
        ddp_status st;

        /* signed: another receiver may have taken a piece that is newer than this look at `put`. While `taken`
         * stands, that piece is there and `to` is its own; once it has moved, `to` may be of a message that has put
         * nothing yet. What this rank has refused is still to be cleared away by the sender. */
        if ((int32_t)(put - taken) > 0 && to == c->rank && atomic_load(&ch->refused) == 0 &&
            atomic_load(&ch->taken.value) == taken)
            return DDP_OK;
        st = ddp_shm_wait(c, &ch->put, put, from, err);
        if (st != DDP_OK) return st;
    }
}

ddp_status ddp_shm_recv(ddp_comm *c, const ddp_coll *a, ddp_err *err)
{
    shm_channel *ch = &ddp_shm_rank(c, a->root)->channel;
    const size_t total = a->count * ddp_dtype_size(a->dtype);
    ddp_status st = ddp_shm_begin(c, "recv", total, err);

    if (total == 0) return st;
    for (size_t at = 0; at < total && st == DDP_OK; at += c->staging) {
        uint32_t taken;

        st = wait_piece(c, ch, a->root, err);
        if (st != DDP_OK) break;
        if (ch->dtype != a->dtype || ch->count != a->count) {
            (void)ddp_fail(
                err, DDP_ERR_INVALID, "shm: recv %llu of %zu elements (dtype %u): rank %u sends %llu of dtype %u",
                (unsigned long long)c->calls, a->count, a->dtype, a->root, (unsigned long long)ch->count, ch->dtype);
            atomic_store(&ch->refused, 1);
            ddp_shm_set(&ch->taken, atomic_load(&ch->taken.value) - 1); /* at its first piece: see is_refused */
            return DDP_ERR_INVALID;
        }
        taken = atomic_load(&ch->taken.value);
        memcpy((char *)a->recv + at, ddp_shm_stage(c, a->root, 2 + (taken & 1)), piece_at(c, total, at));
        ddp_shm_set(&ch->taken, taken + 1);
    }
    return st;
}
