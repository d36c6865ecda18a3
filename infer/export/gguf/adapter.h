/* infer/export/gguf/adapter.h -- a LoRA adapter in PEFT's folder, as llama.cpp's convert_lora_to_gguf.py writes it.
 * Private to gguf/. */
#pragma once

#include "checkpoint/safetensors.h"
#include "infer/export/gguf/model.h"

typedef struct gguf_adapter {
    ddp_safetensors *file;
    double alpha;
    int64_t rank;         /* of every pair; 0: they differ */
    bool rank_stabilised; /* scaled by alpha / sqrt(rank) */
    float **matrices;     /* aligned copies of what is in the file */
    size_t matrix_count;
} gguf_adapter;

/* FOLDER/adapter_config.json and FOLDER/adapter_model.safetensors. DDP_ERR_DATA, DDP_ERR_UNSUPPORTED: one line that
 * names the file. */
ddp_status gguf_adapter_open(const char *folder, gguf_adapter *a, ddp_err *err);
/* Pairs of matrices, which are the adapter's until it is closed. */
ddp_status gguf_adapter_tensors(gguf_adapter *a, const infer_model *m, const gguf_model *g, uint32_t type, gguf_file *f,
                                ddp_err *err);
void gguf_adapter_close(gguf_adapter *a); /* also one that was not opened */
