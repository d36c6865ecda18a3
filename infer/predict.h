/* infer/predict.h -- what a trained model says of files, on standard output. */
#pragma once

#include "config/config.h"
#include "base/log.h"

typedef struct ddp_predict_request {
    const char *weights; /* a checkpoint, a folder of such or a safetensors file; NULL: as the config says */
    const char *const *files;
    size_t file_count;
    int32_t top; /* classes that are shown */
    bool json;   /* an object a line */
} ddp_predict_request;

/* Returns the exit code, after a line where it is not 0. */
int ddp_predict_files(const ddp_predict_request *q, ddp_config *config, ddp_log *log);
