/* infer/export/gguf/gguf.c -- a model, or an adapter of one, for llama.cpp; see export.h. */
#include "infer/export/export.h"
#include "infer/export/gguf/adapter.h"
#include "infer/export/gguf/vocabulary.h"
#include "train/state/memory.h"
#include <ddpengine/rope.h>
#include <errno.h>
#include <string.h>
#include <unistd.h>

enum { FILE_F32 = 0, FILE_F16 = 1, FILE_BF16 = 32, QUANTIZATION = 2 };

static const struct {
    const char *name;
    uint32_t file, element;
} types[] = {{"f32", FILE_F32, GGUF_TYPE_F32}, {"f16", FILE_F16, GGUF_TYPE_F16}, {"bf16", FILE_BF16, GGUF_TYPE_BF16}};

static ddp_status find_type(const char *name, size_t *out, ddp_err *err)
{
    for (*out = 0; *out < DDP_COUNT(types); ++*out)
        if (name == NULL || strcmp(types[*out].name, name) == 0) return DDP_OK;
    return ddp_fail(err, DDP_ERR_CONFIG, "--type is \"%.40s\", and must be f32, f16 or bf16", name);
}

/* The rope factors of llama3 are a tensor: how much slower each pair turns. */
static ddp_status add_factors(const gguf_model *g, float *room, gguf_file *f, ddp_err *err)
{
    gguf_tensor t = {.name = "rope_freqs.weight", .data = room, .rows = g->head_dim / 2, .columns = 1, .rank = 1};
    ddp_attrs plain = g->rope;

    if (!g->has_rope || g->rope.rope.kind != DDP_ROPE_LLAMA3) return DDP_OK;
    if (strcmp(g->arch, "llama") != 0)
        return ddp_fail(err, DDP_ERR_UNSUPPORTED,
                        "llama.cpp's %s has no rotary positions of the kind llama3; use export torch", g->arch);
    plain.rope.kind = DDP_ROPE_DEFAULT;
    for (int64_t i = 0; i < g->head_dim / 2; i++)
        room[i] = ddp_rope_frequency(&plain, i) / ddp_rope_frequency(&g->rope, i);
    gguf_tensor_add(f, &t);
    return DDP_OK;
}

static void add_general(const ddp_session *s, const gguf_model *g, const char *type, uint32_t file, gguf_file *f)
{
    gguf_text(f, "general.architecture", g->arch);
    gguf_text(f, "general.type", type);
    gguf_text(f, "general.name", s->model.plugin->desc.name);
    gguf_u32(f, "general.file_type", file);
    gguf_u32(f, "general.quantization_version", QUANTIZATION);
}

/* `tokenizer` of the dataset's section, where --tokenizer says nothing; the dataset itself need not be there. */
static const char *tokenizer_of(const infer_model *m, const ddp_export_request *q)
{
    const ddp_config *c = m->t.s->config;
    const ddp_ini_entry *entry;
    char section[128];

    if (q->tokenizer != NULL) return q->tokenizer[0] != '\0' ? q->tokenizer : NULL;
    (void)snprintf(section, sizeof(section), "data.%s", c->data);
    entry = config_ini_find(c->ini, section, "tokenizer");
    return entry != NULL && entry->value[0] != '\0' ? entry->value : NULL;
}

static ddp_status write_model(infer_model *m, const ddp_export_request *q, const gguf_model *g, size_t type,
                              gguf_file *f, ddp_err *err)
{
    float factors[DDP_ROPE_HEAD_MAX / 2];
    ddp_status status;

    add_general(m->t.s, g, "model", types[type].file, f);
    gguf_model_pairs(g, f);
    DDP_TRY(gguf_vocabulary(tokenizer_of(m, q), g->vocabulary, f, err));
    DDP_TRY(add_factors(g, factors, f, err));
    DDP_TRY(state_pull(&m->t, DDP_ARENA_PARAMS, err));
    status = gguf_model_tensors(m, g, types[type].element, f, err);
    if (status == DDP_OK) status = gguf_write(f, q->path, err);
    ddp_staging_close(&m->t);
    return status;
}

static ddp_status write_adapter(const infer_model *m, const ddp_export_request *q, const gguf_model *g, size_t type,
                                gguf_file *f, ddp_err *err)
{
    gguf_adapter a = {0};
    ddp_status status = gguf_adapter_open(q->adapter, &a, err);

    if (status == DDP_OK) {
        add_general(m->t.s, g, "adapter", types[type].file, f);
        gguf_text(f, "adapter.type", "lora");
        gguf_f32(f, "adapter.lora.alpha", a.alpha);
        status = gguf_adapter_tensors(&a, m, g, types[type].element, f, err);
    }
    if (status == DDP_OK) status = gguf_write(f, q->path, err);
    gguf_adapter_close(&a);
    return status;
}

static ddp_status as_exit(ddp_status status, ddp_err *err)
{
    if (status == DDP_ERR_SYSTEM) return ddp_fail_as(err, DDP_EXIT_CHECKPOINT); /* it cannot be written */
    return status == DDP_ERR_DATA ? ddp_fail_as(err, DDP_EXIT_DATA) : status;
}

ddp_status infer_export_gguf_check(const ddp_export_request *q, ddp_err *err)
{
    gguf_adapter a = {0};
    size_t type;
    ddp_status status = find_type(q->type, &type, err);

    if (status == DDP_OK && q->tokenizer != NULL && q->tokenizer[0] != '\0' && access(q->tokenizer, R_OK) != 0)
        status = ddp_fail(err, DDP_ERR_DATA,
                          "tokenizer \"%.200s\" cannot be read (%s); name a folder with a tokenizer, or \"\" for none",
                          q->tokenizer, strerror(errno));
    if (status == DDP_OK && q->adapter != NULL) status = gguf_adapter_open(q->adapter, &a, err);
    gguf_adapter_close(&a);
    return as_exit(status, err);
}

ddp_status infer_export_gguf(infer_model *m, const ddp_export_request *q, ddp_err *err)
{
    gguf_model g;
    gguf_file f = {0};
    size_t type;
    ddp_status status = find_type(q->type, &type, err);

    if (status == DDP_OK) status = gguf_model_of(m, &g, err);
    if (status == DDP_OK)
        status = q->adapter != NULL ? write_adapter(m, q, &g, type, &f, err) : write_model(m, q, &g, type, &f, err);
    gguf_free(&f);
    return as_exit(status, err);
}
