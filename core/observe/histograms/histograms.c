/* observe/histograms/histograms.c -- see histograms.h. */
#include "observe/histograms/histograms.h"
#include <math.h>
#include <stdlib.h>
#include <string.h>

ddp_histograms *observe_histograms_new(uint32_t count, ddp_err *err)
{
    ddp_histograms *h = ddp_alloc(sizeof(*h) + count * sizeof(*h->items), err);
    double edge = 1e-12;

    if (h == NULL) return NULL;
    h->count = count;
    for (int i = 0; i < DDP_HISTOGRAM_SIDE; i++, edge *= 1.1) { /* the same roundings as PyTorch's loop */
        h->edges[DDP_HISTOGRAM_SIDE + 1 + i] = edge;
        h->edges[DDP_HISTOGRAM_SIDE - 1 - i] = -edge;
    }
    observe_histograms_clear(h);
    return h;
}

void observe_histograms_clear(ddp_histograms *h)
{
    for (uint32_t i = 0; i < h->count; i++) {
        ddp_histogram *one = &h->items[i];

        one->min = INFINITY;
        one->max = -INFINITY;
        one->sum = one->sum_squares = 0.0;
        one->number = 0;
        memset(one->counts, 0, sizeof(one->counts));
    }
}

/* The bin of x by bisection; DDP_HISTOGRAM_EDGES - 1: none. */
static size_t bin_of(const double *edges, double x)
{
    size_t low = 0, high = DDP_HISTOGRAM_EDGES - 1;

    if (!(x >= edges[0] && x <= edges[high])) return high;
    if (x == edges[high]) return high - 1;
    while (high - low > 1) {
        size_t middle = (low + high) / 2;

        if (x >= edges[middle])
            low = middle;
        else
            high = middle;
    }
    return low;
}

void observe_histogram_add(const ddp_histograms *h, ddp_histogram *one, const float *x, uint64_t count, float scale)
{
    for (uint64_t i = 0; i < count; i++) {
        double v = (double)(x[i] * scale);
        size_t bin = bin_of(h->edges, v);

        one->min = v < one->min || isnan(v) ? v : one->min;
        one->max = v > one->max || isnan(v) ? v : one->max;
        one->sum += v;
        one->sum_squares += v * v;
        if (bin < DDP_HISTOGRAM_EDGES - 1) one->counts[bin]++;
    }
    one->number += count;
}

size_t observe_histogram_buckets(const ddp_histograms *h, const ddp_histogram *one, double *limits, double *buckets)
{
    size_t bins = DDP_HISTOGRAM_EDGES - 1, first = 0, last = bins, n = 0;

    while (first < bins && one->counts[first] == 0) first++;
    if (first == bins) return 0;
    while (one->counts[last - 1] == 0) last--;
    limits[n] = h->edges[first];
    buckets[n++] = 0.0;
    for (size_t i = first; i < last; i++) {
        limits[n] = h->edges[i + 1];
        buckets[n++] = (double)one->counts[i];
    }
    return n;
}
