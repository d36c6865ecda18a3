/* checkpoint/settings_compare.h -- the settings of a run as a checkpoint keeps them: lines "section.key = value\n". */
#pragma once

#include "base/base.h"

/* `there` or `here` is NULL where that side lacks the key. */
typedef void (*ddp_setting_differs)(void *ctx, const char *key, const char *there, const char *here);
/* Calls `each` for every key that differs: in the order of `there`, then what `here` alone has. */
ddp_status ddp_checkpoint_compare_settings(const char *there, const char *here, ddp_setting_differs each, void *ctx,
                                           ddp_err *err);
