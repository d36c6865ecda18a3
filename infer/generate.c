/* infer/generate.c -- see generate.h. Where the model and the device can, keys and values of the tokens so far are
 * kept: a prompt goes in by many tokens at once, then each token is a run over its own position. Else every token is a
 * pass over the whole context. */
#include "infer/generate.h"
#include "infer/model.h"
#include "session/variants.h"
#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

/* A prompt goes in by DDP_PREFILL tokens, padded where it has fewer; below this many they go in one by one. */
enum { WORTH_PADDING = 5 };

struct ddp_generator {
    infer_model model;                  /* and its activations */
    bool keeps;                         /* keys and values */
    float *cache;                       /* of these; the device's */
    int64_t context, vocabulary, width; /* width: logits of a position, vocabulary and padding */
    int64_t *tokens, *start;            /* of a run, host memory that the device copies from */
    void **inputs;                      /* by field */
    int64_t *kept, kept_count;          /* the tokens that the cache is of */
    float *row;
    int64_t *order;
};

/* ---- the model --------------------------------------------------------------------------------------------------- */
static ddp_status unfit(const ddp_session *s, const char *why, ddp_err *err)
{
    return ddp_fail(err, DDP_ERR_CONFIG, "model \"%s\" on [data] plugin = %s generates no text: %s",
                    s->model.plugin->desc.name, s->train.plugin->desc.name, why);
}

/* Value of the output; -1. All programs of a session have the same ones. */
static int32_t logits_of(const ddp_program *p)
{
    for (uint32_t i = 0; i < p->metric_count; i++)
        if (strcmp(p->metric_names[i], "logits") == 0) return p->metrics[i];
    return -1;
}

static bool is_read(const ddp_program *p, int32_t value)
{
    for (uint32_t i = 0; i < p->node_count; i++)
        for (uint32_t k = 0; k < p->nodes[i].in_count; k++)
            if (p->nodes[i].in[k] == value) return true;
    return false;
}

/* The output, and the field that it is computed from. Segments and positions of packed samples are not read where keys
 * and values are kept. */
static ddp_status find_ends(ddp_generator *g, ddp_err *err)
{
    const ddp_session *s = g->model.t.s;
    const ddp_program *p = s->programs.variants[0].program;
    const ddp_value *logits, *input = NULL;
    const ddp_field *field;
    uint32_t inputs = 0;

    if (logits_of(p) < 0) return unfit(s, "it has no output \"logits\"", err);
    for (uint32_t i = 0; i < p->value_count; i++)
        if (p->values[i].kind == DDP_VALUE_INPUT && (uint32_t)p->values[i].index < s->train.field_count &&
            is_read(p, (int32_t)i)) {
            input = &p->values[i];
            inputs++;
        }
    if (inputs != 1 || input->dtype != DDP_I64 || input->rank != 2)
        return unfit(s, "its logits do not come from one field of tokens (T), i64", err);
    logits = &p->values[logits_of(p)];
    field = &s->train.fields[input->index];
    if (logits->rank < 2 || logits->elements / logits->dims[logits->rank - 1] != input->dims[1])
        return unfit(s, "its output \"logits\" is not of the shape (N, T, V)", err);
    g->context = field->dims[0];
    g->width = g->vocabulary = logits->dims[logits->rank - 1];
    if (field->min <= field->max) g->vocabulary = DDP_MIN_OF(g->vocabulary, field->max + 1); /* rows may be padding */
    g->inputs[input->index] = g->tokens;
    g->inputs[s->train.field_count] = g->start;
    return DDP_OK;
}

static ddp_status allocate_cache(ddp_generator *g, ddp_err *err)
{
    const ddp_session *s = g->model.t.s;
    uint64_t bytes = ddp_program_buffer_elements(s->programs.variants[0].program) * sizeof(float);

    g->keeps = s->programs.variants[0].positions > 0;
    if (g->keeps && bytes > 0) DDP_TRY(ddp_device_alloc(&s->device, bytes, &g->cache, err));
    return DDP_OK;
}

static ddp_status allocate(ddp_generator *g, ddp_err *err)
{
    ddp_session *s = g->model.t.s;
    int64_t longest = 1;

    for (uint32_t i = 0; i < s->train.field_count; i++)
        if (s->train.fields[i].rank == 1) longest = DDP_MAX_OF(longest, s->train.fields[i].dims[0]);
    DDP_TRY(ddp_device_alloc(&s->device, s->programs.arena_bytes, &g->model.t.mem.activations, err));
    DDP_TRY(ddp_device_host_alloc(&s->device, (size_t)longest * sizeof(int64_t), &g->tokens, err));
    DDP_TRY(ddp_device_host_alloc(&s->device, sizeof(int64_t), &g->start, err));
    DDP_TRY(allocate_cache(g, err));
    g->inputs = ddp_alloc((s->train.field_count + 1) * sizeof(*g->inputs), err);
    g->kept = ddp_alloc((size_t)longest * sizeof(*g->kept), err);
    if (g->inputs == NULL || g->kept == NULL) return err->status;
    DDP_TRY(find_ends(g, err));
    g->row = ddp_alloc((size_t)g->width * sizeof(*g->row), err);
    g->order = ddp_alloc(2 * (size_t)g->width * sizeof(*g->order), err);
    return g->row == NULL || g->order == NULL ? err->status : DDP_OK;
}

static ddp_status prepare(ddp_generator *g, ddp_err *err)
{
    ddp_session *s = g->model.t.s;
    ddp_bind bind = {.struct_size = sizeof(bind)};

    DDP_TRY_AS(DDP_EXIT_CONFIG, err, allocate(g, err));
    DDP_TRY(infer_model_read(&g->model, err));
    bind.arena = g->model.t.mem.activations;
    bind.params = g->model.t.mem.params;
    bind.buffers = g->keeps ? g->cache : g->model.t.mem.buffers;
    for (uint32_t i = 0; i < s->programs.count; i++)
        DDP_TRY(ddp_variant_ready(s, &s->programs.variants[i], &bind, err));
    if (!g->keeps)
        ddp_log_line(s->log, DDP_LOG_WARN, "generate: each token computes the whole context of %" PRId64 " tokens: %s",
                     g->context, s->programs.keeps_nothing);
    return DDP_OK;
}

ddp_status infer_generator_open(ddp_session *s, ddp_generator **out, ddp_err *err)
{
    ddp_generator *g = ddp_alloc(sizeof(*g), err);

    if (g == NULL) return err->status;
    g->model.t.s = s;
    if (prepare(g, err) != DDP_OK) {
        infer_generator_close(g);
        return err->status;
    }
    *out = g;
    return DDP_OK;
}

void infer_generator_close(ddp_generator *g)
{
    ddp_session *s = g->model.t.s;

    ddp_variants_free(s);
    ddp_device_host_free(&s->device, g->tokens);
    ddp_device_host_free(&s->device, g->start);
    ddp_device_free(&s->device, g->cache);
    infer_model_close(&g->model);
    free(g->inputs);
    free(g->kept);
    free(g->row);
    free(g->order);
    free(g);
}

int64_t infer_generator_vocabulary(const ddp_generator *g) { return g->vocabulary; }

/* ---- a token ----------------------------------------------------------------------------------------------------- */
/* In 0 .. 1 by the seed and the position of the token. */
static double uniform_of(uint64_t seed, size_t position)
{
    ddp_random r = {.seed = seed, .stream = (uint64_t)position};
    uint32_t words[4];

    ddp_philox(&r, 0, 0, words);
    return (double)(((uint64_t)words[0] << 32 | words[1]) >> 11) * 0x1p-53;
}

/* Runs tokens from position `start` on, as many as the program takes; the logits after the last of the `count` tokens
 * go to the row, if that is among them. Behind them are zeros, which no earlier position sees. */
static ddp_status run_tokens(ddp_generator *g, const ddp_variant *v, const int64_t *tokens, int64_t count,
                             int64_t start, ddp_err *err)
{
    ddp_session *s = g->model.t.s;
    int32_t logits = logits_of(v->program);
    int64_t taken = v->program->values[logits].elements / g->width, used = DDP_MIN_OF(taken, count - start);
    const char *at = (const char *)g->model.t.mem.activations + v->planned->plan.value_offset[logits];
    size_t bytes = (size_t)g->width * sizeof(float);
    ddp_run run = {.struct_size = sizeof(run), .inputs = g->inputs};

    *g->start = start;
    memset(g->tokens, 0, (size_t)taken * sizeof(*tokens));
    memcpy(g->tokens, tokens + start, (size_t)used * sizeof(*tokens));
    DDP_TRY_AS(DDP_EXIT_DATA, err, ddp_device_run(&s->device, v->instance, &run, 0, v->lowered->kernel_count, err));
    DDP_TRY_AS(DDP_EXIT_INTERNAL, err, ddp_device_sync(&s->device, err));
    if (start + used < count) return DDP_OK;
    DDP_TRY_AS(DDP_EXIT_INTERNAL, err,
               ddp_device_copy(&s->device, g->row, at + (size_t)(used - 1) * bytes, bytes, DDP_COPY_TO_HOST, err));
    return DDP_OK;
}

/* Tokens whose keys and values are kept from before, but for the last one, whose logits are wanted. */
static int64_t known(const ddp_generator *g, const int64_t *tokens, int64_t count)
{
    int64_t n = 0;

    while (n < g->kept_count && n < count - 1 && g->kept[n] == tokens[n]) n++;
    return n;
}

/* The context in as few runs as there can be. Near its end a run begins earlier and computes what it knows again. */
static ddp_status go_on(ddp_generator *g, const int64_t *tokens, int64_t count, ddp_err *err)
{
    const ddp_variant *step = &g->model.t.s->programs.variants[0], *prefill = &g->model.t.s->programs.variants[1];
    int64_t many = DDP_MIN_OF((int64_t)DDP_PREFILL, g->context), done = known(g, tokens, count);

    while (done < count) {
        bool by_many = count - done >= WORTH_PADDING && many > 1;
        int64_t start = by_many ? DDP_MIN_OF(done, g->context - many) : done;

        g->kept_count = start;
        DDP_TRY(run_tokens(g, by_many ? prefill : step, tokens, count, start, err));
        done = DDP_MIN_OF(count, start + (by_many ? many : 1));
        memcpy(g->kept + start, tokens + start, (size_t)(done - start) * sizeof(*tokens));
        g->kept_count = done;
    }
    return DDP_OK;
}

static ddp_status logits_after(ddp_generator *g, const int64_t *tokens, int64_t count, ddp_err *err)
{
    if (g->keeps) return go_on(g, tokens, count, err);
    return run_tokens(g, &g->model.t.s->programs.variants[0], tokens, count, 0, err);
}

ddp_status infer_generator_next(ddp_generator *g, const ddp_sampling *how, const int64_t *tokens, size_t count,
                                int64_t *out, ddp_err *err)
{
    size_t window = DDP_MIN_OF(count, (size_t)g->context);

    if (count == 0) return ddp_fail(err, DDP_ERR_INVALID, "there is no token to continue");
    DDP_TRY(logits_after(g, tokens + count - window, (int64_t)window, err));
    for (int64_t i = 0; i < g->vocabulary; i++)
        if (!isfinite(g->row[i])) {
            (void)ddp_fail(err, DDP_ERR_DATA, "the logit of token %" PRId64 " after %zu tokens is not finite", i,
                           count);
            return ddp_fail_as(err, DDP_EXIT_NONFINITE);
        }
    *out = infer_sample(how, g->row, g->vocabulary, uniform_of(how->seed, count), g->order);
    return DDP_OK;
}
