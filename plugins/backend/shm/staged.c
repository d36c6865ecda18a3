/* plugins/backend/shm/staged.c -- collectives of memory that peers cannot see: piece by piece through the stages in the
 * control segment.
 *
 * A rank fills one of its two stages, a phase passes, all take what is theirs; then the other stage. A rank that
 * fills a stage again has been through the phase in between, which every rank begins after it has taken from the
 * former piece. Small worlds sum a whole piece each; in larger ones every rank sums its part in its own stage, and
 * after one more phase all copy the parts together: fewer bytes are read, and the bits are the same. */
#include "shm.h"
#include <string.h>

static ddp_status one_phase(ddp_comm *c, const shm_job *j, ddp_err *err)
{
    shm_slot *s = ddp_shm_next(c);

    s->call = j->what;
    s->count = j->count;
    return ddp_shm_exchange(c, err);
}

static void look_at_stages(ddp_comm *c, size_t byte)
{
    for (uint32_t r = 0; r < c->world; r++) c->in[r] = ddp_shm_stage(c, r, c->half) + byte;
}

static ddp_status share_out(ddp_comm *c, const shm_job *j, size_t first, size_t count, ddp_err *err)
{
    size_t at, n = ddp_shm_share(c, j, c->rank, count, &at);
    void *own = ddp_shm_stage(c, c->rank, c->half) + at * j->element;
    ddp_status st;

    look_at_stages(c, at * j->element);
    ddp_reduce(c->kernels, j->dtype, j->op, &own, 1, c->in, c->world, n, false);
    st = one_phase(c, j, err);
    for (uint32_t r = 0; r < c->world && st == DDP_OK; r++) {
        n = ddp_shm_share(c, j, r, count, &at);
        memcpy(j->recv + (first + at) * j->element, ddp_shm_stage(c, r, c->half) + at * j->element, n * j->element);
    }
    return st;
}

ddp_status ddp_shm_staged(ddp_comm *c, const shm_job *j, ddp_err *err)
{
    const size_t line = SHM_LINE / j->element, piece = c->staging / j->blocks / j->element / line * line;
    ddp_status st = DDP_OK;

    for (size_t first = 0; first < j->count && st == DDP_OK; first += piece) {
        size_t count = j->count - first < piece ? j->count - first : piece;

        c->half ^= 1;
        ddp_shm_give(c, j, ddp_shm_stage(c, c->rank, c->half), piece, first, count);
        st = one_phase(c, j, err);
        if (st != DDP_OK) break;
        if (j->what == SHM_ALL_REDUCE && c->world >= SHM_SHARE_FROM) {
            st = share_out(c, j, first, count, err);
        } else {
            look_at_stages(c, 0);
            ddp_shm_take(c, j, piece, first, count);
        }
    }
    return st;
}
