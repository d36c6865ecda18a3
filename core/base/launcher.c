/* base/launcher.c -- see launcher.h. */
#include "base/launcher.h"
#include <stdlib.h>
#include <string.h>

enum { RANK_MAX = 65535 };

typedef struct names {
    ddp_launcher_kind kind;
    const char *name, *rank, *world, *local_rank, *local_size;
} names;

static const names launchers[] = {
    {DDP_LAUNCHER_TORCHRUN, "the environment", "RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE"},
    {DDP_LAUNCHER_OPEN_MPI, "Open MPI", "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_RANK",
     "OMPI_COMM_WORLD_LOCAL_SIZE"},
    {DDP_LAUNCHER_PMI, "PMI", "PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID", "MPI_LOCALNRANKS"},
    {DDP_LAUNCHER_SLURM, "Slurm", "SLURM_PROCID", "SLURM_STEP_NUM_TASKS", "SLURM_LOCALID", NULL},
};

const char *ddp_env_text(const char *name)
{
    const char *text = getenv(name);

    return text != NULL && text[0] != '\0' ? text : NULL;
}

ddp_status ddp_env_number(const char *name, int64_t least, int64_t most, int64_t *out, ddp_err *err)
{
    const char *text = ddp_env_text(name);
    size_t digits = text == NULL ? 0 : strspn(text, "0123456789");
    long long value;

    if (text == NULL) return DDP_OK;
    value = digits < 1 || digits > 18 || text[digits] != '\0' ? -1 : strtoll(text, NULL, 10);
    if (value < least || value > most)
        return ddp_fail(err, DDP_ERR_CONFIG, "the environment has %s=%.80s, which is no number from %lld to %lld", name,
                        text, (long long)least, (long long)most);
    *out = value;
    return DDP_OK;
}

/* Slurm's tasks on node `node` of a step, from "2(x3),1": three nodes of two tasks, one of one. -1: unknown. */
static int32_t tasks_on_node(const char *text, int64_t node)
{
    while (text != NULL && *text >= '0' && *text <= '9') {
        char *end;
        long tasks = strtol(text, &end, 10), nodes = 1;

        if (strncmp(end, "(x", 2) == 0) {
            nodes = strtol(end + 2, &end, 10);
            if (*end == ')') end++;
        }
        if (nodes < 1 || tasks < 1 || tasks > RANK_MAX + 1) return -1;
        if (node < nodes) return (int32_t)tasks;
        node -= nodes;
        if (*end != ',') return -1;
        text = end + 1;
    }
    return -1;
}

static ddp_status fill(const names *n, ddp_launcher *out, ddp_err *err)
{
    int64_t rank = -1, world = -1, local_rank = -1, local_size = -1, node = -1;

    if (ddp_env_number(n->rank, 0, RANK_MAX, &rank, err) != DDP_OK ||
        ddp_env_number(n->world, 1, RANK_MAX + 1, &world, err) != DDP_OK ||
        ddp_env_number(n->local_rank, 0, RANK_MAX, &local_rank, err) != DDP_OK)
        return err->status;
    if (n->local_size != NULL && ddp_env_number(n->local_size, 1, RANK_MAX + 1, &local_size, err) != DDP_OK)
        return err->status;
    if (world >= 0 && rank >= world)
        return ddp_fail(err, DDP_ERR_CONFIG, "the environment has %s=%d and %s=%d: ranks go from 0 to one less",
                        n->rank, (int)rank, n->world, (int)world);
    if (n->kind == DDP_LAUNCHER_SLURM) {
        if (ddp_env_number("SLURM_NODEID", 0, RANK_MAX, &node, err) != DDP_OK) return err->status;
        if (node >= 0) local_size = tasks_on_node(ddp_env_text("SLURM_STEP_TASKS_PER_NODE"), node);
    }
    if (local_rank < 0 || local_rank >= local_size) local_rank = local_size = -1; /* half a truth is none */
    *out = (ddp_launcher){.kind = n->kind,
                          .name = n->name,
                          .rank_name = n->rank,
                          .world_name = n->world,
                          .rank = (int32_t)rank,
                          .world = (int32_t)world,
                          .local_rank = (int32_t)local_rank,
                          .local_size = (int32_t)local_size};
    return DDP_OK;
}

ddp_status ddp_launcher_find(bool torchrun, ddp_launcher *out, ddp_err *err)
{
    for (size_t i = 0; i < sizeof(launchers) / sizeof(launchers[0]); i++) {
        const names *n = &launchers[i];

        if (ddp_env_text(n->rank) == NULL || (n->kind == DDP_LAUNCHER_TORCHRUN && !torchrun)) continue;
        if (n->kind != DDP_LAUNCHER_TORCHRUN && ddp_env_text(n->world) == NULL) continue;
        return fill(n, out, err);
    }
    *out = (ddp_launcher){.rank = -1, .world = -1, .local_rank = -1, .local_size = -1};
    return DDP_OK;
}
