/* train/ranks/link.c -- see link.h. */
#include "train/ranks/link.h"
#include <inttypes.h>
#include <stdlib.h>

struct ddp_rank_link {
    ddp_communicator *comm; /* of the two, the earlier stage first */
    uint32_t peer;          /* the other's number there */
    bool sends;
    uint64_t bytes;            /* of each message of the series */
    uint64_t messages, posted; /* of the series; the receiver: has asked for so many */
    uint64_t tickets[];        /* by slot, of its newest message; 0: none */
};

ddp_status ranks_link_open(ddp_trainer *t, ddp_link *l, ddp_err *err)
{
    uint32_t replicas = ddp_session_stage_replicas(t->s), replica = (uint32_t)t->s->launch.rank % replicas;
    uint32_t first = DDP_MIN_OF(l->from, l->to), second = DDP_MAX_OF(l->from, l->to);
    ddp_comm_part part = {.count = 2,
                          .ranks = {(int32_t)(first * replicas + replica), (int32_t)(second * replicas + replica)}};
    char name[48];

    (void)snprintf(name, sizeof(name), "link-%u-%u-%u", replica, l->from, l->to);
    part.name = name;
    l->ranks = ddp_alloc(sizeof(*l->ranks) + l->slots * sizeof(l->ranks->tickets[0]), err);
    if (l->ranks == NULL) return err->status;
    l->ranks->sends = l->from == ddp_session_rank_stage(t->s);
    l->ranks->peer = first == ddp_session_rank_stage(t->s) ? 1 : 0;
    DDP_TRY_AS(DDP_EXIT_RENDEZVOUS, err,
               ddp_communicator_open_part(t->group, t->s->backend->plugin, &t->s->host, t->s->backend->config,
                                          t->s->config->group->step_timeout_ms, &part, &l->ranks->comm, err));
    return DDP_OK;
}

bool ranks_link_close(ddp_link *l)
{
    bool ended = l->ranks == NULL || l->ranks->comm == NULL || ddp_communicator_close(l->ranks->comm);

    if (!ended) return false;
    free(l->ranks);
    l->ranks = NULL;
    return true;
}

/* ---- a series of messages -------------------------------------------------------------------------------------- */
static ddp_status failed(const ddp_link *l, uint64_t message, ddp_err *err)
{
    if (err->exit_code == 0) (void)ddp_fail_as(err, DDP_EXIT_PEER);
    if (err->status == DDP_ERR_ABORTED) return err->status;
    return ddp_fail_context(err, "%s of micro-batch %" PRIu64 ", from stage %u to stage %u",
                            l->from < l->to ? "the activations" : "the gradients", message, l->from, l->to);
}

static ddp_status submit(ddp_link *l, uint32_t what, uint64_t message, ddp_err *err)
{
    uint64_t slot = message % l->slots;
    char *at = l->memory + slot * l->slot_bytes;
    ddp_task task = {.what = what,
                     .coll = {.struct_size = sizeof(ddp_coll),
                              .dtype = DDP_U8,
                              .op = DDP_SUM,
                              .root = l->ranks->peer,
                              .send = at,
                              .recv = at,
                              .count = l->ranks->bytes}};

    return ddp_communicator_submit(l->ranks->comm, &task, &l->ranks->tickets[slot], err);
}

static ddp_status post(ddp_link *l, ddp_err *err)
{
    if (l->ranks->sends || l->ranks->posted == l->ranks->messages) return DDP_OK;
    return submit(l, DDP_COLL_RECV, l->ranks->posted++, err);
}

static ddp_status begin(ddp_link *l, uint32_t kind, uint64_t messages, ddp_err *err)
{
    l->ranks->bytes = l->kind[kind].bytes;
    l->ranks->messages = messages;
    l->ranks->posted = 0;
    for (uint32_t i = 0; i < l->slots; i++) DDP_TRY(post(l, err));
    return DDP_OK;
}

static ddp_status wait_for(ddp_link *l, uint64_t message, ddp_err *err)
{
    uint64_t ticket = l->ranks->tickets[message % l->slots];

    if (ticket == 0 || ddp_communicator_wait(l->ranks->comm, ticket, err) == DDP_OK) return DDP_OK;
    return failed(l, message, err);
}

/* What was in the slot before has been sent, also that of the series before. */
static ddp_status reserve(ddp_link *l, uint64_t message, int64_t deadline_ns, ddp_err *err)
{
    (void)deadline_ns; /* step_timeout is the communicator's too */
    return wait_for(l, message, err);
}

static ddp_status send_it(ddp_link *l, uint64_t message, ddp_err *err)
{
    return submit(l, DDP_COLL_SEND, message, err);
}

static ddp_status wait_it(ddp_link *l, uint64_t message, int64_t deadline_ns, ddp_err *err)
{
    (void)deadline_ns;
    return wait_for(l, message, err);
}

static ddp_status release(ddp_link *l, ddp_err *err) { return post(l, err); }

static void cancel(ddp_link *l) { (void)l; } /* the end of the run ends all waits */

const ddp_link_ops ranks_link_ops = {
    .begin = begin, .reserve = reserve, .send = send_it, .wait = wait_it, .release = release, .cancel = cancel};
