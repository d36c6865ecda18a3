/* train/reduce/bucket_size.c -- [ddp] bucket_size = auto: how large a bucket pays on the link between the ranks.
 *
 * Rank 0 times all_reduces of a small and of a large piece: what n bytes take is about a + n / b. Larger buckets
 * waste less on `a`, smaller ones leave less after the end of the backward pass; it takes the size at which `a` is 2
 * % of the whole, in powers of two from 1 to 64 MiB. A run that resumes keeps what its checkpoint was saved with, and
 * one that loses ranks what it had. */
#include "train/reduce/bucket_size.h"
#include "session/open.h"
#include "train/reduce/comm_stream.h"
#include "train/state/survivor.h"
#include <inttypes.h>
#include <string.h>

enum { SMALL = 4096, LARGE = 4 << 20, SMALL_RUNS = 9, LARGE_RUNS = 3 }; /* bytes; how often */

static ddp_status time_all_reduce(ddp_trainer *t, float *x, size_t bytes, int runs, double *best_s, ddp_err *err)
{
    ddp_task task = ddp_task_of(DDP_COLL_ALL_REDUCE, DDP_SUM, x, x, bytes / sizeof(*x));

    *best_s = 1e9;
    for (int i = 0; i < runs; i++) {
        int64_t from = ddp_now_ns();
        double s;

        DDP_TRY_AS(DDP_EXIT_PEER, err, ddp_communicator_run(t->comm, &task, err));
        s = (double)(ddp_now_ns() - from) * 1e-9;
        *best_s = DDP_MIN_OF(*best_s, s);
    }
    return DDP_OK;
}

/* Memory of the kind that the backend reduces; freed with the trainer, when no collective can still be writing there.
 */
static ddp_status allocate(ddp_trainer *t, float **x, ddp_err *err)
{
    bool device = !ddp_device_has_memory(&t->s->device) || ddp_communicator_takes_device(t->comm);

    if (!device) {
        DDP_TRY(ddp_device_host_alloc(&t->s->device, LARGE, &t->mem.bounce, err));
        *x = t->mem.bounce;
        return DDP_OK;
    }
    DDP_TRY(ddp_device_alloc(&t->s->device, LARGE, &t->mem.probe, err));
    *x = t->mem.probe;
    return DDP_OK;
}

static ddp_status measure(ddp_trainer *t, uint64_t *bytes, ddp_err *err)
{
    double small, large, per_byte;
    float *x;

    DDP_TRY(allocate(t, &x, err));
    DDP_TRY(time_all_reduce(t, x, SMALL, SMALL_RUNS, &small, err));
    DDP_TRY(time_all_reduce(t, x, LARGE, LARGE_RUNS, &large, err));
    ddp_device_host_free(&t->s->device, t->mem.bounce);
    t->mem.bounce = NULL;
    per_byte = DDP_MAX_OF(large - small, 1e-9) / (LARGE - SMALL);
    *bytes = 1 << 20;
    while (*bytes < 64 << 20 && (double)*bytes * per_byte < 50 * small) *bytes *= 2;
    if (t->s->launch.rank == 0)
        ddp_log_line(t->s->log, DDP_LOG_INFO,
                     "bucket_size = auto: an all_reduce takes %.3g ms and %.3g MB/s here, so buckets are %" PRIu64
                     " MiB",
                     small * 1e3, 1e-6 / per_byte, *bytes >> 20);
    return DDP_OK;
}

/* What the checkpoint that the run goes on from was saved with, 0: there is none. */
static uint64_t kept(const ddp_trainer *t)
{
    const struct ddp_checkpoint_config *c = t->s->config->checkpoint;
    ddp_checkpoint_meta meta = {0};
    ddp_err ignored;
    ddp_status st = DDP_IN_PROGRESS;
    bool goes_on = ddp_trainer_goes_on(t);

    if (strcmp(c->resume, "never") == 0 && !goes_on) return 0;
    if (strcmp(c->resume, "auto") != 0 && !goes_on)
        st = ddp_checkpoint_meta_of(c->resume, &meta, &ignored);
    else if (c->dir[0] != '\0')
        st = ddp_checkpoint_newest_meta(c->dir, &meta, &ignored);
    return st == DDP_OK && meta.world_size > 1 ? meta.bucket_size : 0; /* one rank has measured nothing */
}

/* In a later generation of the run: that of the ranks that were in an earlier one, 0: none was. Sums over other buckets
 * may have other bits. */
static ddp_status of_survivors(ddp_trainer *t, uint64_t *bytes, ddp_err *err)
{
    if (ddp_group_generation(t->group) == 0) return DDP_OK;
    if (t->survivor != NULL) *bytes = t->survivor->bucket_size;
    return ddp_trainer_largest(t, "bucket size in memory", bytes, err);
}

ddp_status ddp_trainer_bucket_size(ddp_trainer *t, ddp_err *err)
{
    uint64_t bytes = 0;

    if (t->s->config->ddp->bucket_size > 0 || ddp_group_world(t->group) == 1 || t->s->launch.purpose != DDP_TO_TRAIN ||
        t->s->devices.rank_stages > 1)
        return DDP_OK;
    DDP_TRY(of_survivors(t, &bytes, err));
    if (bytes == 0 && t->s->launch.rank == 0) bytes = kept(t);
    DDP_TRY(ddp_trainer_from_rank0(t, "bucket size of the checkpoint", &bytes, sizeof(bytes), err));
    if (bytes == 0) {
        DDP_TRY(measure(t, &bytes, err));
        DDP_TRY(ddp_trainer_from_rank0(t, "bucket size by the link", &bytes, sizeof(bytes), err));
    }
    return ddp_session_set_bucket_size(t->s, bytes, err);
}
