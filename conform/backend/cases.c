/* conform/backend/cases.c -- which cases a backend gets in a world: all combinations, or so many that every pair of
 * values occurs. */
#include "conform/backend/cases.h"
#include <stdlib.h>
#include <string.h>

#define MIB ((uint64_t)1 << 20)

enum { QUICK_MS = 10000, FULL_MS = 30000, LARGE_MS = 120000, LEAKS_MS = 120000, CANDIDATES = 40, PAIRWISE_MAX = 400 };

/* ---- results: every combination ---------------------------------------------------------------------------------- */
typedef struct choice { /* of one world */
    uint8_t slots[DDP_SLOT_END];
    uint32_t slot_count, world;
    uint64_t caps;
    ddp_case_list *list;
    ddp_err *err;
} choice;

static uint64_t count_of(uint32_t size, uint32_t dtype)
{
    static const uint64_t counts[] = {0, 1, 1023};
    size_t element = DDP_MAX_OF(ddp_dtype_size(dtype), (size_t)1);

    return size < DDP_COUNT(counts) ? counts[size] : MIB / element + 3;
}

static ddp_status all_of_slot(choice *h, uint8_t slot)
{
    const ddp_slot_info *s = ddp_slot_info_of(slot);
    uint32_t ops = s->reduces ? DDP_REDUCE_OP_END_ - 1u : 1u, n = 0;
    uint32_t world = DDP_MAX_OF(h->world, 1u);

    if (slot == DDP_SLOT_BARRIER) {
        for (uint32_t late = 0; late <= h->world; late++)
            DDP_TRY(ddp_case_add(
                h->list,
                (ddp_case){.suite = DDP_SUITE_RESULTS, .slot = slot, .late = (uint8_t)late, .deadline_ms = FULL_MS},
                h->err));
        return DDP_OK;
    }
    for (uint32_t dtype = DDP_F32; dtype < DDP_DTYPE_END_; dtype++)
        for (uint32_t op = 1; op <= ops; op++)
            for (uint32_t size = 0; size < 4; size++)
                for (uint32_t in_place = 0; in_place < 2; in_place++, n++) {
                    ddp_case c = {.suite = DDP_SUITE_RESULTS,
                                  .slot = slot,
                                  .dtype = (uint8_t)dtype,
                                  .op = s->reduces ? (uint8_t)op : 0,
                                  .root = (uint8_t)(s->rooted ? n % world : 0),
                                  .in_place = in_place == 1 && s->in_place,
                                  .late = (uint8_t)(n % 5 == 0 ? n / 5 % world + 1 : 0),
                                  .own_memory = (h->caps & DDP_CAP_MEM_ALLOC) != 0 && n % 3 == 0,
                                  .odd_address = n % 4 == 1,
                                  .random_values = n % 7 > 3 && s->reduces,
                                  .count = count_of(size, dtype),
                                  .deadline_ms = FULL_MS};
                    DDP_TRY(ddp_case_add(h->list, c, h->err));
                }
    return DDP_OK;
}

static ddp_status all_results(choice *h)
{
    for (uint32_t i = 0; i < h->slot_count; i++) DDP_TRY(all_of_slot(h, h->slots[i]));
    for (uint32_t i = 0; i < h->slot_count && h->world <= 2; i++)
        for (uint32_t in_place = 0; in_place < 2 && h->slots[i] != DDP_SLOT_BARRIER; in_place++) {
            const ddp_slot_info *s = ddp_slot_info_of(h->slots[i]);
            ddp_case c = {.suite = DDP_SUITE_RESULTS,
                          .slot = h->slots[i],
                          .dtype = DDP_F32,
                          .op = s->reduces ? DDP_SUM : 0,
                          .in_place = in_place == 1 && s->in_place,
                          .count = 64 * MIB / sizeof(float),
                          .deadline_ms = LARGE_MS};
            DDP_TRY(ddp_case_add(h->list, c, h->err));
        }
    return DDP_OK;
}

/* ---- results: pairwise ------------------------------------------------------------------------------------------- */
enum { FACTORS = 9, LEVELS = 10 };

typedef struct pairs {
    uint32_t levels[FACTORS];
    bool covered[FACTORS][LEVELS][FACTORS][LEVELS];
    uint32_t left;
    uint64_t random;
} pairs;

static uint32_t next_random(pairs *p, uint32_t below)
{
    p->random = p->random * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t)(p->random >> 33) % below;
}

/* How many pairs the row would add; with `take`, adds them. */
static uint32_t gain(pairs *p, const uint32_t *row, bool take)
{
    uint32_t n = 0;

    for (uint32_t f = 0; f < FACTORS; f++)
        for (uint32_t g = f + 1; g < FACTORS; g++) {
            bool *covered = &p->covered[f][row[f]][g][row[g]];

            n += !*covered;
            if (take && !*covered) p->left--;
            if (take) *covered = true;
        }
    return n;
}

static ddp_case case_of(const choice *h, const uint32_t *row)
{
    const ddp_slot_info *s = ddp_slot_info_of(h->slots[row[0]]);

    return (ddp_case){.suite = DDP_SUITE_RESULTS,
                      .slot = h->slots[row[0]],
                      .dtype = (uint8_t)(row[1] + DDP_F32),
                      .op = s->reduces ? (uint8_t)(row[2] + DDP_SUM) : 0,
                      .root = (uint8_t)(s->rooted ? row[2] % h->world : 0),
                      .count = count_of(row[3], row[1] + DDP_F32),
                      .in_place = row[4] == 1 && s->in_place,
                      .late = (uint8_t)(row[5] == 0 ? 0 : (row[5] == 1 ? 1 : h->world)),
                      .own_memory = row[6] == 1,
                      .odd_address = row[7] == 1,
                      .random_values = row[8] == 1,
                      .deadline_ms = QUICK_MS};
}

/* Greedy: of some random rows the one that adds the most pairs, the first of them drawn around a pair that is
 * missing. */
static ddp_status pairwise_results(choice *h)
{
    pairs *p = ddp_alloc(sizeof(*p), h->err);
    uint32_t rows = 0;
    ddp_status status = DDP_OK;

    if (p == NULL) return h->err->status;
    memcpy(p->levels,
           (const uint32_t[FACTORS]){h->slot_count, DDP_DTYPE_END_ - 1u, DDP_REDUCE_OP_END_ - 1u, 4, 2, 3,
                                     (h->caps & DDP_CAP_MEM_ALLOC) != 0 ? 2 : 1, 2, 2},
           sizeof(p->levels));
    p->random = 20 + h->world;
    for (uint32_t f = 0; f < FACTORS; f++)
        for (uint32_t g = f + 1; g < FACTORS; g++) p->left += p->levels[f] * p->levels[g];
    while (p->left > 0 && rows++ < PAIRWISE_MAX && status == DDP_OK) {
        uint32_t best[FACTORS] = {0}, most = 0;

        for (uint32_t i = 0; i < CANDIDATES; i++) {
            uint32_t row[FACTORS], n;

            for (uint32_t f = 0; f < FACTORS; f++) row[f] = next_random(p, p->levels[f]);
            n = gain(p, row, false);
            if (n > most) memcpy(best, row, sizeof(best));
            most = DDP_MAX_OF(most, n);
        }
        if (most == 0) continue;
        (void)gain(p, best, true);
        status = ddp_case_add(h->list, case_of(h, best), h->err);
    }
    free(p);
    return status;
}

/* The operation that training rests on gets every dtype with every operation in any case. */
static ddp_status every_reduction(choice *h)
{
    if ((h->caps & DDP_CAP_ALL_REDUCE) == 0) return DDP_OK;
    for (uint32_t dtype = DDP_F32; dtype < DDP_DTYPE_END_; dtype++)
        for (uint32_t op = DDP_SUM; op < DDP_REDUCE_OP_END_; op++)
            DDP_TRY(ddp_case_add(h->list,
                                 (ddp_case){.suite = DDP_SUITE_RESULTS,
                                            .slot = DDP_SLOT_ALL_REDUCE,
                                            .dtype = (uint8_t)dtype,
                                            .op = (uint8_t)op,
                                            .count = 77,
                                            .in_place = op % 2 == 0,
                                            .deadline_ms = QUICK_MS},
                                 h->err));
    return DDP_OK;
}

/* ---- the other suites -------------------------------------------------------------------------------------------- */
static ddp_status add(choice *h, uint32_t suite, uint32_t slot, bool fresh, int32_t deadline_ms)
{
    return ddp_case_add(h->list,
                        (ddp_case){.suite = (uint8_t)suite,
                                   .slot = (uint8_t)slot,
                                   .fresh = fresh,
                                   .dtype = DDP_F32,
                                   .op = DDP_SUM,
                                   .deadline_ms = deadline_ms},
                        h->err);
}

/* In the processes of the results; what follows a failure of these is not hurt by it. */
static ddp_status add_shared(choice *h, bool quick)
{
    int32_t ms = quick ? QUICK_MS : FULL_MS;

    DDP_TRY(add(h, DDP_SUITE_ORDER, 0, false, 2 * ms));
    if ((h->caps & DDP_CAP_MEM_ALLOC) != 0) DDP_TRY(add(h, DDP_SUITE_MEMORY, 0, false, ms));
    DDP_TRY(add(h, DDP_SUITE_REFUSALS, 0, false, ms));
    DDP_TRY(add(h, DDP_SUITE_GROWTH, 0, false, ms));
    DDP_TRY(add(h, DDP_SUITE_PAIR, 0, false, 2 * ms));
    return DDP_OK;
}

static ddp_status add_fresh(choice *h, bool quick, bool launched)
{
    int32_t ms = quick ? QUICK_MS : FULL_MS;
    bool can_abort = (h->caps & DDP_CAP_ABORT) != 0;

    for (uint32_t i = 0; i < h->slot_count && can_abort && h->world > 1; i++)
        DDP_TRY(add(h, DDP_SUITE_ABORT, h->slots[i], true, ms));
    if (h->world > 1) {
        if (!quick || h->world == 2) DDP_TRY(add(h, DDP_SUITE_TIMEOUT, h->slots[0], true, ms));
        if (!launched && (!quick || h->world == 2)) DDP_TRY(add(h, DDP_SUITE_LATE, 0, true, ms));
        if (can_abort && !launched) DDP_TRY(add(h, DDP_SUITE_KILLED, h->slots[0], true, ms));
    }
    if (!quick || h->world <= 2) DDP_TRY(add(h, DDP_SUITE_LEAKS, 0, true, LEAKS_MS));
    return DDP_OK;
}

static void keep_suite(ddp_case_list *l, uint32_t suite)
{
    uint32_t kept = 0;

    for (uint32_t i = 0; i < l->count; i++)
        if (l->items[i].suite == suite || l->items[i].suite == DDP_SUITE_CONNECT) l->items[kept++] = l->items[i];
    l->count = kept;
}

ddp_status ddp_backend_cases(ddp_case_list *l, uint64_t caps, uint32_t world, bool quick, bool launched, uint32_t suite,
                             ddp_err *err)
{
    choice h = {.world = world, .caps = caps, .list = l, .err = err};

    for (uint32_t slot = 0; slot < DDP_SLOT_END; slot++)
        if ((caps & ddp_slot_info_of(slot)->cap) != 0 && (slot != DDP_SLOT_SEND_RECV || world > 1))
            h.slots[h.slot_count++] = (uint8_t)slot;
    DDP_TRY(add(&h, DDP_SUITE_CONNECT, 0, false, QUICK_MS));
    if (h.slot_count > 0) {
        DDP_TRY(quick ? every_reduction(&h) : all_results(&h));
        if (quick) DDP_TRY(pairwise_results(&h));
        DDP_TRY(add_shared(&h, quick));
        DDP_TRY(add_fresh(&h, quick, launched));
    }
    if (suite != DDP_SUITE_END) keep_suite(l, suite);
    return DDP_OK;
}
