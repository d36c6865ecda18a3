/* infer/export/base.h -- the folder of Hugging Face's that a model began with, [checkpoint] init_from. */
#pragma once

#include "config/config.h"

#define EXPORT_PATH 4096

struct json_t;

/* init_from, or the folder of that file; "" where the run began with none. */
void export_base_folder(const ddp_config *config, char out[EXPORT_PATH]);
/* config.json of it, to be freed; NULL: there is none that can be read. */
struct json_t *export_base_config(const char *base);
/* Whether that says of itself that it continues texts. */
bool export_base_is_causal(const char *base);
/* What lies beside the weights: the tokenizer, how texts are generated. Those that are not there are left out. */
ddp_status export_base_copy(const char *base, const char *folder, ddp_err *err);
