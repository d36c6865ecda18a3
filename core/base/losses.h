/* base/losses.h -- how many losses a run may have within a window of time, for those who start it again. One thread. */
#pragma once

#include "base/base.h"

enum { DDP_LOSSES_MOST = 1000 };

typedef struct ddp_losses {
    int64_t most, window_ms;
    size_t count;                   /* within the window, at the last call */
    int64_t at_ms[DDP_LOSSES_MOST]; /* of those, oldest first */
} ddp_losses;

/* One more at `now_ms`; false where there were `most` within the window already: it must not be survived. */
bool ddp_losses_add(ddp_losses *l, int64_t now_ms);
/* `delay_ms`, doubled for each loss of the window but the last, up to 64 times as long. */
int64_t ddp_losses_delay(const ddp_losses *l, int64_t delay_ms);
