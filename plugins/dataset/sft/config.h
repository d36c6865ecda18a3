/* plugins/dataset/sft/config.h -- the options of the dataset. */
#pragma once

#include <ddpengine/plugin.h>

enum { PACKING_NO = 0, PACKING_YES, PACKING_SEPARATE };

typedef struct sft_config {
    ddp_list files, columns, tags;
    const char *template, *tokenizer, *default_system, *cache;
    int32_t format, packing, train_on_prompt, mask_history, skip_bad, split;
    uint64_t length, pack_rows, limit, max_row;
    double validation;
} sft_config;
