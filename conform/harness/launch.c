/* conform/harness/launch.c -- ranks of a backend that must be started by its own launcher: the words of its
 * template, this program, and where the shared results are. In the ranks: who they are, from the launcher's
 * variables. */
#include "conform/harness/launch.h"
#include "conform/harness/run_cases.h"
#include "base/launcher.h"
#include "launch/launcher_command.h"
#include <sys/prctl.h>
#include <unistd.h>

/* ---- the parent -------------------------------------------------------------------------------------------------- */
ddp_status ddp_launch_ranks(const char *launcher, uint32_t world, int fd, const sigset_t *signals, ddp_log *log,
                            pid_t *out, ddp_err *err)
{
    ddp_launcher_command c;
    char shared[64];
    ddp_status st = ddp_launcher_command_make(&c, launcher, NULL, (int32_t)world, err);

    if (st == DDP_OK) {
        (void)snprintf(shared, sizeof(shared), "/proc/%d/fd/%d", (int)getpid(), fd);
        ddp_launcher_command_add(&c, "conform");
        ddp_launcher_command_add(&c, "--shared");
        ddp_launcher_command_add(&c, shared);
        st = ddp_launcher_command_start(&c, false, signals, log, out, err);
    }
    ddp_launcher_command_free(&c);
    return st;
}

/* ---- a rank ------------------------------------------------------------------------------------------------------ */
int ddp_conform_rank(const char *path, ddp_log *log)
{
    ddp_launcher who;
    ddp_shared_results *s = NULL;
    ddp_err err = {0};
    int code;

    (void)prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (ddp_shared_results_map(path, &s, &err) != DDP_OK || ddp_launcher_find(false, &who, &err) != DDP_OK) {
        ddp_log_line(log, DDP_LOG_ERROR, "%s", err.msg);
    } else if (who.kind == DDP_LAUNCHER_NONE || who.world != (int32_t)s->world || who.rank < 0 ||
               who.rank >= who.world) {
        ddp_log_line(log, DDP_LOG_ERROR, "the launcher does not say which of %u ranks this is", s->world);
    } else {
        atomic_store(&s->pids[who.rank], (int)getpid());
        code = ddp_rank_process_run(s, (uint32_t)who.rank, -1, NULL);
        atomic_store(&s->pids[who.rank], 0);
        if (code != DDP_EXIT_OK) _exit(code); /* something may stand in the plugin still */
        ddp_shared_results_free(s, -1);
        return code;
    }
    ddp_shared_results_free(s, -1);
    return DDP_EXIT_INTERNAL;
}
