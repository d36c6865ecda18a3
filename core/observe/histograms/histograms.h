/* observe/histograms/histograms.h -- how the elements of parameters and gradients are distributed, in the bins of
 * torch.utils.tensorboard's SummaryWriter.add_histogram: 0 and +-1e-12 * 1.1^k below 1e20. No threads, no I/O. */
#pragma once

#include "base/sys.h"
#include <ddpengine/graph.h>
#include <stdatomic.h>

enum { DDP_HISTOGRAM_SIDE = 774, DDP_HISTOGRAM_EDGES = 2 * DDP_HISTOGRAM_SIDE + 1 };
enum { DDP_HISTOGRAM_TAG = DDP_NAME_MAX + 16 };

typedef struct ddp_histogram {
    char tag[DDP_HISTOGRAM_TAG]; /* "weights/fc1.weight", "gradients/fc1.weight" */
    double min, max, sum, sum_squares;
    uint64_t number;                          /* of elements; 0: nothing is known of this step */
    uint64_t counts[DDP_HISTOGRAM_EDGES - 1]; /* counts[i]: edges[i] <= x < edges[i + 1], as numpy.histogram's */
} ddp_histogram;

/* Those of one step. Filled by the trainer's thread; ddp_observe_histograms lends it to "ddp-observe" until !lent. */
typedef struct ddp_histograms ddp_histograms; /* observe.h has it too */
struct ddp_histograms {
    double edges[DDP_HISTOGRAM_EDGES];
    uint64_t step;
    atomic_bool lent;
    uint32_t count;
    ddp_histogram items[];
};

/* Memory for `count`, free()d by the caller; the tags are left to it. NULL: err says why. */
ddp_histograms *observe_histograms_new(uint32_t count, ddp_err *err);
void observe_histograms_clear(ddp_histograms *h);
/* Of `count` elements, each times `scale` in f32. */
void observe_histogram_add(const ddp_histograms *h, ddp_histogram *one, const float *x, uint64_t count, float scale);
/* The bins that a HistogramProto has: from an empty one below the first that is not empty, to the last that is not.
 * limits[i] is the upper end of bucket i. Returns their number, at most DDP_HISTOGRAM_EDGES; 0: none has an element. */
size_t observe_histogram_buckets(const ddp_histograms *h, const ddp_histogram *one, double *limits, double *buckets);
