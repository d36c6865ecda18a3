/* session/place.c -- see place.h. */
#include "session/place.h"
#include "session/stages/pipeline.h"
#include "session/variants.h"
#include <ddpengine/backend.h>
#include <stdlib.h>
#include <string.h>

/* ---- samplers ---------------------------------------------------------------------------------------------------- */
static ddp_status open_sampler(const ddp_session *s, const ddp_source *src, int32_t share, int32_t world,
                               ddp_sampler **out, ddp_err *err)
{
    ddp_sampler_params p = {.struct_size = sizeof(p),
                            .rank = (uint32_t)share,
                            .world_size = (uint32_t)world,
                            .length = src->length,
                            .seed = s->config->train->seed};

    if (src->sampler_ops->open(&s->host, src->sampler_config, &p, out, err) == DDP_OK) return DDP_OK;
    return ddp_fail_context(err, "[sampler.%s]", src->sampler_plugin->desc.name);
}

ddp_status session_open_sampler(const ddp_session *s, const ddp_source *src, int32_t share, ddp_sampler **out,
                                ddp_err *err)
{
    return open_sampler(s, src, share, s->shares.count, out, err);
}

/* The samples of a rank of `world`; *out is the caller's. */
static ddp_status samples_of(const ddp_session *s, int32_t share, int32_t world, uint64_t epoch, uint64_t **out,
                             uint64_t *count, ddp_err *err)
{
    const ddp_sampler_ops *ops = s->train.sampler_ops;
    ddp_sampler *sampler;
    ddp_status st;

    *out = NULL;
    DDP_TRY(open_sampler(s, &s->train, share, world, &sampler, err));
    *count = ops->count(sampler);
    *out = ddp_alloc((size_t)(*count + 1) * sizeof(**out), err);
    st = *out == NULL ? err->status : ops->indices(sampler, epoch, *out, err);
    ops->close(sampler);
    return st;
}

/* Whether rank `share` of `world` has every world-th of `order`; the end may be padded, or cut. */
static ddp_status follows(const ddp_session *s, const uint64_t *order, uint64_t length, int32_t share, int32_t world,
                          uint64_t epoch, ddp_err *err)
{
    uint64_t *own, count, i = 0;
    ddp_status st = samples_of(s, share, world, epoch, &own, &count, err);

    for (uint64_t at = (uint64_t)share; st == DDP_OK && i < count && at < length; i++, at += (uint64_t)world)
        if (own[i] != order[at])
            st = ddp_fail(
                err, DDP_ERR_CONFIG,
                "sampler \"%s\" gives the samples in another order with %d ranks than with one: in the middle of an epoch the run goes on with as many ranks as before alone, or from a checkpoint of an epoch's end",
                s->train.sampler_plugin->desc.name, world);
    free(own);
    return st;
}

ddp_status session_check_order(const ddp_session *s, int32_t world, uint64_t epoch, ddp_err *err)
{
    uint64_t *order, count;
    ddp_status st = samples_of(s, 0, 1, epoch, &order, &count, err);

    if (st == DDP_OK) st = follows(s, order, count, world - 1, world, epoch, err);
    if (st == DDP_OK) st = follows(s, order, count, s->shares.count - 1, s->shares.count, epoch, err);
    free(order);
    return st;
}

void session_close_samplers(ddp_source *src)
{
    for (uint32_t i = 0; i < src->sampler_count; i++) {
        src->sampler_ops->close(src->samplers[i]);
        src->sampler_plugin->live--;
    }
    src->sampler_count = 0;
}

ddp_status session_open_samplers(ddp_session *s, ddp_source *src, ddp_err *err)
{
    session_close_samplers(src);
    for (uint32_t i = 0; i < s->shares.own; i++) {
        DDP_TRY(session_open_sampler(s, src, s->shares.list[i], &src->samplers[i], err));
        src->sampler_count++;
        src->sampler_plugin->live++;
    }
    src->count = src->sampler_ops->count(src->samplers[0]);
    return DDP_OK;
}

/* ---- buckets ----------------------------------------------------------------------------------------------------- */
ddp_status session_create_layout(ddp_session *s, ddp_err *err)
{
    return ddp_layout_create_cut(s->model.graph, DDP_MIN_OF(s->config->ddp->first_bucket_size, s->model.bucket_size),
                                 s->model.bucket_size, (uint32_t)ddp_session_shards(s), &s->model.layout, err);
}

ddp_status session_lay_out(ddp_session *s, ddp_err *err)
{
    ddp_variants_free(s);
    ddp_layout_free(s->model.layout);
    s->model.layout = NULL;
    DDP_TRY(session_create_layout(s, err));
    return ddp_variants_plan(s, err);
}

ddp_status ddp_session_stages_set(ddp_session *s, const uint32_t *first, ddp_err *err)
{
    ddp_graph_place_nodes(s->model.graph, first, s->devices.rank_stages);
    return session_lay_out(s, err);
}

/* ---- shares ------------------------------------------------------------------------------------------------------ */
void session_share_alone(ddp_session *s)
{
    s->launch.home = s->launch.rank;
    if (s->launch.home == DDP_RANK_OF_SPARE) s->launch.rank = 1; /* any but 0 */
    s->devices.rank_stages = session_pipeline_stages(s);
    s->shares = (ddp_shares_of_rank){.count = s->launch.world / (int32_t)s->devices.rank_stages, .own = 1};
    s->shares.list[0] = s->launch.rank % s->shares.count; /* all stages of a replica have its share */
}

ddp_status session_check_missing(const ddp_session *s, ddp_err *err)
{
    const ddp_candidate *b = &s->backends[0];

    if (s->config->run->min_world == 0 || s->launch.purpose != DDP_TO_TRAIN) return DDP_OK;
    if (s->config->run->min_world > s->shares.count)
        (void)ddp_fail(err, DDP_ERR_CONFIG, "[run] min_world = %d is more than the %d ranks of this run",
                       (int)s->config->run->min_world, s->shares.count);
    else if (s->config->run->min_world * DDP_MAX_SHARES < s->shares.count)
        (void)ddp_fail(err, DDP_ERR_CONFIG,
                       "[run] min_world = %d: of %d ranks one would have the samples of more than %d; raise it",
                       (int)s->config->run->min_world, s->shares.count, DDP_MAX_SHARES);
    else if (ddp_session_devices(s) > 1)
        (void)ddp_fail(
            err, DDP_ERR_CONFIG,
            "[run] min_world needs ranks with one device each, and this one has %u; leave it out, or start a rank for each device",
            ddp_session_devices(s));
    else if (s->backend_count > 0 && ((const ddp_backend_ops *)b->plugin->ops)->launcher != NULL)
        (void)ddp_fail(
            err, DDP_ERR_CONFIG,
            "[run] min_world: the launcher of backend \"%s\" ends all ranks with the first one; leave it out, or choose another backend",
            b->name);
    else
        return DDP_OK;
    return session_at_key(s, "run", "min_world", err);
}

/* The rank of this generation that has share `share`; *missing counts the shares whose own rank is missing. */
static int32_t owner(const ddp_group *g, int32_t share, int32_t *missing)
{
    for (int32_t r = 0; r < ddp_group_world(g); r++)
        if (ddp_group_home(g, r) == share) return r;
    return (*missing)++ % ddp_group_world(g);
}

static ddp_status take_shares(ddp_session *s, const ddp_group *g, ddp_err *err)
{
    int32_t missing = 0;

    if (s->devices.rank_stages > 1) return DDP_OK; /* none may be missing */
    s->shares.own = 0;
    for (int32_t share = 0; share < s->shares.count; share++) {
        if (owner(g, share, &missing) != ddp_group_rank(g)) continue;
        if (s->shares.own == DDP_MAX_SHARES)
            return ddp_fail(err, DDP_ERR_CONFIG,
                            "rank %d would have more than %d of the %d shares of the samples; raise [run] min_world",
                            s->launch.home, DDP_MAX_SHARES, s->shares.count);
        s->shares.list[s->shares.own++] = share;
    }
    return DDP_OK;
}

ddp_status ddp_session_place(ddp_session *s, const ddp_group *g, ddp_err *err)
{
    ddp_shares_of_rank before = s->shares;
    bool resized = s->launch.world != ddp_group_world(g);

    if (s->launch.spare) atomic_store(&s->log->rank, ddp_group_home(g, ddp_group_rank(g)));
    s->launch.rank = ddp_group_rank(g);
    s->launch.world = ddp_group_world(g);
    s->launch.home = ddp_group_home(g, s->launch.rank);
    DDP_TRY_AS(DDP_EXIT_CONFIG, err, take_shares(s, g, err));
    if (resized) DDP_TRY(session_lay_out(s, err));
    if (before.own == s->shares.own && memcmp(before.list, s->shares.list, sizeof(before.list)) == 0) return DDP_OK;
    if (s->train.sampler_count > 0) DDP_TRY(session_open_samplers(s, &s->train, err));
    return s->eval.sampler_count > 0 ? session_open_samplers(s, &s->eval, err) : DDP_OK;
}
