/* cli/child.c -- see child.h. */
#include "cli/child.h"
#include "base/base.h"
#include <dirent.h>
#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

enum { ARGUMENTS = 2 * (DDP_MAX_OVERRIDES + CLI_CHILD_SETS) + 16 };

static void list_arguments(const ddp_args *args, const char *const *sets, size_t count, char nproc[16],
                           const char **out)
{
    size_t n = 0;

    out[n++] = "ddpengine";
    out[n++] = "-c";
    out[n++] = args->config_path;
    for (size_t i = 0; i < args->override_count + count; i++) {
        out[n++] = "--set";
        out[n++] = i < args->override_count ? args->overrides[i] : sets[i - args->override_count];
    }
    if (args->nproc > 0) {
        (void)snprintf(nproc, 16, "%d", args->nproc);
        out[n++] = "--nproc";
        out[n++] = nproc;
    }
    if (args->supervise) out[n++] = "--supervise";
    out[n] = NULL;
}

/* A terminal sends to all of its processes; what another process sends to this one alone is passed on. */
static int wait_for(pid_t pid, const sigset_t *set, int *stopped)
{
    siginfo_t info;
    int status = 0;

    for (;;) {
        pid_t ended = waitpid(pid, &status, WNOHANG);

        if (ended == pid) break;
        if (ended < 0 && errno != EINTR) return DDP_EXIT_INTERNAL;
        if (sigwaitinfo(set, &info) < 0 || info.si_signo == SIGCHLD) continue;
        *stopped = info.si_signo;
        if (info.si_code != SI_KERNEL) (void)kill(pid, info.si_signo);
    }
    return WIFSIGNALED(status) ? 128 + WTERMSIG(status) : WEXITSTATUS(status);
}

int cli_child_run(const ddp_args *args, const char *const *sets, size_t set_count, int *stopped, ddp_log *log)
{
    static const int ends[] = {SIGINT, SIGTERM, SIGHUP, SIGCHLD};
    const char *arguments[ARGUMENTS];
    sigset_t set, before;
    char nproc[16];
    pid_t pid;
    int code;

    *stopped = 0;
    list_arguments(args, sets, DDP_MIN_OF(set_count, (size_t)CLI_CHILD_SETS), nproc, arguments);
    (void)sigemptyset(&set);
    for (size_t i = 0; i < DDP_COUNT(ends); i++) (void)sigaddset(&set, ends[i]);
    (void)signal(SIGCHLD, SIG_DFL);
    (void)sigprocmask(SIG_BLOCK, &set, &before);
    pid = fork();
    if (pid == 0) {
        (void)sigprocmask(SIG_SETMASK, &before, NULL);
        (void)prctl(PR_SET_PDEATHSIG, SIGTERM);
        (void)execv("/proc/self/exe", (char *const *)arguments);
        _exit(127);
    }
    code = pid < 0 ? DDP_EXIT_INTERNAL : wait_for(pid, &set, stopped);
    if (pid < 0) ddp_log_line(log, DDP_LOG_ERROR, "cannot start a run: %s", strerror(errno));
    (void)sigprocmask(SIG_SETMASK, &before, NULL);
    return code;
}

/* ---- short trainings --------------------------------------------------------------------------------------------- */
static const char *const quiet[] = {
    "train.epochs=1000000000",
    "train.early_stopping=",
    "train.loss_spike=0",
    "train.noise_scale=no",
    "train.check_replicas_every=0",
    "optimizer.warmup_steps=0",
    "optimizer.ema=0",
    "checkpoint.dir=",
    "checkpoint.keep_best=",
    "checkpoint.resume=never",
    "eval.plugin=",
    "run.restarts=0",
    "run.min_world=0",
    "output.progress=off",
    "output.trace_steps=",
    "output.audit=no",
    "output.tensorboard=no",
    "output.histograms=0",
    "output.prometheus=",
    "output.ranks=no",
    "output.advice=no",
};

int cli_trial_run(const char *command, const ddp_args *args, const char *const *sets, size_t set_count, int32_t steps,
                  char folder[CLI_TRIAL_FOLDER], ddp_log *log)
{
    const char *all[CLI_CHILD_SETS];
    char own[2][CLI_TRIAL_FOLDER + 32];
    size_t n = 0;
    int stopped;

    (void)snprintf(folder, CLI_TRIAL_FOLDER, "/tmp/ddpengine-%.16s-XXXXXX", command);
    if (mkdtemp(folder) == NULL) {
        ddp_log_line(
            log, DDP_LOG_ERROR,
            "cannot make a folder in /tmp for what the run measures: %s; make room there, or let this user write",
            strerror(errno));
        folder[0] = '\0';
        return DDP_EXIT_INTERNAL;
    }
    (void)snprintf(own[0], sizeof(own[0]), "train.max_steps=%d", steps);
    (void)snprintf(own[1], sizeof(own[1]), "output.dir=%s", folder);
    for (size_t i = 0; i < DDP_COUNT(quiet); i++) all[n++] = quiet[i];
    for (size_t i = 0; i < DDP_COUNT(own); i++) all[n++] = own[i];
    for (size_t i = 0; i < set_count && n < DDP_COUNT(all); i++) all[n++] = sets[i];
    return cli_child_run(args, all, n, &stopped, log);
}

void cli_trial_remove(const char *folder)
{
    DIR *d = folder[0] != '\0' ? opendir(folder) : NULL;
    struct dirent *entry;

    if (d == NULL) return;
    while ((entry = readdir(d)) != NULL) (void)unlinkat(dirfd(d), entry->d_name, 0); /* fails for . and .. */
    (void)closedir(d);
    (void)rmdir(folder);
}
