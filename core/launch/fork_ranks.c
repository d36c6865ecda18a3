/* launch/fork_ranks.c -- `--nproc N`: forks N ranks of one config, hands rank 0 a listening loopback socket, and sees to it that
 * they end together: no orphan, whatever dies first. Nothing is loaded before the fork. */
#include "base/sys.h"
#include "cli/cli.h"
#include <arpa/inet.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

/* Time that the ranks have to leave by themselves after the first one has failed: more than the second after which a rank
 * does not wait for a plugin's call any longer. Who still waits for a dead rank at the meeting never hears of it. */
enum { GRACE_MS = 1500, TERM_MS = 1000 };

struct family {
    int32_t count, left;
    int32_t first_rank;
    pid_t *pids;                            /* 0: has ended */
    int code;                               /* of the first cause */
    int64_t failed_at_ms, terminated_at_ms; /* 0: not */
    int64_t stopped_at_ms;                  /* a rank has left as it was asked to; 0: none */
    int signal;                             /* that this process was asked to end by; 0: none */
    bool hurried;                           /* it was asked again, and has killed the ranks */
    bool cut;                               /* it ended ranks that could not leave by themselves */
    ddp_cause *cause;
    ddp_log *log;
};

static ddp_status listen_loopback(int *out, char *endpoint, size_t capacity, ddp_err *err)
{
    struct sockaddr_in a = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t length = sizeof(a);
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);

    if (fd < 0) return ddp_fail_errno(err, "cannot open a socket");
    if (bind(fd, (struct sockaddr *)&a, sizeof(a)) != 0 || listen(fd, SOMAXCONN) != 0 ||
        getsockname(fd, (struct sockaddr *)&a, &length) != 0) {
        (void)ddp_fail_errno(err, "cannot listen on 127.0.0.1");
        (void)close(fd);
        return err->status;
    }
    (void)snprintf(endpoint, capacity, "127.0.0.1:%u", (unsigned)ntohs(a.sin_port));
    *out = fd;
    return DDP_OK;
}

/* In the child: one rank, then out without the parent's clean-up. */
static void child(const ddp_args *args, ddp_config *config, ddp_launch *launch, ddp_log *log, ddp_cause *cause,
                  pid_t parent, const sigset_t *signals)
{
    launch->stop = ddp_handle_signals(true);
    (void)prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (getppid() != parent) _exit(DDP_EXIT_INTERNAL); /* it died before the line above */
    (void)sigprocmask(SIG_SETMASK, signals, NULL);
    if (launch->rank > 0) atomic_store(&log->progress_shown, log->terminal); /* rank 0's line may stand there */
    exit(ddp_run_rank(args, config, launch, log, cause));
}

static void tell_all(const struct family *f, int sig)
{
    for (int32_t i = 0; i < f->count; i++)
        if (f->pids[i] > 0) (void)kill(f->pids[i], sig);
}

/* It ended by what it was asked to end by, or by what followed; a crash while it saves, or lack of memory, is a failure. */
static bool ended_as_asked(const struct family *f, int status)
{
    return f->signal != 0 && WIFSIGNALED(status) &&
           (WTERMSIG(status) == f->signal || (f->hurried && WTERMSIG(status) == SIGKILL));
}

static void rank_ended(struct family *f, pid_t pid, int status)
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
        tell_all(f, SIGCONT); /* one that was stopped, which may be the cause, leaves by itself as well */
    }
    if (!WIFSIGNALED(status) || f->terminated_at_ms != 0) return;
    f->cut = f->cut || as_asked;
    if (as_asked) return;
    (void)snprintf(line, sizeof(line), "rank %d (pid %d) was killed by signal %d (%s)%s", f->first_rank + i, (int)pid,
                   WTERMSIG(status), strsignal(WTERMSIG(status)),
                   WTERMSIG(status) == SIGKILL ? "; the kernel does that when memory runs out (dmesg tells)" : "");
    ddp_cause_print(f->cause, f->log, DDP_EXIT_INTERNAL, line); /* the rank itself cannot speak any more */
}

/* After the first failure the control plane lets the others leave; what has not after a while is made to. */
static void enforce(struct family *f)
{
    int64_t now = ddp_now_ms();

    if (f->failed_at_ms == 0 && f->stopped_at_ms != 0 && now >= f->stopped_at_ms + DDP_STOP_MS) f->failed_at_ms = now;
    if (f->failed_at_ms == 0 || f->left == 0) return;
    if (f->terminated_at_ms == 0 && now >= f->failed_at_ms + GRACE_MS) {
        f->terminated_at_ms = now;
        tell_all(f, SIGTERM);
        tell_all(f, SIGCONT);
    } else if (f->terminated_at_ms != 0 && now >= f->terminated_at_ms + TERM_MS) {
        tell_all(f, SIGKILL);
    }
}

/* The ranks agree on a step, save and leave in their own time; a second signal does not wait for that. */
static void asked_to_end(struct family *f, int sig)
{
    bool again = f->signal != 0;

    f->signal = sig;
    f->hurried = again;
    tell_all(f, again ? SIGKILL : sig);
    if (!again)
        ddp_log_line(f->log, DDP_LOG_INFO, "signal %d (%s): the ranks are asked to end; a second one ends them at once",
                     sig, strsignal(sig));
}

static void wait_for_all(struct family *f, const sigset_t *watched)
{
    while (f->left > 0) {
        const struct timespec tick = {.tv_nsec = 100000000};
        int status, sig = sigtimedwait(watched, NULL, &tick);
        pid_t pid;

        if (sig == SIGINT || sig == SIGTERM || sig == SIGHUP) asked_to_end(f, sig);
        while ((pid = waitpid(-1, &status, WNOHANG)) > 0) rank_ended(f, pid, status);
        enforce(f);
    }
}

static ddp_status fork_all(struct family *f, const ddp_args *args, ddp_config *config, const ddp_launch *first,
                           const sigset_t *signals, ddp_err *err)
{
    ddp_launch with_secret = *first;
    char endpoint[64];
    int listen_fd = -1;
    pid_t parent = getpid();

    f->cause = ddp_cause_create(err);
    if (f->cause == NULL) return err->status;
    if (first->introduced) {
        /* other users of this machine reach the port as well */
        DDP_TRY(ddp_secret_make(&with_secret, err));
        DDP_TRY(listen_loopback(&listen_fd, endpoint, sizeof(endpoint), err));
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
            child(args, config, &launch, f->log, f->cause, parent, signals);
        }
        if (pid < 0) {
            (void)ddp_fail_errno(err, "cannot start rank %d", launch.rank);
            f->failed_at_ms = f->terminated_at_ms = ddp_now_ms();
            f->code = DDP_EXIT_INTERNAL;
            tell_all(f, SIGKILL);
            return err->status;
        }
        f->pids[i] = pid;
        f->left++;
    }
    if (listen_fd >= 0) (void)close(listen_fd);
    atomic_store(&f->log->progress_shown, f->log->terminal); /* rank 0's line may stand there */
    return DDP_OK;
}

void ddp_choose_signals(sigset_t *watched)
{
    static const int asking[] = {SIGINT, SIGTERM, SIGHUP};
    struct sigaction now;

    (void)signal(SIGCHLD, SIG_DFL); /* inherited as ignored, it would hide how a rank ended */
    (void)sigemptyset(watched);
    (void)sigaddset(watched, SIGCHLD);
    for (size_t i = 0; i < DDP_COUNT(asking); i++)
        if (sigaction(asking[i], NULL, &now) == 0 && now.sa_handler != SIG_IGN) (void)sigaddset(watched, asking[i]);
}

int ddp_supervise(const ddp_args *args, ddp_config *config, const ddp_launch *first, ddp_log *log)
{
    struct family f = {.count = first->nproc, .first_rank = first->rank, .log = log};
    sigset_t watched, before;
    ddp_err err = {0};

    ddp_choose_signals(&watched);
    (void)sigprocmask(SIG_BLOCK, &watched, &before);
    f.pids = ddp_alloc((size_t)f.count * sizeof(*f.pids), &err);
    if (f.pids == NULL || fork_all(&f, args, config, first, &before, &err) != DDP_OK) {
        ddp_log_line(log, DDP_LOG_ERROR, "%s", err.msg);
        f.code = DDP_EXIT_INTERNAL;
    }
    wait_for_all(&f, &watched);
    free(f.pids);
    if (!f.cut) return f.code;
    ddp_log_line(log, DDP_LOG_ERROR, "ended by signal %d (%s)", f.signal, strsignal(f.signal));
    return 128 + f.signal;
}
