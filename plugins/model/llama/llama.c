/* plugins/model/llama/llama.c -- LLaMA ("LLaMA: Open and Efficient Foundation Language Models", Touvron et al., 2023)
 * and the models that have its form: LLaMA 2 and 3, SmolLM2, TinyLlama, Mistral, Qwen2 with biases of q, k and v, Qwen3
 * with norms of q and k. Names, shapes and first values are those of Hugging Face's ...ForCausalLM; the sizes are those
 * of its config.json, or of the section.
 *
 * Reads "input" (T) i64, the tokens, and "target" (T) i64, the token that follows each; a target of -100 counts for
 * nothing. Where a dataset packs several texts into a sample and has "segment" (T), they do not see each other; where
 * it has "position" (T), that is what the rotary embedding turns by. */
#include "llama.h"
#include <ddpengine/model.h>

struct config {
    const char *file;
    int64_t vocabulary, width, intermediate, layers, heads, kv_heads, head_dim, context, original_context;
    double eps, theta, rope_factor, low_freq_factor, high_freq_factor, dropout;
    int32_t rope, bias, qk_norm, tied;
};

enum { AUTO }; /* the first of each range */

#define SIZE_OF(key_, field_, range_, doc_)                                                                            \
    {                                                                                                                  \
        .key = (key_), .dflt = "0", .range = (range_), .doc = (doc_), .type = DDP_OPT_INT,                             \
        .offset = offsetof(struct config, field_)                                                                      \
    }
#define REAL_OF(key_, field_, range_, doc_)                                                                            \
    {                                                                                                                  \
        .key = (key_), .dflt = "0", .range = (range_), .doc = (doc_), .type = DDP_OPT_FLOAT,                           \
        .offset = offsetof(struct config, field_)                                                                      \
    }
#define CHOICE_OF(key_, field_, range_, doc_)                                                                          \
    {                                                                                                                  \
        .key = (key_), .dflt = "auto", .range = (range_), .doc = (doc_), .type = DDP_OPT_ENUM,                         \
        .offset = offsetof(struct config, field_)                                                                      \
    }

static const ddp_option options[] = {
    {.key = "config",
     .dflt = "",
     .doc = "Hugging Face's config.json, or the folder that has it, for what the options below leave at 0 or auto. "
            "model_type is llama, mistral, qwen2 or qwen3. Empty: the options say all.",
     .type = DDP_OPT_PATH,
     .offset = offsetof(struct config, file)},
    SIZE_OF("vocabulary", vocabulary, "0..268435456", "Number of different tokens, vocab_size."),
    SIZE_OF("width", width, "0..16777216", "Number of features of a token, hidden_size."),
    SIZE_OF("intermediate", intermediate, "0..16777216", "Width of the feed-forward part, intermediate_size."),
    SIZE_OF("layers", layers, "0..512", "Number of transformer blocks, num_hidden_layers."),
    SIZE_OF("heads", heads, "0..4096", "Number of attention heads, num_attention_heads."),
    SIZE_OF("kv_heads", kv_heads, "0..4096",
            "Number of heads of keys and values, num_key_value_heads, a divisor of heads. 0 without a config: heads."),
    SIZE_OF("head_dim", head_dim, "0..1024", "Features of a head. 0 without a config: width / heads."),
    SIZE_OF("context", context, "0..1073741824",
            "Longest sequence in tokens, max_position_embeddings. 0 without a config: that of the data."),
    REAL_OF("eps", eps, "0..1", "What the RMS norms add, rms_norm_eps. 0 without a config: 1e-5."),
    REAL_OF("theta", theta, "0..1e15", "Base of the rotary frequencies, rope_theta. 0 without a config: 10000."),
    CHOICE_OF(
        "rope", rope, "auto|default|linear|llama3|yarn",
        "How the rotary frequencies reach beyond the original context, rope_type. auto without a config: default."),
    REAL_OF("rope_factor", rope_factor, "0..1000000",
            "Of linear, llama3 and yarn: so much longer is the context, from 1."),
    SIZE_OF("original_context", original_context, "0..1073741824",
            "Of llama3 and yarn: tokens, original_max_position_embeddings."),
    REAL_OF("low_freq_factor", low_freq_factor, "0..1000000", "Of llama3. 0 without a config: 1."),
    REAL_OF("high_freq_factor", high_freq_factor, "0..1000000", "Of llama3. 0 without a config: 4."),
    CHOICE_OF("bias", bias, "auto|none|qkv|all",
              "Which projections of attention have a bias: qkv as in Qwen2, or all four. auto without a config: none."),
    CHOICE_OF("qk_norm", qk_norm, "auto|no|yes",
              "RMS norms of the queries and keys of each head, as in Qwen3. auto without a config: no."),
    CHOICE_OF("tied", tied, "auto|no|yes",
              "Whether the output layer is the token embedding again, tie_word_embeddings. auto without a config: no."),
    REAL_OF("dropout", dropout, "0..0.999", "Dropout probability of the attention weights, attention_dropout."),
};

/* ---- what the model is ------------------------------------------------------------------------------------------- */
static void take(int64_t *to, int64_t option)
{
    if (option > 0) *to = option;
}

static void take_real(double *to, double option)
{
    if (option > 0.0) *to = option;
}

/* The options where they say something, else the file. */
static ddp_status gather(const struct config *c, llama_model *m, ddp_err *err)
{
    *m = (llama_model){.eps = 1e-5, .std = 0.02, .rope = {.theta = 10000.0}};
    if (c->file[0] != '\0') DDP_TRY(llama_config_read(c->file, m, err));
    if (c->file[0] == '\0' || c->heads > 0) m->kv_heads = c->heads;
    take(&m->vocabulary, c->vocabulary);
    take(&m->width, c->width);
    take(&m->intermediate, c->intermediate);
    take(&m->layers, c->layers);
    take(&m->heads, c->heads);
    take(&m->kv_heads, c->kv_heads);
    if (m->head_dim == 0 && m->heads > 0) m->head_dim = m->width / m->heads;
    take(&m->head_dim, c->head_dim);
    take(&m->context, c->context);
    take_real(&m->eps, c->eps);
    take_real(&m->dropout, c->dropout);
    if (c->bias != AUTO) m->bias = LLAMA_BIAS_NONE + c->bias - 1;
    if (c->qk_norm != AUTO) m->qk_norm = c->qk_norm == 2;
    if (c->tied != AUTO) m->tied = c->tied == 2;
    return DDP_OK;
}

static void gather_rope(const struct config *c, llama_model *m)
{
    ddp_rope_spec *s = &m->rope;

    s->head_dim = m->head_dim;
    if (c->rope != AUTO) s->kind = DDP_ROPE_DEFAULT + (uint32_t)c->rope - 1;
    take_real(&s->theta, c->theta);
    take_real(&s->factor, c->rope_factor);
    take(&s->original_context, c->original_context);
    take_real(&s->low_freq_factor, c->low_freq_factor);
    take_real(&s->high_freq_factor, c->high_freq_factor);
    if (s->kind == DDP_ROPE_LLAMA3 && s->low_freq_factor == 0.0) s->low_freq_factor = 1.0;
    if (s->kind == DDP_ROPE_LLAMA3 && s->high_freq_factor == 0.0) s->high_freq_factor = 4.0;
}

/* The first size that nobody has given; NULL: all are there. */
static const char *missing_size(const llama_model *m)
{
    if (m->vocabulary == 0) return "vocabulary";
    if (m->width == 0) return "width";
    if (m->intermediate == 0) return "intermediate";
    if (m->layers == 0) return "layers";
    if (m->heads == 0) return "heads";
    return NULL;
}

static void check(ddp_graph *g, const llama_model *m, ddp_tensor tokens)
{
    int64_t dims[DDP_MAX_DIMS];
    uint32_t rank = ddp_dims(g, tokens, dims);
    const char *missing = missing_size(m);
    char message[256] = "";

    if (missing != NULL)
        (void)snprintf(message, sizeof(message),
                       "%s is not set; give [model.llama] config = FOLDER of Hugging Face's, or the size itself",
                       missing);
    else if (m->heads % m->kv_heads != 0)
        (void)snprintf(message, sizeof(message), "kv_heads = %lld does not divide heads = %lld", (long long)m->kv_heads,
                       (long long)m->heads);
    else if (rank != 0 && rank != 2)
        (void)snprintf(message, sizeof(message), "field \"input\" must have the shape (T), the tokens of a sequence");
    else if (rank == 2 && m->context > 0 && dims[1] > m->context)
        (void)snprintf(message, sizeof(message),
                       "field \"input\" has sequences of %lld tokens and the model's context is %lld; "
                       "shorten the sequences or raise [model.llama] context",
                       (long long)dims[1], (long long)m->context);
    if (message[0] != '\0') ddp_graph_fail(g, message);
}

/* ---- the graph --------------------------------------------------------------------------------------------------- */
enum { Q, K, V, O, GATE, UP, DOWN, LINEARS };

/* Weight and bias of each linear layer of a block, in the order in which transformers draws them again. */
typedef struct drawn {
    ddp_tensor of[LINEARS][2];
} drawn;

typedef struct inputs {
    ddp_tensor tokens, target, segment,
        position; /* (N, T); the last two with id -1 where the data have no such field */
} inputs;

static inputs read_inputs(ddp_graph *g)
{
    inputs in;

    in.tokens = ddp_input(g, "input");
    in.target = ddp_input(g, "target");
    in.segment.id = in.position.id = -1;
    if (ddp_has_input(g, "segment")) in.segment = ddp_input(g, "segment");
    if (ddp_has_input(g, "position")) in.position = ddp_input(g, "position");
    return in;
}

/* Each head of x (N, T, heads head_dim) by itself. */
static ddp_tensor head_norm(ddp_graph *g, const llama_model *m, ddp_tensor x, int64_t heads, const char *name)
{
    int64_t dims[DDP_MAX_DIMS], split[4], whole[3];

    if (ddp_dims(g, x, dims) != 3) return x;
    split[0] = whole[0] = DDP_N;
    split[1] = whole[1] = dims[1];
    split[2] = heads;
    split[3] = m->head_dim;
    whole[2] = heads * m->head_dim;
    x = ddp_rms_norm(g, ddp_reshape(g, x, 4, split), m->eps, "%s", name);
    return ddp_reshape(g, x, 3, whole);
}

/* (N, T, width) -> (N, T, width) */
static ddp_tensor attention(ddp_graph *g, const llama_model *m, const inputs *in, ddp_tensor x, drawn *d)
{
    const ddp_attention_spec spec = {
        .heads = (uint32_t)m->heads, .kv_heads = (uint32_t)m->kv_heads, .causal = 1, .dropout = m->dropout};
    const int64_t wide = m->heads * m->head_dim, narrow = m->kv_heads * m->head_dim;
    int bias = m->bias != LLAMA_BIAS_NONE;
    ddp_tensor q, k, v;

    ddp_scope(g, "self_attn");
    q = ddp_linear_drawn(g, x, wide, bias, d->of[Q], "q_proj");
    k = ddp_linear_drawn(g, x, narrow, bias, d->of[K], "k_proj");
    v = ddp_linear_drawn(g, x, narrow, bias, d->of[V], "v_proj");
    if (m->qk_norm) {
        q = head_norm(g, m, q, m->heads, "q_norm");
        k = head_norm(g, m, k, m->kv_heads, "k_norm");
    }
    q = ddp_rope(g, q, in->position, &m->rope);
    k = ddp_rope(g, k, in->position, &m->rope);
    x = ddp_attention_apart(g, q, k, v, in->segment, &spec);
    x = ddp_linear_drawn(g, x, m->width, m->bias == LLAMA_BIAS_ALL, d->of[O], "o_proj");
    ddp_scope_end(g);
    return x;
}

static ddp_tensor feed_forward(ddp_graph *g, const llama_model *m, ddp_tensor x, drawn *d)
{
    ddp_tensor gate, up;

    ddp_scope(g, "mlp");
    gate = ddp_linear_drawn(g, x, m->intermediate, m->mlp_bias, d->of[GATE], "gate_proj");
    up = ddp_linear_drawn(g, x, m->intermediate, m->mlp_bias, d->of[UP], "up_proj");
    x = ddp_mul(g, ddp_silu(g, gate), up);
    x = ddp_linear_drawn(g, x, m->width, m->mlp_bias, d->of[DOWN], "down_proj");
    ddp_scope_end(g);
    return x;
}

static ddp_tensor block(ddp_graph *g, const llama_model *m, const inputs *in, ddp_tensor x, drawn *d)
{
    x = ddp_add(g, x, attention(g, m, in, ddp_rms_norm(g, x, m->eps, "input_layernorm"), d));
    return ddp_add(g, x, feed_forward(g, m, ddp_rms_norm(g, x, m->eps, "post_attention_layernorm"), d));
}

/* PreTrainedModel._init_weights. */
static void draw_again(ddp_graph *g, const llama_model *m, const ddp_tensor drawn[2])
{
    ddp_init_again(g, drawn[0], DDP_INIT_NORMAL, 0.0, m->std);
    if (drawn[1].id >= 0) ddp_init_again(g, drawn[1], DDP_INIT_CONSTANT, 0.0, 0.0);
}

/* (N, T) -> (N, T, vocabulary) */
static ddp_tensor transformer(ddp_graph *g, const llama_model *m, const inputs *in)
{
    drawn layers[LLAMA_LAYERS_MAX];
    ddp_tensor x, table, head[2];

    ddp_scope(g, "model");
    x = ddp_embedding(g, in->tokens, m->vocabulary, m->width, 1.0, &table, "embed_tokens");
    for (int64_t i = 0; i < m->layers; i++) {
        ddp_scope(g, "layers.%d", (int)i);
        x = block(g, m, in, x, &layers[i]);
        ddp_scope_end(g);
    }
    x = ddp_rms_norm(g, x, m->eps, "norm");
    ddp_scope_end(g);
    ddp_init_again(g, table, DDP_INIT_NORMAL, 0.0, m->std);
    for (int64_t i = 0; i < m->layers; i++)
        for (int k = 0; k < LINEARS; k++) draw_again(g, m, layers[i].of[k]);
    if (m->tied) return ddp_linear_tied(g, x, table, "lm_head");
    x = ddp_linear_drawn(g, x, m->vocabulary, 0, head, "lm_head");
    draw_again(g, m, head);
    return x;
}

static ddp_status llama_build(ddp_graph *g, const void *config, ddp_err *err)
{
    llama_model m;
    inputs in = read_inputs(g);
    ddp_tensor logits; /* (N, T, vocabulary) */

    DDP_TRY(gather(config, &m, err));
    gather_rope(config, &m);
    check(g, &m, in.tokens);
    DDP_TRY(ddp_graph_status(g, err));
    logits = transformer(g, &m, &in);
    ddp_loss(g, ddp_cross_entropy_padded(g, logits, in.target, 0, 0.0));
    ddp_output(g, "logits", logits);
    return ddp_graph_status(g, err);
}

static const ddp_model_ops ops = {.struct_size = sizeof(ops), .build = llama_build};

DDP_PLUGIN_EXPORT const ddp_plugin ddp_plugin_desc = {
    DDP_PLUGIN_HEAD(MODEL, 0),
    DDP_PLUGIN_TAIL("llama", "0.1.0",
                    "LLaMA, SmolLM2, Mistral, Qwen2 and Qwen3, from a Hugging Face folder or by sizes",
                    DDP_OPTIONS(options, struct config), ops),
};
