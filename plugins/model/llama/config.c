/* plugins/model/llama/config.c -- Hugging Face's config.json of a LLaMA, Mistral, Qwen2 or Qwen3. A stranger may have
 * written it: the file is bounded, each number has a range, and what would change the model and is not known here is
 * refused. Keys that change nothing of what is computed are left alone. */
#include "llama.h"
#include <errno.h>
#include <fcntl.h>
#include <jansson.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

enum { FILE_LIMIT = 1 << 20 };

typedef struct reader {
    const char *path;
    const json_t *root;
    ddp_err *err; /* the first thing that is wrong */
} reader;

static bool broken(const reader *r) { return r->err->status != DDP_OK; }

static void bad(const reader *r, const char *key, const char *fmt, ...) DDP_PRINTF_(3, 4);
static void bad(const reader *r, const char *key, const char *fmt, ...)
{
    char what[256];
    va_list ap;

    if (broken(r)) return;
    va_start(ap, fmt);
    (void)vsnprintf(what, sizeof(what), fmt, ap);
    va_end(ap);
    (void)ddp_fail(r->err, DDP_ERR_CONFIG,
                   "%s: \"%s\": %s; take the config.json of a LLaMA, Qwen2, Qwen3 or Mistral as it was published",
                   r->path, key, what);
}

/* ---- members ----------------------------------------------------------------------------------------------------- */
/* Absent and null are the same. */
static const json_t *member(const json_t *object, const char *key)
{
    const json_t *value = json_object_get(object, key);

    return json_is_null(value) ? NULL : value;
}

static double number(const reader *r, const json_t *object, const char *key, double missing, double least, double most)
{
    const json_t *value = member(object, key);
    double x = value != NULL ? json_number_value(value) : missing;

    if (value != NULL && !json_is_number(value))
        bad(r, key, "it must be a number");
    else if (value != NULL && !(x >= least && x <= most))
        bad(r, key, "%.12g is not from %.12g to %.12g", x, least, most);
    return x;
}

/* `missing` below 0: it must be there. */
static int64_t integer(const reader *r, const json_t *object, const char *key, int64_t missing, int64_t most)
{
    double x;

    if (missing < 0 && member(object, key) == NULL) {
        bad(r, key, "it is missing");
        return 1;
    }
    x = number(r, object, key, (double)missing, 1.0, (double)most);
    if (member(object, key) != NULL && x != floor(x)) bad(r, key, "%.12g is no whole number", x);
    return broken(r) ? 1 : (int64_t)x;
}

static bool flag(const reader *r, const char *key, bool missing)
{
    const json_t *value = member(r->root, key);

    if (value != NULL && !json_is_boolean(value)) bad(r, key, "it must be true or false");
    return value != NULL ? json_is_true(value) : missing;
}

static const char *text(const reader *r, const json_t *object, const char *key, const char *missing)
{
    const json_t *value = member(object, key);

    if (value != NULL && !json_is_string(value)) {
        bad(r, key, "it must be text");
        return missing;
    }
    return value != NULL ? json_string_value(value) : missing;
}

/* ---- rope -------------------------------------------------------------------------------------------------------- */
static uint32_t rope_kind(const reader *r, const json_t *rope)
{
    static const char *const kinds[] = {"default", "linear", "llama3", "yarn"};
    const char *name = text(r, rope, "rope_type", text(r, rope, "type", "default"));

    for (uint32_t i = 0; i < 4; i++)
        if (strcmp(name, kinds[i]) == 0) return i;
    bad(r, "rope_type", "\"%.40s\" is not here; of default, linear, llama3 and yarn", name);
    return 0;
}

/* transformers' get_mscale */
static double scale_of(double factor, double m) { return factor <= 1.0 ? 1.0 : 0.1 * m * log(factor) + 1.0; }

static void read_yarn(const reader *r, const json_t *rope, ddp_rope_spec *s)
{
    double all = number(r, rope, "mscale_all_dim", 0.0, 0.0, 1e6), m = number(r, rope, "mscale", 0.0, 0.0, 1e6);
    const json_t *whole = member(rope, "truncate");

    s->beta_fast = number(r, rope, "beta_fast", 0.0, 0.0, 1e6);
    s->beta_slow = number(r, rope, "beta_slow", 0.0, 0.0, 1e6);
    s->attention_factor = number(r, rope, "attention_factor", 0.0, 0.0, 1e6);
    if (s->attention_factor == 0.0 && m > 0.0 && all > 0.0)
        s->attention_factor = scale_of(s->factor, m) / scale_of(s->factor, all);
    s->exact = whole != NULL && json_is_false(whole);
}

/* rope_parameters holds all, or rope_scaling the kind and rope_theta the base, as older versions write it. */
static void read_rope(const reader *r, llama_model *m)
{
    const json_t *rope = member(r->root, "rope_parameters");
    ddp_rope_spec *s = &m->rope;

    if (rope == NULL) rope = member(r->root, "rope_scaling");
    if (rope != NULL && !json_is_object(rope)) bad(r, "rope_parameters", "it must be an object");
    s->head_dim = m->head_dim;
    s->theta = number(r, rope, "rope_theta", number(r, r->root, "rope_theta", 10000.0, 1.000001, 1e15), 1.000001, 1e15);
    if (number(r, rope, "partial_rotary_factor", number(r, r->root, "partial_rotary_factor", 1.0, 0.0, 1.0), 0.0,
               1.0) != 1.0)
        bad(r, "partial_rotary_factor", "only whole heads are turned here, a factor of 1");
    s->kind = rope_kind(r, rope);
    if (s->kind == DDP_ROPE_DEFAULT) return;
    s->original_context =
        integer(r, rope, "original_max_position_embeddings",
                integer(r, r->root, "original_max_position_embeddings", m->context, 1 << 30), 1 << 30);
    if (s->kind != DDP_ROPE_YARN && member(rope, "factor") == NULL) bad(r, "factor", "it is missing");
    s->factor = number(r, rope, "factor", (double)m->context / (double)s->original_context, 1.0, 1e6);
    if (s->kind == DDP_ROPE_YARN) read_yarn(r, rope, s);
    if (s->kind != DDP_ROPE_LLAMA3) return;
    s->low_freq_factor = number(r, rope, "low_freq_factor", 1.0, 1e-6, 1e6);
    s->high_freq_factor = number(r, rope, "high_freq_factor", 4.0, 1e-6, 1e6);
}

/* ---- the model --------------------------------------------------------------------------------------------------- */
static void read_sizes(const reader *r, llama_model *m, bool own_head_dim)
{
    const int64_t most = 1 << 24;
    int64_t of_width;

    m->vocabulary = integer(r, r->root, "vocab_size", -1, 1 << 28);
    m->width = integer(r, r->root, "hidden_size", -1, most);
    m->intermediate = integer(r, r->root, "intermediate_size", -1, most);
    m->layers = integer(r, r->root, "num_hidden_layers", -1, LLAMA_LAYERS_MAX);
    m->heads = integer(r, r->root, "num_attention_heads", -1, 4096);
    m->kv_heads = integer(r, r->root, "num_key_value_heads", m->heads, 4096);
    of_width = m->width >= m->heads ? m->width / m->heads : 1;
    m->head_dim = integer(r, r->root, "head_dim", own_head_dim ? 128 : of_width, most);
    if (!broken(r) && m->heads % m->kv_heads != 0)
        bad(r, "num_key_value_heads", "%lld does not divide num_attention_heads = %lld", (long long)m->kv_heads,
            (long long)m->heads);
    m->context = integer(r, r->root, "max_position_embeddings", 2048, 1 << 30);
    m->eps = number(r, r->root, "rms_norm_eps", 1e-6, 0.0, 1.0);
    m->std = number(r, r->root, "initializer_range", 0.02, 0.0, 100.0);
    m->dropout = number(r, r->root, "attention_dropout", 0.0, 0.0, 0.999);
}

static void read_family(const reader *r, llama_model *m)
{
    const char *family = text(r, r->root, "model_type", "llama");
    bool bias = flag(r, "attention_bias", false);

    if (strcmp(family, "llama") != 0 && strcmp(family, "mistral") != 0 && strcmp(family, "qwen2") != 0 &&
        strcmp(family, "qwen3") != 0)
        bad(r, "model_type", "\"%.40s\" is not here; of llama, mistral, qwen2 and qwen3", family);
    m->qk_norm = strcmp(family, "qwen3") == 0;
    m->bias = bias ? LLAMA_BIAS_ALL : LLAMA_BIAS_NONE;
    if (strcmp(family, "qwen2") == 0) m->bias = LLAMA_BIAS_QKV;
    if (strcmp(family, "mistral") == 0) m->bias = LLAMA_BIAS_NONE;
    m->mlp_bias = strcmp(family, "llama") == 0 && flag(r, "mlp_bias", false);
    m->tied = flag(r, "tie_word_embeddings", false);
}

/* Windows: Mistral's is on where it has a width, Qwen's where it is switched on. */
static void refuse_windows(const reader *r)
{
    const char *family = text(r, r->root, "model_type", "llama");
    const json_t *types = member(r->root, "layer_types");
    const json_t *type;
    size_t i;

    if (flag(r, "use_sliding_window", false) ||
        (strcmp(family, "mistral") == 0 && member(r->root, "sliding_window") != NULL))
        bad(r, "sliding_window", "attention over a window is not here");
    json_array_foreach((json_t *)types, i,
                       type) if (!json_is_string(type) || strcmp(json_string_value(type), "full_attention") != 0)
        bad(r, "layer_types", "layer %zu is not of full_attention, which alone is here", i);
}

static void refuse_others(const reader *r)
{
    const char *act = text(r, r->root, "hidden_act", "silu");

    if (strcmp(act, "silu") != 0) bad(r, "hidden_act", "\"%.40s\" is not here, silu alone is", act);
    if (member(r->root, "quantization_config") != NULL)
        bad(r, "quantization_config", "weights that are quantised are not read; take the model as it was before");
    refuse_windows(r);
}

static void read_model(const reader *r, llama_model *m)
{
    *m = (llama_model){0};
    if (!json_is_object(r->root)) {
        (void)ddp_fail(r->err, DDP_ERR_CONFIG, "%s: it is no JSON object; download it again", r->path);
        return;
    }
    read_family(r, m);
    if (!broken(r)) read_sizes(r, m, m->qk_norm);
    if (!broken(r)) read_rope(r, m);
    if (!broken(r)) refuse_others(r);
}

/* ---- the file ---------------------------------------------------------------------------------------------------- */
static ddp_status read_bytes(const char *path, int fd, size_t size, char **out, size_t *length, ddp_err *err)
{
    ssize_t n = 1;

    *out = malloc(size + 1);
    if (*out == NULL) return ddp_fail(err, DDP_ERR_NOMEM, "%s: out of memory", path);
    for (*length = 0; n > 0 && *length<size; *length += n> 0 ? (size_t)n : 0)
        n = read(fd, *out + *length, size - *length);
    if (n >= 0) return DDP_OK;
    free(*out);
    return ddp_fail(err, DDP_ERR_CONFIG, "cannot read %s: %s", path, strerror(errno));
}

/* All of it, free(). */
static ddp_status read_file(const char *path, char **out, size_t *length, ddp_err *err)
{
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    struct stat facts;
    ddp_status st;

    if (fd < 0)
        return ddp_fail(err, DDP_ERR_CONFIG, "cannot open %s: %s; name the folder of the model, or its config.json",
                        path, strerror(errno));
    if (fstat(fd, &facts) != 0 || !S_ISREG(facts.st_mode))
        st = ddp_fail(err, DDP_ERR_CONFIG, "%s is not a plain file; name the folder of the model, or its config.json",
                      path);
    else if (facts.st_size > FILE_LIMIT)
        st = ddp_fail(err, DDP_ERR_CONFIG,
                      "%s is larger than 1 MiB, so it is no config.json; name the folder of the model", path);
    else
        st = read_bytes(path, fd, (size_t)facts.st_size, out, length, err);
    (void)close(fd);
    return st;
}

/* The text of a strange file ends up in messages: no control character may reach the terminal. */
static void defuse(char *text)
{
    for (; *text != '\0'; text++)
        if ((unsigned char)*text < 0x20 || *text == 0x7f) *text = '?';
}

ddp_status llama_config_read(const char *path, llama_model *out, ddp_err *err)
{
    char file[4096];
    struct stat facts;
    json_error_t why;
    size_t length = 0;
    json_t *root;
    char *bytes = NULL;

    if (stat(path, &facts) == 0 && S_ISDIR(facts.st_mode))
        (void)snprintf(file, sizeof(file), "%s/config.json", path);
    else
        (void)snprintf(file, sizeof(file), "%s", path);
    DDP_TRY(read_file(file, &bytes, &length, err));
    root = json_loadb(bytes, length, JSON_REJECT_DUPLICATES, &why);
    free(bytes);
    err->status = DDP_OK;
    if (root == NULL)
        (void)ddp_fail(err, DDP_ERR_CONFIG, "%s:%d: not JSON: %.100s; download it again", file, why.line, why.text);
    else
        read_model(&(reader){.path = file, .root = root, .err = err}, out);
    json_decref(root);
    if (err->status != DDP_OK) defuse(err->msg);
    return err->status;
}
