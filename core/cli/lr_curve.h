/* cli/lr_curve.h -- the loss over the learning rate: smoothed, what it suggests, and drawn with plain characters. */
#pragma once

#include "base/base.h"

typedef struct lr_point {
    double lr, loss, smoothed;
} lr_point;

typedef struct lr_curve {
    lr_point *points; /* free() */
    size_t count;
} lr_curve;

/* The steps of a metrics.jsonl, in order; those whose loss is not finite end it. `smoothed` is a moving average with
 * decay 0.98 without its bias towards 0, fastai's AvgSmoothLoss. */
ddp_status lr_curve_read(const char *path, lr_curve *out, ddp_err *err);
/* The learning rate at which the smoothed loss falls fastest over log(lr), fastai's `steep`: without the first tenth of
 * the `planned` points and the last five. 0: there are too few, or it falls nowhere. */
double lr_curve_suggestion(const lr_curve *c, size_t planned);
void lr_curve_draw(const lr_curve *c, double suggestion, ddp_text *out);
ddp_status lr_curve_write(const lr_curve *c, const char *path, ddp_err *err); /* lr,loss,smoothed_loss */
