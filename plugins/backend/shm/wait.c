/* plugins/backend/shm/wait.c -- how a rank waits for another: it spins for a moment where every rank has a processor
 * of its own, then sleeps on the word in shared memory. A sleep lasts a slice at most; between slices it looks for
 * reasons to give up: an abort, here or on a peer, a peer that has died or left, the deadline. The first rank to
 * find one lost reports it to all, so that all name the same. */
#include "shm.h"
#include <errno.h>
#include <linux/futex.h>
#include <sched.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

enum { SLICE_MS = 50, PAUSES = 16 }; /* pauses between two looks at the clock */

static int64_t now_ns(void)
{
    struct timespec t;

    (void)clock_gettime(CLOCK_MONOTONIC, &t);
    return (int64_t)t.tv_sec * 1000000000 + t.tv_nsec;
}

static inline void relax(void)
{
#if defined(__x86_64__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    __asm__ volatile("yield");
#endif
}

/* ---- futex: not private, the word is in memory of several processes ---------------------------------------------- */
static void futex_wake(shm_word *w) { (void)syscall(SYS_futex, &w->value, FUTEX_WAKE, INT32_MAX, NULL, NULL, 0); }

/* False when the slice has passed. */
static bool futex_sleep(shm_word *w, uint32_t old)
{
    const struct timespec slice = {.tv_nsec = (long)SLICE_MS * 1000000};

    return syscall(SYS_futex, &w->value, FUTEX_WAIT, old, &slice, NULL, 0) == 0 || errno != ETIMEDOUT;
}

/* The store and the look at `sleepers` keep their order, as do a sleeper's count and the kernel's look at the value:
 * one of the two sees the other. */
void ddp_shm_set(shm_word *w, uint32_t value)
{
    atomic_store(&w->value, value);
    if (atomic_load(&w->sleepers) != 0) futex_wake(w);
}

void ddp_shm_wake_all(ddp_comm *c)
{
    for (uint32_t r = 0; r < c->world; r++) {
        shm_rank *rank = ddp_shm_rank(c, r);

        futex_wake(&rank->slot[0].phase);
        futex_wake(&rank->slot[1].phase);
        futex_wake(&rank->channel.put);
        futex_wake(&rank->channel.taken);
    }
}

/* ---- reasons to give up ------------------------------------------------------------------------------------------ */
/* Every rank that has died, not only the one waited for, which may itself be waiting for the dead one. */
static void look_for_dead(ddp_comm *c)
{
    for (uint32_t r = 0; r < c->world; r++) {
        const shm_rank *peer = ddp_shm_rank(c, r);
        uint64_t now = r == c->rank || atomic_load(&peer->left) != 0 ? UINT64_MAX : ddp_shm_started(peer->pid);
        uint32_t none = 0;

        /* ended, or its number is another process's by now */
        if (now != 0 && (now == c->started[r] || now == UINT64_MAX || c->started[r] == UINT64_MAX)) continue;
        if (atomic_load(&peer->left) != 0) continue;
        if (atomic_compare_exchange_strong(&c->header->lost, &none, r + 1)) ddp_shm_wake_all(c);
        return;
    }
}

static ddp_status lost(ddp_comm *c, uint32_t peer, ddp_err *err)
{
    bool left = atomic_load(&ddp_shm_rank(c, peer)->left) != 0;

    (void)ddp_fail(err, DDP_ERR_PEER, "shm: %s %llu of %zu bytes on rank %u: rank %u (process %u) %s", c->name,
                   (unsigned long long)c->calls, c->name_bytes, c->rank, peer, ddp_shm_rank(c, peer)->pid,
                   left ? "has left the communicator" : "has died");
    err->rank = (int32_t)peer;
    return DDP_ERR_PEER;
}

/* The abort of this rank is answered as such, whatever came before; of a peer's abort the first cause. */
static ddp_status aborted(ddp_comm *c, ddp_err *err)
{
    uint32_t by = atomic_load(&c->header->aborted), after = by & SHM_AFTER_LOSS, gone = atomic_load(&c->header->lost);

    by &= ~(uint32_t)SHM_AFTER_LOSS;
    if (atomic_load(&c->aborted) || by == c->rank + 1) {
        (void)ddp_fail(err, DDP_ERR_ABORTED, "shm: %s %llu: the communicator was aborted%s%.300s", c->name,
                       (unsigned long long)c->calls, c->broken ? ", after this: " : "", c->broken ? c->cause.msg : "");
        if (c->broken) err->rank = c->cause.rank;
        return DDP_ERR_ABORTED;
    }
    if (by == 0) return DDP_OK;
    if (after != 0 && gone != 0 && gone - 1 != c->rank) return lost(c, gone - 1, err);
    (void)ddp_fail(err, DDP_ERR_ABORTED, "shm: %s %llu: rank %u has aborted the communicator", c->name,
                   (unsigned long long)c->calls, by - 1);
    err->rank = (int32_t)by - 1;
    return DDP_ERR_ABORTED;
}

/* Called while the word has its old value; DDP_OK to go on. */
static ddp_status reason(ddp_comm *c, const shm_word *w, uint32_t old, uint32_t peer, ddp_err *err)
{
    int64_t now = now_ns();
    uint32_t gone, none = 0;
    ddp_status st = aborted(c, err);

    if (st != DDP_OK) return st;
    if (atomic_load(&ddp_shm_rank(c, peer)->left) != 0 && atomic_load(&w->value) == old &&
        atomic_compare_exchange_strong(&c->header->lost, &none, peer + 1))
        ddp_shm_wake_all(c);
    gone = atomic_load(&c->header->lost);
    if (gone != 0 && gone - 1 != c->rank && atomic_load(&w->value) == old) return lost(c, gone - 1, err);
    if (c->deadline_ns == 0) c->deadline_ns = now + c->timeout_ns;
    if (now < c->deadline_ns) return DDP_OK;
    (void)ddp_fail(err, DDP_ERR_TIMEOUT, "shm: %s %llu of %zu bytes on rank %u: rank %u did not come within %g s",
                   c->name, (unsigned long long)c->calls, c->name_bytes, c->rank, peer, (double)c->timeout_ns * 1e-9);
    err->rank = (int32_t)peer;
    return DDP_ERR_TIMEOUT;
}

/* ---- waiting ----------------------------------------------------------------------------------------------------- */
static bool changed(const shm_word *w, uint32_t old)
{
    return atomic_load_explicit(&w->value, memory_order_acquire) != old;
}

/* Where both run on one processor, as on a busy host they may, spinning keeps the peer from what this rank waits
 * for. */
static bool on_one_cpu(const ddp_comm *c, uint32_t peer)
{
    const uint32_t cpu = (uint32_t)sched_getcpu();
    shm_rank *own = ddp_shm_rank(c, c->rank);

    if (atomic_load_explicit(&own->cpu, memory_order_relaxed) != cpu) atomic_store(&own->cpu, cpu);
    return atomic_load_explicit(&ddp_shm_rank(c, peer)->cpu, memory_order_relaxed) == cpu;
}

static bool spin(const ddp_comm *c, const shm_word *w, uint32_t old, uint32_t peer)
{
    int64_t end = c->spin_ns > 0 && !on_one_cpu(c, peer) ? now_ns() + c->spin_ns : 0;

    do {
        for (int i = 0; i < PAUSES; i++) {
            if (changed(w, old)) return true;
            relax();
        }
    } while (end != 0 && !atomic_load_explicit(&c->aborted, memory_order_relaxed) && now_ns() < end);
    return false;
}

ddp_status ddp_shm_wait(ddp_comm *c, shm_word *w, uint32_t old, uint32_t peer, ddp_err *err)
{
    ddp_status st = DDP_OK;

    if (changed(w, old) || spin(c, w, old, peer)) return DDP_OK;
    while (!changed(w, old)) {
        st = reason(c, w, old, peer, err);
        if (st != DDP_OK) break;
        (void)atomic_fetch_add(&w->sleepers, 1);
        if (!futex_sleep(w, old)) look_for_dead(c);
        (void)atomic_fetch_sub(&w->sleepers, 1);
    }
    if (st == DDP_OK) return DDP_OK;
    c->broken = true;
    c->cause = *err;
    return st;
}

ddp_status ddp_shm_begin(ddp_comm *c, const char *name, size_t bytes, ddp_err *err)
{
    c->calls++;
    c->name = name;
    c->name_bytes = bytes;
    c->deadline_ns = 0;
    if (!c->broken || atomic_load(&c->aborted)) return aborted(c, err);
    *err = c->cause;
    return err->status;
}

ddp_status ddp_shm_exchange(ddp_comm *c, ddp_err *err)
{
    uint32_t phase = ++c->phase, at = phase & 1;
    ddp_status st = DDP_OK;

    ddp_shm_set(&ddp_shm_rank(c, c->rank)->slot[at].phase, phase);
    for (uint32_t r = 0; r < c->world && st == DDP_OK; r++) {
        shm_word *w = &ddp_shm_rank(c, r)->slot[at].phase;
        uint32_t seen = atomic_load_explicit(&w->value, memory_order_acquire);

        if (seen != phase) st = ddp_shm_wait(c, w, seen, r, err); /* it has no other value to change to */
    }
    return st;
}
