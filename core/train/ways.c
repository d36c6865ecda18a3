/* train/ways.c -- chooses, once, how a step is made: where its micro-batches run, how gradients become parameters,
 * and when it ends.
 *
 *   all_reduce  each bucket is reduced, each rank updates all of it               reduce/buckets.c
 *   forward     the same, in the order in which the next forward pass needs them  reduce/wire_order.c
 *   local_steps each rank updates by its own gradients; now and then the average  outer/outer.c
 *   zero        each bucket is reduced and scattered, each rank updates its shard reduce/buckets.c, shards.c
 *   direct      shards in memory that all ranks of a host see, or of a single rank reduce/direct.c, shards.c
 *   replicas    the same between the devices of parallel = dp                     local/replicas.c, device_group.c
 *   pipeline    the same between those of parallel = model, which run stages      local/pipeline.c, device_group.c
 *   ranks       parallel = pipeline: each rank runs a stage and updates it        ranks/pipeline.c, update.c
 *   head        split_head = yes: the classes of the output layer are divided     head/step.c, update.c
 *   pipelined   a single rank: a step begins before the one before it has ended   local/pipelined_step.c */
#include "train/ways.h"
#include "session/metrics.h"
#include "session/plugins.h"
#include "train/head/head.h"
#include "train/local/batch.h"
#include "train/local/device_group.h"
#include "train/local/pipeline.h"
#include "train/local/pipelined_step.h"
#include "train/local/replicas.h"
#include "train/outer/outer.h"
#include "train/ranks/pipeline.h"
#include "train/reduce/buckets.h"
#include "train/reduce/clip.h"
#include "train/reduce/direct.h"
#include "train/reduce/hook_state.h"
#include "train/reduce/not_finite.h"
#include "train/reduce/shards.h"
#include "train/reduce/wire_order.h"
#include "train/state/replica_check.h"
#include "train/state/survivor.h"
#include "train/step.h"
#include <ddpengine/backend.h>

static const ddp_way all_reduce = {.step = train_step_run,
                                   .finish = ddp_buckets_nothing,
                                   .micro_steps = ddp_batch_micro_steps,
                                   .bucket_ready = ddp_bucket_send,
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

static ddp_way local_steps(void)
{
    ddp_way w = all_reduce;

    w.update = ddp_outer_update;
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

static ddp_way forward(void)
{
    ddp_way w = all_reduce;

    w.finish = ddp_wire_order_finish;
    w.bucket_ready = ddp_wire_order_ready;
    w.late_bucket = ddp_wire_order_late;
    w.update = ddp_wire_order_update;
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

static ddp_way ranks(void)
{
    ddp_way w = all_reduce;

    w.micro_steps = ranks_micro_steps;
    w.update = ranks_update;
    w.check_replicas = ranks_check_replicas;
    return w;
}

static ddp_way head(void)
{
    ddp_way w = all_reduce;

    w.micro_steps = head_micro_steps;
    w.update = head_update;
    w.update_bucket = head_bucket_update;
    w.measure_bucket = head_bucket_measure;
    w.squares = ddp_clip_gather;
    w.check_replicas = ranks_check_replicas;
    return w;
}

/* Whether buckets are sent while the backward pass still runs. Between hosts it pays; within one idle processors
 * decide: communication takes one from the compute threads. */
static bool choose_overlap(const ddp_trainer *t)
{
    int32_t wish = t->s->config->ddp->overlap;
    unsigned local = (unsigned)ddp_group_local_size(t->group);

    if (t->local.ranks != NULL || t->mem.outer.params != NULL || t->local.head != NULL) return false;
    if (ddp_shards_direct(t)) return false;       /* there is nothing to send */
    if (t->gradients.noise != NULL) return false; /* a rank's own gradient is looked at before */
    if (t->s->train.mean.by_sample) return false; /* it is weighed after the backward pass */
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
    if (t->local.ranks != NULL) return ranks();
    if (t->mem.outer.params != NULL) return local_steps();
    if (t->local.head != NULL) return head();
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

/* Whether all ranks can have it: they send in one order, and a rank's device and threads may differ from others'. */
static ddp_status choose_order(ddp_trainer *t, bool overlap, bool *forward, ddp_err *err)
{
    uint64_t cannot = !ddp_wire_order_possible(t, overlap);
    int32_t wish = t->s->config->ddp->wire_order;

    *forward = false;
    if (wish == DDP_WIRE_ORDER_FIFO || t->group == NULL || t->s->config->train->parallel != DDP_PARALLEL_DDP)
        return DDP_OK;
    DDP_TRY(ddp_trainer_largest(t, "wire order", &cannot, err));
    *forward = cannot == 0;
    if (cannot != 0 && wish == DDP_WIRE_ORDER_FORWARD && ddp_group_rank(t->group) == 0)
        ddp_log_line(
            t->s->log, DDP_LOG_INFO,
            "[ddp] wire_order = forward has no effect here: it is for ranks on CPUs that share no memory and reduce during the backward pass");
    return DDP_OK;
}

/* Hosts that help, help with all-reduces. */
static void say_idle_helpers(const ddp_trainer *t)
{
    const ddp_backend_ops *ops = t->s->backend == NULL ? NULL : t->s->backend->plugin->ops;

    if (t->reduce.shards == NULL || t->s->launch.rank != 0 || ops == NULL || ops->helper == NULL) return;
    if (ops->helper->count(t->s->backend->config) == 0) return;
    ddp_log_line(
        t->s->log, DDP_LOG_WARN,
        "gradients are scattered here, as by [ddp] zero = 1, and the hosts that help backend %s help with all-reduces alone: they have nothing to do; leave out zero, or take a backend without them",
        ddp_session_backend_name(t->s));
}

ddp_status train_way_choose(ddp_trainer *t, ddp_err *err)
{
    bool overlap = choose_overlap(t), in_order = false;

    DDP_TRY(check_hook(t, err));
    t->way = basic(t);
    say_idle_helpers(t);
    DDP_TRY(choose_order(t, overlap, &in_order, err));
    if (in_order) {
        DDP_TRY(ddp_wire_order_open(t, err));
        t->way = forward();
    }
    t->reduce.early_buckets = overlap ? t->s->model.layout->bucket_count - 1 : 0;
    if (t->reduce.order != NULL) return DDP_OK;
    if (t->reduce.clip != NULL) {
        t->way.reduced = ddp_bucket_reduced_clip;
        t->way.clip = ddp_direct_clip;
    } else if (ddp_loss_is_sum(&t->s->train.mean)) { /* the last bucket brings what the gradients are divided by */
        t->way.reduced = ddp_bucket_reduced_last;
    }
    ddp_survivor_watch(t);
    if (!overlap && t->s->pin.pinned) ddp_communicator_stay_near(t->comm);
    if (!ddp_pipelined_possible(t)) return DDP_OK;
    t->way.step = ddp_pipelined_step;
    t->way.finish = ddp_pipelined_finish;
    return ddp_pipelined_open(t, err);
}
