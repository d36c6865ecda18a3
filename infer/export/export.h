/* infer/export/export.h -- a trained model for other programs. The same weights and settings give the same bytes. */
#pragma once

#include "infer/model.h"

typedef struct ddp_export_request {
    const char *weights; /* a checkpoint, a folder of such or a safetensors file; NULL: as the config says */
    const char *path;    /* what is written: a folder for PyTorch, a file for ONNX */
} ddp_export_request;

/* Opens a session that infers, over what the checkpoint says of the data, or over the data; reads the weights, and has
 * `write` do the rest. Returns the exit code, after a line where it is not 0. */
int infer_export(const ddp_export_request *q, ddp_config *config, ddp_log *log,
                 ddp_status (*write)(infer_model *m, const char *path, ddp_err *err));

/* PATH/model.safetensors, a state_dict by PyTorch's names, and PATH/config.json: the model's options, what it reads and
 * gives. */
ddp_status infer_export_torch(infer_model *m, const char *path, ddp_err *err);
/* The forward pass as ONNX, opset 17. The batch size is free. */
ddp_status infer_export_onnx(infer_model *m, const char *path, ddp_err *err);
