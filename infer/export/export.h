/* infer/export/export.h -- a trained model for other programs. The same weights and settings give the same bytes. */
#pragma once

#include "infer/model.h"

typedef struct ddp_export_request {
    /* what can be said of the request before the model is read; NULL: nothing */
    ddp_status (*check)(const struct ddp_export_request *q, ddp_err *err);
    const char *weights;  /* a checkpoint, a folder of such or a safetensors file; NULL: as the config says */
    const char *path;     /* what is written: a folder, or a file for ONNX and GGUF */
    uint32_t dtype;       /* of a merged model: DDP_F32, DDP_BF16 */
    uint64_t shard_bytes; /* of it: the most in one file */
    /* of GGUF */
    const char *type;      /* of the matrices: f32, f16, bf16; NULL: f32 */
    const char *tokenizer; /* a folder or a file; "": none; NULL: the dataset's */
    const char *adapter;   /* PEFT's folder; NULL: the model is written */
} ddp_export_request;
typedef ddp_status (*infer_writer)(infer_model *m, const ddp_export_request *q, ddp_err *err);

/* Opens a session that infers, over what the checkpoint says of the data, or over the data; reads the weights, and has
 * `write` do the rest. Returns the exit code, after a line where it is not 0. */
int infer_export(const ddp_export_request *q, ddp_config *config, ddp_log *log, infer_writer write);

/* PATH/adapter_model.safetensors and PATH/adapter_config.json, as PEFT's save_pretrained writes them. DDP_ERR_CONFIG:
 * the model has no adapters. */
ddp_status infer_export_peft(infer_model *m, const ddp_export_request *q, ddp_err *err);
/* The model with its adapters added to its weights, as Hugging Face's save_pretrained writes one: model.safetensors,
 * or shards and their index, and what lies beside the base that it began with: config.json and its tokenizer. */
ddp_status infer_export_merged(infer_model *m, const ddp_export_request *q, ddp_err *err);
/* PATH/model.safetensors, a state_dict by PyTorch's names, and PATH/config.json: the model's options, what it reads and
 * gives. */
ddp_status infer_export_torch(infer_model *m, const ddp_export_request *q, ddp_err *err);
/* The forward pass as ONNX, opset 17. The batch size is free. */
ddp_status infer_export_onnx(infer_model *m, const ddp_export_request *q, ddp_err *err);
/* For llama.cpp: GPT-2, LLaMA, Qwen2 and Qwen3 by Hugging Face's names, with the tokenizer; or an adapter of one. */
ddp_status infer_export_gguf(infer_model *m, const ddp_export_request *q, ddp_err *err);
/* Its type, and that the tokenizer and the adapter that are named can be read. */
ddp_status infer_export_gguf_check(const ddp_export_request *q, ddp_err *err);
