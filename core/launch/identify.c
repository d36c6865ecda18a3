/* launch/identify.c -- who this process is: rank, world and ranks on this host, from the config, the command line, a
 * launcher's variables or the list of nodes; and the init method of the rendezvous when the config names none. */
#include "launch/identify.h"
#include "base/launcher.h"
#include "config/defaults.h"
#include "net/endpoint.h"
#include "net/nodes.h"
#include <stdlib.h>
#include <string.h>

static const char *where_of(const ddp_config *c, const char *key)
{
    const ddp_setting *s = ddp_settings_find(&c->settings, "group", key);

    return s != NULL ? s->where : "default";
}

static bool is_written(const ddp_config *c, const char *key) { return strcmp(where_of(c, key), "default") != 0; }
static bool is_env_url(const ddp_launch *l) { return strncmp(l->url, DDP_LAUNCHER_URL, strlen(DDP_LAUNCHER_URL)) == 0; }

/* ---- a launcher's variables -------------------------------------------------------------------------------------- */
/* Whether the variables count at all. With --nproc and a rank of the INI's own they are those of something around
 * us. */
static ddp_status find_launcher(const ddp_args *args, const ddp_config *c, const ddp_launch *l, ddp_launcher *out,
                                ddp_err *err)
{
    bool automatic = c->rank == DDP_RANK_AUTO || args->one_rank;

    *out = (ddp_launcher){0};
    if (!automatic && !is_env_url(l) && args->nproc > 0) return DDP_OK;
    DDP_TRY(ddp_launcher_find(is_env_url(l) || (automatic && l->url[0] == '\0'), out, err));
    /* a shell in a step of one task, as of srun --pty: what is started from it by hand is no task of Slurm's */
    if (!automatic && out->kind == DDP_LAUNCHER_SLURM && out->world == 1) *out = (ddp_launcher){0};
    return DDP_OK;
}

static ddp_status agree_with_launcher(const ddp_args *args, const ddp_config *c, const ddp_launcher *from, ddp_err *err)
{
    if (args->nproc > 1)
        return ddp_fail(err, DDP_ERR_CONFIG,
                        "--nproc %d would start several ranks, but %s=%d: %s has started this process as one rank. "
                        "Leave out --nproc, or unset the variable",
                        args->nproc, from->rank_name, from->rank, from->name);
    if (c->rank != DDP_RANK_AUTO && is_written(c, "rank") && !args->one_rank && c->rank != from->rank)
        return ddp_fail(err, DDP_ERR_CONFIG,
                        "%s: [group] rank = %d, but the environment has %s=%d; write rank = auto, or remove the line",
                        where_of(c, "rank"), (int)c->rank, from->rank_name, from->rank);
    if (c->group->world_size > 0 && from->world >= 0 && c->group->world_size != from->world)
        return ddp_fail(err, DDP_ERR_CONFIG,
                        "%s: [group] world_size = %d, but the environment has %s=%d; "
                        "remove the line, or start that many ranks",
                        where_of(c, "world_size"), (int)c->group->world_size, from->world_name, from->world);
    if (c->group->world_size == 0 && from->world < 0)
        return ddp_fail(err, DDP_ERR_CONFIG,
                        "the environment has %s=%d, but %s is not set; set it to the number of ranks", from->rank_name,
                        from->rank, from->world_name);
    return DDP_OK;
}

static ddp_status from_launcher(const ddp_args *args, const ddp_config *c, const ddp_launcher *from, ddp_launch *out,
                                ddp_err *err)
{
    DDP_TRY(agree_with_launcher(args, c, from, err));
    out->rank = from->rank;
    out->rank_where = from->rank_name;
    if (from->world >= 0) {
        out->world = from->world;
        out->world_where = from->world_name;
    }
    if (from->local_size > 0) {
        out->local_rank = from->local_rank;
        out->local_size = from->local_size;
    }
    if (out->url[0] == '\0') ddp_copy_text(out->url, sizeof(out->url), DDP_LAUNCHER_URL);
    return DDP_OK;
}

/* ---- the list of nodes ------------------------------------------------------------------------------------------- */
static ddp_status agree_with_nodes(const ddp_args *args, const ddp_config *c, const ddp_own_node *n, ddp_err *err)
{
    if (args->nproc > 0 && args->nproc != n->count)
        return ddp_fail(err, DDP_ERR_CONFIG,
                        "%s: nodes gives this machine %d rank%s, but --nproc is %d; leave out --nproc",
                        where_of(c, "nodes"), n->count, n->count == 1 ? "" : "s", args->nproc);
    if (c->group->world_size > 0 && c->group->world_size != n->world)
        return ddp_fail(err, DDP_ERR_CONFIG,
                        "%s: [group] world_size = %d, but nodes (%s) has %d ranks; remove the line",
                        where_of(c, "world_size"), (int)c->group->world_size, where_of(c, "nodes"), n->world);
    return DDP_OK;
}

static ddp_status from_nodes(const ddp_args *args, const ddp_config *c, ddp_launch *out, ddp_err *err)
{
    ddp_own_node n;

    if (ddp_nodes_find(&c->group->nodes, &n, err) != DDP_OK) return ddp_fail_context(err, "%s", where_of(c, "nodes"));
    DDP_TRY(agree_with_nodes(args, c, &n, err));
    out->rank = n.first_rank;
    out->world = n.world;
    out->nproc = n.count;
    out->local_size = n.count;
    out->rank_where = out->world_where = where_of(c, "nodes");
    out->introduced = n.count == n.world && out->url[0] == '\0';
    if (n.count == n.world || out->url[0] != '\0') return DDP_OK;
    if (n.index == 0 && n.first_is_loopback_alias)
        return ddp_fail(err, DDP_ERR_CONFIG,
                        "%s: %s, the first of nodes, is a loopback address on this machine (see /etc/hosts). "
                        "The other nodes cannot reach it: write its address, or set init_method = tcp://ADDRESS:%d",
                        where_of(c, "nodes"), n.first_host, DDP_NODES_PORT);
    (void)snprintf(out->url, sizeof(out->url), DDP_NODES_URL, n.first_host, DDP_NODES_PORT);
    out->on_nodes = true;
    return DDP_OK;
}

/* ---- the config and the command line ----------------------------------------------------------------------------- */
/* Without --nproc only world_size says how many ranks there are: a rank 0 that did not know would train alone. */
static ddp_status check_world(const ddp_args *args, const ddp_config *c, int32_t rank, ddp_err *err)
{
    if (args->nproc > 0 || c->group->world_size > 0) return DDP_OK;
    if (rank > 0)
        return ddp_fail(err, DDP_ERR_CONFIG,
                        "%s: [group] rank = %d, but world_size is not set; set it to the number of all ranks",
                        where_of(c, "rank"), rank);
    if (c->group->init_method[0] != '\0')
        return ddp_fail(err, DDP_ERR_CONFIG,
                        "%s: [group] init_method is set, but world_size is not; set it to the number of all ranks",
                        where_of(c, "init_method"));
    return DDP_OK;
}

/* All ranks are here, each started by hand. */
static bool is_on_loopback(const ddp_launch *l)
{
    const char *endpoint = strstr(l->url, "://"), *master = is_env_url(l) ? ddp_env_text("MASTER_ADDR") : NULL;
    char at[DDP_ENDPOINT_MAX];

    if (master != NULL) {
        (void)snprintf(at, sizeof(at), strchr(master, ':') != NULL ? "[%.240s]:1" : "%.240s:1", master);
        return ddp_endpoint_is_loopback(at);
    }
    return endpoint != NULL && ddp_endpoint_is_loopback(endpoint + 3);
}

/* Rank 0 is on the first of the nodes, as long as it lives. */
static ddp_status spare_of_nodes(const ddp_config *c, ddp_launch *out, ddp_err *err)
{
    char host[256];
    int32_t first;

    if (ddp_nodes_world(&c->group->nodes, &out->world, err) != DDP_OK ||
        ddp_nodes_at(&c->group->nodes, 0, host, sizeof(host), &first, err) != DDP_OK)
        return ddp_fail_context(err, "%s", where_of(c, "nodes"));
    if (c->group->world_size > 0 && c->group->world_size != out->world)
        return ddp_fail(err, DDP_ERR_CONFIG,
                        "%s: [group] world_size = %d, but nodes (%s) has %d ranks; remove the line",
                        where_of(c, "world_size"), (int)c->group->world_size, where_of(c, "nodes"), out->world);
    out->world_where = where_of(c, "nodes");
    (void)snprintf(out->url, sizeof(out->url), DDP_NODES_URL, host, DDP_NODES_PORT);
    out->on_nodes = true;
    return DDP_OK;
}

static ddp_status as_spare(const ddp_args *args, const ddp_config *c, ddp_launch *out, ddp_err *err)
{
    if (args->nproc > 1)
        return ddp_fail(
            err, DDP_ERR_CONFIG,
            "%s: [group] rank = spare is one process, but --nproc %d would start several; start each spare by itself",
            where_of(c, "rank"), args->nproc);
    out->spare = true;
    if (out->url[0] == '\0' && c->group->nodes.count > 0) return spare_of_nodes(c, out, err);
    if (out->url[0] == '\0' || is_env_url(out))
        return ddp_fail(
            err, DDP_ERR_CONFIG,
            "%s: [group] rank = spare needs nodes, or an init_method that says where rank 0 is, for example tcp://host:29500",
            where_of(c, "rank"));
    if (is_on_loopback(out)) out->local_size = out->world;
    return DDP_OK;
}

static ddp_status from_config(const ddp_args *args, const ddp_config *c, ddp_launch *out, ddp_err *err)
{
    if (args->one_rank)
        return ddp_fail(err, DDP_ERR_CONFIG,
                        "--nproc has started this rank by the backend's launcher, which did not give it a rank:  "
                        "looked for " DDP_LAUNCHER_VARIABLES "; start the ranks by hand and write the rank of each");
    if (c->rank == DDP_RANK_AUTO)
        return ddp_fail(err, DDP_ERR_CONFIG,
                        "%s: [group] rank = auto, but the rank is not known: looked for %sand nodes in [group]. "
                        "Start it under mpirun or srun; or export RANK and WORLD_SIZE with init_method = env://; "
                        "or write the rank",
                        where_of(c, "rank"),
                        out->url[0] == '\0' || is_env_url(out) ? "RANK, " DDP_LAUNCHER_VARIABLES ", "
                                                               : DDP_LAUNCHER_VARIABLES ", ");
    if (c->rank == DDP_RANK_SPARE) return as_spare(args, c, out, err);
    if (is_env_url(out) && args->nproc == 0 && !is_written(c, "rank"))
        return ddp_fail(err, DDP_ERR_CONFIG,
                        "%s: [group] init_method = env://, but the environment has no rank: "
                        "looked for RANK, " DDP_LAUNCHER_VARIABLES
                        ". Export RANK and WORLD_SIZE, or start it under torchrun, mpirun or srun",
                        where_of(c, "init_method"));
    out->introduced = args->nproc > 0 && out->url[0] == '\0'; /* as the supervisor will do it */
    if (args->nproc == 0 && is_on_loopback(out)) {
        out->local_size = out->world;
        out->local_rank = out->rank;
    }
    DDP_TRY(check_world(args, c, out->rank, err));
    if (out->rank + out->nproc > out->world)
        return ddp_fail(err, DDP_ERR_CONFIG,
                        "[group] rank = %d with --nproc %d makes ranks up to %d, but world_size is %d; "
                        "raise world_size or lower the other two",
                        out->rank, out->nproc, out->rank + out->nproc - 1, out->world);
    if (args->nproc > 0 && out->world > out->nproc && out->url[0] == '\0')
        return ddp_fail(err, DDP_ERR_CONFIG,
                        "world_size is %d and --nproc %d starts only some of the ranks. "
                        "So [group] init_method must say where rank 0 is, for example tcp://host:29500",
                        out->world, out->nproc);
    return DDP_OK;
}

ddp_status ddp_launch_resolve(const ddp_args *args, const ddp_config *c, ddp_launch *out, ddp_err *err)
{
    int32_t nproc = args->nproc > 0 ? args->nproc : 1;
    bool world_written = c->group->world_size > 0;
    ddp_launcher from;

    *out = (ddp_launch){.rank = (int32_t)c->rank,
                        .world = world_written ? (int32_t)c->group->world_size : nproc,
                        .local_size = nproc,
                        .nproc = nproc,
                        .rank_where = where_of(c, "rank"),
                        .world_where = world_written ? where_of(c, "world_size") : "--nproc",
                        .listen_fd = -1};
    ddp_copy_text(out->url, sizeof(out->url), c->group->init_method);
    if (out->url[0] == '\0' && args->rendezvous != NULL) ddp_copy_text(out->url, sizeof(out->url), args->rendezvous);
    DDP_TRY(find_launcher(args, c, out, &from, err));
    if (from.kind != DDP_LAUNCHER_NONE) return from_launcher(args, c, &from, out, err);
    if (c->group->nodes.count > 0 && !args->one_rank && (c->rank == DDP_RANK_AUTO || !is_written(c, "rank")))
        return from_nodes(args, c, out, err);
    return from_config(args, c, out, err);
}
