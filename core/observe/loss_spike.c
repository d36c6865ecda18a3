/* observe/loss_spike.c -- a loss far above the usual one: the median of the steps before, which a few wild ones do not
 * move. Called by the thread "ddp-observe", beside training. */
#include "observe/internal.h"
#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { LEAST = 16 /* losses that a median is taken of, at least */ };

static int compare_doubles(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;

    return x < y ? -1 : x > y ? 1 : 0;
}

static double usual_loss(const ddp_loss_spike *s)
{
    double sorted[DDP_SPIKE_WINDOW];
    size_t n = (size_t)DDP_MIN_OF(s->count, (uint64_t)DDP_SPIKE_WINDOW);

    memcpy(sorted, s->recent, n * sizeof(*sorted));
    qsort(sorted, n, sizeof(*sorted), compare_doubles);
    return n % 2 == 1 ? sorted[n / 2] : 0.5 * (sorted[n / 2 - 1] + sorted[n / 2]);
}

bool observe_loss_spike(ddp_loss_spike *s, const ddp_step_record *r, double *usual)
{
    bool spike = false;

    if (s->factor == 0.0 || !isfinite(r->loss)) return false;
    if (s->count >= LEAST && (s->warned_step == 0 || r->step >= s->warned_step + DDP_SPIKE_QUIET ||
                              r->step <= s->warned_step)) { /* not above it: the run has gone back */
        *usual = usual_loss(s);
        spike = *usual > 0.0 && r->loss > s->factor * *usual;
    }
    s->recent[s->count++ % DDP_SPIKE_WINDOW] = r->loss;
    if (spike) s->warned_step = r->step;
    return spike;
}
