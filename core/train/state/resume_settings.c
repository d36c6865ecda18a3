/* train/state/resume_settings.c -- compares the settings that a checkpoint was saved with, and its data, with those of
 * this run. What is loaded in spite of a difference is resume.c's affair. */
#include "train/state/resume_settings.h"
#include "checkpoint/settings_compare.h"
#include "session/report.h"
#include <inttypes.h>
#include <string.h>

enum { MOST_NAMED = 8, VALUE_SHOWN = 40 }; /* settings in a message; bytes of a value */

/* In the middle of an epoch the position is in micro-batches of a rank, which mean the same only under the same split
 * and the same order of the samples. */
static ddp_status check_position(const ddp_trainer *t, const ddp_checkpoint *c, ddp_err *err)
{
    const ddp_checkpoint_meta *m = &c->meta;
    uint64_t world = ddp_session_parts(t->s), batch = (uint64_t)t->s->batches.batch_size,
             accumulate = (uint64_t)t->s->batches.accumulate, seed = t->s->config->train->seed;

    if (m->cursor > t->s->batches_per_epoch && m->world_size == world && m->batch_size == batch)
        return ddp_fail(err, DDP_ERR_CONFIG,
                        "checkpoint %s was saved after micro-batch %" PRIu64 " of an epoch, which has %" PRIu64
                        " in this run: it is of other data; set [checkpoint] dir to another folder, or resume = never",
                        c->path, m->cursor, t->s->batches_per_epoch);
    if (m->cursor == 0 ||
        (m->world_size == world && m->batch_size == batch && m->accumulate == accumulate && m->seed == seed))
        return DDP_OK;
    return ddp_fail(err, DDP_ERR_CONFIG,
                    "checkpoint %s was saved in the middle of an epoch with world_size %" PRIu64 ", batch_size %" PRIu64
                    ", accumulate %" PRIu64 ", seed %" PRIu64 "; this run has %" PRIu64 ", %" PRIu64 ", %" PRIu64
                    ", %" PRIu64 ": resume with the same, or from a checkpoint of an epoch's end",
                    c->path, m->world_size, m->batch_size, m->accumulate, m->seed, world, batch, accumulate, seed);
}

struct differences {
    bool in_epoch;          /* the order of the samples counts */
    ddp_text order, others; /* "optimizer.lr = 0.1 there and 0.05 in this run, ..." */
    size_t order_count, other_count;
};

static bool begins_with(const char *key, const char *start) { return strncmp(key, start, strlen(start)) == 0; }

/* Which samples come, and in which order; the seed and the split of a batch are check_position's. */
static bool decides_order(const char *key)
{
    return begins_with(key, "sampler.") || strcmp(key, "data.length") == 0 || strcmp(key, "data.fingerprint") == 0;
}

/* What only says where and how often something is written, and what follows a loss. */
static bool has_no_influence(const char *key)
{
    return begins_with(key, "checkpoint.") || begins_with(key, "output.") || begins_with(key, "run.");
}

/* Of two long values the part from shortly before the first difference on. */
static size_t skipped(const char *there, const char *here)
{
    size_t common = 0;

    while (there[common] != '\0' && there[common] == here[common]) common++;
    return common >= VALUE_SHOWN / 2 ? common - VALUE_SHOWN / 4 : 0;
}

static void add(ddp_text *to, size_t *count, const char *key, const char *there, const char *here)
{
    size_t skip = skipped(there, here);
    const char *dots = skip > 0 ? "..." : "";

    if ((*count)++ < MOST_NAMED)
        ddp_text_printf(to, "%s%s = %s%.*s there and %s%.*s in this run", *count > 1 ? ", " : "", key, dots,
                        VALUE_SHOWN, there + skip, dots, VALUE_SHOWN, here + skip);
}

/* A key that one side lacks is of another version, or of another plugin, whose choice is a key that both have. */
static void differs(void *ctx, const char *key, const char *there, const char *here)
{
    struct differences *d = ctx;

    if (there == NULL || here == NULL || has_no_influence(key)) return;
    if (d->in_epoch && decides_order(key))
        add(&d->order, &d->order_count, key, there, here);
    else
        add(&d->others, &d->other_count, key, there, here);
}

static ddp_status report(const ddp_trainer *t, const ddp_checkpoint *c, const struct differences *d, ddp_err *err)
{
    char more[48] = "";

    if (d->order.failed || d->others.failed) return ddp_fail(err, DDP_ERR_NOMEM, "out of memory");
    if (d->order_count > 0)
        return ddp_fail(
            err, DDP_ERR_CONFIG,
            "checkpoint %.150s was saved in the middle of an epoch, and this run has other samples or another order: %.160s; set that as it was, or resume from a checkpoint of an epoch's end",
            c->path, d->order.data);
    if (d->other_count > MOST_NAMED) (void)snprintf(more, sizeof(more), ", and %zu more", d->other_count - MOST_NAMED);
    if (d->other_count > 0)
        ddp_log_line(t->s->log, DDP_LOG_WARN, "checkpoint %s was saved with other settings: %s%s", c->path,
                     d->others.data, more);
    return DDP_OK;
}

ddp_status state_check_settings(const ddp_trainer *t, const ddp_checkpoint *c, ddp_err *err)
{
    struct differences d = {.in_epoch = c->meta.cursor > 0};
    ddp_text here = {0};
    ddp_status st;

    DDP_TRY(check_position(t, c, err));
    if (c->settings == NULL) return DDP_OK; /* an earlier version wrote it */
    ddp_session_settings(t->s, &here);
    st = here.failed ? ddp_fail(err, DDP_ERR_NOMEM, "out of memory")
                     : ddp_checkpoint_compare_settings(c->settings, here.data, differs, &d, err);
    if (st == DDP_OK) st = report(t, c, &d, err);
    ddp_text_free(&d.others);
    ddp_text_free(&d.order);
    ddp_text_free(&here);
    return st;
}
