/* launch/mpirun_reap.c -- looks after a launcher until it and all that it has started have ended: hands on what this process is asked,
 * and sees to it that neither a launcher that stands still nor one that dies holds the run or leaves ranks behind. This
 * process is their subreaper, so that what loses its parent becomes its own child. One thread, no globals. */
#include "base/sys.h"
#include "cli/cli.h"
#include <dirent.h>
#include <fcntl.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

enum {
    SURVEY_MS = 1000,  /* between two counts of the ranks */
    SEARCHES = 60,     /* of all processes for ranks: some may be on other hosts */
    LEAVE_MS = 5000,   /* for a launcher without ranks to end, and again after SIGTERM; mpirun takes about one second */
    ORPHAN_MS = 5000,  /* for ranks without a launcher to save and leave; Open MPI ends them after three seconds */
    KILLED_MS = 10000, /* what SIGKILL has not ended by then hangs in the kernel */
    MAX_RANKS = 4096   /* of --nproc */
};

typedef struct tended {
    const ddp_launched *of;
    ddp_log *log;
    int signal;                   /* that this process was asked to end by; 0: none */
    bool ended, given_up;         /* the launcher; what does not end by SIGKILL */
    int status;                   /* of the launcher, once ended */
    int code;                     /* of the first rank that became ours and ended badly */
    size_t count, most, searches; /* ranks that are known; of these alive at once, at most */
    int64_t surveyed_ms, still_ms, left_ms, empty_ms, termed_ms, orphaned_ms, killed_ms; /* 0: not */
    pid_t ranks[MAX_RANKS];
} tended;

/* ---- processes ----------------------------------------------------------------------------------------------------------- */
/* Parent of a process that runs or is stopped, and which of both, from /proc/PID/stat; -1 when it has ended. */
static pid_t parent_of(pid_t pid, bool *stopped)
{
    char path[32], text[512], state;
    const char *end;
    int fd, parent = -1;
    ssize_t n;

    (void)snprintf(path, sizeof(path), "/proc/%d/stat", (int)pid);
    fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0) return -1;
    n = read(fd, text, sizeof(text) - 1);
    (void)close(fd);
    if (n <= 0) return -1;
    text[n] = '\0';
    end = strrchr(text, ')'); /* of the name, which may hold anything */
    if (end == NULL || sscanf(end + 1, " %c %d", &state, &parent) != 2) return -1;
    *stopped = state == 'T';
    return state == 'Z' || state == 'X' ? -1 : parent;
}

static bool was_there_before(const ddp_launched *l, pid_t pid)
{
    for (size_t i = 0; i < l->other_count; i++)
        if (l->others[i] == pid) return true;
    return false;
}

/* Sends `sig`, 0 for none, to the running children of `parent`, and lists up to `capacity` of them in `out`. */
static size_t each_child(const ddp_launched *l, pid_t parent, int sig, pid_t *out, size_t capacity)
{
    DIR *proc = opendir("/proc");
    struct dirent *entry;
    size_t count = 0;
    bool stopped;

    while (proc != NULL && (entry = readdir(proc)) != NULL) {
        pid_t pid = (pid_t)strtol(entry->d_name, NULL, 10), of = pid > 0 ? parent_of(pid, &stopped) : -1;

        if (of != parent || was_there_before(l, pid)) continue;
        if (sig != 0) (void)kill(pid, sig);
        if (count < capacity) out[count] = pid;
        count++;
    }
    if (proc != NULL) (void)closedir(proc);
    return count;
}

void ddp_mpirun_prepare(ddp_launched *l)
{
    l->other_count = 0;
    l->other_count = each_child(l, getpid(), 0, l->others, DDP_COUNT(l->others));
    l->adopts = l->other_count <= DDP_COUNT(l->others) && prctl(PR_SET_CHILD_SUBREAPER, 1) == 0;
    if (!l->adopts) l->other_count = 0;
}

/* Ranks that have lost the launcher; `sig` is sent to them. */
static size_t orphans(const tended *t, int sig)
{
    return t->of->adopts ? each_child(t->of, getpid(), sig, NULL, 0) : 0;
}

/* The ranks are the launcher's children on this host. All processes are searched only until as many are known. */
static size_t count_ranks(tended *t, size_t *stopped_count)
{
    size_t alive = 0;
    bool stopped = false;

    if (t->count < (size_t)t->of->nproc && t->searches < SEARCHES) {
        t->searches++;
        t->count = DDP_MIN_OF(each_child(t->of, t->of->pid, 0, t->ranks, MAX_RANKS), MAX_RANKS);
    }
    *stopped_count = 0;
    for (size_t i = 0; i < t->count; i++) {
        if (parent_of(t->ranks[i], &stopped) != t->of->pid) continue;
        alive++;
        *stopped_count += stopped;
    }
    t->most = DDP_MAX_OF(t->most, alive);
    return alive;
}

/* ---- what is done to them ------------------------------------------------------------------------------------------------ */
/* The launcher, its children, and what has become a child of this process; again with each tick, for what they start. */
static void kill_all(tended *t, int64_t now)
{
    if (t->killed_ms == 0) t->killed_ms = now;
    if (!t->ended) (void)each_child(t->of, t->of->pid, SIGKILL, NULL, 0);
    if (!t->ended) (void)kill(t->of->pid, SIGKILL);
    (void)orphans(t, SIGKILL);
    if (now < t->killed_ms + KILLED_MS) return;
    ddp_log_line(
        t->log, DDP_LOG_ERROR,
        "%s or a rank does not end by SIGKILL, it hangs in the kernel (ps -o pid,state,wchan,args shows where)",
        t->of->name);
    t->given_up = true;
}

/* The ranks are asked themselves, because what a launcher makes of a signal leaves them no time to save. A second signal ends
 * all of them here, and at once. */
static void asked_to_end(tended *t, int sig)
{
    bool again = t->signal != 0;

    t->signal = sig;
    if (again) {
        kill_all(t, ddp_now_ms());
        return;
    }
    ddp_log_line(t->log, DDP_LOG_INFO, "signal %d (%s): the ranks are asked to end; a second one ends them at once",
                 sig, strsignal(sig));
    if (t->ended || each_child(t->of, t->of->pid, sig, NULL, 0) > 0) return;
    (void)kill(t->of->pid, SIGTERM); /* no rank is there */
    t->termed_ms = ddp_now_ms();
}

/* A launcher that stands still sees neither a signal nor that its ranks want to leave, and they wait for it. It is made to go
 * on, but for a job that somebody has stopped as a whole. */
static void wake_launcher(tended *t, bool at_once, bool ranks_stopped, int64_t now)
{
    bool stopped = false;

    if (parent_of(t->of->pid, &stopped) != getpid() || !stopped || (ranks_stopped && !at_once)) {
        t->still_ms = 0;
        return;
    }
    if (t->still_ms == 0) t->still_ms = now;
    if (!at_once && now < t->still_ms + LEAVE_MS) return;
    ddp_log_line(t->log, DDP_LOG_WARN, "%s (pid %d) was stopped, and is made to go on: its ranks would wait for it",
                 t->of->name, (int)t->of->pid);
    (void)kill(t->of->pid, SIGCONT);
}

static void watch_launcher(tended *t, int64_t now)
{
    size_t alive, stopped;

    if (t->signal == 0 && t->empty_ms == 0 && now < t->surveyed_ms + SURVEY_MS) return;
    t->surveyed_ms = now;
    alive = count_ranks(t, &stopped);
    if (t->signal != 0 && alive < t->most && t->left_ms == 0) t->left_ms = now;
    if (alive > 0 || t->most == 0)
        t->empty_ms = 0;
    else if (t->empty_ms == 0)
        t->empty_ms = now;
    wake_launcher(t, t->signal != 0 || t->empty_ms != 0, stopped == alive, now);
    if (t->termed_ms == 0 && t->empty_ms != 0 && now >= t->empty_ms + LEAVE_MS) {
        ddp_log_line(t->log, DDP_LOG_WARN, "%s has not ended after its ranks, and is made to", t->of->name);
        t->termed_ms = now;
        (void)kill(t->of->pid, SIGTERM);
    }
    if ((t->termed_ms != 0 && now >= t->termed_ms + LEAVE_MS) || (t->left_ms != 0 && now >= t->left_ms + DDP_STOP_MS))
        kill_all(t, now);
}

/* Ranks without a launcher: the work so far is saved before its library notices and ends them. */
static void watch_orphans(tended *t, int64_t now)
{
    if (t->orphaned_ms == 0) {
        t->orphaned_ms = now;
        if (t->signal == 0) (void)orphans(t, SIGTERM); /* a second one would end them at once */
        (void)orphans(t, SIGCONT);
    }
    if (now >= t->orphaned_ms + ORPHAN_MS) kill_all(t, now);
}

static void bury(tended *t)
{
    int status;
    pid_t pid;

    while ((pid = waitpid(-1, &status, WNOHANG)) > 0) {
        if (pid == t->of->pid) {
            t->ended = true;
            t->status = status;
        } else if (t->code == 0 && !was_there_before(t->of, pid)) {
            t->code = WIFEXITED(status) ? WEXITSTATUS(status) : DDP_EXIT_PEER;
        }
    }
}

/* ---- its end ------------------------------------------------------------------------------------------------------------- */
static int ended_by_signal(const tended *t)
{
    ddp_log_line(t->log, DDP_LOG_ERROR, "ended by signal %d (%s)", t->signal, strsignal(t->signal));
    return 128 + t->signal;
}

/* A launcher gives the code of the first rank that failed, 128 + n for one that a signal ended. */
static int exit_code_of(const tended *t)
{
    int code = WIFEXITED(t->status) ? WEXITSTATUS(t->status) : 128 + WTERMSIG(t->status), sig = code - 128;

    if (t->killed_ms != 0) return t->signal != 0 ? ended_by_signal(t) : t->code;
    if (sig == SIGINT || sig == SIGTERM || sig == SIGHUP) return code; /* asked to end */
    if (t->signal != 0 && code != DDP_EXIT_OK) return ended_by_signal(t);
    if (code <= DDP_EXIT_DATA) return code;
    if (sig <= 0 || sig > SIGRTMAX) {
        ddp_log_line(t->log, DDP_LOG_ERROR,
                     "%s failed with exit code %d, which no rank gives: see its own lines above, or run it by hand",
                     t->of->name, code);
        return DDP_EXIT_PLUGIN;
    }
    ddp_log_line(t->log, DDP_LOG_ERROR, "%s was killed by signal %d (%s)%s",
                 WIFEXITED(t->status) ? "a rank" : t->of->name, sig, strsignal(sig),
                 sig == SIGKILL ? "; the kernel does that when memory runs out (dmesg tells)" : "");
    return DDP_EXIT_PEER;
}

int ddp_mpirun_supervise(const ddp_launched *launched, const sigset_t *watched, ddp_log *log)
{
    tended *t = calloc(1, sizeof(*t));
    int code = DDP_EXIT_INTERNAL;

    if (t == NULL) {
        ddp_log_line(log, DDP_LOG_ERROR, "no memory to look after %s", launched->name);
        (void)kill(launched->pid, SIGTERM);
        return code;
    }
    t->of = launched;
    t->log = log;
    for (bury(t); !t->given_up && (!t->ended || orphans(t, 0) > 0); bury(t)) {
        const struct timespec tick = {.tv_nsec = 100000000};
        int sig = sigtimedwait(watched, NULL, &tick);
        int64_t now = ddp_now_ms();

        if (sig == SIGINT || sig == SIGTERM || sig == SIGHUP) asked_to_end(t, sig);
        if (sig == SIGCHLD) continue; /* who it was decides what is done */
        if (t->killed_ms != 0)
            kill_all(t, now);
        else if (t->ended)
            watch_orphans(t, now);
        else
            watch_launcher(t, now);
    }
    bury(t); /* the last of them */
    code = exit_code_of(t);
    launched->clean((uint64_t)launched->pid);
    free(t);
    return code;
}
