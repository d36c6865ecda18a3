/* launch/mpirun.c -- `--nproc N` with a backend that brings a launcher of its own, as mpirun is: the launcher starts
 * this program once for each rank, and this process supervises the launcher. Which launcher, only the plugin knows.
 *
 * This process passes on what it is asked, and sees to it that a launcher that was stopped or killed neither holds
 * up the run nor leaves ranks behind. It is the subreaper of what it starts: a rank that loses its parent becomes
 * its child. One thread. */
#include "launch/mpirun.h"
#include "base/losses.h"
#include "base/sys.h"
#include "launch/launcher_command.h"
#include "launch/relay.h"
#include "launch/secret.h"
#include "launch/signals.h"
#include <arpa/inet.h>
#include <dirent.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

enum {
    OFTEN_MS = 1000, /* between two looks at the launcher and its ranks, where something may be about to change */
    SELDOM_MS = 5000,
    SETTLED_MS = 60000, /* after the start all ranks of this host should be there, and looks become seldom */
    LEAVE_MS = 5000, /* for a launcher without ranks to end, and again after SIGTERM; mpirun takes about one second */
    ORPHAN_MS = 5000 /* for ranks without a launcher to save and leave; Open MPI ends them after three seconds */
};

typedef struct supervision {
    pid_t launcher; /* 0: not started */
    const char *name;
    ddp_log *log;
    launch_relay relay; /* of its ranks */
    pid_t others[64];   /* children that this process had before: whoever became this program by exec has them */
    size_t other_count;
    bool adopts;        /* is a subreaper */
    int signal;         /* that this process was asked to end by; 0: none */
    size_t asked;       /* ranks of the relay that were there by then */
    bool ended, killed; /* the launcher; by this process, with all that it had started */
    bool lost_launcher; /* a signal of somebody else's had ended it when its ranks were killed */
    int status;         /* of the launcher, once ended */
    int code;           /* of the first rank that became a child and failed */
    size_t most;        /* ranks alive at once */
    bool was_stopped;   /* the launcher, at the last look */
    int64_t began_ms, looked_ms, end_at_ms, kill_at_ms; /* the last two: 0: never */
} supervision;

/* ---- processes --------------------------------------------------------------------------------------------------- */
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

static bool was_there_before(const supervision *s, pid_t pid)
{
    for (size_t i = 0; i < s->other_count; i++)
        if (s->others[i] == pid) return true;
    return false;
}

/* Whether a process with the parent `of` is one of the ranks of `parent`, which may have a process of its own between
 * them and itself, as mpiexec of MPICH has. A rank that has not yet said who it is counts as well, or what stands
 * between does in its place. Of this process, which has no ranks of its own, all children count. */
static bool is_rank_of(const supervision *s, pid_t pid, pid_t of, pid_t parent)
{
    bool stopped;

    if (of == parent) return parent == getpid() || !launch_relay_stands_between(&s->relay, pid);
    return launch_relay_is_rank(&s->relay, pid) && parent_of(of, &stopped) == parent;
}

/* Sends `sig`, 0 for none, to the ranks of `parent` that have not ended; how many there are, and are stopped.
 * Before the launcher is started the first of them are kept in `others`. */
static size_t each_child(supervision *s, pid_t parent, int sig, size_t *stopped_count)
{
    DIR *proc = opendir("/proc");
    struct dirent *entry;
    size_t count = 0;
    bool stopped = false;

    *stopped_count = 0;
    while (proc != NULL && (entry = readdir(proc)) != NULL) {
        pid_t pid = (pid_t)strtol(entry->d_name, NULL, 10), of = pid > 0 ? parent_of(pid, &stopped) : -1;

        if (of <= 0 || !is_rank_of(s, pid, of, parent) || was_there_before(s, pid)) continue;
        if (sig != 0) (void)kill(pid, sig);
        if (s->launcher == 0 && count < DDP_COUNT(s->others)) s->others[count] = pid;
        *stopped_count += stopped;
        count++;
    }
    if (proc != NULL) (void)closedir(proc);
    return count;
}

static size_t ranks(supervision *s, int sig)
{
    size_t stopped;

    return each_child(s, s->launcher, sig, &stopped);
}

/* Ranks that have lost the launcher. */
static size_t orphans(supervision *s, int sig)
{
    size_t stopped;

    return s->adopts ? each_child(s, getpid(), sig, &stopped) : 0;
}

/* Before the launcher is started. */
static void adopt(supervision *s)
{
    size_t stopped, count = each_child(s, getpid(), 0, &stopped);

    s->adopts = count <= DDP_COUNT(s->others) && prctl(PR_SET_CHILD_SUBREAPER, 1) == 0;
    if (s->adopts) s->other_count = count;
}

/* ---- supervising ------------------------------------------------------------------------------------------------- */
/* The launcher, its ranks, and what has become a child of this process; again with each tick, for what they start. */
static void kill_all(supervision *s)
{
    if (!s->killed) s->lost_launcher = s->ended && WIFSIGNALED(s->status);
    s->killed = true;
    if (!s->ended) (void)ranks(s, SIGKILL);
    if (!s->ended) (void)kill(s->launcher, SIGKILL);
    (void)orphans(s, SIGKILL);
}

static void end_launcher(supervision *s, int64_t now)
{
    (void)kill(s->launcher, SIGTERM);
    s->kill_at_ms = now + LEAVE_MS;
}

/* The ranks are asked themselves, because what a launcher makes of a signal leaves them no time to save. A second
 * signal ends all of them here, and at once. */
static void asked_to_end(supervision *s, int sig, int64_t now)
{
    bool again = s->signal != 0;

    s->signal = sig;
    s->asked = s->relay.rank_count;
    if (again) {
        s->kill_at_ms = now;
        return;
    }
    launch_log_asked_to_end(s->log, sig);
    if (!s->ended && ranks(s, sig) == 0) end_launcher(s, now);
}

/* Ranks that begin after this process was asked to end, and could not be told before: their parent takes no signal. */
static void ask_late_ranks(supervision *s)
{
    for (; s->signal != 0 && s->asked < s->relay.rank_count; s->asked++)
        if (s->relay.ranks[s->asked].parent != s->launcher) (void)kill(s->relay.ranks[s->asked].pid, s->signal);
}

/* A launcher that was stopped sees neither a signal nor that its ranks want to leave, and they wait for it: it is
 * made to go on, but for a job that somebody has stopped as a whole. One that stays without ranks is made to end. */
static void look(supervision *s, int64_t now)
{
    size_t stopped_ranks, alive = each_child(s, s->launcher, 0, &stopped_ranks);
    bool empty = alive == 0 && s->most > 0, urgent = s->signal != 0 || empty, stopped = false;

    s->looked_ms = now;
    s->most = DDP_MAX_OF(s->most, alive);
    if (s->signal != 0 && alive < s->most && s->kill_at_ms == 0) s->kill_at_ms = now + DDP_STOP_MS;
    if (parent_of(s->launcher, &stopped) == getpid() && stopped &&
        (urgent || (s->was_stopped && stopped_ranks < alive))) {
        ddp_log_line(s->log, DDP_LOG_WARN, "%s (pid %d) was stopped, and is made to go on: its ranks would wait for it",
                     s->name, (int)s->launcher);
        (void)kill(s->launcher, SIGCONT);
    }
    s->was_stopped = stopped;
    if (!empty) {
        s->end_at_ms = 0;
    } else if (s->end_at_ms == 0) {
        s->end_at_ms = now + LEAVE_MS;
    } else if (now >= s->end_at_ms) {
        ddp_log_line(s->log, DDP_LOG_WARN, "%s has not ended after its ranks, and is made to", s->name);
        end_launcher(s, now);
        s->end_at_ms = INT64_MAX;
    }
}

static bool is_due(const supervision *s, int64_t now)
{
    bool often = s->signal != 0 || s->end_at_ms != 0 || s->was_stopped || now < s->began_ms + SETTLED_MS;

    return now >= s->looked_ms + (often ? OFTEN_MS : SELDOM_MS);
}

static void reap(supervision *s)
{
    int status;
    pid_t pid;

    while ((pid = waitpid(-1, &status, WNOHANG)) > 0) {
        if (pid == s->launcher) {
            s->ended = true;
            s->status = status;
            /* ranks without a launcher save before its library notices and ends them */
            if (s->kill_at_ms == 0) s->kill_at_ms = ddp_now_ms() + ORPHAN_MS;
            if (s->signal == 0) (void)orphans(s, SIGTERM); /* a second one would end them at once */
            (void)orphans(s, SIGCONT);
        } else if (s->code == 0 && !was_there_before(s, pid)) {
            s->code = WIFEXITED(status) ? WEXITSTATUS(status) : DDP_EXIT_PEER;
        }
    }
}

/* No rank has given this code, and none has said why it ends. */
static int failed_by_itself(const supervision *s, int code)
{
    bool not_started = code == DDP_EXIT_PLUGIN && s->relay.rank_count == 0;

    if (not_started && !launch_relay_holds(&s->relay)) return code; /* it could not be run, and why is written */
    launch_relay_show_held(&s->relay);
    ddp_log_line(s->log, DDP_LOG_ERROR,
                 "%s failed with exit code %d, which no rank gives: see its own lines above, or run it by hand",
                 s->name, code);
    return DDP_EXIT_PLUGIN;
}

static int lost_without_a_word(const supervision *s, int code)
{
    if (!s->relay.has_spoken) launch_relay_show_held(&s->relay);
    ddp_log_line(
        s->log, DDP_LOG_ERROR,
        "a rank has ended without saying why: it was killed by a signal or has crashed (%s ended with exit code %d); look for the kernel's line in dmesg, and run it by hand to see more",
        s->name, code);
    return DDP_EXIT_PEER;
}

/* A launcher says that all is well. mpiexec of MPICH 4.2 does so now and then where a rank has failed. */
static int code_of_ranks(const supervision *s)
{
    if (s->relay.first != 0) return s->relay.first;
    return launch_relay_lost_one(&s->relay) ? lost_without_a_word(s, DDP_EXIT_OK) : DDP_EXIT_OK;
}

/* A launcher gives the code of the first rank that failed, 128 + n for one that a signal ended; or it makes another one
 * of several, as mpiexec of MPICH does, and then what the ranks themselves have said counts. */
static int exit_code_of(const supervision *s)
{
    char hint[DDP_HINT_BYTES];
    int code = WIFEXITED(s->status) ? WEXITSTATUS(s->status) : 128 + WTERMSIG(s->status), sig = code - 128;

    if (s->killed && s->signal == 0 && !s->lost_launcher) return s->code;
    if (!s->killed && ddp_signal_ends(sig)) return code; /* asked to end */
    if (s->signal != 0 && (s->killed || code != DDP_EXIT_OK)) return ddp_log_ended_by(s->log, s->signal);
    if (code == DDP_EXIT_OK) return code_of_ranks(s);
    if (s->relay.given[code]) return code;
    if (sig <= 0 || sig > SIGRTMAX) {
        if (s->relay.first != 0) return s->relay.first;
        return launch_relay_lost_one(&s->relay) ? lost_without_a_word(s, code) : failed_by_itself(s, code);
    }
    ddp_log_line(s->log, DDP_LOG_ERROR, "%s was killed by signal %d (%s)%s", WIFEXITED(s->status) ? "a rank" : s->name,
                 sig, strsignal(sig), launch_killed_hint(sig, NULL, hint));
    return DDP_EXIT_PEER;
}

/* Until the launcher and all that it has started have ended: the exit code of the first cause. */
static int supervise(supervision *s, const sigset_t *watched)
{
    s->began_ms = ddp_now_ms();
    for (reap(s); !s->ended || orphans(s, 0) > 0; reap(s)) {
        const struct timespec tick = {.tv_nsec = 50000000};
        int sig = sigtimedwait(watched, NULL, &tick);
        int64_t now = ddp_now_ms();

        launch_relay_pass(&s->relay, false);
        if (ddp_signal_ends(sig)) asked_to_end(s, sig, now);
        ask_late_ranks(s);
        if (sig == SIGCHLD) continue; /* who it was decides what is done */
        if (s->kill_at_ms != 0 && now >= s->kill_at_ms)
            kill_all(s);
        else if (!s->ended && is_due(s, now))
            look(s, now);
    }
    reap(s); /* the last of them */
    launch_relay_pass(&s->relay, true);
    return exit_code_of(s);
}

/* ---- the command ------------------------------------------------------------------------------------------------- */
/* How ranks find each other that no config brings together: held until the run ends. */
typedef struct invitation {
    int port, secret;  /* -1: none */
    char one_rank[64]; /* --one-rank=URL */
    char relay[LAUNCH_RELAY_ARGUMENT_MAX];
    char path[DDP_SECRET_PATH_MAX];
} invitation;

/* A port of loopback for the rendezvous. The socket stays bound, not listening, until the run ends, so that the port
 * is given to nobody else; rank 0 may bind it as well, since both sides set SO_REUSEADDR. Others see the port on the
 * command line, and reach it: hence a secret, which is not to be seen there. A launcher closes the descriptors that it
 * inherits, so that the ranks open this process's one. */
static ddp_status arrange(invitation *m, ddp_err *err)
{
    struct sockaddr_in a = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t length = sizeof(a);
    int one = 1;

    m->port = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (m->port < 0 || setsockopt(m->port, SOL_SOCKET, SO_REUSEADDR, &one, sizeof(one)) != 0 ||
        bind(m->port, (struct sockaddr *)&a, sizeof(a)) != 0 ||
        getsockname(m->port, (struct sockaddr *)&a, &length) != 0)
        return ddp_fail_errno(err, "cannot take a port of 127.0.0.1");
    (void)snprintf(m->one_rank, sizeof(m->one_rank), "--one-rank=tcp://127.0.0.1:%u", (unsigned)ntohs(a.sin_port));
    return launch_secret_share(&m->secret, m->path, err);
}

static void withdraw(const invitation *m)
{
    if (m->port >= 0) (void)close(m->port);
    if (m->secret >= 0) (void)close(m->secret);
}

/* The same arguments with --one-rank for --nproc: the launcher's variables tell each rank who it is, whatever rank
 * the config has. */
static void add_arguments(ddp_launcher_command *c, const ddp_args *args, const invitation *m)
{
    if (args->eval) ddp_launcher_command_add(c, "eval");
    if (args->check) ddp_launcher_command_add(c, "--check");
    if (args->check_net) ddp_launcher_command_add(c, "--net");
    if (args->profile) ddp_launcher_command_add(c, "--profile");
    if (args->checkpoint != NULL) {
        ddp_launcher_command_add(c, "--checkpoint");
        ddp_launcher_command_add(c, args->checkpoint);
    }
    ddp_launcher_command_add(c, "-c");
    ddp_launcher_command_add(c, args->config_path);
    for (size_t i = 0; i < args->override_count; i++) {
        ddp_launcher_command_add(c, "--set");
        ddp_launcher_command_add(c, args->overrides[i]);
    }
    ddp_launcher_command_add(c, m->one_rank);
    ddp_launcher_command_add(c, "--one-rank-relay");
    ddp_launcher_command_add(c, m->relay);
    if (m->secret < 0) return;
    ddp_launcher_command_add(c, "--one-rank-secret");
    ddp_launcher_command_add(c, m->path);
}

/* One start of all ranks, until the last of them has ended; *signal: that this process was asked to end by. */
static int run_once(const ddp_launcher_ops *ops, const ddp_args *args, const ddp_launch *first, const sigset_t *watched,
                    const sigset_t *before, bool restarted, int *signal, ddp_log *log)
{
    invitation m = {.port = -1, .secret = -1, .one_rank = "--one-rank"};
    supervision s = {.log = log};
    ddp_launcher_command c = {.text = NULL};
    ddp_err err = {0};
    int code = DDP_EXIT_PLUGIN;

    adopt(&s);
    (void)launch_relay_open(&s.relay, first->nproc, &err);
    launch_relay_argument(&s.relay, m.relay);
    if (err.status == DDP_OK &&
        ddp_launcher_command_make(&c, ops->command, ops->install, first->nproc, &err) == DDP_OK &&
        (first->url[0] != '\0' || arrange(&m, &err) == DDP_OK)) {
        if (restarted) ddp_launcher_command_add(&c, "--restarted");
        add_arguments(&c, args, &m);
        (void)ddp_launcher_command_start(&c, true, before, s.relay.held, log, &s.launcher, &err);
    }
    if (err.status == DDP_OK) {
        s.name = c.argv[0];
        code = supervise(&s, watched);
        if (ops->clean != NULL) ops->clean((uint64_t)s.launcher);
    } else {
        ddp_log_line(log, DDP_LOG_ERROR, "%s", err.msg);
    }
    withdraw(&m);
    launch_relay_close(&s.relay);
    ddp_launcher_command_free(&c);
    *signal = s.signal;
    return code;
}

/* Until it is time, or this process is asked to end: then false. */
static bool wait_ms(int64_t ms, const sigset_t *watched)
{
    int64_t until = ddp_now_ms() + ms;

    for (int64_t now = ddp_now_ms(); now < until; now = ddp_now_ms()) {
        const struct timespec left = {.tv_sec = (until - now) / 1000, .tv_nsec = (until - now) % 1000 * 1000000};

        if (ddp_signal_ends(sigtimedwait(watched, NULL, &left))) return false;
    }
    return true;
}

/* A launcher ends all ranks when one is lost: with [run] restarts all of them are started again, from the newest
 * checkpoint. */
static int run(const ddp_launcher_ops *ops, const ddp_args *args, const ddp_config *config, const ddp_launch *first,
               ddp_log *log)
{
    ddp_losses losses = {.most = config->run->restarts, .window_ms = config->run->restart_window_ms};
    sigset_t watched, before;
    bool restarted = false;
    int code, signal;

    launch_choose_signals(&watched);
    (void)sigprocmask(SIG_BLOCK, &watched, &before);
    for (;;) {
        int64_t delay;

        code = run_once(ops, args, first, &watched, &before, restarted, &signal, log);
        if (signal != 0 || losses.most == 0 || !ddp_exit_is_loss(code)) return code;
        if (!ddp_losses_add(&losses, ddp_now_ms())) {
            ddp_log_line(log, DDP_LOG_ERROR,
                         "[run] restarts are used up: look for the cause, then start the run again");
            return code;
        }
        delay = ddp_losses_delay(&losses, config->run->restart_delay_ms);
        ddp_log_line(log, DDP_LOG_WARN, "all ranks are started again in %.3g s (restart %zu of %" PRId64 ")",
                     (double)delay / 1e3, losses.count, losses.most);
        if (!wait_ms(delay, &watched)) return code;
        restarted = true;
    }
}

/* ---- which way --------------------------------------------------------------------------------------------------- */
/* The launcher of the chosen backend; *out is NULL where it has none, or cannot be found, which the ranks
 * will report. Only the bytes of the file are read unless they say that it has one. */
static ddp_status find_launcher(ddp_registry *r, const char *backend, const ddp_launcher_ops **out, ddp_err *err)
{
    char local[DDP_HALF_MAX], remote[DDP_HALF_MAX];
    ddp_gate_facts facts;
    ddp_loaded *loaded;

    *out = NULL;
    if (ddp_config_halves(backend, local, remote)) backend = remote;
    if (ddp_registry_facts(r, DDP_KIND_BACKEND, backend, &facts, err) != DDP_OK) return DDP_OK;
    if ((facts.flags & DDP_PLUGIN_F_LAUNCHER) == 0) return DDP_OK;
    DDP_TRY(ddp_registry_load(r, DDP_KIND_BACKEND, backend, &loaded, err));
    *out = ((const ddp_backend_ops *)loaded->ops)->launcher;
    return DDP_OK;
}

static int refuse_part(const ddp_launch *first, const char *backend, ddp_log *log)
{
    ddp_log_line(
        log, DDP_LOG_ERROR,
        "backend \"%s\" starts all ranks by a launcher of its own: --nproc must be world_size (%d, %s), not %d. "
        "For ranks on several hosts run that launcher yourself, without --nproc",
        backend, first->world, first->world_where, first->nproc);
    return DDP_EXIT_CONFIG;
}

int ddp_start_ranks(const ddp_args *args, ddp_config *config, const ddp_launch *first, ddp_rank_main run_rank,
                    ddp_log *log)
{
    const char *backend = config->group->backend;
    const ddp_launcher_ops *ops = NULL;
    ddp_registry *r = NULL;
    ddp_err err = {0};
    int code;

    if (ddp_registry_open(log, &config->plugin_path, &r, &err) != DDP_OK ||
        find_launcher(r, backend, &ops, &err) != DDP_OK) {
        ddp_log_line(log, DDP_LOG_ERROR, "%s", err.msg);
        code = DDP_EXIT_PLUGIN;
    } else if (ops == NULL) {
        ddp_registry_close(r); /* nothing was loaded: the ranks inherit nothing */
        return launch_fork_ranks(args, config, first, run_rank, log);
    } else {
        code = first->nproc == first->world ? run(ops, args, config, first, log) : refuse_part(first, backend, log);
    }
    if (r != NULL) ddp_registry_close(r);
    return code;
}
