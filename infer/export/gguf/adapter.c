/* infer/export/gguf/adapter.c -- see adapter.h. */
#include "infer/export/gguf/adapter.h"
#include <jansson.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { ROOM = 4096 };
static const char front[] = "base_model.model.";

static bool is_empty(const json_t *j) { return j == NULL || json_is_null(j) || json_object_size(j) == 0; }

static ddp_status read_config(const json_t *c, gguf_adapter *a, ddp_err *err)
{
    const json_t *alpha = json_object_get(c, "lora_alpha"), *rank = json_object_get(c, "r");

    if (!json_is_number(alpha) || !json_is_integer(rank) || json_integer_value(rank) < 1)
        return ddp_fail(err, DDP_ERR_DATA,
                        "\"lora_alpha\" or \"r\" is missing or no number; look for the file that PEFT has saved");
    if (!is_empty(json_object_get(c, "alpha_pattern")) || json_is_true(json_object_get(c, "use_dora")) ||
        (json_array_size(json_object_get(c, "modules_to_save")) > 0))
        return ddp_fail(
            err, DDP_ERR_UNSUPPORTED,
            "llama.cpp's adapters have no alpha_pattern, no use_dora and no modules_to_save; merge the adapter, then export the model");
    a->alpha = json_number_value(alpha);
    a->rank = is_empty(json_object_get(c, "rank_pattern")) ? json_integer_value(rank) : 0;
    a->rank_stabilised = json_is_true(json_object_get(c, "use_rslora"));
    if (a->rank_stabilised && !is_empty(json_object_get(c, "rank_pattern")))
        return ddp_fail(err, DDP_ERR_UNSUPPORTED,
                        "use_rslora with a rank_pattern is not supported; merge the adapter, then export the model");
    /* llama.cpp scales by alpha / rank */
    if (a->rank_stabilised) a->alpha *= sqrt((double)json_integer_value(rank));
    return DDP_OK;
}

ddp_status gguf_adapter_open(const char *folder, gguf_adapter *a, ddp_err *err)
{
    char path[ROOM];
    json_error_t why;
    json_t *config;
    ddp_status status;

    (void)snprintf(path, sizeof(path), "%.4000s/adapter_config.json", folder);
    config = json_load_file(path, 0, &why);
    status = config == NULL ? ddp_fail(err, DDP_ERR_DATA, "%s; name the folder that PEFT has saved", why.text)
                            : read_config(config, a, err);
    json_decref(config);
    if (status != DDP_OK) return ddp_fail_context(err, "adapter \"%.200s\"", path);
    (void)snprintf(path, sizeof(path), "%.4000s/adapter_model.safetensors", folder);
    DDP_TRY(ddp_safetensors_open(path, &a->file, err));
    a->matrices = ddp_alloc((ddp_safetensors_count(a->file) + 1) * sizeof(*a->matrices), err);
    return a->matrices == NULL ? err->status : DDP_OK;
}

void gguf_adapter_close(gguf_adapter *a)
{
    for (size_t i = 0; i < a->matrix_count; i++) free(a->matrices[i]);
    free(a->matrices);
    if (a->file != NULL) ddp_safetensors_close(a->file);
    *a = (gguf_adapter){0};
}

static float half_value(uint16_t h)
{
    float magnitude = (float)(h & 0x3ff);
    int exponent = h >> 10 & 31;

    magnitude = exponent == 0 ? ldexpf(magnitude, -24) : ldexpf(magnitude + 1024, exponent - 25);
    if (exponent == 31) magnitude = (h & 0x3ff) != 0 ? NAN : INFINITY;
    return (h & 0x8000) != 0 ? -magnitude : magnitude;
}

/* NULL: out of memory, or a dtype that is no f32, f16, bf16. */
static float *copy_floats(const ddp_named_tensor *t)
{
    size_t count = (size_t)(t->dims[0] * t->dims[1]);
    float *out = malloc((count + 1) * sizeof(*out));

    for (size_t i = 0; i < count && out != NULL; i++) {
        uint16_t half = 0;
        uint32_t bits;

        if (t->dtype == DDP_F32) {
            memcpy(&out[i], (const char *)t->data + 4 * i, 4);
            continue;
        }
        memcpy(&half, (const char *)t->data + 2 * i, 2);
        bits = (uint32_t)half << 16;
        if (t->dtype == DDP_BF16)
            memcpy(&out[i], &bits, 4);
        else
            out[i] = half_value(half);
    }
    return out;
}

/* "base_model.model.NAME.lora_A.weight": NAME.weight and which of the two. */
static bool split_name(const char *name, char *base, size_t room, bool *is_a)
{
    const char *end;

    if (strncmp(name, front, strlen(front)) != 0) return false;
    name += strlen(front);
    end = strstr(name, ".lora_A.weight");
    *is_a = end != NULL;
    if (end == NULL) end = strstr(name, ".lora_B.weight");
    if (end == NULL || strlen(end) != strlen(".lora_A.weight")) return false;
    return (size_t)snprintf(base, room, "%.*s.weight", (int)(end - name), name) < room;
}

/* A is (rank, in) and B (out, rank) of the layer's weight, and both are there. */
static ddp_status check_shape(const gguf_adapter *a, const infer_model *m, const ddp_named_tensor *from,
                              const char *base, bool is_a, bool transposed, ddp_err *err)
{
    const ddp_param_info *w = NULL;
    const ddp_named_tensor *other;
    int64_t rank = from->dims[is_a ? 0 : 1], features = from->dims[is_a ? 1 : 0], want = 0;
    char partner[512];

    (void)snprintf(partner, sizeof(partner), "%s%.*s.%s.weight", front, (int)(strlen(base) - strlen(".weight")), base,
                   is_a ? "lora_B" : "lora_A");
    other = ddp_safetensors_find(a->file, partner);
    for (uint32_t p = 0; p < m->t.s->model.param_count; p++)
        if (strcmp(m->t.s->model.params[p].name, base) == 0) w = &m->t.s->model.params[p];
    if (w == NULL || w->rank != 2)
        return ddp_fail(err, DDP_ERR_DATA, "adapter: the model has no matrix %s; look for the adapter of this model",
                        base);
    want = w->dims[is_a != transposed ? 1 : 0];
    if (other == NULL || other->rank != 2)
        return ddp_fail(err, DDP_ERR_DATA, "adapter: %s is there and %s is not; look for the whole adapter", from->name,
                        partner);
    if (features != want)
        return ddp_fail(
            err, DDP_ERR_DATA,
            "adapter: %s is %lld x %lld, and the model's layer has %lld features %s; look for the adapter of this model",
            from->name, (long long)from->dims[0], (long long)from->dims[1], (long long)want, is_a ? "in" : "out");
    if (rank != other->dims[is_a ? 1 : 0])
        return ddp_fail(err, DDP_ERR_DATA,
                        "adapter: %s is of rank %lld and %s of rank %lld; look for the whole adapter, as it was saved",
                        from->name, (long long)rank, partner, (long long)other->dims[is_a ? 1 : 0]);
    if (a->rank > 0 && rank != a->rank)
        return ddp_fail(
            err, DDP_ERR_DATA,
            "adapter: %s is of rank %lld, where \"r\" of adapter_config.json is %lld; look for the adapter_config.json of this adapter",
            from->name, (long long)rank, (long long)a->rank);
    return DDP_OK;
}

static ddp_status add_matrix(gguf_adapter *a, const infer_model *m, const gguf_model *g, const ddp_named_tensor *from,
                             uint32_t type, gguf_file *f, ddp_err *err)
{
    gguf_tensor t = {.type = type, .rank = 2};
    char base[256];
    bool is_a, known = from->dtype == DDP_F32 || from->dtype == DDP_BF16 || from->dtype == DDP_FILE_F16;
    size_t used;

    if (!known || from->rank != 2 || !split_name(from->name, base, sizeof(base), &is_a) ||
        !gguf_model_name(g, base, &t))
        return ddp_fail(
            err, DDP_ERR_UNSUPPORTED,
            "adapter: llama.cpp's %s has no adapter for \"%.200s\"; merge the adapter, then export the model", g->arch,
            from->name);
    DDP_TRY(check_shape(a, m, from, base, is_a, t.transposed, err));
    used = strlen(t.name);
    (void)snprintf(t.name + used, sizeof(t.name) - used, is_a ? ".lora_a" : ".lora_b");
    t.transposed = false; /* PEFT's are (rank, in) and (out, rank) for Conv1D, too */
    if (is_a) t.heads = 0;
    t.type = type;
    t.rows = from->dims[0];
    t.columns = from->dims[1];
    t.data = a->matrices[a->matrix_count] = copy_floats(from);
    if (t.data == NULL) return ddp_fail(err, DDP_ERR_NOMEM, "adapter: out of memory");
    a->matrix_count++;
    gguf_tensor_add(f, &t);
    return DDP_OK;
}

ddp_status gguf_adapter_tensors(gguf_adapter *a, const infer_model *m, const gguf_model *g, uint32_t type, gguf_file *f,
                                ddp_err *err)
{
    for (size_t i = 0; i < ddp_safetensors_count(a->file); i++)
        DDP_TRY(add_matrix(a, m, g, ddp_safetensors_at(a->file, i), type, f, err));
    return DDP_OK;
}
