/* train/ranks/place.c -- see place.h. */
#include "train/ranks/place.h"
#include "session/place.h"
#include "session/stages/cuts.h"
#include "session/stages/place.h"
#include <stdlib.h>
#include <string.h>

/* Of a rank, all nodes together. */
static double total_of(const double *times, uint32_t nodes)
{
    double sum = 0.0;

    for (uint32_t i = 0; i < nodes; i++) sum += times[i];
    return sum;
}

/* Rank 0: what a node takes of all is the mean of the ranks' words, and a stage is as slow as its slowest replica. */
static ddp_status decide(ddp_trainer *t, const void *const *times, uint32_t nodes, uint32_t *first, double *slowest,
                         ddp_err *err)
{
    uint32_t replicas = ddp_session_stage_replicas(t->s), world = (uint32_t)ddp_group_world(t->group);
    double speed[SESSION_STAGES_MOST] = {0}, *share = ddp_alloc(nodes * sizeof(*share), err);
    ddp_status st;

    if (share == NULL) return err->status;
    for (uint32_t r = 0; r < world; r++) {
        const double *its = times[r];
        double total = total_of(its, nodes);

        if (total <= 0.0) total = 1.0;
        for (uint32_t i = 0; i < nodes; i++) share[i] += its[i] / total / world;
        speed[r / replicas] = DDP_MAX_OF(speed[r / replicas], total);
    }
    st = ddp_session_stages_choose(t->s, share, speed, first, slowest, err);
    free(share);
    return st;
}

static void tell(const ddp_trainer *t, const uint32_t *first, double slowest)
{
    ddp_text text = {0};

    for (uint32_t s = 1; s < t->s->devices.rank_stages; s++)
        ddp_text_printf(&text, "%s stage %u begins at %s", s > 1 ? "," : "", s,
                        ddp_graph_node_name(t->s->model.graph, first[s]));
    if (!text.failed)
        ddp_log_line(t->s->log, DDP_LOG_INFO,
                     "[train] place = auto:%s; by the times measured the slowest stage takes %.2f of the mean",
                     text.data, slowest);
    ddp_text_free(&text);
}

static ddp_status gather(ddp_trainer *t, double *own, uint32_t nodes, uint32_t *first, double *slowest, ddp_err *err)
{
    int32_t world = ddp_group_world(t->group);
    size_t lengths[world], bytes = nodes * sizeof(*own);
    const void *parts[world];
    void *block = NULL;
    ddp_status st = DDP_OK;

    DDP_TRY_AS(DDP_EXIT_PEER, err,
               ddp_group_gather(t->group, "times of the layers", own, bytes, &block, parts, lengths,
                                t->s->config->group->step_timeout_ms, err));
    for (int32_t r = 0; r < world; r++) {
        if (lengths[r] != bytes) st = ddp_fail(err, DDP_ERR_INTERNAL, "rank %d sent other times", (int)r);
    }
    if (st == DDP_OK && t->s->launch.rank == 0) st = decide(t, parts, nodes, first, slowest, err);
    free(block);
    return st;
}

ddp_status ranks_place(ddp_trainer *t, ddp_err *err)
{
    uint32_t nodes = ddp_graph_nodes(t->s->model.graph), first[SESSION_STAGES_MOST] = {0};
    double *own, slowest = 0.0;
    ddp_status st;

    if (!ddp_session_stages_measured(t->s)) return DDP_OK;
    own = ddp_alloc(nodes * sizeof(*own), err);
    if (own == NULL) return err->status;
    st = ddp_session_stage_times(t->s, own, err);
    if (st == DDP_OK) st = gather(t, own, nodes, first, &slowest, err);
    free(own);
    if (st != DDP_OK) return st;
    DDP_TRY(ddp_trainer_from_rank0(t, "stages", first, sizeof(first), err));
    DDP_TRY(ddp_session_stages_set(t->s, first, err));
    if (t->s->launch.rank == 0) tell(t, first, slowest);
    return DDP_OK;
}
