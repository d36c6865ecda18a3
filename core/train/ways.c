/* train/ways.c -- chooses, once, how a step is made: where its micro-batches run, how gradients become parameters,
 * and when it ends.
 *
 *   all_reduce  each bucket is reduced, each rank updates all of it               reduce/buckets.c
 *   zero        each bucket is reduced and scattered, each rank updates its shard reduce/buckets.c, shards.c
 *   direct      shards in memory that all ranks of a host see, or of a single rank reduce/direct.c, shards.c
 *   replicas    the same between the devices of parallel = dp                     local/replicas.c, device_group.c
 *   pipeline    the same between those of parallel = model, which run stages      local/pipeline.c, device_group.c
 *   pipelined   a single rank: a step begins before the one before it has ended   local/pipelined_step.c */
#include "train/ways.h"
#include "train/local/batch.h"
#include "train/local/device_group.h"
#include "train/local/pipeline.h"
#include "train/local/pipelined_step.h"
#include "train/local/replicas.h"
#include "train/reduce/buckets.h"
#include "train/reduce/clip.h"
#include "train/reduce/direct.h"
#include "train/reduce/hook_state.h"
#include "train/reduce/not_finite.h"
#include "train/reduce/shards.h"
#include "train/state/replica_check.h"
#include "train/state/survivor.h"
#include "train/step.h"

static const ddp_way all_reduce = {.step = train_step_run,
                                   .finish = ddp_buckets_nothing,
                                   .micro_steps = ddp_batch_micro_steps,
                                   .update = ddp_buckets_update,
                                   .reduced = ddp_bucket_reduced,
                                   .update_bucket = ddp_bucket_update,
                                   .measure_bucket = ddp_bucket_measure,
                                   .squares = ddp_buckets_nothing,
                                   .parameters = ddp_buckets_nothing,
                                   .eval_batch = ddp_batch_evaluate,
                                   .check_replicas = ddp_trainer_check_replicas};

static ddp_way zero(void)
{
    ddp_way w = all_reduce;

    w.update_bucket = ddp_shards_update_bucket;
    w.measure_bucket = ddp_shards_measure_bucket;
    w.squares = ddp_clip_gather;
    w.parameters = ddp_shards_wait;
    return w;
}

static ddp_way direct(void)
{
    ddp_way w = all_reduce;

    w.update = ddp_direct_update;
    w.clip = ddp_direct_no_clip;
    w.mean = ddp_shards_mean;
    w.update_shards = ddp_shards_update;
    w.not_finite = ddp_not_finite_here;
    return w;
}

/* With several devices in this process. */
static ddp_way devices(void)
{
    ddp_way w = direct();

    w.mean = ddp_device_group_mean;
    w.update_shards = ddp_device_group_update;
    return w;
}

static ddp_way replicas(void)
{
    ddp_way w = devices();

    w.micro_steps = ddp_replicas_micro_steps;
    w.not_finite = ddp_replicas_not_finite;
    w.eval_batch = ddp_replicas_eval_batch;
    w.check_replicas = ddp_replicas_check;
    return w;
}

static ddp_way pipeline(void)
{
    ddp_way w = devices();

    w.micro_steps = ddp_pipeline_micro_steps;
    return w;
}

/* Whether buckets are sent while the backward pass still runs. Between hosts it pays; within one idle processors
 * decide: communication takes one from the compute threads. */
static bool choose_overlap(const ddp_trainer *t)
{
    int32_t wish = t->s->config->ddp->overlap;
    unsigned local = (unsigned)ddp_group_local_size(t->group);

    if (ddp_shards_direct(t)) return false; /* there is nothing to send */
    if (t->noise != NULL) return false;     /* a rank's own gradient is looked at before */
    if (wish != DDP_OVERLAP_AUTO) return wish == DDP_OVERLAP_YES;
    if (ddp_device_has_memory(&t->s->device))
        return ddp_group_world(t->group) > 1;                     /* the device computes, no processor */
    if (local < (unsigned)ddp_group_world(t->group)) return true; /* the network works, no processor */
    return local > 1 && ddp_cpu_count() >= local * (t->s->device.threads + 1);
}

/* The way of a step that ends before it returns. */
static ddp_way basic(const ddp_trainer *t)
{
    if (t->local.replicas != NULL) return replicas();
    if (t->local.pipeline != NULL) return pipeline();
    if (ddp_shards_direct(t)) return direct();
    return t->reduce.shards != NULL ? zero() : all_reduce;
}

/* What such a hook has not sent yet it adds to the next step: a NaN would come back for ever. */
static ddp_status check_hook(const ddp_trainer *t, ddp_err *err)
{
    const ddp_hook_state *states;

    if (t->reduce.hooked == NULL || ddp_hooked_states(t->reduce.hooked, &states) == 0) return DDP_OK;
    if (t->s->config->run->min_world > 0) {
        (void)ddp_fail(err, DDP_ERR_CONFIG,
                       "[run] min_world: hook \"%s\" keeps what it has not sent for each rank, which is lost with it; "
                       "leave min_world out, or choose a hook that keeps no state",
                       t->s->hook->desc.name);
        return ddp_fail_as(err, DDP_EXIT_CONFIG);
    }
    if (t->s->config->train->non_finite != DDP_NON_FINITE_SKIP) return DDP_OK;
    (void)ddp_fail(err, DDP_ERR_CONFIG,
                   "[train] non_finite = skip: hook \"%s\" carries what it has not sent to the next step, a NaN too; "
                   "set non_finite = abort or rollback, or choose a hook that keeps no state",
                   t->s->hook->desc.name);
    return ddp_fail_as(err, DDP_EXIT_CONFIG);
}

ddp_status train_way_choose(ddp_trainer *t, ddp_err *err)
{
    bool overlap = choose_overlap(t);

    DDP_TRY(check_hook(t, err));
    t->way = basic(t);
    t->reduce.early_buckets = overlap ? t->s->model.layout->bucket_count - 1 : 0;
    if (t->reduce.clip != NULL) {
        t->way.reduced = ddp_bucket_reduced_clip;
        t->way.clip = ddp_direct_clip;
    } else if (t->s->train.mean.by_token) { /* the last bucket brings what the gradients are divided by */
        t->way.reduced = ddp_bucket_reduced_last;
    }
    ddp_survivor_watch(t);
    if (!overlap && t->s->pin.pinned) ddp_communicator_stay_near(t->comm);
    if (!ddp_pipelined_possible(t)) return DDP_OK;
    t->way.step = ddp_pipelined_step;
    t->way.finish = ddp_pipelined_finish;
    return ddp_pipelined_open(t, err);
}
