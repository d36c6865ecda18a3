/* comm/hierarchy/sides.c -- see sides.h. */
#include "comm/hierarchy/sides.h"
#include "comm/hierarchy/scope.h"

/* ---- one communicator of a half ---------------------------------------------------------------------------------- */
ddp_status hierarchy_side_connect(hierarchy_comm *c, hierarchy_side *side, ddp_backend *backend, const char *name,
                                  ddp_comm_params p, ddp_err *err)
{
    char prefix[sizeof(side->scope.prefix)];

    (void)snprintf(prefix, sizeof(prefix), "%s/", name);
    (void)snprintf(side->group, sizeof(side->group), "%.64s.%s", c->params.group, name);
    hierarchy_scope_open(&side->scope, c->params.store, prefix);
    side->timeout_ms = p.timeout_ms;
    p.group = side->group;
    p.store = &side->scope.store;
    p.connect_timeout_ms = DDP_MAX_OF(c->connect_by_ms - ddp_now_ms(), 1);
    return side->ops->comm_create(backend, &p, &side->comm, err);
}

void hierarchy_side_close(hierarchy_side *side)
{
    if (side->comm != NULL) side->ops->comm_destroy(side->comm);
    side->comm = NULL;
}

/* ---- between hosts ----------------------------------------------------------------------------------------------- */
static ddp_status connect_channel(hierarchy_comm *c, ddp_backend *remote, ddp_err *err)
{
    const hierarchy_layout *l = &c->layout;
    ddp_comm_params p = c->params;
    char name[24];

    if (hierarchy_all_apart(c) || l->local >= l->channels) return DDP_OK;
    p.rank = l->host;
    p.world_size = l->hosts;
    p.local_rank = 0;
    p.local_size = 1;
    (void)snprintf(name, sizeof(name), "channel%u", l->local);
    return hierarchy_side_connect(c, &c->channel, remote, name, p, err);
}

ddp_status hierarchy_connect_remote(hierarchy_comm *c, ddp_backend **remote, ddp_err *err)
{
    const ddp_half *half = &c->backend->config->halves[HIERARCHY_REMOTE];
    const ddp_backend_ops *ops = half->plugin->ops;
    ddp_status st;

    DDP_TRY(ops->open(c->backend->host, half->config, remote, err));
    st = connect_channel(c, *remote, err);
    if (st == DDP_OK) st = hierarchy_side_connect(c, &c->all, *remote, "all", c->params, err);
    if (st == DDP_OK) return st;
    hierarchy_side_close(&c->channel);
    ops->close(*remote);
    return st;
}

void hierarchy_disconnect_remote(hierarchy_comm *c, ddp_backend *remote)
{
    hierarchy_side_close(&c->all);
    hierarchy_side_close(&c->channel);
    c->all.ops->close(remote);
}

/* ---- abort ------------------------------------------------------------------------------------------------------- */
void hierarchy_side_abort(hierarchy_side *side)
{
    if (side->comm != NULL && (side->ops->caps & DDP_CAP_ABORT) != 0) side->ops->comm_abort(side->comm);
}

void hierarchy_abort_remote(hierarchy_comm *c)
{
    hierarchy_side_abort(&c->channel);
    hierarchy_side_abort(&c->all);
}
