/* infer/export/gguf/model.c -- see model.h. Names and what is done to tensors are those of llama.cpp's
 * convert_hf_to_gguf.py (GPT2Model, LlamaModel, Qwen2Model, Qwen3Model). */
#include "infer/export/gguf/model.h"
#include "infer/export/base.h"
#include "infer/export/merge.h"
#include "train/state/tensors.h"
#include <ddpengine/rope.h>
#include <errno.h>
#include <jansson.h>
#include <stdlib.h>
#include <string.h>

enum { TRANSPOSED = 1, TURNED_Q, TURNED_K, ALWAYS_F32 };

/* Without ".weight" or ".bias"; "#" is the number of the block. */
static const struct {
    const char *from, *to;
    int how;
} names[] = {
    {"transformer.wte", "token_embd", 0},
    {"transformer.wpe", "position_embd", ALWAYS_F32},
    {"transformer.h.#.ln_1", "blk.#.attn_norm", 0},
    {"transformer.h.#.attn.c_attn", "blk.#.attn_qkv", TRANSPOSED},
    {"transformer.h.#.attn.c_proj", "blk.#.attn_output", TRANSPOSED},
    {"transformer.h.#.ln_2", "blk.#.ffn_norm", 0},
    {"transformer.h.#.mlp.c_fc", "blk.#.ffn_up", TRANSPOSED},
    {"transformer.h.#.mlp.c_proj", "blk.#.ffn_down", TRANSPOSED},
    {"transformer.ln_f", "output_norm", 0},
    {"model.embed_tokens", "token_embd", 0},
    {"model.layers.#.input_layernorm", "blk.#.attn_norm", 0},
    {"model.layers.#.self_attn.q_proj", "blk.#.attn_q", TURNED_Q},
    {"model.layers.#.self_attn.k_proj", "blk.#.attn_k", TURNED_K},
    {"model.layers.#.self_attn.v_proj", "blk.#.attn_v", 0},
    {"model.layers.#.self_attn.o_proj", "blk.#.attn_output", 0},
    {"model.layers.#.self_attn.q_norm", "blk.#.attn_q_norm", 0},
    {"model.layers.#.self_attn.k_norm", "blk.#.attn_k_norm", 0},
    {"model.layers.#.post_attention_layernorm", "blk.#.ffn_norm", 0},
    {"model.layers.#.mlp.gate_proj", "blk.#.ffn_gate", 0},
    {"model.layers.#.mlp.up_proj", "blk.#.ffn_up", 0},
    {"model.layers.#.mlp.down_proj", "blk.#.ffn_down", 0},
    {"model.norm", "output_norm", 0},
    {"lm_head", "output", 0},
};

/* ---- names ------------------------------------------------------------------------------------------------------- */
/* The number that stands for "#", -1: there is none in the pattern, -2: no match. */
static int64_t match(const char *pattern, const char *name, size_t size)
{
    const char *hash = strchr(pattern, '#'), *end;
    size_t front = hash != NULL ? (size_t)(hash - pattern) : strlen(pattern);
    int64_t number;

    if (size < front || memcmp(pattern, name, front) != 0) return -2;
    if (hash == NULL) return size == front ? -1 : -2;
    if (name[front] < '0' || name[front] > '9') return -2;
    number = strtol(name + front, (char **)&end, 10);
    if ((size_t)(end - name) > size || strlen(hash + 1) != size - (size_t)(end - name)) return -2;
    return memcmp(hash + 1, end, size - (size_t)(end - name)) == 0 ? number : -2;
}

static void name_tensor(const char *pattern, int64_t number, const char *kind, char *out, size_t room)
{
    const char *hash = strchr(pattern, '#');

    if (hash == NULL)
        (void)snprintf(out, room, "%s%s", pattern, kind);
    else
        (void)snprintf(out, room, "%.*s%lld%s%s", (int)(hash - pattern), pattern, (long long)number, hash + 1, kind);
}

bool gguf_model_name(const gguf_model *g, const char *name, gguf_tensor *out)
{
    const char *kind = strrchr(name, '.');
    bool turns = strcmp(g->arch, "llama") == 0;

    if (kind == NULL || (strcmp(kind, ".weight") != 0 && strcmp(kind, ".bias") != 0)) return false;
    if (strcmp(kind, ".bias") == 0 && strcmp(g->arch, "qwen3") == 0) return false;
    for (size_t i = 0; i < DDP_COUNT(names); i++) {
        int64_t number = match(names[i].from, name, (size_t)(kind - name));

        if (number == -2) continue;
        name_tensor(names[i].to, number, kind, out->name, sizeof(out->name));
        out->transposed = names[i].how == TRANSPOSED && strcmp(kind, ".weight") == 0;
        out->heads = !turns ? 0 : names[i].how == TURNED_Q ? g->heads : names[i].how == TURNED_K ? g->kv_heads : 0;
        if (names[i].how == ALWAYS_F32) out->type = GGUF_TYPE_F32;
        return true;
    }
    return false;
}

/* ---- what the model is ------------------------------------------------------------------------------------------- */
static const ddp_param_info *find(const ddp_session_model *m, const char *name)
{
    for (uint32_t i = 0; i < m->param_count; i++)
        if (strcmp(m->params[i].name, name) == 0) return &m->params[i];
    return NULL;
}

static ddp_status refuse(const infer_model *m, ddp_err *err)
{
    return ddp_fail(
        err, DDP_ERR_UNSUPPORTED,
        "model \"%s\" cannot be written as GGUF: llama.cpp has GPT-2, LLaMA, Qwen2 and Qwen3 by Hugging Face's parameter names; use export torch or onnx",
        m->t.s->model.plugin->desc.name);
}

static void look_at_nodes(const ddp_program *p, gguf_model *g)
{
    for (uint32_t i = 0; i < p->node_count; i++) {
        const ddp_node *n = &p->nodes[i];

        if (n->op == DDP_OP_ATTENTION || n->op == DDP_OP_ATTENTION_APART) {
            g->heads = n->attrs.attention.heads;
            g->kv_heads = n->attrs.attention.kv_heads > 0 ? n->attrs.attention.kv_heads : g->heads;
        }
        if (n->op == DDP_OP_LAYER_NORM) g->eps = n->attrs.layer_norm.eps;
        if (n->op == DDP_OP_RMS_NORM) g->eps = n->attrs.rms_norm.eps;
        if (n->op == DDP_OP_ROPE) {
            g->has_rope = true;
            g->rope = n->attrs;
            g->head_dim = n->attrs.rope.head_dim;
        }
    }
}

/* Of the file, or of the config.json in that folder. */
static int64_t context_in(const char *config)
{
    static const char *const ends[] = {"", "/config.json"};
    int64_t context = 0;

    for (size_t i = 0; i < DDP_COUNT(ends) && context <= 0; i++) {
        char path[EXPORT_PATH];
        json_t *j;

        (void)snprintf(path, sizeof(path), "%.4000s%s", config, ends[i]);
        j = json_load_file(path, 0, NULL);
        context = json_integer_value(json_object_get(j, "max_position_embeddings"));
        json_decref(j);
    }
    return context;
}

/* Tokens that the model was made for: its option `context`, or what its config.json says, or what its data has. */
static int64_t context_of(const infer_model *m)
{
    const ddp_session *s = m->t.s;
    const ddp_setting *file, *option;
    int64_t context = 0;
    char section[128];

    (void)snprintf(section, sizeof(section), "model.%s", s->model.plugin->desc.name);
    file = ddp_settings_find(&s->config->settings, section, "config");
    option = ddp_settings_find(&s->config->settings, section, "context");
    if (option != NULL) context = strtoll(option->value, NULL, 10);
    if (context <= 0 && file != NULL && file->value[0] != '\0') context = context_in(file->value);
    if (context <= 0 && s->train.field_count > 0 && s->train.fields[0].rank > 0) context = s->train.fields[0].dims[0];
    return context;
}

static int64_t count_blocks(const ddp_session_model *m, const char *form)
{
    char name[96];
    int64_t blocks = 0;

    for (;; blocks++) {
        (void)snprintf(name, sizeof(name), form, (int)blocks);
        if (find(m, name) == NULL) return blocks;
    }
}

/* llama.cpp's llama may have each bias; its qwen2 has those of q, k and v, and turns no rows. */
static const char *arch_of(const ddp_session_model *s)
{
    if (find(s, "model.layers.0.self_attn.q_norm.weight") != NULL) return "qwen3";
    if (find(s, "model.layers.0.self_attn.o_proj.bias") != NULL || find(s, "model.layers.0.mlp.up_proj.bias") != NULL)
        return "llama";
    return find(s, "model.layers.0.self_attn.q_proj.bias") != NULL ? "qwen2" : "llama";
}

static bool read_shapes(const infer_model *m, gguf_model *g)
{
    const ddp_session_model *s = &m->t.s->model;
    const ddp_param_info *tokens = find(s, "transformer.wte.weight"), *places = find(s, "transformer.wpe.weight"), *up;

    if (tokens != NULL && places != NULL) {
        g->arch = "gpt2";
        g->context = places->dims[0];
        g->layers = count_blocks(s, "transformer.h.%d.ln_1.weight");
        up = find(s, "transformer.h.0.mlp.c_fc.weight");
        g->hidden = up != NULL ? up->dims[1] : 0;
    } else {
        tokens = find(s, "model.embed_tokens.weight");
        g->arch = arch_of(s);
        g->context = context_of(m);
        g->layers = count_blocks(s, "model.layers.%d.input_layernorm.weight");
        up = find(s, "model.layers.0.mlp.up_proj.weight");
        g->hidden = up != NULL ? up->dims[0] : 0;
    }
    if (tokens == NULL || g->layers == 0 || up == NULL) return false;
    g->vocabulary = tokens->dims[0];
    g->width = tokens->dims[1];
    return true;
}

ddp_status gguf_model_of(const infer_model *m, gguf_model *out, ddp_err *err)
{
    const ddp_session_model *s = &m->t.s->model;
    ddp_program *p = NULL;

    *out = (gguf_model){0};
    if (!read_shapes(m, out)) return refuse(m, err);
    DDP_TRY(ddp_program_create_outputs(s->graph, s->layout, 1, &p, err));
    look_at_nodes(p, out);
    ddp_program_free(p);
    if (out->heads == 0 || out->has_rope == (strcmp(out->arch, "gpt2") == 0)) return refuse(m, err);
    return DDP_OK;
}

/* ---- pairs ------------------------------------------------------------------------------------------------------- */
static const char *key(const gguf_model *g, const char *name, char *room, size_t size)
{
    (void)snprintf(room, size, "%s.%s", g->arch, name);
    return room;
}

#define KEY(name) key(g, name, room, sizeof(room))

static void add_yarn(const gguf_model *g, gguf_file *f)
{
    char room[96];

    gguf_u32(f, KEY("rope.scaling.original_context_length"), (uint64_t)g->rope.rope.original_context);
    if (g->rope.rope.attention_factor > 0)
        gguf_f32(f, KEY("rope.scaling.yarn_attn_factor"), g->rope.rope.attention_factor);
    if (g->rope.rope.beta_fast > 0) gguf_f32(f, KEY("rope.scaling.yarn_beta_fast"), g->rope.rope.beta_fast);
    if (g->rope.rope.beta_slow > 0) gguf_f32(f, KEY("rope.scaling.yarn_beta_slow"), g->rope.rope.beta_slow);
}

static void add_rope(const gguf_model *g, gguf_file *f)
{
    bool linear = g->rope.rope.kind == DDP_ROPE_LINEAR, yarn = g->rope.rope.kind == DDP_ROPE_YARN;
    char room[96];

    if (linear || yarn) {
        gguf_text(f, KEY("rope.scaling.type"), linear ? "linear" : "yarn");
        gguf_f32(f, KEY("rope.scaling.factor"), g->rope.rope.factor);
    }
    if (yarn) add_yarn(g, f);
    gguf_f32(f, KEY("rope.freq_base"), g->rope.rope.theta);
    gguf_u32(f, KEY("rope.dimension_count"), (uint64_t)g->head_dim);
    gguf_u32(f, KEY("attention.key_length"), (uint64_t)g->head_dim);
    gguf_u32(f, KEY("attention.value_length"), (uint64_t)g->head_dim);
}

void gguf_model_pairs(const gguf_model *g, gguf_file *f)
{
    char room[96];

    gguf_u32(f, KEY("block_count"), (uint64_t)g->layers);
    gguf_u32(f, KEY("context_length"), (uint64_t)g->context);
    gguf_u32(f, KEY("embedding_length"), (uint64_t)g->width);
    gguf_u32(f, KEY("feed_forward_length"), (uint64_t)g->hidden);
    gguf_u32(f, KEY("attention.head_count"), (uint64_t)g->heads);
    gguf_u32(f, KEY("vocab_size"), (uint64_t)g->vocabulary);
    if (!g->has_rope) {
        gguf_f32(f, KEY("attention.layer_norm_epsilon"), g->eps);
        return;
    }
    gguf_u32(f, KEY("attention.head_count_kv"), (uint64_t)g->kv_heads);
    gguf_f32(f, KEY("attention.layer_norm_rms_epsilon"), g->eps);
    add_rope(g, f);
}

/* ---- tensors ----------------------------------------------------------------------------------------------------- */
static bool ends_with(const char *name, const char *end)
{
    size_t n = strlen(name), m = strlen(end);

    return n >= m && strcmp(name + n - m, end) == 0;
}

static ddp_status add_tensor(const infer_model *m, const gguf_model *g, uint32_t type, const ddp_named_tensor *from,
                             gguf_file *f, ddp_err *err)
{
    gguf_tensor t = {.type = type, .data = from->data, .rank = from->rank, .columns = 1};

    if (!gguf_model_name(g, from->name, &t) || from->rank < 1 || from->rank > 2 || from->dtype != DDP_F32)
        return ddp_fail(err, DDP_ERR_UNSUPPORTED,
                        "model \"%s\": llama.cpp's %s has no tensor for the parameter \"%s\"; use export torch",
                        m->t.s->model.plugin->desc.name, g->arch, from->name);
    t.rows = from->dims[t.transposed ? 1 : 0];
    if (t.rank == 2) t.columns = from->dims[t.transposed ? 0 : 1];
    if (t.rank == 1 || ends_with(t.name, "_norm.weight")) t.type = GGUF_TYPE_F32;
    gguf_tensor_add(f, &t);
    return DDP_OK;
}

ddp_status gguf_model_tensors(const infer_model *m, const gguf_model *g, uint32_t type, gguf_file *f, ddp_err *err)
{
    ddp_state_arenas a = state_arenas(&m->t);
    ddp_views views = {0};
    ddp_status status = state_model_views(&m->t, &a, STATE_BASE, &views, err);

    export_add_adapters(m->t.s, a.params);
    for (size_t i = 0; i < views.count && status == DDP_OK; i++)
        status = add_tensor(m, g, type, &views.tensors[i], f, err);
    state_views_free(&views);
    return status;
}
