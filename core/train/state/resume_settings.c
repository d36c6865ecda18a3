/* train/state/resume_settings.c -- compares the settings that a checkpoint was saved with, and its data, with those of
 * this run. What is loaded in spite of a difference is resume.c's affair. */
#include "train/state/resume_settings.h"
#include "checkpoint/settings_compare.h"
#include "session/open.h"
#include "session/place.h"
#include "session/report/report.h"
#include "train/state/survivor.h"
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#define MOST_SAMPLES (UINT64_C(1) << 40) /* of a step */

enum { MOST_NAMED = 8, VALUE_SHOWN = 40 }; /* settings in a message; bytes of a value */

/* ---- another number of ranks ------------------------------------------------------------------------------------- */
/* Step k of an epoch has the same samples with any number of ranks, so steps are what a position is counted in. */
uint64_t state_cursor(const ddp_trainer *t, const ddp_checkpoint_meta *m)
{
    return m->accumulate > 0 ? m->cursor / m->accumulate * (uint64_t)t->s->batches.accumulate : m->cursor;
}

uint64_t state_micro_steps(const ddp_trainer *t, const ddp_checkpoint_meta *m)
{
    uint64_t parts = ddp_session_parts(t->s), steps = m->micro_steps;

    /* as good as it can be */
    if (steps == 0) return m->epoch * t->s->batches_per_epoch + state_cursor(t, m);
    return m->world_size == parts ? steps : (steps * m->world_size + parts - 1) / parts; /* see ddp_trainer_random */
}

static void changes_batch(void *ctx, const char *key, const char *there, const char *here)
{
    static const char *const keys[] = {"train.batch_size", "train.accumulate", "train.global_batch"};

    for (size_t i = 0; there != NULL && here != NULL && i < DDP_COUNT(keys); i++)
        if (strcmp(key, keys[i]) == 0) *(bool *)ctx = true;
}

/* What is written of batches is what was written before. */
static bool keeps_batch(const ddp_trainer *t, const char *path)
{
    ddp_text here = {0};
    char *there = NULL;
    bool changed = false;
    ddp_err ignored;

    if (t->s->config->train->global_batch > 0) return false;
    ddp_session_settings(t->s, &here);
    if (!here.failed && ddp_checkpoint_settings_of(path, &there, &ignored) == DDP_OK && there != NULL)
        (void)ddp_checkpoint_compare_settings(there, here.data, changes_batch, &changed, &ignored);
    free(there);
    ddp_text_free(&here);
    return !changed;
}

static void log_kept(const ddp_trainer *t, const ddp_checkpoint_meta *m)
{
    ddp_log_line(t->s->log, DDP_LOG_INFO,
                 "the checkpoint is of %" PRIu64 " rank%s and this run has %" PRIu64 ": the global batch of %" PRIu64
                 " samples stays, which [train] global_batch changes",
                 m->world_size, m->world_size == 1 ? "" : "s", ddp_session_parts(t->s), ddp_checkpoint_batch(m));
}

/* What the ranks tell each other: the global batch, 0: the config's, and whether each sample is to come once an epoch,
 * which it does from the first change of their number on: how a sampler makes shares equal depends on that. */
static uint64_t kept_of(uint64_t batch, bool uneven) { return batch << 1 | uneven; }

static uint64_t kept_from(const ddp_trainer *t, const char *path, const ddp_checkpoint_meta *m)
{
    bool other = m->world_size != ddp_session_parts(t->s);

    if (ddp_checkpoint_batch(m) > MOST_SAMPLES) return 0;
    if (!keeps_batch(t, path)) return kept_of(0, other || m->uneven);
    if (other) log_kept(t, m);
    return kept_of(ddp_checkpoint_batch(m), other || m->uneven);
}

/* Rank 0: of the checkpoint the run goes on from; 0: there is none. The order in which it is looked for is that of a
 * resume. */
static uint64_t kept_batch(const ddp_trainer *t)
{
    const struct ddp_checkpoint_config *c = t->s->config->checkpoint;
    bool goes_on = ddp_trainer_goes_on(t), newest = goes_on || strcmp(c->resume, "auto") == 0;
    ddp_checkpoint_meta m = {0};
    const char *path = c->dir;
    ddp_status st = DDP_IN_PROGRESS;
    ddp_err ignored;

    if (newest && c->dir[0] != '\0') st = ddp_checkpoint_newest_meta(c->dir, &m, &ignored);
    if (st != DDP_OK && strcmp(c->resume, "auto") != 0 && strcmp(c->resume, "never") != 0)
        st = ddp_checkpoint_meta_of(path = c->resume, &m, &ignored);
    return st == DDP_OK ? kept_from(t, path, &m) : 0;
}

ddp_status state_keep_batch_of(const ddp_trainer *t, const ddp_checkpoint *c, ddp_err *err)
{
    uint64_t kept = kept_from(t, c->path, &c->meta);

    return ddp_session_keep_batch(t->s, kept >> 1, (kept & 1) != 0, err);
}

ddp_status ddp_trainer_keep_batch(ddp_trainer *t, ddp_err *err)
{
    uint64_t kept = 0;

    if (t->s->launch.purpose != DDP_TO_TRAIN) return DDP_OK;
    if (ddp_group_generation(t->group) > 0) {
        kept = t->survivor != NULL ? t->survivor->kept_batch : 0;
        DDP_TRY(ddp_trainer_largest(t, "global batch in memory", &kept, err));
    }
    if (kept == 0 && t->s->launch.rank == 0) kept = kept_batch(t);
    DDP_TRY(ddp_trainer_from_rank0(t, "global batch of the checkpoint", &kept, sizeof(kept), err));
    if (t->survivor != NULL) t->survivor->kept_batch = kept;
    return ddp_session_keep_batch(t->s, kept >> 1, (kept & 1) != 0, err);
}

/* In the middle of an epoch the position is in steps, which mean the same only with the same global batch and the same
 * order of the samples. */
static ddp_status check_position(const ddp_trainer *t, const ddp_checkpoint *c, ddp_err *err)
{
    const ddp_checkpoint_meta *m = &c->meta;
    uint64_t world = ddp_session_parts(t->s), seed = t->s->config->train->seed, there = ddp_checkpoint_batch(m),
             here = (uint64_t)t->s->batches.global_batch;

    if (m->cursor == 0) return DDP_OK;
    if (m->seed != seed || there != here)
        return ddp_fail(
            err, DDP_ERR_CONFIG,
            "checkpoint %s was saved in the middle of an epoch with a global batch of %" PRIu64 " (batch_size %" PRIu64
            ", accumulate %" PRIu64 ", world_size %" PRIu64 ") and seed %" PRIu64 "; this run has %" PRIu64
            " and seed %" PRIu64
            ": set [train] global_batch and seed as they were, or resume from a checkpoint of an epoch's end",
            c->path, there, m->batch_size, m->accumulate, m->world_size, m->seed, here, seed);
    if (state_cursor(t, m) > t->s->batches_per_epoch)
        return ddp_fail(err, DDP_ERR_CONFIG,
                        "checkpoint %s was saved after micro-batch %" PRIu64 " of an epoch, which has %" PRIu64
                        " in this run: it is of other data; set [checkpoint] dir to another folder, or resume = never",
                        c->path, state_cursor(t, m), t->s->batches_per_epoch);
    return m->world_size == world ? DDP_OK : session_check_order(t->s, (int32_t)m->world_size, m->epoch, err);
}

/* ---- settings ---------------------------------------------------------------------------------------------------- */
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

/* ---- adapters that are used -------------------------------------------------------------------------------------- */
struct adapters {
    double rank, alpha; /* alpha 0: twice the rank */
    bool rslora;
};

/* Of the checkpoint, where it differs. */
static void take_lora(void *ctx, const char *key, const char *there, const char *here)
{
    struct adapters *a = ctx;

    (void)here;
    if (there == NULL) return;
    if (strcmp(key, "lora.rank") == 0) a->rank = strtod(there, NULL);
    if (strcmp(key, "lora.alpha") == 0) a->alpha = strtod(there, NULL);
    if (strcmp(key, "lora.rslora") == 0) a->rslora = strcmp(there, "yes") == 0;
}

ddp_status state_check_adapters(const ddp_trainer *t, const ddp_checkpoint *c, ddp_err *err)
{
    const struct ddp_lora_config *l = t->s->config->lora;
    struct adapters own = {(double)l->rank, l->alpha, l->rslora != 0}, theirs = own;
    ddp_text here = {0};
    ddp_status st;

    if (!t->s->model.lora.on || c->settings == NULL) return DDP_OK;
    ddp_session_settings(t->s, &here);
    st = here.failed ? ddp_fail(err, DDP_ERR_NOMEM, "out of memory")
                     : ddp_checkpoint_compare_settings(c->settings, here.data, take_lora, &theirs, err);
    ddp_text_free(&here);
    if (own.alpha <= 0) own.alpha = 2 * own.rank;
    if (theirs.alpha <= 0) theirs.alpha = 2 * theirs.rank;
    if (st != DDP_OK || (own.alpha == theirs.alpha && own.rslora == theirs.rslora)) return st;
    return ddp_fail(
        err, DDP_ERR_CONFIG,
        "the adapters of checkpoint %s were trained with [lora] alpha %g, rslora %s, and here these are %g, %s; set them as they were",
        c->path, theirs.alpha, theirs.rslora ? "yes" : "no", own.alpha, own.rslora ? "yes" : "no");
}
