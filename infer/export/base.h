/* infer/export/base.h -- the folder of Hugging Face's that a model began with, [checkpoint] init_from. */
#pragma once

#include "config/config.h"

#define EXPORT_PATH 4096

struct json_t;

/* init_from, or the folder of that file; "" where the run began with none. */
void export_base_folder(const ddp_config *config, char out[EXPORT_PATH]);
/* config.json of it, to be freed; NULL: there is none. DDP_ERR_DATA: it cannot be read or is no JSON object. */
ddp_status export_base_config(const char *base, struct json_t **out, ddp_err *err);
/* Whether that says of itself that it continues texts; NULL: no. */
bool export_base_is_causal(const struct json_t *config);
/* What lies beside the weights: the tokenizer, how texts are generated. Those that are not there are left out. */
ddp_status export_base_copy(const char *base, const char *folder, ddp_err *err);
