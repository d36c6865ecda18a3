/* conform/harness/world.c -- the ranks of a world as child processes, watched.
 *
 * A run takes the cases that are not checked yet: those that may share processes together, a `fresh` one alone. It
 * ends when the ranks have ended, or when one has died, or has not come out of a case by its deadline; then that
 * case has failed, all ranks are killed, and the next run takes the rest. Nothing is loaded before the fork. */
#include "conform/harness/world.h"
#include "base/sys.h"
#include "conform/harness/run_cases.h"
#include "launch/launcher_command.h"
#include "launch/signals.h"
#include "net/endpoint.h"
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

enum {
    START_MS = 60000, /* to load and connect, in addition to the first case */
    END_MS = 10000,   /* to close and leave, after the last */
    GRACE_MS = 500,   /* of the others when a rank has died: they may be about to say why */
    LAUNCHER_MS = 5000,
    GIVE_UP = 3 /* hangs and crashes of one suite in a world */
};

typedef struct run {
    ddp_world *w;
    ddp_shared_results *s;
    pid_t pids[DDP_CONFORM_MAX_WORLD]; /* 0: has ended; launched: the launcher alone */
    uint32_t processes, left;
    uint32_t seen[DDP_CONFORM_MAX_WORLD]; /* at[rank] when last looked at */
    int64_t since_ms[DDP_CONFORM_MAX_WORLD], began_ms, died_ms;
    int64_t asked_ms; /* a launcher: when it was asked to end */
    uint32_t blamed;  /* the first case that ended the run, UINT32_MAX: none */
    uint32_t crashed; /* the case in which a rank died by a signal, UINT32_MAX: none */
} run;

/* ---- blame ------------------------------------------------------------------------------------------------------- */
/* The case becomes a failure of `rank`, unless a rank has already given the reason. */
static void blame(run *r, uint32_t c, uint32_t rank, const char *text)
{
    ddp_check_result *v = ddp_shared_results_get(r->s, rank, c);
    char why[256];

    r->blamed = DDP_MIN_OF(r->blamed, c);
    if (ddp_shared_results_check(r->s, c, why) != DDP_NOT_CHECKED) return;
    ddp_copy_text(v->text, sizeof(v->text), text);
    v->order = atomic_fetch_add(&r->s->failures, 1);
    atomic_store(&v->state, DDP_FAILED);
}

/* What the others say when a rank dies, of this case or of one that they were about to end, is an echo. */
static void blame_crash(run *r, uint32_t c, uint32_t rank, const char *text)
{
    r->crashed = c;
    for (uint32_t i = 0; i < r->s->world; i++)
        atomic_store(&ddp_shared_results_get(r->s, i, c)->state, DDP_NOT_CHECKED);
    blame(r, c, rank, text);
}

/* A launcher does not tell which rank it was: the one in the earliest case. */
static uint32_t least_advanced(ddp_shared_results *s)
{
    uint32_t rank = 0;

    for (uint32_t i = 1; i < s->world; i++)
        if (atomic_load(&s->at[i]) < atomic_load(&s->at[rank])) rank = i;
    return rank;
}

static bool dies_on_purpose(const ddp_shared_results *s, uint32_t rank)
{
    return s->cases[s->first].suite == DDP_SUITE_KILLED && rank == s->world - 1;
}

static void process_ended(run *r, pid_t pid, int status)
{
    bool first = r->died_ms == 0; /* of the later ones many are our own doing */
    uint32_t i = 0, c;
    char text[200];

    while (i < r->processes && r->pids[i] != pid) i++;
    if (i == r->processes) return;
    r->pids[i] = 0;
    r->left--;
    if (WIFEXITED(status) && WEXITSTATUS(status) == 0) return;
    if (first) r->died_ms = ddp_now_ms();
    if (r->s->launched) i = least_advanced(r->s);
    c = atomic_load(&r->s->at[i]);
    if (WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL && dies_on_purpose(r->s, i)) {
        atomic_store(&ddp_shared_results_get(r->s, i, c)->state, DDP_PASSED);
        r->died_ms = 0; /* the others go on: they are what the case is about */
        return;
    }
    if (WIFSIGNALED(status))
        (void)snprintf(text, sizeof(text), "was killed by signal %d (%s)", WTERMSIG(status),
                       strsignal(WTERMSIG(status)));
    else
        (void)snprintf(text, sizeof(text), "ended with exit code %d%s", WEXITSTATUS(status),
                       c == r->s->last - 1 ? "; a leak checker would print to standard error" : "");
    if (WIFSIGNALED(status) && first)
        blame_crash(r, c, i, text);
    else
        blame(r, c, i, text);
}

static void kill_all(run *r)
{
    for (uint32_t i = 0; i < r->s->world && r->s->launched && r->left > 0; i++) {
        pid_t pid = atomic_exchange(&r->s->pids[i], 0);

        if (pid > 0) (void)kill(pid, SIGKILL);
    }
    if (r->s->launched && r->left > 0 && r->asked_ms == 0) { /* it cleans up when it is asked to end */
        r->asked_ms = ddp_now_ms();
        (void)kill(r->pids[0], SIGTERM);
        return;
    }
    if (r->s->launched && ddp_now_ms() < r->asked_ms + LAUNCHER_MS) return;
    for (uint32_t i = 0; i < r->processes; i++)
        if (r->pids[i] > 0) (void)kill(r->pids[i], SIGKILL);
}

/* ---- watching ---------------------------------------------------------------------------------------------------- */
static int64_t allowed_ms(const ddp_shared_results *s, uint32_t at)
{
    int64_t ms = s->cases[at].deadline_ms;

    if (at == s->first) ms += START_MS;
    return at == s->last - 1 ? ms + END_MS : ms;
}

static bool rank_left(const run *r, uint32_t rank) { return r->s->launched ? r->left > 0 : r->pids[rank] > 0; }

static void look_for_hangs(run *r)
{
    int64_t now = ddp_now_ms();
    uint32_t slowest = 0;
    bool late = false;
    char text[200];

    for (uint32_t i = 0; i < r->s->world; i++) {
        uint32_t at = atomic_load(&r->s->at[i]);

        if (at != r->seen[i]) {
            r->seen[i] = at;
            r->since_ms[i] = now;
        }
        if (!rank_left(r, i) || now < r->since_ms[i] + allowed_ms(r->s, at)) continue;
        if (!late || at < r->seen[slowest]) slowest = i;
        late = true;
    }
    if (!late) return;
    (void)snprintf(text, sizeof(text), "hangs: has not come back within %.3g s",
                   (double)allowed_ms(r->s, r->seen[slowest]) / 1e3);
    blame(r, r->seen[slowest], slowest, text);
    kill_all(r);
    r->died_ms = now;
}

static void wait_for_all(run *r, const sigset_t *watched)
{
    while (r->left > 0) {
        const struct timespec tick = {.tv_nsec = 50000000};
        int status, sig = sigtimedwait(watched, NULL, &tick);
        pid_t pid;

        if (ddp_signal_ends(sig)) {
            r->w->signal = sig;
            kill_all(r);
        }
        while (r->left > 0 && (pid = waitpid(-1, &status, WNOHANG)) > 0) process_ended(r, pid, status);
        if (r->died_ms != 0 && ddp_now_ms() >= r->died_ms + GRACE_MS) kill_all(r);
        if (r->died_ms == 0) look_for_hangs(r);
    }
}

/* ---- starting ---------------------------------------------------------------------------------------------------- */
/* In the child. It ends here, without the parent's clean-up; exit() lets a leak checker print. */
static void child(run *r, uint32_t rank, int listen_fd, const char *endpoint, pid_t parent, const sigset_t *signals)
{
    int code;

    (void)prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (getppid() != parent) _exit(DDP_EXIT_INTERNAL); /* it died before the line above */
    (void)sigprocmask(SIG_SETMASK, signals, NULL);
    code = harness_rank_process_run(r->s, rank, listen_fd, rank == 0 ? NULL : endpoint);
    if (code != DDP_EXIT_OK) _exit(code);
    exit(code);
}

static ddp_status fork_all(run *r, const sigset_t *signals, ddp_err *err)
{
    char endpoint[DDP_ENDPOINT_MAX] = "";
    pid_t parent = getpid();
    int listen_fd = -1;

    if (r->s->kind == DDP_KIND_BACKEND && r->s->world > 1)
        DDP_TRY(ddp_endpoint_listen("127.0.0.1:0", &listen_fd, endpoint, err));
    (void)fflush(NULL);
    for (uint32_t i = 0; i < r->s->world; i++) {
        pid_t pid = fork();

        if (pid == 0) {
            if (i != 0 && listen_fd >= 0) (void)close(listen_fd);
            child(r, i, i == 0 ? listen_fd : -1, endpoint, parent, signals);
        }
        if (pid < 0) {
            (void)ddp_fail_errno(err, "cannot start rank %u", i);
            kill_all(r);
            break;
        }
        r->pids[i] = pid;
        r->processes++;
        r->left++;
    }
    if (listen_fd >= 0) (void)close(listen_fd);
    return r->processes == r->s->world ? DDP_OK : err->status;
}

/* The ranks of a backend that must be started by its own launcher: the words of its template, this program, and
 * where the shared results are. */
static ddp_status launch_all(run *r, const sigset_t *signals, ddp_err *err)
{
    ddp_launcher_command c;
    char shared[64];
    ddp_status st = ddp_launcher_command_make(&c, r->w->launcher, NULL, (int32_t)r->s->world, err);

    if (st == DDP_OK) {
        (void)snprintf(shared, sizeof(shared), "/proc/%d/fd/%d", (int)getpid(), r->w->shared_fd);
        ddp_launcher_command_add(&c, "conform");
        ddp_launcher_command_add(&c, "--shared");
        ddp_launcher_command_add(&c, shared);
        st = ddp_launcher_command_start(&c, false, signals, -1, r->w->log, &r->pids[0], err);
    }
    ddp_launcher_command_free(&c);
    if (st == DDP_OK) r->processes = r->left = 1;
    return st;
}

/* Cases first .. last - 1 are next: one `fresh` case, or as many others as follow each other. False: all are
 * checked. */
static bool choose_cases(ddp_shared_results *s)
{
    uint32_t c = 0;
    char text[256];

    while (c < s->case_count && ddp_shared_results_check(s, c, text) != DDP_NOT_CHECKED) c++;
    if (c == s->case_count) return false;
    s->first = c;
    do c++;
    while (!s->cases[s->first].fresh && c < s->case_count && !s->cases[c].fresh &&
           ddp_shared_results_check(s, c, text) == DDP_NOT_CHECKED);
    s->last = c;
    return true;
}

/* After so many the suite's other cases would tell nothing new, at a deadline each; after "connect" no case would. */
static void give_up(ddp_shared_results *s, uint32_t suite)
{
    char text[256];

    for (uint32_t c = 0; c < s->case_count; c++) {
        if ((suite != DDP_SUITE_CONNECT && s->cases[c].suite != suite) ||
            ddp_shared_results_check(s, c, text) != DDP_NOT_CHECKED)
            continue;
        for (uint32_t i = 0; i < s->world; i++) {
            ddp_check_result *v = ddp_shared_results_get(s, i, c);

            (void)snprintf(v->text, sizeof(v->text), "not run after failures of suite %s that ended the processes",
                           ddp_suite_name(suite));
            atomic_store(&v->state, DDP_SKIPPED);
        }
    }
}

static void forget(ddp_shared_results *s, uint32_t first, uint32_t last)
{
    for (uint32_t c = first; c < last; c++)
        for (uint32_t i = 0; i < s->world; i++) memset(ddp_shared_results_get(s, i, c), 0, sizeof(ddp_check_result));
}

/* A rank that was still in an earlier case than the one that died fails there: that case is run again. In its own
 * case the result of the dead rank counts. */
static void forget_echoes(run *r)
{
    const ddp_check_result *dead = NULL;

    for (uint32_t c = r->s->first; c < r->crashed; c++)
        for (uint32_t i = 0; i < r->s->world; i++)
            if (atomic_load(&r->s->at[i]) == c) forget(r->s, c, c + 1);
    for (uint32_t i = 0; i < r->s->world; i++) {
        ddp_check_result *v = ddp_shared_results_get(r->s, i, r->crashed);

        if (atomic_load(&v->state) != DDP_FAILED) continue;
        if (dead == NULL || v->order < dead->order) dead = v;
    }
    for (uint32_t i = 0; i < r->s->world; i++) {
        ddp_check_result *v = ddp_shared_results_get(r->s, i, r->crashed);

        if (v != dead) atomic_store(&v->state, DDP_NOT_CHECKED);
    }
    r->blamed = r->crashed;
}

/* *blamed: the case that ended the run before its time, or UINT32_MAX. What ranks say of later cases is an echo of
 * it. */
static ddp_status run_once(ddp_world *w, const sigset_t *watched, const sigset_t *before, uint32_t *blamed,
                           ddp_err *err)
{
    run r = {.w = w, .s = w->shared, .began_ms = ddp_now_ms(), .blamed = UINT32_MAX, .crashed = UINT32_MAX};
    ddp_status status;

    atomic_store(&w->shared->endpoint_ready, 0);
    atomic_store(&w->shared->given_up, 0);
    for (uint32_t i = 0; i < DDP_EXCHANGE_SLOTS; i++) atomic_store(&w->shared->exchanges[i].arrived, 0);
    forget(w->shared, w->shared->first, w->shared->last);
    for (uint32_t i = 0; i < w->shared->world; i++) {
        atomic_store(&w->shared->at[i], w->shared->first);
        r.seen[i] = w->shared->first;
        r.since_ms[i] = r.began_ms;
    }
    status = w->launcher != NULL ? launch_all(&r, before, err) : fork_all(&r, before, err);
    wait_for_all(&r, watched);
    if (r.crashed != UINT32_MAX) forget_echoes(&r);
    *blamed = r.blamed;
    if (r.blamed != UINT32_MAX) forget(w->shared, r.blamed + 1, w->shared->last);
    return status;
}

/* Every run checks a case, the blamed one or at least its first, or the loop would not end. */
static void ensure_progress(ddp_shared_results *s, uint32_t blamed)
{
    ddp_check_result *v = ddp_shared_results_get(s, 0, s->first);
    char text[256];

    if (blamed != UINT32_MAX || ddp_shared_results_check(s, s->first, text) != DDP_NOT_CHECKED) return;
    ddp_copy_text(v->text, sizeof(v->text), "the ranks ended without a result");
    atomic_store(&v->state, DDP_FAILED);
}

ddp_status ddp_world_run(ddp_world *w, ddp_err *err)
{
    uint32_t ends[DDP_SUITE_END] = {0};
    sigset_t watched, before;
    ddp_status status = DDP_OK;

    (void)sigemptyset(&watched);
    (void)sigaddset(&watched, SIGCHLD);
    (void)sigaddset(&watched, SIGINT);
    (void)sigaddset(&watched, SIGTERM);
    (void)sigaddset(&watched, SIGHUP);
    (void)sigprocmask(SIG_BLOCK, &watched, &before);
    while (status == DDP_OK && w->signal == 0 && choose_cases(w->shared)) {
        uint32_t blamed, suite;

        status = run_once(w, &watched, &before, &blamed, err);
        ensure_progress(w->shared, blamed);
        if (blamed == UINT32_MAX) continue;
        suite = w->shared->cases[blamed].suite;
        if (++ends[suite] == GIVE_UP || suite == DDP_SUITE_CONNECT) give_up(w->shared, suite);
    }
    (void)sigprocmask(SIG_SETMASK, &before, NULL);
    return status;
}
