/* session/epoch.c -- see epoch.h. */
#include "session/epoch.h"
#include "session/place.h"
#include <inttypes.h>

ddp_status session_resolve_batches(ddp_session *s, ddp_err *err)
{
    const struct ddp_train_config *c = s->config->train;

    if (s->launch.purpose == DDP_TO_TRAIN) {
        if (ddp_config_batches(s->config, (int64_t)ddp_session_parts(s), &s->batches, err) == DDP_OK) return DDP_OK;
        if (s->devices.rank_stages > 1)
            return ddp_fail_context(err, "parallel = pipeline, the %d replicas of the model count as ranks",
                                    s->shares.count);
        return s->devices.replicas == 1 ? err->status
                                        : ddp_fail_context(err, "parallel = dp, each device counts as a rank");
    }
    s->batches = (ddp_batches){.batch_size = c->batch_size > 0 ? c->batch_size : 64, .accumulate = 1};
    return DDP_OK;
}

static uint64_t micro_batches(const ddp_session *s, uint64_t samples)
{
    uint64_t batch = (uint64_t)s->batches.batch_size * s->devices.replicas;

    return samples / batch + (samples % batch != 0);
}

/* What the sampler gives rank `rank` in an epoch. */
static ddp_status share_of(const ddp_session *s, int32_t rank, uint64_t *samples, ddp_err *err)
{
    ddp_sampler *trial;

    DDP_TRY(session_open_sampler(s, &s->train, rank, &trial, err));
    *samples = s->train.sampler_ops->count(trial);
    s->train.sampler_ops->close(trial);
    return DDP_OK;
}

/* Every rank must have samples, and as many micro-batches as the others. The first and the last rank stand for the
 * samplers there are, so that each rank, and --check, sees it alone; the agreement of the ranks looks at all. */
static ddp_status check_shares(const ddp_session *s, ddp_err *err)
{
    const int32_t ranks[] = {0, s->shares.count - 1};
    uint64_t batches[DDP_COUNT(ranks)];

    for (size_t i = 0; i < DDP_COUNT(ranks); i++) {
        uint64_t samples = s->train.count;

        if (ranks[i] != s->shares.list[0]) DDP_TRY(share_of(s, ranks[i], &samples, err));
        batches[i] = micro_batches(s, samples);
        if (samples == 0)
            return ddp_fail(err, DDP_ERR_CONFIG,
                            "rank %d gets no samples: the dataset has %" PRIu64
                            " for %d ranks; lower world_size or use more data",
                            ranks[i], s->train.length, s->shares.count);
    }
    if (batches[0] == batches[1]) return DDP_OK;
    return ddp_fail(err, DDP_ERR_CONFIG,
                    "sampler \"%s\" gives rank 0 %" PRIu64 " batches an epoch and rank %d %" PRIu64 " (%" PRIu64
                    " samples, batch %" PRId64
                    "), but ranks train in step; write [sampler] plugin = distributed, which makes the shares equal",
                    s->train.sampler_plugin->desc.name, batches[0], ranks[1], batches[1], s->train.length,
                    s->batches.batch_size);
}

/* Samples that all ranks have in an epoch, where each comes once: position p of the order is number p / world of rank
 * p % world, and what a sampler repeats stands behind the last. */
static ddp_status split_epoch(ddp_session *s, ddp_err *err)
{
    uint64_t world = (uint64_t)s->shares.count, length = s->train.length, first, last;

    s->train.split = (ddp_split){0};
    if (!s->batches.uneven) return DDP_OK;
    DDP_TRY(share_of(s, 0, &first, err));
    DDP_TRY(share_of(s, s->shares.count - 1, &last, err));
    if (length < world || last == 0)
        return ddp_fail(err, DDP_ERR_CONFIG,
                        "%" PRIu64 " samples are too few for %" PRIu64 " ranks; lower world_size or use more data",
                        length, world);
    s->train.split = (ddp_split){.total = first == last ? DDP_MIN_OF(first * world, length) : length,
                                 .global = (uint64_t)s->batches.global_batch,
                                 .batch = (uint64_t)s->batches.batch_size,
                                 .world = world};
    if (ddp_split_before(&s->train.split, s->train.split.total, 0) <= first &&
        ddp_split_before(&s->train.split, s->train.split.total, world - 1) <= last)
        return DDP_OK;
    return ddp_fail(err, DDP_ERR_CONFIG,
                    "sampler \"%s\" gives rank 0 %" PRIu64 " of %" PRIu64 " samples and rank %" PRIu64 " %" PRIu64
                    ", which are not every %" PRIu64 "th of them; set [train] even_batches = yes",
                    s->train.sampler_plugin->desc.name, first, length, world - 1, last, world);
}

ddp_status session_count_epoch(ddp_session *s, ddp_err *err)
{
    uint64_t accumulate = (uint64_t)s->batches.accumulate;

    DDP_TRY(split_epoch(s, err));
    s->batches_per_epoch =
        s->train.split.total > 0 ? ddp_split_batches(&s->train.split) : micro_batches(s, s->train.count);
    if (s->train.split.total == 0) DDP_TRY(check_shares(s, err));
    s->steps_per_epoch = (s->batches_per_epoch + accumulate - 1) / accumulate;
    return DDP_OK;
}
