/* cli/child.c -- see child.h. */
#include "cli/child.h"
#include "base/base.h"
#include <errno.h>
#include <signal.h>
#include <stdio.h>
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
