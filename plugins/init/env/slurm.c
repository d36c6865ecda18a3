/* plugins/init/env/slurm.c -- see env.h. */
#include "env.h"
#include "base/launcher.h"
#include <string.h>

enum { PORT_FIRST = 20000, PORT_COUNT = 40000 };

int slurm_first_host(const char *list, char *host, size_t capacity)
{
    size_t used = 0;

    for (const char *at = list; *at != '\0' && *at != ','; at++) {
        if (*at == '[') {
            const char *close = strchr(at, ']');
            size_t digits = strspn(at + 1, "0123456789");

            if (close == NULL || digits == 0 || strchr("-,]", at[1 + digits]) == NULL || used + digits >= capacity)
                return 0;
            memcpy(host + used, at + 1, digits);
            used += digits;
            at = close;
        } else {
            if (strchr("] \t/@:", *at) != NULL || used + 1 >= capacity) return 0;
            host[used++] = *at;
        }
    }
    if (used == 0) return 0;
    host[used] = '\0';
    return 1;
}

/* Jobs that share a node have numbers near each other, and so have the steps of a job. */
unsigned slurm_port(uint64_t job, uint64_t step) { return (unsigned)(PORT_FIRST + (job * 31 + step) % PORT_COUNT); }

ddp_status slurm_endpoint(int64_t port, char host[DDP_ENDPOINT_MAX], int64_t *out_port, ddp_err *err)
{
    const char *name = "SLURM_STEP_NODELIST", *list = ddp_env_text(name);
    int64_t nodes = -1, job = -1, step = 0;

    if (list == NULL) list = ddp_env_text(name = "SLURM_JOB_NODELIST");
    if (ddp_env_number("SLURM_STEP_NUM_NODES", 1, 1 << 20, &nodes, err) != DDP_OK ||
        ddp_env_number("SLURM_JOB_ID", 0, INT64_MAX, &job, err) != DDP_OK ||
        ddp_env_number("SLURM_STEP_ID", 0, INT64_MAX, &step, err) != DDP_OK)
        return err->status;
    if (list == NULL && nodes != 1)
        return ddp_fail(
            err, DDP_ERR_CONFIG,
            "init_method = env://: Slurm's SLURM_STEP_NODELIST and SLURM_JOB_NODELIST are not set, so rank 0's host is not known; export MASTER_ADDR and MASTER_PORT");
    if (list != NULL && !slurm_first_host(list, host, DDP_ENDPOINT_MAX))
        return ddp_fail(err, DDP_ERR_CONFIG,
                        "init_method = env://: %s=%.150s is no list of nodes; export MASTER_ADDR and MASTER_PORT", name,
                        list);
    if (port == 0 && job < 0)
        return ddp_fail(
            err, DDP_ERR_CONFIG,
            "init_method = env://: SLURM_JOB_ID is not set, so there is no port to derive; export MASTER_PORT");
    if (nodes == 1 || (nodes < 0 && strpbrk(list, ",[") == NULL)) (void)snprintf(host, DDP_ENDPOINT_MAX, "127.0.0.1");
    *out_port = port != 0 ? port : (int64_t)slurm_port((uint64_t)job, (uint64_t)step);
    return DDP_OK;
}
