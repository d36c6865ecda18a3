/* conform/hook/mean.c -- whether what a hook leaves is the mean: of one update where it remembers nothing, else of
 * many, over which the errors that it carries over must even out. */
#include "conform/hook/mean.h"
#include "conform/hook/group.h"
#include "conform/hook/trial.h"
#include <math.h>
#include <stdlib.h>

enum { SHORT_RUN = 256, LONG_RUN = 512 }; /* updates of the same gradients */

/* What one update of a hook that remembers nothing may be wrong by, in shares of the largest gradient. Each rank
 * rounds once, and so does each sum: more of them in larger worlds. */
static double once_tolerance(uint32_t world) { return 0.01 * DDP_MAX_OF(1.0, (double)world / 3.0); }

/* Every single result, to a share of the largest gradient of its bucket. */
static bool near_the_mean(ddp_hook_trial *t)
{
    for (uint32_t b = 0; b < DDP_HOOK_BUCKETS; b++) {
        double allowed = once_tolerance(t->a->world) * t->largest[b];

        for (uint64_t i = 0; i < ddp_hook_count(b); i++)
            if (!DDP_HOOK_EXPECT(t, fabs((double)t->grads[b][i] - t->mean[b][i]) <= allowed,
                                 "update %llu: element %llu of bucket %u is %g, and the mean %g; "
                                 "a hook without a state of each rank may miss it by %g",
                                 (unsigned long long)t->update, (unsigned long long)i, b, (double)t->grads[b][i],
                                 t->mean[b][i], allowed))
                return false;
    }
    return true;
}

/* Root of the mean square by which sums / updates misses the mean, of the worst tensor, in shares of the gradients'
 * own. */
static double worst_tensor(const ddp_hook_trial *t, double *const *sums, uint32_t updates, const char **name)
{
    uint64_t offset, elements;
    double worst = -1.0;
    const char *tensor;

    for (uint32_t b = 0; b < DDP_HOOK_BUCKETS; b++)
        for (uint32_t k = 0; ddp_hook_checked_tensor(b, k, &tensor, &offset, &elements); k++) {
            double squares = 0.0, error;

            for (uint64_t i = offset; i < offset + elements; i++) {
                double e = sums[b][i] / updates - t->mean[b][i];
                squares += e * e;
            }
            error = sqrt(squares / (double)elements) / t->rms[b];
            if (error <= worst) continue; /* a NaN is the worst */
            worst = error;
            *name = tensor;
            if (isnan(error)) return error;
        }
    return worst;
}

/* What is held back goes out later, so that there is a bound to it, and twice the updates halve the error; a hook
 * that sends a matrix by few directions needs some updates until its bound is there, or lets the first ones pass. An
 * error that is made each time stays, or grows from there. */
static bool errors_even_out(ddp_hook_trial *t, double *const *sums)
{
    const char *name = "";
    double early = 0.0, late;

    for (uint32_t u = 1; u <= LONG_RUN; u++) {
        if (!ddp_hook_next(t, 1, DDP_WAY_AT_ONCE)) return false;
        for (uint32_t b = 0; b < DDP_HOOK_BUCKETS; b++)
            for (uint64_t i = 0; i < ddp_hook_count(b); i++) sums[b][i] += (double)t->grads[b][i];
        if (u == SHORT_RUN) early = worst_tensor(t, sums, u, &name);
    }
    late = worst_tensor(t, sums, LONG_RUN, &name);
    return DDP_HOOK_EXPECT(
        t, late <= 1e-4 || (late <= early * 0.75 && late <= 0.5),
        "the sum of %d updates of the same gradients, divided, misses the mean of \"%s\" by %.2g of their size; "
        "that of %d misses it by %.2g: what is held back never comes",
        LONG_RUN, name, late, SHORT_RUN, early);
}

static bool means_from_here(ddp_hook_trial *t)
{
    double *sums[DDP_HOOK_BUCKETS] = {NULL};
    ddp_err err = {0};
    bool good = true;

    if (!ddp_hook_remembers(t)) {
        for (uint32_t u = 1; u <= DDP_HOOK_FEW && good; u++)
            good = ddp_hook_next(t, u, DDP_WAY_AT_ONCE) && near_the_mean(t);
        return good;
    }
    for (uint32_t b = 0; b < DDP_HOOK_BUCKETS && good; b++) {
        sums[b] = ddp_alloc(ddp_hook_count(b) * sizeof(double), &err);
        good = DDP_HOOK_EXPECT(t, sums[b] != NULL, "%.200s", err.msg);
    }
    good = good && errors_even_out(t, sums);
    for (uint32_t b = 0; b < DDP_HOOK_BUCKETS; b++) free(sums[b]);
    return good;
}

bool ddp_hook_means(ddp_hook_trial *t)
{
    t->update = 0;
    return means_from_here(t);
}

/* Directions that have died of them must come back. */
bool ddp_hook_zeros(ddp_hook_trial *t)
{
    for (uint32_t u = 1; u <= DDP_HOOK_FEW; u++) {
        ddp_hook_fill(t, u, true);
        if (!ddp_hook_update(t, DDP_WAY_AT_ONCE)) return false;
        for (uint32_t b = 0; b < DDP_HOOK_BUCKETS; b++)
            for (uint64_t i = 0; i < ddp_hook_count(b); i++)
                if (!DDP_HOOK_EXPECT(t, t->grads[b][i] == 0.0f,
                                     "update %llu: element %llu of bucket %u is %g, of gradients that were always 0",
                                     (unsigned long long)t->update, (unsigned long long)i, b, (double)t->grads[b][i]))
                    return false;
    }
    return means_from_here(t);
}
