/* observe/audit_check.c -- the proof: each sample exactly once in each epoch, but for what the sampler repeats or drops
 * so that all ranks have equally many. */
#include "observe/audit_index.h"
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#define MOST_SAMPLES (UINT64_C(1) << 34) /* of a dataset; a byte is kept for each */

/* An epoch's entries, and what they have. */
typedef struct epoch {
    const ddp_audit_entry *entries;
    size_t count;
    uint64_t number, length; /* from 1; samples of the dataset */
    uint64_t planned;        /* uses by all ranks, 0: not the same in all steps */
    uint32_t world;
    bool complete; /* all ranks have used their share */
    uint64_t used, steps, left_out, left_out_steps;
    uint64_t missing, repeated; /* samples without a use; uses beyond the first */
    uint64_t again;             /* samples with more than one */
    uint8_t *uses;              /* by sample, 255 and more are one */
} epoch;

/* Whether all of its last step have come to their end. */
static void look_at_ends(epoch *e)
{
    const ddp_audit_entry *last = &e->entries[e->count - 1];

    e->complete = true;
    for (size_t i = e->count; i-- > 0 && e->entries[i].step == last->step;) {
        e->complete = e->complete && e->entries[i].position == e->entries[i].share;
        e->planned += e->entries[i].share;
    }
    e->world = last->rank + 1; /* entries are by rank, and none is missing */
}

static ddp_status next_epoch(const ddp_audit_index *x, size_t first, epoch *e, ddp_err *err)
{
    *e = (epoch){.entries = &x->entries[first], .number = x->entries[first].epoch, .length = x->entries[first].length};
    while (first + e->count < x->entry_count && e->entries[e->count].epoch == e->number) {
        const ddp_audit_entry *k = &e->entries[e->count++];

        if (k->length != e->length)
            return ddp_fail(err, DDP_ERR_DATA,
                            "epoch %" PRIu64 ": step %" PRIu64 " is of a dataset of %" PRIu64
                            " samples, the steps before it of %" PRIu64,
                            e->number, k->step, k->length, e->length);
        e->used += k->count;
        e->left_out += k->left_out ? k->count : 0;
        if (e->count > 1 && k[-1].step == k->step) continue;
        e->steps++;
        e->left_out_steps += k->left_out;
    }
    look_at_ends(e);
    return DDP_OK;
}

static ddp_status count_uses(ddp_audit_index *x, epoch *e, ddp_err *err)
{
    if (e->length > MOST_SAMPLES || e->entries[e->count - 1].share > MOST_SAMPLES)
        return ddp_fail(err, DDP_ERR_DATA, "epoch %" PRIu64 ": a dataset of %" PRIu64 " samples is beyond this check",
                        e->number, e->length);
    e->uses = calloc((size_t)e->length, 1);
    if (e->uses == NULL) return ddp_fail(err, DDP_ERR_NOMEM, "out of memory for %" PRIu64 " samples", e->length);
    for (size_t i = 0; i < e->count; i++) {
        const uint8_t *record;

        DDP_TRY(observe_audit_entry(x, &e->entries[i], &record, err));
        for (uint32_t k = 0; k < e->entries[i].count; k++) {
            uint64_t id = observe_audit_id(record, k);

            if (id >= e->length) return ddp_fail(err, DDP_ERR_DATA, "a file has changed while it was read");
            e->repeated += e->uses[id] > 0;
            e->again += e->uses[id] == 1;
            e->uses[id] = (uint8_t)(e->uses[id] + (e->uses[id] < UINT8_MAX));
        }
    }
    return DDP_OK;
}

static uint64_t first_with(const epoch *e, uint8_t least, uint8_t most)
{
    uint64_t id = 0;

    while (id < e->length && (e->uses[id] < least || e->uses[id] > most)) id++;
    return id;
}

/* Which two steps have used it. */
static ddp_status fail_repeated(ddp_audit_index *x, const epoch *e, uint64_t allowed, ddp_err *err)
{
    uint64_t id = first_with(e, 2, UINT8_MAX);
    const ddp_audit_entry *by[2] = {0};
    size_t found = 0;

    for (size_t i = 0; i < e->count && found < 2; i++) {
        const uint8_t *record;

        DDP_TRY(observe_audit_entry(x, &e->entries[i], &record, err));
        for (uint32_t k = 0; k < e->entries[i].count && found < 2; k++)
            if (observe_audit_id(record, k) == id) by[found++] = &e->entries[i];
    }
    if (found < 2) return ddp_fail(err, DDP_ERR_DATA, "a file has changed while it was read");
    return ddp_fail(err, DDP_ERR_DATA,
                    "epoch %" PRIu64 ": %" PRIu64 " uses of samples too many, where the sampler explains %" PRIu64
                    "; the first is sample %" PRIu64 ", used in step %" PRIu64 " by rank %u and in step %" PRIu64
                    " by rank %u",
                    e->number, e->repeated, allowed, id, by[0]->step, by[0]->rank, by[1]->step, by[1]->rank);
}

/* What the sampler repeats or drops for equal shares. */
static ddp_status compare(ddp_audit_index *x, const epoch *e, ddp_err *err)
{
    uint64_t more = e->planned > e->length ? e->planned - e->length : 0,
             fewer = e->planned < e->length ? e->length - e->planned : 0;

    if (e->repeated > more) return fail_repeated(x, e, more, err);
    if (!e->complete || e->missing == fewer) return DDP_OK;
    return ddp_fail(err, DDP_ERR_DATA,
                    "epoch %" PRIu64 ": %" PRIu64 " of %" PRIu64
                    " samples are not used, where the sampler drops %" PRIu64 "; the first is sample %" PRIu64,
                    e->number, e->missing, e->length, fewer, first_with(e, 0, 0));
}

static void print_epoch(const epoch *e, ddp_text *out)
{
    uint64_t distinct = e->used - e->repeated;

    if (!e->complete) {
        ddp_text_printf(out, "epoch %" PRIu64 ": %" PRIu64 " of %" PRIu64 " samples so far, in %" PRIu64 " steps",
                        e->number, distinct, e->length, e->steps);
    } else {
        ddp_text_printf(out, "epoch %" PRIu64 ": %" PRIu64 " of %" PRIu64 " samples exactly once", e->number, distinct,
                        e->length);
        if (e->repeated > 0)
            ddp_text_printf(out, ", but for %" PRIu64 " that the sampler repeats to give %u ranks equally many",
                            e->again, e->world);
        if (e->missing > 0)
            ddp_text_printf(out, ", %" PRIu64 " left over that the sampler drops to give %u ranks equally many",
                            e->missing, e->world);
    }
    if (e->left_out > 0)
        ddp_text_printf(out, "; %" PRIu64 " of them in %" PRIu64 " steps whose update was left out", e->left_out,
                        e->left_out_steps);
    ddp_text_printf(out, "\n");
}

static ddp_status check_epoch(ddp_audit_index *x, epoch *e, ddp_text *out, ddp_err *err)
{
    DDP_TRY(count_uses(x, e, err));
    e->missing = e->length - (e->used - e->repeated);
    DDP_TRY(compare(x, e, err));
    print_epoch(e, out);
    return DDP_OK;
}

static ddp_status check_epochs(ddp_audit_index *x, ddp_text *out, ddp_err *err)
{
    uint64_t number = 0;
    epoch e;

    for (size_t i = 0; i < x->entry_count; i += e.count) {
        ddp_status st = next_epoch(x, i, &e, err);

        if (st == DDP_OK && e.number != number + 1)
            st = ddp_fail(err, DDP_ERR_DATA, "step %" PRIu64 " is of epoch %" PRIu64 ", after epoch %" PRIu64,
                          e.entries[0].step, e.number, number);
        if (st == DDP_OK && !e.complete && i + e.count < x->entry_count)
            st = ddp_fail(err, DDP_ERR_DATA, "epoch %" PRIu64 " ends with step %" PRIu64 " before all samples are used",
                          e.number, e.entries[e.count - 1].step);
        if (st == DDP_OK) st = check_epoch(x, &e, out, err);
        free(e.uses);
        if (st != DDP_OK) return st;
        number = e.number;
    }
    return DDP_OK;
}

static void print_runs(const ddp_audit_index *x, ddp_text *out)
{
    ddp_text_printf(out, "steps 1 to %" PRIu64 " in %zu records; starts, restarts and rollbacks of the ranks: %zu",
                    x->steps, x->entry_count, x->run_count);
    if (x->superseded > 0)
        ddp_text_printf(out, "; %" PRIu64 " records of steps that a later run has made again do not count",
                        x->superseded);
    if (x->open_steps > 0)
        ddp_text_printf(out, "; nor do %" PRIu64 " steps at the end, which not all ranks had written", x->open_steps);
    ddp_text_printf(out, "\n");
}

ddp_status ddp_audit_check(const char *const *paths, size_t count, ddp_text *out, ddp_err *err)
{
    ddp_audit_index x = {0};
    ddp_status st = observe_audit_index(paths, count, &x, err);

    if (st == DDP_OK) st = check_epochs(&x, out, err);
    if (st == DDP_OK) print_runs(&x, out);
    if (st == DDP_OK && out->failed) st = ddp_fail(err, DDP_ERR_NOMEM, "out of memory");
    observe_audit_index_free(&x);
    return st;
}
