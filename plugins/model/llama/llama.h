/* plugins/model/llama/llama.h -- what a LLaMA-class model is, whichever file or section says so. */
#pragma once

#include <ddpengine/layers.h>
#include <stdbool.h>

enum { LLAMA_LAYERS_MAX = 512 };

/* Biases of the projections of attention. */
enum { LLAMA_BIAS_NONE, LLAMA_BIAS_QKV, LLAMA_BIAS_ALL };

/* Hugging Face's names in brackets where they differ. */
typedef struct llama_model {
    int64_t vocabulary, width, intermediate, layers; /* vocab_size, hidden_size, intermediate_size, num_hidden_layers */
    int64_t heads, kv_heads, head_dim;               /* num_attention_heads, num_key_value_heads */
    int64_t context;                                 /* max_position_embeddings */
    double eps, std, dropout;                        /* rms_norm_eps, initializer_range, attention_dropout */
    ddp_rope_spec rope;
    int bias;      /* LLAMA_BIAS_* */
    bool mlp_bias; /* of gate, up and down */
    bool qk_norm;  /* RMS norms of each head's q and k, as in Qwen3 */
    bool tied;     /* the output layer is the token embedding again */
} llama_model;

/* Reads Hugging Face's config.json, or that of a folder. What it asks for and is not here is refused by name:
 * DDP_ERR_CONFIG with the file and the key. */
ddp_status llama_config_read(const char *path, llama_model *out, ddp_err *err);
