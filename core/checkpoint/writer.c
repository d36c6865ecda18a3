/* checkpoint/writer.c -- see writer.h. */
#include "checkpoint/writer.h"
#include "checkpoint/folder.h"
#include "checkpoint/shards.h"
#include <stdlib.h>

/* Compute threads come first: of a processor that both want, the writer gets a tenth. It is not starved, and has the
 * processors for itself where training waits for it. */
enum { NICER_BY = 10 };

struct ddp_checkpoint_writer {
    const ddp_checkpoint_lock *lock; /* NULL: of the rank's shards alone */
    const char *dir;
    ddp_retention keep;
    ddp_log *log;
    pthread_t thread;
    bool running;
    ddp_checkpoint_contents what; /* of the save under way: the thread's while `busy` */
    int64_t began_ns;
    atomic_bool cancelled;
    atomic_bool news; /* there is an outcome that nobody has taken */

    pthread_mutex_t mutex; /* guards everything below */
    pthread_cond_t wake;   /* for the thread */
    pthread_cond_t done;   /* for the caller: a save has ended */
    bool busy, stop;
    ddp_checkpoint_outcome outcome;
};

/* ---- the thread -------------------------------------------------------------------------------------------------- */
/* Without the mutex. The outcome is told before older checkpoints are looked at, which may take as long again. */
static void save(ddp_checkpoint_writer *w)
{
    const ddp_checkpoint_meta *meta = &w->what.meta;
    ddp_checkpoint_outcome o = {.step = meta->step, .epoch = meta->epoch};
    ddp_status st = w->lock != NULL ? checkpoint_save_durable(w->lock, &w->what, w->log, &o.err)
                                    : checkpoint_shard_save(w->dir, &w->what, &o.err);

    o.write_ms = (double)(ddp_now_ns() - w->began_ns) * 1e-6;
    pthread_mutex_lock(&w->mutex);
    w->outcome = o;
    pthread_mutex_unlock(&w->mutex);
    atomic_store(&w->news, true);
    if (st == DDP_OK && w->lock != NULL && !atomic_load(&w->cancelled))
        checkpoint_save_prune(w->lock, meta->step, &w->keep, w->log);
}

static void *save_main(void *arg)
{
    ddp_checkpoint_writer *w = arg;

    ddp_thread_lower_priority(NICER_BY);
    pthread_mutex_lock(&w->mutex);
    for (;;) {
        while (!w->busy && !w->stop) pthread_cond_wait(&w->wake, &w->mutex);
        if (!w->busy) break;
        pthread_mutex_unlock(&w->mutex);
        save(w);
        pthread_mutex_lock(&w->mutex);
        w->busy = false;
        pthread_cond_broadcast(&w->done);
    }
    pthread_mutex_unlock(&w->mutex);
    return NULL;
}

/* ---- the caller -------------------------------------------------------------------------------------------------- */
void ddp_checkpoint_writer_begin(ddp_checkpoint_writer *w, const ddp_checkpoint_contents *what)
{
    pthread_mutex_lock(&w->mutex);
    w->what = *what;
    w->what.cancelled = &w->cancelled;
    w->began_ns = ddp_now_ns();
    w->busy = true;
    pthread_cond_signal(&w->wake);
    pthread_mutex_unlock(&w->mutex);
}

bool ddp_checkpoint_writer_take(ddp_checkpoint_writer *w, ddp_checkpoint_outcome *out)
{
    if (!atomic_load_explicit(&w->news, memory_order_relaxed) || !atomic_exchange(&w->news, false)) return false;
    pthread_mutex_lock(&w->mutex);
    *out = w->outcome;
    pthread_mutex_unlock(&w->mutex);
    return true;
}

bool ddp_checkpoint_writer_wait(ddp_checkpoint_writer *w, int64_t deadline_ns)
{
    bool ended;

    pthread_mutex_lock(&w->mutex);
    while (w->busy && ddp_cond_wait_until(&w->done, &w->mutex, deadline_ns)) continue;
    ended = !w->busy;
    pthread_mutex_unlock(&w->mutex);
    return ended;
}

void ddp_checkpoint_writer_cancel(ddp_checkpoint_writer *w) { atomic_store(&w->cancelled, true); }

/* ---- life -------------------------------------------------------------------------------------------------------- */
ddp_status ddp_checkpoint_writer_open(const ddp_checkpoint_lock *lock, const char *dir, const ddp_retention *keep,
                                      ddp_log *log, ddp_checkpoint_writer **out, ddp_err *err)
{
    ddp_checkpoint_writer *w = ddp_alloc(sizeof(*w), err);

    if (w == NULL) return err->status;
    w->lock = lock;
    w->dir = dir;
    w->keep = *keep;
    w->log = log;
    pthread_mutex_init(&w->mutex, NULL);
    ddp_cond_init(&w->wake);
    ddp_cond_init(&w->done);
    w->running = ddp_thread_start(&w->thread, "ddp-save", save_main, w, err) == DDP_OK;
    if (!w->running) {
        ddp_checkpoint_writer_close(w);
        return err->status;
    }
    *out = w;
    return DDP_OK;
}

void ddp_checkpoint_writer_close(ddp_checkpoint_writer *w)
{
    if (w == NULL) return;
    if (w->running) {
        pthread_mutex_lock(&w->mutex);
        w->stop = true;
        pthread_cond_signal(&w->wake);
        pthread_mutex_unlock(&w->mutex);
        pthread_join(w->thread, NULL);
    }
    pthread_cond_destroy(&w->done);
    pthread_cond_destroy(&w->wake);
    pthread_mutex_destroy(&w->mutex);
    free(w);
}
