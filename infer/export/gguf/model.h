/* infer/export/gguf/model.h -- what llama.cpp calls a model's parts, and what it has to know of the model. Private to
 * export/. */
#pragma once

#include "graph/graph.h"
#include "infer/export/gguf/file.h"
#include "infer/model.h"

typedef struct gguf_model {
    const char *arch; /* gpt2, llama, qwen2, qwen3 */
    int64_t layers, width, hidden, vocabulary, context;
    int64_t heads, kv_heads, head_dim;
    double eps;
    bool has_rope;
    ddp_attrs rope;
} gguf_model;

/* From the names and shapes of the parameters and from the program. DDP_ERR_UNSUPPORTED: llama.cpp has no such
 * architecture, or this file has none of it. */
ddp_status gguf_model_of(const infer_model *m, gguf_model *out, ddp_err *err);
/* Everything but the tokenizer: pairs. */
void gguf_model_pairs(const gguf_model *g, gguf_file *f);
/* All tensors, which stay the model's. `type` is of the matrices. */
ddp_status gguf_model_tensors(const infer_model *m, const gguf_model *g, uint32_t type, gguf_file *f, ddp_err *err);
/* The tensor of a parameter of that name (PyTorch's); false: it has none. `out` has its name in the file, and whether
 * it is transposed or turned. */
bool gguf_model_name(const gguf_model *g, const char *name, gguf_tensor *out);
