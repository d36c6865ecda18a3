/* base/losses.c -- see losses.h. */
#include "base/losses.h"
#include <string.h>

bool ddp_losses_add(ddp_losses *l, int64_t now_ms)
{
    size_t old = 0;

    while (old < l->count && now_ms - l->at_ms[old] > l->window_ms) old++;
    l->count -= old;
    memmove(l->at_ms, l->at_ms + old, l->count * sizeof(l->at_ms[0]));
    if ((int64_t)l->count >= DDP_MIN_OF(l->most, (int64_t)DDP_LOSSES_MOST)) return false;
    l->at_ms[l->count++] = now_ms;
    return true;
}

int64_t ddp_losses_delay(const ddp_losses *l, int64_t delay_ms)
{
    return l->count == 0 ? delay_ms : delay_ms << DDP_MIN_OF(l->count - 1, (size_t)6);
}
