/* conform/backend/refusals.c -- what a backend must refuse, with a reason, before anything is written or sent:
 * overlaps, counts that overflow, roots, dtypes and operations that are none. */
#include "conform/backend/refusals.h"
#include "conform/backend/trial.h"
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { COUNT = 16, REFUSE_MS = 3000 };

/* A call that every rank makes alike and every rank must refuse; nothing of `data` may change. */
static bool refused(ddp_trial *t, uint32_t slot, const ddp_coll *args, uint32_t *data, size_t words, const char *what,
                    ddp_status want)
{
    ddp_rank_process *a = t->a;
    uint64_t before = ddp_hash64(data, words * sizeof(*data), 0);
    ddp_err err;
    ddp_status status;

    if (!ddp_trial_can(t, slot)) return true;
    status = ddp_trial_call(t, slot, args, &err);
    if (status == DDP_OK) {
        ddp_rank_process_fail(a, "%s: %s is accepted", ddp_slot_info_of(slot)->name, what);
        a->broken = true;
        return false;
    }
    return DDP_EXPECT(a, want == DDP_OK || status == want, "%s: %s answers \"%s\", not \"%s\": %.100s",
                      ddp_slot_info_of(slot)->name, what, ddp_status_text(status), ddp_status_text(want), err.msg) &&
           DDP_EXPECT(a, err.msg[0] != '\0' && err.status == status,
                      "%s: %s is refused without ddp_fail(): no reason, or another status in ddp_err",
                      ddp_slot_info_of(slot)->name, what) &&
           DDP_EXPECT(a, ddp_hash64(data, words * sizeof(*data), 0) == before,
                      "%s: %s is refused, but memory was written", ddp_slot_info_of(slot)->name, what);
}

static ddp_coll sum_of(uint32_t *send, uint32_t *recv)
{
    return (ddp_coll){
        .struct_size = sizeof(ddp_coll), .dtype = DDP_F32, .op = DDP_SUM, .send = send, .recv = recv, .count = COUNT};
}

static bool overlap(ddp_trial *t, uint32_t *data, size_t words)
{
    static const uint8_t slots[] = {DDP_SLOT_ALL_REDUCE, DDP_SLOT_ALL_GATHER, DDP_SLOT_REDUCE_SCATTER,
                                    DDP_SLOT_ALL_TO_ALL};

    for (size_t i = 0; i < DDP_COUNT(slots); i++) {
        size_t shift = slots[i] == DDP_SLOT_ALL_REDUCE ? 3 : COUNT * t->rank + 3;
        ddp_coll forth = sum_of(data, data + shift), back = sum_of(data + shift, data);

        if (!ddp_slot_info_of(slots[i])->reduces) forth.op = back.op = 0;
        if (!refused(t, slots[i], slots[i] == DDP_SLOT_ALL_GATHER ? &back : &forth, data, words,
                     "an overlap that is not in place", DDP_ERR_INVALID))
            return false;
        back = sum_of(data, data); /* in place for rank 0 alone, whose block is the first; in all_to_all for nobody */
        if (!ddp_slot_info_of(slots[i])->reduces) back.op = 0;
        if (slots[i] == DDP_SLOT_ALL_TO_ALL &&
            !refused(t, slots[i], &back, data, words, "send == recv, for which there is no in place,", DDP_ERR_INVALID))
            return false;
        if (t->rank > 0 && (slots[i] == DDP_SLOT_ALL_GATHER || slots[i] == DDP_SLOT_REDUCE_SCATTER) &&
            !refused(t, slots[i], &back, data, words, "send == recv, which is not this rank's block,", DDP_ERR_INVALID))
            return false;
    }
    return true;
}

/* gather and scatter: only the root has both buffers, so it alone calls, and must answer without the others. */
static bool overlap_at_root(ddp_trial *t, uint32_t *data, size_t words)
{
    const uint32_t root = t->world - 1;
    uint32_t *apart = data + (size_t)COUNT * root + 3;
    ddp_coll a = {.struct_size = sizeof(a), .dtype = DDP_F32, .root = root, .count = COUNT};

    if (t->rank != root) return true;
    a.send = apart, a.recv = data;
    if (!refused(t, DDP_SLOT_GATHER, &a, data, words, "an overlap that is not in place", DDP_ERR_INVALID)) return false;
    a.send = data, a.recv = apart;
    if (!refused(t, DDP_SLOT_SCATTER, &a, data, words, "an overlap that is not in place", DDP_ERR_INVALID))
        return false;
    a.recv = data;
    return root == 0 || (refused(t, DDP_SLOT_GATHER, &a, data, words, "send == recv, which is not the root's block,",
                                 DDP_ERR_INVALID) &&
                         refused(t, DDP_SLOT_SCATTER, &a, data, words, "send == recv, which is not the root's block,",
                                 DDP_ERR_INVALID));
}

/* Overlaps are refused without the other ranks: a call that waits for them does not return, and another thread
 * reports that. */
typedef struct patience {
    ddp_rank_process *a;
    atomic_bool over;
} patience;

static void *patience_main(void *arg)
{
    patience *p = arg;
    int64_t deadline = ddp_now_ms() + REFUSE_MS;

    while (!atomic_load(&p->over) && ddp_now_ms() < deadline) (void)usleep(2000);
    if (atomic_load(&p->over)) return NULL;
    ddp_rank_process_fail(p->a, "an overlap that is not in place is not refused within %d ms", REFUSE_MS);
    _exit(DDP_EXIT_PLUGIN);
}

static bool refuses_overlaps(ddp_trial *t, uint32_t *data, size_t words)
{
    patience p = {.a = t->a};
    ddp_err err = {0};
    pthread_t thread;
    bool good;

    if (ddp_thread_start(&thread, "conform-watch", patience_main, &p, &err) != DDP_OK) {
        ddp_rank_process_skip(t->a, "%.200s", err.msg);
        return false;
    }
    good = overlap(t, data, words) && overlap_at_root(t, data, words);
    atomic_store(&p.over, true);
    (void)pthread_join(thread, NULL);
    return good && ddp_rank_process_barrier(t->a, "refused");
}

/* Counts whose bytes are no size: of one rank, of all, and just beyond what memory can hold. */
static bool refuses_overflow(ddp_trial *t, uint32_t *data, size_t words)
{
    const size_t element = sizeof(float);
    const size_t counts[] = {SIZE_MAX / element + 2, SIZE_MAX / element / t->world + 2,
                             (size_t)PTRDIFF_MAX / element / t->world + 1};

    for (uint32_t slot = 0; slot < DDP_SLOT_END; slot++)
        for (size_t i = 0; i < DDP_COUNT(counts) && slot != DDP_SLOT_BARRIER; i++) {
            ddp_coll a = sum_of(data, data + words / 2);
            char what[96];

            a.count = counts[i];
            if (!ddp_slot_info_of(slot)->reduces) a.op = 0;
            (void)snprintf(what, sizeof(what), "a count of %zu f32, more than memory can hold,", a.count);
            if (!refused(t, slot, &a, data, words, what, DDP_ERR_INVALID)) return false;
        }
    return true;
}

static bool refuses_nonsense(ddp_trial *t, uint32_t *data, size_t words)
{
    ddp_coll a = sum_of(data, data + words / 2), root = a, dtype = a, op = a;

    dtype.dtype = 99;
    op.op = 99;
    root.root = t->world;
    return refused(t, DDP_SLOT_ALL_REDUCE, &dtype, data, words, "dtype 99", DDP_OK) &&
           refused(t, DDP_SLOT_ALL_REDUCE, &op, data, words, "operation 99", DDP_OK) &&
           refused(t, DDP_SLOT_BROADCAST, &root, data, words, "a root that is no rank", DDP_ERR_INVALID) &&
           refused(t, DDP_SLOT_REDUCE, &root, data, words, "a root that is no rank", DDP_ERR_INVALID) &&
           DDP_EXPECT(t->a, t->a->ops->supports(t->comm, 99, DDP_SUM) == DDP_ERR_UNSUPPORTED, "supports dtype 99") &&
           DDP_EXPECT(t->a, t->a->ops->supports(t->comm, DDP_F32, 99) == DDP_ERR_UNSUPPORTED, "supports operation 99");
}

void ddp_backend_refusals(ddp_rank_process *a)
{
    ddp_trial t = ddp_trial_shared(a);
    size_t words = (size_t)4 * COUNT * (a->world + 1);
    ddp_case after = {.suite = a->c->suite,
                      .slot = DDP_SLOT_ALL_REDUCE,
                      .dtype = DDP_F32,
                      .op = DDP_SUM,
                      .count = 100,
                      .seed = a->c->seed};
    ddp_err err = {0};
    uint32_t *data = ddp_alloc_aligned(words * sizeof(*data), &err);

    if (data == NULL) {
        ddp_rank_process_skip(a, "%.200s", err.msg);
        return;
    }
    if (refuses_overlaps(&t, data, words) && refuses_overflow(&t, data, words) && refuses_nonsense(&t, data, words) &&
        ddp_trial_can(&t, after.slot))
        (void)ddp_trial_collective(&t, &after); /* a refusal costs nothing else */
    if (!a->broken) free(data);
}
