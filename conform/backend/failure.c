/* conform/backend/failure.c -- what a backend does when things go wrong: abort from another thread, a rank that does
 * not come, a rank that dies. Each case has processes of its own.
 *
 * A second thread ("conform-watch") sees to the bounds: a call that is not back in time is written down and ends the
 * process, because the thread that stands in the plugin cannot. */
#include "conform/backend/failure.h"
#include "conform/backend/trial.h"
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum {
    BLOCK_MS = 80,     /* until a call counts as blocked */
    WAKE_MS = 1500,    /* comm_abort promises 100 ms; the machine may be busy */
    TIMEOUT_MS = 1000, /* given to comm_create in the cases about time-outs */
    SLACK_MS = 3000,   /* beyond it */
    TICK_US = 2000,
    COUNT = 100000, /* elements: more than sockets buffer */
    KILL_LOOPS = 100000
};

/* ---- the watching thread ----------------------------------------------------------------------------------------- */
typedef struct watch {
    ddp_trial *t;
    pthread_t thread;
    atomic_bool blocked, returned; /* the call has begun; has come back */
    int64_t abort_after_ms;        /* of the call's begin; -1: when the group has lost a rank */
    atomic_bool aborted;
    const char *what;
} watch;

/* In ticks, not by the clock: while a machine stands still, or has no processor for this thread, it mostly has none for
 * the one that is watched either. */
static void pause_for(int64_t ms, const atomic_bool *flag)
{
    for (int64_t left = ms * 1000 / TICK_US; left > 0 && !atomic_load(flag); left--) (void)usleep(TICK_US);
}

static void wait_for_abort_time(watch *w)
{
    ddp_failure lost;

    while (!atomic_load(&w->blocked)) (void)usleep(TICK_US);
    if (w->abort_after_ms >= 0) return pause_for(w->abort_after_ms, &w->returned);
    while (!atomic_load(&w->returned) && !ddp_group_failed(w->t->a->group, &lost)) (void)usleep(TICK_US);
    pause_for(BLOCK_MS, &w->returned); /* the backend may see it by itself */
}

static void *watch_main(void *arg)
{
    watch *w = arg;
    ddp_rank_process *a = w->t->a;

    wait_for_abort_time(w);
    if (atomic_load(&w->returned)) return NULL;
    atomic_store(&w->aborted, true);
    if ((a->ops->caps & DDP_CAP_ABORT) != 0) a->ops->comm_abort(w->t->comm);
    pause_for(WAKE_MS, &w->returned);
    if (atomic_load(&w->returned)) return NULL;
    if ((a->ops->caps & DDP_CAP_ABORT) != 0)
        (void)DDP_FAIL(a, "%s: does not return within %d ms of comm_abort", w->what, WAKE_MS);
    else
        DDP_SKIP(a, "keeps no time-out by itself and cannot be aborted: the control plane ends such a process");
    _exit(DDP_EXIT_PLUGIN);
}

static bool watch_start(watch *w)
{
    ddp_err err = {0};

    if (ddp_thread_start(&w->thread, "conform-watch", watch_main, w, &err) == DDP_OK) return true;
    DDP_SKIP(w->t->a, "%.200s", err.msg);
    return false;
}

/* ---- calls ------------------------------------------------------------------------------------------------------- */
/* The slot with data of COUNT elements a rank and the last rank as root, which is the one that does not come. */
static ddp_status call(ddp_trial *t, uint32_t slot, float *data, ddp_err *err)
{
    size_t all = (size_t)COUNT * t->world;
    bool to_root = slot == DDP_SLOT_REDUCE || slot == DDP_SLOT_GATHER;
    ddp_coll args = {.struct_size = sizeof(args),
                     .dtype = DDP_F32,
                     .op = ddp_slot_info_of(slot)->reduces ? DDP_SUM : 0,
                     .root = to_root ? 0 : t->world - 1,
                     .send = data,
                     .recv = data + all,
                     .count = COUNT};
    ddp_work *work = NULL;
    ddp_status st;

    if (t->rank == args.root && slot == DDP_SLOT_SEND_RECV) args.root = 0; /* nobody sends to itself */
    if (slot != DDP_SLOT_SEND_RECV) return backend_trial_call(t, slot, &args, err);
    memset(err, 0, sizeof(*err));
    st = t->a->ops->recv(t->comm, &args, &work, err);
    if (st == DDP_OK && work != NULL) {
        st = t->a->ops->work_wait(work, DDP_TRIAL_TIMEOUT_MS, err);
        t->a->ops->work_free(work);
    }
    return st;
}

/* Ranks whose part of a collective to rank 0 may be over before the last rank has come. */
static bool may_finish(uint32_t slot, uint32_t rank)
{
    return rank != 0 && (slot == DDP_SLOT_REDUCE || slot == DDP_SLOT_GATHER);
}

static float *new_data(ddp_rank_process *a)
{
    ddp_err err = {0};
    float *data = ddp_alloc_aligned(2 * (size_t)COUNT * a->world * sizeof(float), &err);

    if (data == NULL) DDP_SKIP(a, "%.200s", err.msg);
    return data;
}

static bool open_trial(ddp_trial *t, ddp_rank_process *a, const char *name, int64_t timeout_ms)
{
    ddp_err err = {0};

    if (ddp_trial_open(t, a, name, timeout_ms, &err) == DDP_OK) return true;
    return DDP_BREAK(a, "open and comm_create (%s): %.180s", name, err.msg);
}

/* The call in which the last rank is missing, watched. */
static ddp_status watched_call(watch *w, uint32_t slot, float *data, ddp_err *err)
{
    ddp_status st;

    if (!watch_start(w)) return DDP_ERR_INTERNAL;
    atomic_store(&w->blocked, true);
    st = call(w->t, slot, data, err);
    atomic_store(&w->returned, true);
    (void)pthread_join(w->thread, NULL);
    return st;
}

/* ---- abort ------------------------------------------------------------------------------------------------------- */
/* Later calls answer DDP_ERR_ABORTED at once, on a rank that was blocked and on one that was not. */
static bool stays_aborted(ddp_trial *t, uint32_t slot, float *data)
{
    int64_t begin = ddp_now_ms();
    ddp_err err;
    ddp_status st;

    t->a->ops->comm_abort(t->comm); /* repeatable */
    for (int i = 0; i < 2; i++) {
        st = call(t, slot, data, &err);
        if (!DDP_EXPECT(t->a, st == DDP_ERR_ABORTED, "after comm_abort %s answers \"%s\", not \"%s\"",
                        ddp_slot_info_of(slot)->name, ddp_status_text(st), ddp_status_text(DDP_ERR_ABORTED)) ||
            !DDP_EXPECT(t->a, err.msg[0] != '\0', "after comm_abort %s fails without a reason",
                        ddp_slot_info_of(slot)->name))
            return false;
    }
    return DDP_EXPECT(t->a, ddp_now_ms() < begin + WAKE_MS, "calls after comm_abort took %lld ms",
                      (long long)(ddp_now_ms() - begin));
}

static bool aborted_call(ddp_trial *t, uint32_t slot, float *data)
{
    watch w = {.t = t, .abort_after_ms = BLOCK_MS, .what = ddp_slot_info_of(slot)->name};
    ddp_err err = {0};
    ddp_status st = watched_call(&w, slot, data, &err);

    if (st == DDP_OK && may_finish(slot, t->rank)) return true;
    if (!DDP_EXPECT(t->a, st != DDP_OK, "%s ended well though rank %u had not come", w.what, t->world - 1))
        return false;
    if (!atomic_load(&w.aborted)) { /* another rank was aborted first and this one lost it as a peer */
        return DDP_EXPECT(t->a, err.msg[0] != '\0', "%s failed without a reason", w.what);
    }
    return DDP_EXPECT(t->a, st == DDP_ERR_ABORTED || st == DDP_ERR_PEER,
                      "aborted, %s answers \"%s\", not \"%s\": %.100s", w.what, ddp_status_text(st),
                      ddp_status_text(DDP_ERR_ABORTED), err.msg);
}

/* The process can go on: a new communicator works. */
static void works_again(ddp_rank_process *a)
{
    ddp_case c = backend_trial_sum(a, 1000);
    ddp_trial t;

    if ((a->ops->caps & DDP_CAP_ALL_REDUCE) == 0 || !open_trial(&t, a, "afterwards", DDP_TRIAL_TIMEOUT_MS)) return;
    (void)backend_trial_collective(&t, &c);
    if (!a->broken) ddp_trial_close(&t);
}

void backend_abort(ddp_rank_process *a)
{
    float *data = new_data(a);
    bool last = a->rank == a->world - 1, good = true;
    ddp_trial t;

    if (data == NULL || !open_trial(&t, a, "aborted", DDP_TRIAL_TIMEOUT_MS)) return;
    if (!last) good = aborted_call(&t, a->c->slot, data);
    a->broken = !good || !ddp_rank_process_barrier(a, "aborted");
    if (a->broken) return;
    good = stays_aborted(&t, a->c->slot, data);
    ddp_trial_close(&t);
    free(data);
    if (good) works_again(a);
    a->broken = !good;
}

/* ---- time-outs --------------------------------------------------------------------------------------------------- */
void backend_timeout(ddp_rank_process *a)
{
    float *data = new_data(a);
    bool last = a->rank == a->world - 1, good = true;
    ddp_trial t;
    watch w = {.t = &t, .abort_after_ms = TIMEOUT_MS + SLACK_MS, .what = "the time-out"};
    ddp_err err = {0};
    ddp_status st;

    if (data == NULL || !open_trial(&t, a, "timeout", TIMEOUT_MS)) return;
    if (!last) {
        st = watched_call(&w, a->c->slot, data, &err);
        good =
            (st == DDP_OK && may_finish(a->c->slot, a->rank)) ||
            (DDP_EXPECT(a, st != DDP_OK, "ended well though rank %u had not come", a->world - 1) &&
             DDP_EXPECT(
                 a, st == DDP_ERR_TIMEOUT || st == DDP_ERR_PEER || (st == DDP_ERR_ABORTED && atomic_load(&w.aborted)),
                 "answers \"%s\", not \"%s\": %.120s", ddp_status_text(st), ddp_status_text(DDP_ERR_TIMEOUT),
                 err.msg) &&
             DDP_EXPECT(a, err.msg[0] != '\0', "the time-out has no message"));
    }
    a->broken = !good || !ddp_rank_process_barrier(a, "timed out");
    if (a->broken) return;
    ddp_trial_close(&t);
    free(data);
}

/* comm_create while the last rank is away: an error by its time-out, and everything that it had made is gone. */
void backend_late(ddp_rank_process *a)
{
    bool last = a->rank == a->world - 1;
    int64_t begin = ddp_now_ms(), took;
    ddp_trial t;
    ddp_err err = {0};
    ddp_status st = last ? DDP_OK : ddp_trial_open(&t, a, "late", TIMEOUT_MS, &err);

    took = ddp_now_ms() - begin;
    if (!last && DDP_EXPECT(a, st != DDP_OK, "comm_create ended well though rank %u had not come", a->world - 1) &&
        DDP_EXPECT(a, err.msg[0] != '\0', "comm_create failed without a reason"))
        (void)DDP_EXPECT(a, took < TIMEOUT_MS + SLACK_MS, "comm_create took %lld ms with timeout_ms %d",
                         (long long)took, TIMEOUT_MS);
    a->broken = (!last && st == DDP_OK) || !ddp_rank_process_barrier(a, "late");
}

/* ---- a rank that dies -------------------------------------------------------------------------------------------- */
/* In the middle of a collective: another thread kills the process while this one loops. */
static void *kill_main(void *arg)
{
    (void)arg;
    (void)usleep(BLOCK_MS * 1000);
    (void)kill(getpid(), SIGKILL);
    return NULL;
}

/* Collectives until one fails; as soon as the group knows of the death, comm_abort follows. */
static bool survive(ddp_trial *t, uint32_t slot, float *data)
{
    watch w = {.t = t, .abort_after_ms = -1, .what = ddp_slot_info_of(slot)->name};
    ddp_status st = DDP_OK;
    ddp_err err = {0};

    if (!watch_start(&w)) return false;
    atomic_store(&w.blocked, true);
    for (uint32_t i = 0; st == DDP_OK && i < KILL_LOOPS; i++) st = call(t, slot, data, &err);
    atomic_store(&w.returned, true);
    (void)pthread_join(w.thread, NULL);
    return DDP_EXPECT(t->a, st != DDP_OK, "%s goes on without rank %u, which has died", w.what, t->world - 1) &&
           DDP_EXPECT(t->a, err.msg[0] != '\0', "%s fails without a reason when a rank dies", w.what);
}

void backend_killed(ddp_rank_process *a)
{
    float *data = new_data(a);
    ddp_err err = {0};
    pthread_t thread;
    ddp_trial t;

    if (data == NULL || !open_trial(&t, a, "killed", DDP_TRIAL_TIMEOUT_MS)) return;
    if (!ddp_rank_process_barrier(a, "connected")) return; /* the others may still be in comm_create */
    if (a->rank == a->world - 1) {
        if (ddp_thread_start(&thread, "conform-kill", kill_main, NULL, &err) != DDP_OK) return;
        while (call(&t, a->c->slot, data, &err) == DDP_OK) continue;
        for (;;) (void)usleep(BLOCK_MS * 1000); /* the signal comes */
    }
    if (survive(&t, a->c->slot, data) && stays_aborted(&t, a->c->slot, data)) ddp_trial_close(&t);
    a->broken = false; /* destructors after a death are part of the case */
    free(data);
}
