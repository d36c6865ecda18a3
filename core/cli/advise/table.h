/* cli/advise/table.h -- advice.json as tables, for people. */
#pragma once

#include "base/base.h"
#include <jansson.h>

/* Appends the tables. DDP_ERR_INVALID: it is not what train/measure/advice writes. */
ddp_status advise_table(const json_t *advice, ddp_text *out, ddp_err *err);
