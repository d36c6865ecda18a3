/* config/batches.c -- how a global batch is made up of ranks, micro-steps and samples. */
#include "config/private.h"
#include <inttypes.h>
#include <stdio.h>

/* "batch_size 64 (node1.ini:4)" for those of the three that were given. */
static ddp_status fail_batches(const ddp_config *c, int64_t world, const char *why, ddp_err *err)
{
    const struct ddp_train_config *t = c->train;
    ddp_text given = {0};

    if (t->batch_size > 0)
        ddp_text_printf(&given, "batch_size %" PRId64 " (%s), ", t->batch_size, where_of(c, "train", "batch_size"));
    if (t->accumulate > 0)
        ddp_text_printf(&given, "accumulate %" PRId64 " (%s), ", t->accumulate, where_of(c, "train", "accumulate"));
    if (t->global_batch > 0)
        ddp_text_printf(&given, "global_batch %" PRId64 " (%s), ", t->global_batch,
                        where_of(c, "train", "global_batch"));
    (void)ddp_fail(err, DDP_ERR_CONFIG,
                   "[train] %sworld_size %" PRId64 ": %s; batch_size x accumulate x world_size must be global_batch",
                   given.data != NULL ? given.data : "", world, why);
    ddp_text_free(&given);
    return err->status;
}

static int64_t quotient_up(int64_t a, int64_t b) { return a / b + (a % b != 0); }

/* The global batch cannot be divided by `product`. Names the numbers of ranks that would do, at most so many. */
enum { RANKS_NAMED = 12 };
static ddp_status fail_uneven(const ddp_config *c, int64_t world, const ddp_batches *b, int64_t product, ddp_err *err)
{
    int64_t each = product / world, most = DDP_MIN_OF(b->global_batch / each, INT64_C(1) << 20);
    ddp_text why = {0};
    ddp_status st;
    int named = 0;

    ddp_text_printf(&why, "%" PRId64 " cannot be divided by %" PRId64, b->global_batch, product);
    for (int64_t ranks = 1; b->global_batch % each == 0 && ranks <= most && named < RANKS_NAMED; ranks++)
        if (b->global_batch / each % ranks == 0)
            ddp_text_printf(&why, "%s%" PRId64, named++ == 0 ? " (it can with a world_size of " : ", ", ranks);
    ddp_text_printf(&why, "%s", named > 0 ? ")" : "");
    st = fail_batches(c, world, why.data != NULL ? why.data : "it cannot be divided", err);
    ddp_text_free(&why);
    return st;
}

/* What is missing of batch_size and accumulate follows from the largest part of a step. */
static ddp_status divide_unevenly(const ddp_config *c, int64_t world, ddp_batches *b, ddp_err *err)
{
    int64_t part = quotient_up(b->global_batch, world);
    char why[128];

    if (b->global_batch < world) {
        (void)snprintf(why, sizeof(why), "there are fewer samples in a step than ranks");
        return fail_batches(c, world, why, err);
    }
    if (b->accumulate == 0) b->accumulate = quotient_up(part, b->batch_size);
    b->batch_size = DDP_MAX_OF(quotient_up(part, b->accumulate), 1);
    b->accumulate = quotient_up(part, b->batch_size); /* fewer than were asked for, rather than empty ones */
    b->uneven = b->uneven || b->batch_size * b->accumulate * world != b->global_batch;
    return DDP_OK;
}

bool ddp_config_may_be_uneven(const ddp_config *c)
{
    return c->train->even_batches != DDP_EVEN_BATCHES_YES && c->train->parallel == DDP_PARALLEL_DDP;
}

/* Of those in *b that are not 0. */
static ddp_status resolve_batches(const ddp_config *c, int64_t world, ddp_batches *b, ddp_err *err)
{
    int64_t product;
    char why[128];

    if (world < 1) return ddp_fail(err, DDP_ERR_INVALID, "world_size %" PRId64 " has no ranks", world);
    b->uneven = c->train->even_batches == DDP_EVEN_BATCHES_NO;
    if (b->global_batch == 0 && b->batch_size == 0) b->batch_size = 64;
    if (b->accumulate == 0 && (b->global_batch == 0 || b->batch_size == 0)) b->accumulate = 1;
    /* at most one of the three is missing now */
    product = world * (b->batch_size > 0 ? b->batch_size : 1); /* below 2^47, and below 2^67 with accumulate */
    if (b->accumulate > 0 && __builtin_mul_overflow(product, b->accumulate, &product))
        return fail_batches(c, world, "their product is over 64 bits", err);
    if (b->global_batch == 0) {
        b->global_batch = product;
    } else if (b->global_batch % product != 0) {
        if (ddp_config_may_be_uneven(c) && (b->batch_size == 0 || b->accumulate == 0))
            return divide_unevenly(c, world, b, err);
        return fail_uneven(c, world, b, product, err);
    } else if (b->batch_size == 0) {
        b->batch_size = b->global_batch / product;
    } else if (b->accumulate == 0) {
        b->accumulate = b->global_batch / product;
    } else if (b->global_batch != product) {
        (void)snprintf(why, sizeof(why), "that makes %" PRId64, product);
        return fail_batches(c, world, why, err);
    }
    return DDP_OK;
}

static ddp_status check_even_batches(const ddp_config *c, ddp_err *err)
{
    if (c->train->even_batches != DDP_EVEN_BATCHES_NO || c->train->parallel == DDP_PARALLEL_DDP) return DDP_OK;
    return ddp_fail(
        err, DDP_ERR_CONFIG,
        "%s: [train] even_batches = no needs ranks with one device each, parallel = ddp; leave one of the two out",
        where_of(c, "train", "even_batches"));
}

ddp_status ddp_config_batches(const ddp_config *c, int64_t world, ddp_batches *out, ddp_err *err)
{
    ddp_batches b = {c->train->batch_size, c->train->accumulate, c->train->global_batch, false};

    DDP_TRY(check_even_batches(c, err));
    DDP_TRY(resolve_batches(c, world, &b, err));
    *out = b;
    return DDP_OK;
}

ddp_status ddp_config_keep_batch(const ddp_config *c, int64_t world, int64_t global_batch, int64_t batch_size,
                                 ddp_batches *out, ddp_err *err)
{
    int64_t part = quotient_up(global_batch, world < 1 ? 1 : world), micros = quotient_up(part, batch_size);
    ddp_batches b = {DDP_MIN_OF(batch_size, part), 0, global_batch, false};

    if (world > 0 && global_batch % world == 0) { /* more and smaller micro-batches where even ones are asked for */
        while (!ddp_config_may_be_uneven(c) && part % micros != 0) micros++;
        if (part % micros == 0) b.batch_size = part / micros;
    } else if (!ddp_config_may_be_uneven(c)) {
        b = (ddp_batches){.accumulate = 1, .global_batch = global_batch};
    }
    DDP_TRY(check_even_batches(c, err));
    DDP_TRY(resolve_batches(c, world, &b, err));
    *out = b;
    return DDP_OK;
}
