/* comm/hierarchy/connect.c -- see connect.h. Within the host first, then between hosts: all ranks in that order. */
#include "comm/hierarchy/connect.h"
#include "comm/hierarchy/blocks.h"
#include "comm/hierarchy/sides.h"
#include "comm/hierarchy/wire.h"
#include <stdlib.h>

/* ---- within the host --------------------------------------------------------------------------------------------- */
static ddp_status connect_within(hierarchy_comm *c, ddp_err *err)
{
    const hierarchy_layout *l = &c->layout;
    ddp_comm_params p = c->params;
    char name[24];

    p.rank = p.local_rank = l->local;
    p.world_size = p.local_size = l->locals;
    (void)snprintf(name, sizeof(name), "host%u", l->host);
    return hierarchy_side_connect(c, &c->within, c->backend->local, name, p, err);
}

/* ---- what the halves can do together ----------------------------------------------------------------------------- */
/* A mean is summed by the halves and divided here. */
static bool side_supports(const hierarchy_side *side, uint32_t dtype, uint32_t op)
{
    return side->comm == NULL || side->ops->supports(side->comm, dtype, op) == DDP_OK;
}

static void note_supported(hierarchy_comm *c, const hierarchy_side *side)
{
    for (uint32_t dtype = DDP_F32; dtype < DDP_DTYPE_END_; dtype++)
        for (uint32_t op = DDP_SUM; op < DDP_REDUCE_OP_END_; op++)
            if (!side_supports(side, dtype, op) || (op == DDP_AVG && !side_supports(side, dtype, DDP_SUM)))
                c->supported[dtype] &= ~(1u << op);
}

static void note_all_supported(hierarchy_comm *c)
{
    bool composed = !hierarchy_one_host(c) && !hierarchy_all_apart(c);

    for (uint32_t dtype = DDP_F32; dtype < DDP_DTYPE_END_; dtype++)
        c->supported[dtype] =
            composed && dtype != DDP_F32 && dtype != DDP_F64 && dtype != DDP_BF16 ? ~(1u << DDP_AVG) : ~0u;
    note_supported(c, &c->within);
    note_supported(c, &c->all); /* its thread does nothing now */
}

static void log_layout(const hierarchy_comm *c)
{
    const hierarchy_layout *l = &c->layout;
    const ddp_host *host = c->backend->host;
    const ddp_half *halves = c->backend->config->halves;

    if (l->rank != 0) return;
    if (hierarchy_one_host(c))
        host->log(host->ctx, DDP_LOG_INFO, __FILE__, __LINE__, "backend %s: all %u ranks are on one host, so %s alone",
                  c->backend->config->name, l->world, halves[HIERARCHY_LOCAL].plugin->name);
    else if (hierarchy_all_apart(c))
        host->log(host->ctx, DDP_LOG_INFO, __FILE__, __LINE__, "backend %s: no two ranks share a host, so %s alone",
                  c->backend->config->name, halves[HIERARCHY_REMOTE].plugin->name);
    else
        host->log(host->ctx, DDP_LOG_INFO, __FILE__, __LINE__,
                  "backend %s: %u ranks on %u hosts; %u of each host %s between hosts%s", c->backend->config->name,
                  l->world, l->hosts, l->channels, l->channels == 1 ? "reduces" : "reduce",
                  l->even ? "" : ", and take parts in turn, for the hosts have different numbers of ranks");
}

/* ---- the hierarchy's own ----------------------------------------------------------------------------------------- */
static ddp_status connect_halves(hierarchy_comm *c, ddp_err *err)
{
    const uint64_t caps = DDP_CAP_REDUCE_SCATTER | DDP_CAP_ALL_GATHER;

    c->connect_by_ms = ddp_now_ms() + DDP_MIN_OF(c->params.connect_timeout_ms, INT64_MAX / 2);
    DDP_TRY(hierarchy_layout_agree(c->params.store, c->params.rank, c->params.world_size, c->params.connect_timeout_ms,
                                   &c->layout, err));
    c->splits = c->layout.even && (c->within.ops->caps & caps) == caps;
    if (!hierarchy_all_apart(c) || hierarchy_one_host(c)) DDP_TRY(connect_within(c, err));
    if (!hierarchy_one_host(c)) DDP_TRY(hierarchy_wire_open(c, err));
    if (c->splits && !hierarchy_one_host(c) && !hierarchy_all_apart(c)) DDP_TRY(hierarchy_blocks_open(c, err));
    note_all_supported(c);
    log_layout(c);
    return DDP_OK;
}

ddp_status hierarchy_comm_create(ddp_backend *b, const ddp_comm_params *p, ddp_comm **out, ddp_err *err)
{
    hierarchy_backend *backend = (hierarchy_backend *)b;
    const ddp_half *halves = backend->config->halves;
    hierarchy_comm *c;

    if (p->world_size == 0 || p->rank >= p->world_size)
        return ddp_fail(err, DDP_ERR_INVALID, "%s: rank %u of world_size %u", backend->config->name, p->rank,
                        p->world_size);
    c = ddp_alloc(sizeof(*c), err);
    if (c == NULL) return err->status;
    c->backend = backend;
    c->params = *p;
    c->within.ops = halves[HIERARCHY_LOCAL].plugin->ops;
    c->channel.ops = c->all.ops = halves[HIERARCHY_REMOTE].plugin->ops;
    if (connect_halves(c, err) != DDP_OK) {
        hierarchy_comm_destroy((ddp_comm *)c);
        return err->status;
    }
    *out = (ddp_comm *)c;
    return DDP_OK;
}

void hierarchy_comm_abort(ddp_comm *comm)
{
    hierarchy_comm *c = (hierarchy_comm *)comm;

    atomic_store(&c->aborted, true);
    hierarchy_abort_remote(c);
    hierarchy_side_abort(&c->within);
}

void hierarchy_comm_destroy(ddp_comm *comm)
{
    hierarchy_comm *c = (hierarchy_comm *)comm;

    hierarchy_wire_close(c);
    if (c->within.comm != NULL) hierarchy_blocks_close(c);
    hierarchy_side_close(&c->within);
    hierarchy_layout_free(&c->layout);
    free(c);
}
