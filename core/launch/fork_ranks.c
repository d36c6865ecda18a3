/* launch/fork_ranks.c -- `--nproc N`: forks N ranks of one config, gives rank 0 a listening loopback socket, and
 * sees to it that they end together: no orphan, whatever dies first. Nothing is loaded before the fork. */
#include "launch/fork_ranks.h"
#include "base/sys.h"
#include "launch/secret.h"
#include "launch/signals.h"
#include "net/endpoint.h"
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

/* Time that the ranks have to leave by themselves after the first one has failed: more than the second after which a
 * rank does not wait for a plugin's call any longer. A rank that waits for a dead one at the rendezvous is not
 * notified. */
enum { GRACE_MS = 1500, TERM_MS = 1000 };

struct ranks {
    int32_t count, left;
    int32_t first_rank;
    pid_t *pids;                            /* 0: has ended */
    int code;                               /* of the first cause */
    int64_t failed_at_ms, terminated_at_ms; /* 0: not */
    int signal;                             /* that this process was asked to end by; 0: none */
    bool hurried;                           /* it was asked again, and has killed the ranks */
    bool cut;                               /* it ended ranks that could not leave by themselves */
    const ddp_args *args;
    ddp_config *config;
    ddp_rank_main run;
    ddp_cause *cause;
    ddp_log *log;
};

/* In the child: one rank, then out without the parent's clean-up. */
static void child(const struct ranks *f, ddp_launch *launch, pid_t parent, const sigset_t *signals)
{
    launch->stop = ddp_handle_signals(true);
    (void)prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (getppid() != parent) _exit(DDP_EXIT_INTERNAL); /* it died before the line above */
    (void)sigprocmask(SIG_SETMASK, signals, NULL);
    if (launch->rank > 0) atomic_store(&f->log->progress_shown, f->log->terminal); /* rank 0's line may stand there */
    exit(f->run(f->args, f->config, launch, f->log, f->cause));
}

static void signal_all(const struct ranks *f, int sig)
{
    for (int32_t i = 0; i < f->count; i++)
        if (f->pids[i] > 0) (void)kill(f->pids[i], sig);
}

/* It ended by what it was asked to end by, or by what followed; a crash while it saves, or lack of memory, is a
 * failure. */
static bool ended_as_asked(const struct ranks *f, int status)
{
    return f->signal != 0 && WIFSIGNALED(status) &&
           (WTERMSIG(status) == f->signal || (f->hurried && WTERMSIG(status) == SIGKILL));
}

static void rank_ended(struct ranks *f, pid_t pid, int status)
{
    bool as_asked = ended_as_asked(f, status);
    char line[160];
    int32_t i = 0;

    while (i < f->count && f->pids[i] != pid) i++;
    if (i == f->count) return;
    f->pids[i] = 0;
    f->left--;
    if (WIFEXITED(status) && WEXITSTATUS(status) == 0) return;
    if (f->code == 0) f->code = WIFEXITED(status) ? WEXITSTATUS(status) : as_asked ? 128 + f->signal : DDP_EXIT_PEER;
    if (WIFEXITED(status) && WEXITSTATUS(status) > 128) return; /* asked to end; the others are on their way too */
    if (f->failed_at_ms == 0) {
        f->failed_at_ms = ddp_now_ms();
        signal_all(f, SIGCONT); /* one that was stopped, which may be the cause, leaves by itself as well */
    }
    if (!WIFSIGNALED(status) || f->terminated_at_ms != 0) return;
    f->cut = f->cut || as_asked;
    if (as_asked) return;
    (void)snprintf(line, sizeof(line), "rank %d (pid %d) was killed by signal %d (%s)%s", f->first_rank + i, (int)pid,
                   WTERMSIG(status), strsignal(WTERMSIG(status)), launch_killed_hint(WTERMSIG(status)));
    ddp_cause_print(f->cause, f->log, DDP_EXIT_INTERNAL, line); /* the rank itself cannot print it */
}

/* After the first failure the control plane lets the others leave; what has not after a while is made to. */
static void enforce(struct ranks *f)
{
    int64_t now = ddp_now_ms();

    if (f->failed_at_ms == 0 || f->left == 0) return;
    if (f->terminated_at_ms == 0 && now >= f->failed_at_ms + GRACE_MS) {
        f->terminated_at_ms = now;
        signal_all(f, SIGTERM);
        signal_all(f, SIGCONT);
    } else if (f->terminated_at_ms != 0 && now >= f->terminated_at_ms + TERM_MS) {
        signal_all(f, SIGKILL);
    }
}

/* The ranks agree on a step, save and leave in their own time; a second signal does not wait for that. */
static void asked_to_end(struct ranks *f, int sig)
{
    bool again = f->signal != 0;

    f->signal = sig;
    f->hurried = again;
    signal_all(f, again ? SIGKILL : sig);
    if (!again) launch_log_asked_to_end(f->log, sig);
}

static void wait_for_all(struct ranks *f, const sigset_t *watched)
{
    while (f->left > 0) {
        const struct timespec tick = {.tv_nsec = 100000000};
        int status, sig = sigtimedwait(watched, NULL, &tick);
        pid_t pid;

        if (ddp_signal_ends(sig)) asked_to_end(f, sig);
        while ((pid = waitpid(-1, &status, WNOHANG)) > 0) rank_ended(f, pid, status);
        enforce(f);
    }
}

static ddp_status fork_all(struct ranks *f, const ddp_launch *first, const sigset_t *signals, ddp_err *err)
{
    ddp_launch with_secret = *first;
    char endpoint[DDP_ENDPOINT_MAX];
    int listen_fd = -1;
    pid_t parent = getpid();

    f->cause = launch_cause_create(err);
    if (f->cause == NULL) return err->status;
    if (first->introduced) {
        /* other users of this machine reach the port as well */
        DDP_TRY(launch_secret_make(&with_secret, err));
        DDP_TRY(ddp_endpoint_listen("127.0.0.1:0", &listen_fd, endpoint, err));
    }
    for (int32_t i = 0; i < f->count; i++) {
        ddp_launch launch = with_secret;
        pid_t pid;

        launch.rank = first->rank + i;
        launch.local_rank = i;
        launch.local_size = f->count;
        launch.introduced = listen_fd >= 0;
        launch.listen_fd = launch.rank == 0 ? listen_fd : -1;
        launch.endpoint = listen_fd >= 0 && launch.rank != 0 ? endpoint : NULL;
        pid = fork();
        if (pid == 0) {
            if (launch.rank != 0 && listen_fd >= 0) (void)close(listen_fd);
            child(f, &launch, parent, signals);
        }
        if (pid < 0) {
            (void)ddp_fail_errno(err, "cannot start rank %d", launch.rank);
            f->failed_at_ms = f->terminated_at_ms = ddp_now_ms();
            f->code = DDP_EXIT_INTERNAL;
            signal_all(f, SIGKILL);
            return err->status;
        }
        f->pids[i] = pid;
        f->left++;
    }
    if (listen_fd >= 0) (void)close(listen_fd);
    atomic_store(&f->log->progress_shown, f->log->terminal); /* rank 0's line may stand there */
    return DDP_OK;
}

int launch_fork_ranks(const ddp_args *args, ddp_config *config, const ddp_launch *first, ddp_rank_main run,
                      ddp_log *log)
{
    struct ranks f = {
        .count = first->nproc, .first_rank = first->rank, .args = args, .config = config, .run = run, .log = log};
    sigset_t watched, before;
    ddp_err err = {0};

    launch_choose_signals(&watched);
    (void)sigprocmask(SIG_BLOCK, &watched, &before);
    f.pids = ddp_alloc((size_t)f.count * sizeof(*f.pids), &err);
    if (f.pids == NULL || fork_all(&f, first, &before, &err) != DDP_OK) {
        ddp_log_line(log, DDP_LOG_ERROR, "%s", err.msg);
        f.code = DDP_EXIT_INTERNAL;
    }
    wait_for_all(&f, &watched);
    free(f.pids);
    return f.cut ? ddp_log_ended_by(log, f.signal) : f.code;
}
