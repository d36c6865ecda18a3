/* fuzz/targets/environment.c -- what launchers write into the environment, a value a line, in the order of `names`;
 * an empty line leaves the variable out. */
#include "base/launcher.h"
#include "env/env.h"
#include "fuzz.h"

static const char *const names[] = {"RANK",
                                    "WORLD_SIZE",
                                    "LOCAL_RANK",
                                    "LOCAL_WORLD_SIZE",
                                    "SLURM_PROCID",
                                    "SLURM_STEP_NUM_TASKS",
                                    "SLURM_LOCALID",
                                    "SLURM_NODEID",
                                    "SLURM_STEP_TASKS_PER_NODE",
                                    "SLURM_STEP_NODELIST",
                                    "SLURM_JOB_NODELIST",
                                    "SLURM_STEP_NUM_NODES",
                                    "SLURM_JOB_ID",
                                    "SLURM_STEP_ID"};

static void check_launcher(void)
{
    ddp_launcher from;
    ddp_err err = {0};

    for (int torchrun = 0; torchrun < 2; torchrun++) {
        ddp_status status = ddp_launcher_find(torchrun != 0, &from, &err);

        fuzz_check_error(status, &err);
        if (status != DDP_OK || from.kind == DDP_LAUNCHER_NONE) continue;
        FUZZ_CHECK(from.rank >= 0 && (from.world < 0 || from.rank < from.world));
        FUZZ_CHECK(from.local_rank < 0 || from.local_rank < from.local_size);
    }
}

static void check_slurm(void)
{
    char host[DDP_ENDPOINT_MAX] = "";
    int64_t port = -1;
    ddp_err err = {0};

    for (int64_t given = 0; given < 2; given++) {
        if (slurm_endpoint(given, host, &port, &err) != DDP_OK) continue;
        FUZZ_CHECK(host[0] != '\0' && memchr(host, '\0', sizeof(host)) != NULL);
        FUZZ_CHECK(port >= 1 && port <= 65535);
    }
}

FUZZ_TARGET(environment)
{
    fuzz_input in = {data, size};

    for (size_t i = 0; i < DDP_COUNT(names); i++) {
        char *value = fuzz_text(&in, '\n');

        if (value[0] == '\0')
            (void)unsetenv(names[i]);
        else
            (void)setenv(names[i], value, 1);
        free(value);
    }
    check_launcher();
    check_slurm();
    for (size_t i = 0; i < DDP_COUNT(names); i++) (void)unsetenv(names[i]);
    return 0;
}
