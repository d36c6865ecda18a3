/* plugins/dataset/common/split.h -- the options split, validation and id of a dataset, and whether those of [data] and
 * [eval] keep the samples of one source apart. */
#pragma once

#include <ddpengine/plugin.h>

enum { SPLIT_ALL = 0, SPLIT_TRAIN, SPLIT_VALIDATION };

typedef struct data_split {
    int32_t part;
    double validation;
    const char *id; /* the column that decides; "": none */
} data_split;

/* For two datasets of `plugin` that read one source, `what`. DDP_ERR_CONFIG where both take a part of it and divide it
 * differently: samples of the training would be in the evaluation. A warning where one takes all of it. */
ddp_status data_split_agrees(const ddp_host *host, const char *plugin, const char *what, const data_split *data,
                             const data_split *eval, ddp_err *err);
