/* conform/hook/mean.h -- what a hook leaves is the mean. */
#ifndef DDP_CONFORM_HOOK_MEAN_H
#define DDP_CONFORM_HOOK_MEAN_H

#include "conform/hook/types.h"

bool ddp_hook_means(ddp_hook_trial *t); /* from the first update on */
bool ddp_hook_zeros(ddp_hook_trial *t); /* gradients of zero, then others */

#endif
