/* plugins/dataset/csv/agree.h -- whether two tables give the same inputs and the same target. */
#pragma once

#include "columns.h"

/* DDP_ERR_CONFIG with the first column that differs: name, type, categories, classes, mean. `a` is [data.csv]'s. */
ddp_status columns_agree(const columns *a, const columns *b, ddp_err *err);
/* The same for a split of one file; a warning goes to `host`. */
ddp_status columns_split_agrees(const ddp_host *host, const columns *a, const columns *b, ddp_err *err);
