/* train/measure/audit.c -- see audit.h. The file and its format are observe/audit.h's affair. */
#include "train/measure/audit.h"
#include "observe/audit.h"
#include <stdlib.h>
#include <string.h>
#include <time.h>

struct ddp_trainer_audit {
    ddp_audit *file;
    uint64_t run;
    bool ahead; /* steps are recorded before their update */
};

/* Samples of an epoch. */
static uint64_t share_of(const ddp_trainer *t, uint64_t share)
{
    const ddp_split *split = &t->s->train.split;

    return split->total > 0 ? ddp_split_before(split, split->total, share) : t->s->train.count;
}

/* Of one of the rank's shares, which the files know as ranks: they are the same whoever is there. */
static ddp_audit_record record_of(const ddp_trainer *t, uint32_t share, uint32_t kind, uint64_t step)
{
    return (ddp_audit_record){.kind = kind,
                              .generation = ddp_group_generation(t->group),
                              .run = t->audit->run,
                              .step = step,
                              .rank = (uint32_t)t->s->shares.list[share],
                              .world = (uint32_t)t->s->shares.count,
                              .length = t->s->train.length,
                              .share = share_of(t, (uint64_t)t->s->shares.list[share])};
}

static ddp_status write_for_all(ddp_trainer *t, uint32_t kind, ddp_err *err)
{
    for (uint32_t i = 0; i < t->s->shares.own; i++) {
        ddp_audit_record r = record_of(t, i, kind, t->progress.step);

        DDP_TRY(ddp_audit_write(t->audit->file, &r, NULL, err));
    }
    return DDP_OK;
}

/* Above that of every run that any rank has in its file, though its clock be slow. */
static ddp_status agree_on_run(ddp_trainer *t, uint64_t newest, ddp_err *err)
{
    struct timespec now = {0};

    (void)clock_gettime(CLOCK_REALTIME, &now);
    t->audit->run = newest + 1;
    if (t->s->launch.rank == 0)
        t->audit->run = DDP_MAX_OF(newest + 1, (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec);
    return ddp_trainer_largest(t, "runs in the audit", &t->audit->run, err);
}

static ddp_status begin(ddp_trainer *t, ddp_err *err)
{
    DDP_TRY(write_for_all(t, DDP_AUDIT_BEGIN, err));
    return ddp_audit_flush(t->audit->file, err); /* before a step of an earlier run is made again */
}

ddp_status ddp_trainer_audit_open(ddp_trainer *t, ddp_err *err)
{
    const ddp_session *s = t->s;
    uint64_t most = (uint64_t)s->batches.batch_size * (uint64_t)s->batches.accumulate * s->devices.replicas, newest = 0;

    if (!s->config->output->audit) return DDP_OK;
    t->audit = ddp_alloc(sizeof(*t->audit), err);
    if (t->audit == NULL) return err->status;
    t->audit->ahead = s->config->run->restarts > 0;
    DDP_TRY_AS(DDP_EXIT_CONFIG, err,
               ddp_audit_open(s->config->output->dir, s->launch.home, DDP_MIN_OF(most, s->train.count), s->log,
                              &t->audit->file, &newest, err));
    DDP_TRY(agree_on_run(t, newest, err));
    if (t->progress.step == 0) DDP_TRY(ddp_audit_empty(t->audit->file, err)); /* as metrics.jsonl */
    return begin(t, err);
}

ddp_status ddp_trainer_audit_again(ddp_trainer *t, ddp_err *err)
{
    if (t->audit == NULL) return DDP_OK;
    t->audit->run++; /* the same on all ranks, and a later start looks for the highest in the files */
    return begin(t, err);
}

/* A step's record of each share. */
static ddp_status write_step(ddp_trainer *t, const ddp_step *s, uint32_t kind, uint64_t step, uint64_t epoch,
                             ddp_err *err)
{
    for (uint32_t i = 0; i < t->s->shares.own; i++) {
        ddp_audit_record r = record_of(t, i, kind, step);

        r.epoch = epoch;
        r.position = s->taken[i].position;
        r.count = (uint32_t)s->taken[i].count;
        DDP_TRY(ddp_audit_write(t->audit->file, &r, s->taken[i].ids, err));
    }
    return DDP_OK;
}

ddp_status ddp_trainer_audit_ahead(ddp_trainer *t, const ddp_step *s, uint64_t step, uint64_t epoch, ddp_err *err)
{
    if (t->audit == NULL || !t->audit->ahead) return DDP_OK;
    DDP_TRY(write_step(t, s, DDP_AUDIT_STEP, step, epoch, err));
    return ddp_audit_push(t->audit->file, err);
}

ddp_status ddp_trainer_audit_step(ddp_trainer *t, const ddp_step *s, uint64_t step, uint64_t epoch, ddp_err *err)
{
    if (t->audit == NULL || (t->audit->ahead && s->reduced.finite)) return DDP_OK;
    return write_step(t, s, s->reduced.finite ? DDP_AUDIT_STEP : DDP_AUDIT_LEFT_OUT, step, epoch, err);
}

ddp_status ddp_trainer_audit_flush(ddp_trainer *t, ddp_err *err)
{
    return t->audit == NULL ? DDP_OK : ddp_audit_flush(t->audit->file, err);
}

ddp_status ddp_trainer_audit_end(ddp_trainer *t, ddp_err *err)
{
    if (t->audit == NULL) return DDP_OK;
    DDP_TRY(write_for_all(t, DDP_AUDIT_END, err));
    return ddp_audit_flush(t->audit->file, err);
}

void ddp_trainer_audit_close(ddp_trainer *t)
{
    if (t->audit == NULL) return;
    ddp_audit_close(t->audit->file);
    free(t->audit);
    t->audit = NULL;
}
