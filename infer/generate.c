/* infer/generate.c -- see generate.h. Every token costs a pass over the whole context: attention looks at all of it,
 * and nothing of the pass before is kept. */
#include "infer/generate.h"
#include "session/variants.h"
#include "train/state/buffer_sync.h"
#include "train/state/memory.h"
#include "train/state/weights.h"
#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

struct ddp_generator {
    ddp_trainer t; /* parameters, buffers and arena alone */
    ddp_variant *v;
    int32_t logits;                     /* value */
    int64_t context, vocabulary, width; /* width: logits of a position, vocabulary and padding */
    int64_t *tokens;                    /* the context, host memory that the device copies from */
    void **inputs;                      /* by field */
    float *row;
    int64_t *order;
};

/* ---- choosing ---------------------------------------------------------------------------------------------------- */
struct candidates {
    const float *logits;
    int64_t *order;
    int64_t count;
};

static bool comes_before(const float *logits, int64_t a, int64_t b)
{
    return logits[a] != logits[b] ? logits[a] > logits[b] : a < b;
}

/* Moves candidate `at` of a heap, whose root is the least likely one, to its position. */
static void sift(const struct candidates *c, int64_t at)
{
    for (int64_t child = 2 * at + 1; child < c->count; child = 2 * at + 1) {
        int64_t held = c->order[at];

        if (child + 1 < c->count && comes_before(c->logits, c->order[child], c->order[child + 1])) child++;
        if (!comes_before(c->logits, held, c->order[child])) return;
        c->order[at] = c->order[child];
        c->order[child] = held;
        at = child;
    }
}

/* The `k` likeliest of `count`, in the order of their numbers. */
static void choose_top(struct candidates *c, int64_t count, int64_t k)
{
    int64_t n = 0;

    c->count = k;
    for (int64_t i = 0; i < k; i++) c->order[i] = i;
    for (int64_t i = k / 2; i-- > 0;) sift(c, i);
    for (int64_t i = k; i < count; i++) {
        if (!comes_before(c->logits, i, c->order[0])) continue;
        c->order[0] = i;
        sift(c, 0);
    }
    for (int64_t i = 0; i < count && n < k; i++) /* order[0] is the last that is in: all before it are, too */
        if (i == c->order[0] || comes_before(c->logits, i, c->order[0])) c->order[k + n++] = i;
    memmove(c->order, c->order + k, (size_t)k * sizeof(*c->order));
}

static int64_t largest(const float *logits, int64_t count)
{
    int64_t best = 0;

    for (int64_t i = 1; i < count; i++)
        if (logits[i] > logits[best]) best = i;
    return best;
}

int64_t infer_sample(const ddp_sampling *how, const float *logits, int64_t count, double uniform, int64_t *order)
{
    struct candidates c = {.logits = logits, .order = order, .count = count};
    int64_t best = largest(logits, count), n = count, chosen = best;
    double sum = 0.0, at = 0.0;

    if (how->temperature == 0.0) return best;
    if (how->top_k > 0 && how->top_k < count) choose_top(&c, count, n = how->top_k);
    for (int64_t i = 0; i < n; i++) {
        int64_t token = n < count ? order[i] : i;

        sum += exp(((double)logits[token] - (double)logits[best]) / how->temperature);
    }
    for (int64_t i = 0; i < n; i++) {
        chosen = n < count ? order[i] : i;
        at += exp(((double)logits[chosen] - (double)logits[best]) / how->temperature);
        if (at > uniform * sum) break;
    }
    return chosen;
}

/* ---- the model --------------------------------------------------------------------------------------------------- */
static ddp_status unfit(const ddp_session *s, const char *why, ddp_err *err)
{
    return ddp_fail(err, DDP_ERR_CONFIG, "model \"%s\" on [data] plugin = %s generates no text: %s",
                    s->model.plugin->desc.name, s->train.plugin->desc.name, why);
}

/* The output, and the field that it is computed from. */
static ddp_status find_ends(ddp_generator *g, ddp_err *err)
{
    const ddp_session *s = g->t.s;
    const ddp_program *p = g->v->program;
    const ddp_value *logits, *input = NULL;
    uint32_t inputs = 0;

    g->logits = -1;
    for (uint32_t i = 0; i < p->metric_count; i++)
        if (strcmp(p->metric_names[i], "logits") == 0) g->logits = p->metrics[i];
    if (g->logits < 0) return unfit(s, "it has no output \"logits\"", err);
    for (uint32_t i = 0; i < p->value_count; i++)
        if (p->values[i].kind == DDP_VALUE_INPUT) {
            input = &p->values[i];
            inputs++;
        }
    if (inputs != 1 || input->dtype != DDP_I64 || input->rank != 2)
        return unfit(s, "its logits do not come from one field of tokens (T), i64", err);
    logits = &p->values[g->logits];
    g->context = input->dims[1];
    if (logits->rank < 2 || logits->elements / logits->dims[logits->rank - 1] != g->context)
        return unfit(s, "its output \"logits\" is not of the shape (N, T, V)", err);
    g->width = g->vocabulary = logits->dims[logits->rank - 1];
    if (s->train.fields[input->index].min <= s->train.fields[input->index].max) /* rows may be padding */
        g->vocabulary = DDP_MIN_OF(g->vocabulary, s->train.fields[input->index].max + 1);
    g->inputs[input->index] = g->tokens;
    return DDP_OK;
}

static ddp_status allocate(ddp_generator *g, ddp_err *err)
{
    ddp_session *s = g->t.s;
    ddp_trainer *t = &g->t;
    int64_t longest = 1;

    for (uint32_t i = 0; i < s->train.field_count; i++)
        if (s->train.fields[i].rank == 1) longest = DDP_MAX_OF(longest, s->train.fields[i].dims[0]);
    DDP_TRY(ddp_device_alloc(&s->device, s->model.layout->param_elements * sizeof(float), &t->mem.params, err));
    DDP_TRY(ddp_device_alloc(&s->device, s->programs.arena_bytes, &t->mem.activations, err));
    DDP_TRY(ddp_device_host_alloc(&s->device, (size_t)longest * sizeof(int64_t), &g->tokens, err));
    DDP_TRY(ddp_trainer_buffers_open(t, err));
    g->inputs = ddp_alloc((s->train.field_count + 1) * sizeof(*g->inputs), err);
    if (g->inputs == NULL) return err->status;
    DDP_TRY(find_ends(g, err));
    g->row = ddp_alloc((size_t)g->width * sizeof(*g->row), err);
    g->order = ddp_alloc(2 * (size_t)g->width * sizeof(*g->order), err);
    return g->row == NULL || g->order == NULL ? err->status : DDP_OK;
}

static ddp_status read_weights(ddp_generator *g, ddp_err *err)
{
    ddp_weights weights;

    DDP_TRY(ddp_staging_open(&g->t, DDP_ARENA_PARAMS | DDP_ARENA_BUFFERS, err));
    DDP_TRY(ddp_trainer_read_weights(&g->t, &weights, err));
    DDP_TRY(ddp_push(&g->t, DDP_ARENA_PARAMS | DDP_ARENA_BUFFERS, err));
    ddp_staging_close(&g->t);
    return DDP_OK;
}

static ddp_status prepare(ddp_generator *g, ddp_err *err)
{
    ddp_session *s = g->t.s;
    ddp_bind bind = {.struct_size = sizeof(bind)};

    DDP_TRY_AS(DDP_EXIT_CONFIG, err, allocate(g, err));
    DDP_TRY_AS(DDP_EXIT_CHECKPOINT, err, read_weights(g, err));
    bind.arena = g->t.mem.activations;
    bind.params = g->t.mem.params;
    bind.buffers = g->t.mem.buffers;
    return ddp_variant_ready(s, g->v, &bind, err);
}

ddp_status infer_generator_open(ddp_session *s, ddp_generator **out, ddp_err *err)
{
    ddp_generator *g = ddp_alloc(sizeof(*g), err);

    if (g == NULL) return err->status;
    g->t.s = s;
    g->v = &s->programs.variants[0];
    if (prepare(g, err) != DDP_OK) {
        infer_generator_close(g);
        return err->status;
    }
    *out = g;
    return DDP_OK;
}

void infer_generator_close(ddp_generator *g)
{
    ddp_session *s = g->t.s;
    void *own[] = {g->t.mem.params, g->t.mem.activations, g->t.mem.buffers};

    ddp_variants_free(s);
    ddp_staging_close(&g->t);
    ddp_device_host_free(&s->device, g->tokens);
    for (size_t i = 0; i < DDP_COUNT(own); i++) ddp_device_free(&s->device, own[i]);
    free(g->t.mem.counts);
    free(g->inputs);
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

/* After the last token are zeros, which no earlier position sees. */
static ddp_status logits_after(ddp_generator *g, const int64_t *tokens, int64_t count, ddp_err *err)
{
    ddp_session *s = g->t.s;
    const char *at = (const char *)g->t.mem.activations + g->v->planned->plan.value_offset[g->logits];
    size_t bytes = (size_t)g->width * sizeof(float), used = (size_t)count * sizeof(*tokens);
    ddp_run run = {.struct_size = sizeof(run), .inputs = g->inputs};

    memset(g->tokens, 0, (size_t)g->context * sizeof(*g->tokens));
    memcpy(g->tokens, tokens, used);
    DDP_TRY_AS(DDP_EXIT_DATA, err,
               ddp_device_run(&s->device, g->v->instance, &run, 0, g->v->lowered->kernel_count, err));
    DDP_TRY_AS(DDP_EXIT_INTERNAL, err, ddp_device_sync(&s->device, err));
    DDP_TRY_AS(DDP_EXIT_INTERNAL, err,
               ddp_device_copy(&s->device, g->row, at + (size_t)(count - 1) * bytes, bytes, DDP_COPY_TO_HOST, err));
    return DDP_OK;
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
