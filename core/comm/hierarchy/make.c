/* comm/hierarchy/make.c -- see hierarchy.h. */
#include "comm/hierarchy/slots.h"
#include <stdlib.h>
#include <string.h>

/* A loaded backend as the registry's are, and what it owns. */
typedef struct made {
    ddp_loaded loaded; /* first: its users hold a pointer to it */
    hierarchy_config config;
    ddp_backend_ops ops;
    char name[136];
} made;

static const ddp_backend_ops *ops_of(const ddp_half *half) { return half->plugin->ops; }

/* ---- what is not about a communicator ---------------------------------------------------------------------------- */
/* How many ranks share this host is not known yet: of the local half, whether it can work at all. */
static ddp_status check(const ddp_host *host, const void *config, const ddp_comm_params *p, ddp_err *err)
{
    const ddp_half *halves = ((const hierarchy_config *)config)->halves;
    ddp_comm_params own = *p;

    own.rank = 0;
    own.world_size = 1;
    DDP_TRY(ops_of(&halves[HIERARCHY_LOCAL])->check(host, halves[HIERARCHY_LOCAL].config, &own, err));
    return ops_of(&halves[HIERARCHY_REMOTE])->check(host, halves[HIERARCHY_REMOTE].config, p, err);
}

static void preflight(const ddp_host *host, const void *config, const ddp_preflight *p)
{
    const ddp_half *halves = ((const hierarchy_config *)config)->halves;
    ddp_preflight own = *p, hosts = *p;

    if (p->local_size > 0) {
        own.world_size = p->local_size;
        hosts.world_size = (p->world_size + p->local_size - 1) / p->local_size;
        hosts.rank = p->rank / p->local_size;
    }
    ops_of(&halves[HIERARCHY_LOCAL])->preflight(host, halves[HIERARCHY_LOCAL].config, &own);
    ops_of(&halves[HIERARCHY_REMOTE])->preflight(host, halves[HIERARCHY_REMOTE].config, &hosts);
}

static const void *remote_config(const void *config)
{
    return ((const hierarchy_config *)config)->halves[HIERARCHY_REMOTE].config;
}

static const ddp_helper_ops *remote_helper(const void *config)
{
    return ops_of(&((const hierarchy_config *)config)->halves[HIERARCHY_REMOTE])->helper;
}

static uint32_t helper_count(const void *config) { return remote_helper(config)->count(remote_config(config)); }

static double helper_gain(const void *config, uint32_t world)
{
    return remote_helper(config)->gain(remote_config(config), world);
}

static ddp_status helper_serve(const ddp_host *host, const void *config, const ddp_helper_params *p, ddp_err *err)
{
    return remote_helper(config)->serve(host, remote_config(config), p, err);
}

/* Of the half between hosts. */
static const ddp_helper_ops helper_of_remote = {
    .struct_size = sizeof(helper_of_remote), .count = helper_count, .gain = helper_gain, .serve = helper_serve};

static ddp_status open_backend(const ddp_host *host, const void *config, ddp_backend **out, ddp_err *err)
{
    const hierarchy_config *given = config;
    const ddp_half *local = &given->halves[HIERARCHY_LOCAL];
    hierarchy_backend *b = ddp_alloc(sizeof(*b), err);

    if (b == NULL) return err->status;
    b->host = host;
    b->config = given;
    if (ops_of(local)->open(host, local->config, &b->local, err) != DDP_OK) {
        free(b);
        return err->status;
    }
    *out = (ddp_backend *)b;
    return DDP_OK;
}

static void close_backend(ddp_backend *backend)
{
    hierarchy_backend *b = (hierarchy_backend *)backend;

    ops_of(&b->config->halves[HIERARCHY_LOCAL])->close(b->local);
    free(b);
}

/* ---- the two together -------------------------------------------------------------------------------------------- */
static ddp_status check_halves(const ddp_half *local, const ddp_half *remote, ddp_err *err)
{
    const ddp_half *halves[] = {local, remote};

    for (size_t i = 0; i < DDP_COUNT(halves); i++)
        if (!ddp_memory_has(halves[i]->plugin->desc.memory, DDP_MEMORY_HOST))
            return ddp_fail(err, DDP_ERR_UNSUPPORTED,
                            "\"%s\" reduces memory of kind \"%s\" alone, and two backends share the host's; "
                            "take it by itself",
                            halves[i]->plugin->name, halves[i]->plugin->desc.memory);
    if (remote->plugin->desc.reach < DDP_REACH_NETWORK)
        return ddp_fail(err, DDP_ERR_UNSUPPORTED,
                        "\"%s\" does not reach other hosts; the second name is of the backend between hosts",
                        remote->plugin->name);
    if (ops_of(local)->launcher != NULL)
        return ddp_fail(
            err, DDP_ERR_UNSUPPORTED,
            "\"%s\" starts its ranks by a launcher, which connects all hosts; the first name is of a backend within a host",
            local->plugin->name);
    return DDP_OK;
}

static uint64_t caps_of(uint64_t local, uint64_t remote)
{
    const uint64_t both = DDP_CAP_ALL_REDUCE | DDP_CAP_BROADCAST | DDP_CAP_BARRIER | DDP_CAP_ALL_GATHER |
                          DDP_CAP_REDUCE_SCATTER | DDP_CAP_REDUCE | DDP_CAP_GATHER | DDP_CAP_SCATTER |
                          DDP_CAP_ALL_TO_ALL | DDP_CAP_SEND_RECV | DDP_CAP_ABORT;

    return (local & remote & both) | (local & DDP_CAP_MEM_ALLOC);
}

static void describe(made *m, const ddp_half *local, const ddp_half *remote)
{
    ddp_plugin *d = &m->loaded.desc;

    (void)snprintf(m->name, sizeof(m->name), "%.64s+%.64s", local->plugin->name, remote->plugin->name);
    *d = remote->plugin->desc;
    ddp_copy_text(d->memory, sizeof(d->memory), DDP_MEMORY_HOST);
    d->flags |= local->plugin->desc.flags;
    d->name = m->name;
    d->summary = "two backends, one within each host and one between hosts";
    d->options = NULL;
    d->option_count = 0;
    d->config_size = 0;
    d->ops = &m->ops;
    m->loaded = (ddp_loaded){.kind = DDP_KIND_BACKEND,
                             .name = m->name,
                             .path = m->name,
                             .desc = *d,
                             .ops = &m->ops,
                             .halves = {local->plugin, remote->plugin}};
}

ddp_status ddp_hierarchy_make(ddp_half local, ddp_half remote, ddp_loaded **out, const void **config, ddp_err *err)
{
    made *m;

    DDP_TRY(check_halves(&local, &remote, err));
    m = ddp_alloc(sizeof(*m), err);
    if (m == NULL) return err->status;
    describe(m, &local, &remote);
    m->config = (hierarchy_config){.halves = {local, remote}, .name = m->name};
    hierarchy_slots_fill(&m->ops);
    m->ops.caps = caps_of(ops_of(&local)->caps, ops_of(&remote)->caps);
    m->ops.check = check;
    m->ops.preflight = preflight;
    m->ops.open = open_backend;
    m->ops.close = close_backend;
    m->ops.launcher = ops_of(&remote)->launcher;
    if (ops_of(&remote)->helper != NULL) m->ops.helper = &helper_of_remote;
    *out = &m->loaded;
    *config = &m->config;
    return DDP_OK;
}

void ddp_hierarchy_free(ddp_loaded *hierarchy)
{
    if (hierarchy != NULL && hierarchy->live == 0) free(hierarchy);
}
