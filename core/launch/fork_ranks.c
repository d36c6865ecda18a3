/* launch/fork_ranks.c -- `--nproc N`: forks N ranks of one config, gives rank 0 a listening loopback socket, and
 * sees to it that they end together: no orphan, whatever dies first. With [run] restarts a rank that is lost is started
 * again instead, and one that stands still is killed for that. Nothing is loaded before a fork. One thread. */
#include "launch/fork_ranks.h"
#include "base/losses.h"
#include "base/sys.h"
#include "launch/secret.h"
#include "launch/signals.h"
#include "net/endpoint.h"
#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

/* Time that the ranks have to leave by themselves after the first one has failed: more than the second after which a
 * rank does not wait for a plugin's call any longer. A rank that waits for a dead one at the rendezvous is not
 * notified. */
enum { GRACE_MS = 1500, TERM_MS = 1000, TICK_MS = 100 };

/* A lost rank that the system does not let start, as when memory has just run out, gets further tries, each after twice
 * the time: a minute together. */
enum { START_TRIES = 9, START_AGAIN_MS = 250 };

typedef struct rank_process {
    pid_t pid;           /* 0: has ended */
    int64_t started_ms;  /* when it was */
    int64_t start_at_ms; /* when it is to be started again; 0: not */
    int starts_failed;   /* since it was lost */
    int64_t stopped_ms;  /* how long it has been stopped while this process ran; -1: it is not */
} rank_process;

struct ranks {
    int32_t count, left; /* left: running, or to be started again */
    rank_process *list;
    ddp_launch first; /* of the first rank, as all others get it */
    int listen_fd;    /* rank 0's, for each process that is it; -1: it listens by itself */
    char endpoint[DDP_ENDPOINT_MAX];
    sigset_t before;                        /* the ranks' signal mask */
    int code;                               /* of the first cause */
    int64_t failed_at_ms, terminated_at_ms; /* 0: not */
    int64_t ticked_ms;                      /* the last look at the ranks */
    int signal;                             /* that this process was asked to end by; 0: none */
    bool hurried;                           /* it was asked again, and has killed the ranks */
    bool cut;                               /* it ended ranks that could not leave by themselves */
    bool gave_up;                           /* a lost rank cannot be started: the others were asked to end */
    ddp_losses losses;
    int64_t loss_ms;  /* of the last one that was counted */
    uint32_t loss_of; /* generations that had begun then */
    const ddp_args *args;
    ddp_config *config;
    ddp_rank_main run;
    ddp_cause *cause;
    ddp_log *log;
};

/* ---- starting ---------------------------------------------------------------------------------------------------- */
/* In the child: one rank, then out without the parent's clean-up. */
static void child(const struct ranks *f, ddp_launch *launch, pid_t parent)
{
    if (launch->rank == 0)
        launch->listen_fd = f->listen_fd;
    else if (f->listen_fd >= 0)
        (void)close(f->listen_fd);
    launch->stop = ddp_handle_signals(f->cause);
    (void)prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (getppid() != parent) _exit(DDP_EXIT_INTERNAL); /* it died before the line above */
    (void)sigprocmask(SIG_SETMASK, &f->before, NULL);
    if (launch->rank > 0) atomic_store(&f->log->progress_shown, f->log->terminal); /* rank 0's line may stand there */
    exit(f->run(f->args, f->config, launch, f->log, f->cause));
}

static const char *rank_name(const struct ranks *f, int32_t i, char name[32])
{
    (void)snprintf(name, 32, f->first.rank < 0 ? "the spare" : "rank %d", f->first.rank + i);
    return name;
}

static ddp_status fork_failed(const struct ranks *f, int32_t i, ddp_err *err)
{
    int error = errno;
    const char *next = error == EAGAIN   ? "; raise the limit of processes (ulimit -u, pids.max of the container)"
                       : error == ENOMEM ? "; give this host, or the container (memory.max), more memory"
                                         : "";
    char name[32];

    return ddp_fail(err, DDP_ERR_SYSTEM, "cannot start %s: %s%s", rank_name(f, i, name), strerror(error), next);
}

static ddp_status start_rank(struct ranks *f, int32_t i, ddp_err *err)
{
    ddp_launch launch = f->first;
    pid_t parent = getpid(), pid;

    launch.rank = f->first.rank + i;
    launch.local_rank = i;
    launch.local_size = f->count;
    launch.introduced = f->listen_fd >= 0;
    launch.endpoint = f->listen_fd >= 0 && launch.rank != 0 ? f->endpoint : NULL;
    launch.restarted = f->list[i].started_ms != 0;
    if (launch.restarted) launch.began_ns = ddp_now_ns();
    pid = fork();
    if (pid == 0) child(f, &launch, parent);
    if (pid < 0) return fork_failed(f, i, err);
    f->list[i] = (rank_process){.pid = pid, .started_ms = ddp_now_ms(), .stopped_ms = -1};
    return DDP_OK;
}

/* ---- ranks that end ---------------------------------------------------------------------------------------------- */
static void signal_all(const struct ranks *f, int sig)
{
    for (int32_t i = 0; i < f->count; i++)
        if (f->list[i].pid > 0) (void)kill(f->list[i].pid, sig);
}

/* It ended by what it was asked to end by, or by what followed; a crash while it saves, or lack of memory, is a
 * failure. */
static bool ended_as_asked(const struct ranks *f, int status)
{
    return f->signal != 0 && WIFSIGNALED(status) &&
           (WTERMSIG(status) == f->signal || (f->hurried && WTERMSIG(status) == SIGKILL));
}

/* What another process in its place can mend: it was killed, or has lost the others. */
static bool is_loss(const struct ranks *f, int status)
{
    return f->config->run->restarts > 0 && f->signal == 0 && f->failed_at_ms == 0 &&
           (WIFSIGNALED(status) || ddp_exit_is_loss(WEXITSTATUS(status)));
}

/* Counts the loss of a rank; several ranks of one generation are one loss. */
static bool may_restart(struct ranks *f, int32_t i, int64_t now)
{
    uint32_t begun = ddp_cause_generations(f->cause);

    if (f->losses.count > 0 && begun == f->loss_of && f->list[i].started_ms <= f->loss_ms) return true;
    f->loss_of = begun;
    f->loss_ms = now;
    return ddp_losses_add(&f->losses, now);
}

/* "rank 2 (pid 123) was killed by signal 9 (Killed)", "... has lost the other ranks" */
static void ending_text(const struct ranks *f, int32_t i, pid_t pid, int status, char *text, size_t capacity)
{
    char name[32], hint[DDP_HINT_BYTES];
    int n = snprintf(text, capacity, "%s (pid %d) ", rank_name(f, i, name), (int)pid);

    if (WIFSIGNALED(status))
        (void)snprintf(text + n, capacity - (size_t)n, "was killed by signal %d (%s)%s", WTERMSIG(status),
                       strsignal(WTERMSIG(status)), launch_killed_hint(WTERMSIG(status), f->cause, hint));
    else
        (void)snprintf(text + n, capacity - (size_t)n, "ended with exit code %d", WEXITSTATUS(status));
}

/* The others wait for the one that comes in its place. */
static void plan_restart(struct ranks *f, int32_t i, const char *what)
{
    int64_t delay = ddp_losses_delay(&f->losses, f->config->run->restart_delay_ms), now = ddp_now_ms();

    f->list[i].start_at_ms = DDP_MAX_OF(now + delay, 1);
    f->left++;
    ddp_cause_forget(f->cause);
    ddp_log_line(f->log, DDP_LOG_WARN, "%s: it is started again in %.3g s (restart %zu of %" PRId64 ")", what,
                 (double)delay / 1e3, f->losses.count, f->config->run->restarts);
}

static void rank_ended(struct ranks *f, pid_t pid, int status)
{
    bool as_asked = ended_as_asked(f, status), used_up = false;
    char what[160 + DDP_HINT_BYTES], line[160 + sizeof(what)];
    int32_t i = 0;

    while (i < f->count && f->list[i].pid != pid) i++;
    if (i == f->count) return;
    f->list[i].pid = 0;
    f->left--;
    if (WIFEXITED(status) && WEXITSTATUS(status) == 0) return;
    ending_text(f, i, pid, status, what, sizeof(what));
    if (is_loss(f, status)) {
        if (may_restart(f, i, ddp_now_ms())) {
            plan_restart(f, i, what);
            return;
        }
        used_up = true;
    }
    if (f->code == 0) f->code = WIFEXITED(status) ? WEXITSTATUS(status) : as_asked ? 128 + f->signal : DDP_EXIT_PEER;
    if (WIFEXITED(status) && WEXITSTATUS(status) > 128) return; /* asked to end; the others are on their way too */
    if (f->failed_at_ms == 0) {
        f->failed_at_ms = ddp_now_ms();
        signal_all(f, SIGCONT); /* one that was stopped, which may be the cause, leaves by itself as well */
    }
    if ((!WIFSIGNALED(status) && !used_up) || f->terminated_at_ms != 0) return;
    f->cut = f->cut || as_asked;
    if (as_asked) return;
    (void)snprintf(line, sizeof(line), "%s%s", what,
                   used_up ? ", and [run] restarts are used up: look for the cause, then start the run again" : "");
    ddp_cause_print(f->cause, f->log, DDP_EXIT_INTERNAL, line); /* the rank itself cannot print it */
}

/* With restarts: a rank that is stopped for as long as the others wait for one is lost, and must make room for the next
 * process. Time in which this process did not run itself does not count. */
static void kill_stopped(struct ranks *f)
{
    int64_t now = ddp_now_ms(), passed = DDP_MIN_OF(now - f->ticked_ms, (int64_t)2 * TICK_MS);

    f->ticked_ms = now;
    for (int32_t i = 0; i < f->count; i++) {
        rank_process *r = &f->list[i];
        char name[32];

        if (r->pid == 0 || r->stopped_ms < 0) continue;
        r->stopped_ms += passed;
        if (r->stopped_ms < f->config->group->peer_timeout_ms) continue;
        ddp_log_line(f->log, DDP_LOG_WARN, "%s (pid %d) has been stopped for %.3g s (peer_timeout): it is killed",
                     rank_name(f, i, name), (int)r->pid, (double)r->stopped_ms / 1e3);
        (void)kill(r->pid, SIGKILL);
        r->stopped_ms = -1;
    }
}

static void reap(struct ranks *f)
{
    int status, flags = WNOHANG | (f->config->run->restarts > 0 ? WUNTRACED | WCONTINUED : 0);
    pid_t pid;

    while ((pid = waitpid(-1, &status, flags)) > 0) {
        if (WIFEXITED(status) || WIFSIGNALED(status)) {
            rank_ended(f, pid, status);
            continue;
        }
        for (int32_t i = 0; i < f->count; i++)
            if (f->list[i].pid == pid) f->list[i].stopped_ms = WIFSTOPPED(status) ? 0 : -1;
    }
}

static void give_up_start(struct ranks *f, const ddp_err *err)
{
    ddp_log_line(f->log, DDP_LOG_ERROR, "%s", err->msg);
    if (f->code == 0) f->code = DDP_EXIT_INTERNAL;
    f->failed_at_ms = f->terminated_at_ms = ddp_now_ms();
    signal_all(f, SIGKILL);
}

/* It cannot be started. The others get the time that a signal gives them: to save a step, if they are in one. */
static void give_up_restart(struct ranks *f, const ddp_err *err)
{
    char line[sizeof(err->msg) + 64];

    (void)snprintf(line, sizeof(line), "%s (tried %d times): the run ends", err->msg, START_TRIES);
    ddp_cause_print(f->cause, f->log, DDP_EXIT_INTERNAL, line);
    if (f->code == 0) f->code = DDP_EXIT_INTERNAL;
    f->gave_up = true;
    f->left--;
    f->signal = SIGTERM;
    signal_all(f, SIGTERM);
    signal_all(f, SIGCONT); /* one that was stopped leaves as well */
}

/* Another try, or the end. */
static void start_failed(struct ranks *f, int32_t i, const ddp_err *err)
{
    rank_process *r = &f->list[i];
    int64_t delay = (int64_t)START_AGAIN_MS << r->starts_failed;

    if (++r->starts_failed == START_TRIES) {
        give_up_restart(f, err);
        return;
    }
    r->start_at_ms = ddp_now_ms() + delay;
    ddp_log_line(f->log, DDP_LOG_WARN, "%s: it is tried again in %.3g s (try %d of %d)", err->msg, (double)delay / 1e3,
                 r->starts_failed + 1, START_TRIES);
}

static void start_lost(struct ranks *f)
{
    int64_t now = ddp_now_ms();
    ddp_err err = {0};

    for (int32_t i = 0; i < f->count; i++) {
        rank_process *r = &f->list[i];
        bool ends = f->signal != 0 || f->failed_at_ms != 0;

        if (r->start_at_ms == 0 || (now < r->start_at_ms && !ends)) continue;
        r->start_at_ms = 0;
        if (ends)
            f->left--;
        else if (start_rank(f, i, &err) != DDP_OK)
            start_failed(f, i, &err);
    }
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
    f->ticked_ms = ddp_now_ms();
    while (f->left > 0) {
        const struct timespec tick = {.tv_nsec = TICK_MS * 1000000l};
        int sig = sigtimedwait(watched, NULL, &tick);

        if (ddp_signal_ends(sig)) asked_to_end(f, sig);
        reap(f);
        kill_stopped(f);
        start_lost(f);
        enforce(f);
    }
}

/* ---- all of it --------------------------------------------------------------------------------------------------- */
static ddp_status fork_all(struct ranks *f, ddp_err *err)
{
    f->cause = launch_cause_create(err);
    if (f->cause == NULL) return err->status;
    if (f->first.introduced) {
        /* other users of this machine reach the port as well */
        DDP_TRY(launch_secret_make(&f->first, err));
        DDP_TRY(ddp_endpoint_listen("127.0.0.1:0", &f->listen_fd, f->endpoint, err));
    }
    for (int32_t i = 0; i < f->count; i++) {
        DDP_TRY(start_rank(f, i, err));
        f->left++;
    }
    /* what starts a rank again needs it; else the ranks alone have it */
    if (f->listen_fd >= 0 && f->config->run->restarts == 0) {
        (void)close(f->listen_fd);
        f->listen_fd = -1;
    }
    atomic_store(&f->log->progress_shown, f->log->terminal); /* rank 0's line may stand there */
    return DDP_OK;
}

int launch_fork_ranks(const ddp_args *args, ddp_config *config, const ddp_launch *first, ddp_rank_main run,
                      ddp_log *log)
{
    struct ranks f = {.first = *first,
                      .listen_fd = -1,
                      .losses = {.most = config->run->restarts, .window_ms = config->run->restart_window_ms},
                      .args = args,
                      .config = config,
                      .run = run,
                      .log = log};
    sigset_t watched;
    ddp_err err = {0};

    launch_choose_signals(&watched);
    (void)sigprocmask(SIG_BLOCK, &watched, &f.before);
    f.list = ddp_alloc((size_t)first->nproc * sizeof(*f.list), &err);
    if (f.list != NULL) f.count = first->nproc;
    if (f.list == NULL || fork_all(&f, &err) != DDP_OK) give_up_start(&f, &err);
    wait_for_all(&f, &watched);
    if (f.listen_fd >= 0) (void)close(f.listen_fd);
    free(f.list);
    if (f.cut && !f.gave_up) return launch_log_ended_by(log, f.signal, f.cause);
    if (f.code != DDP_EXIT_OK && f.cause != NULL) launch_log_lost(log, f.cause);
    return f.code;
}
