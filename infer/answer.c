/* infer/answer.c -- see answer.h. */
#include "infer/answer.h"
#include <jansson.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

/* ---- what kind of answer ----------------------------------------------------------------------------------------- */
static const ddp_node *writer_of(const ddp_program *p, int32_t value)
{
    for (uint32_t i = 0; i < p->node_count; i++)
        for (uint32_t k = 0; k < p->nodes[i].out_count; k++)
            if (p->nodes[i].out[k] == value) return &p->nodes[i];
    return NULL;
}

/* The value that is the same elements in another shape, as far back as it goes. */
static int32_t origin_of(const ddp_program *p, int32_t value)
{
    const ddp_node *n = writer_of(p, value);

    while (n != NULL && n->op == DDP_OP_RESHAPE) {
        value = n->in[0];
        n = writer_of(p, value);
    }
    return value;
}

void infer_answers_find(const ddp_program *evaluation, const ddp_program *outputs, infer_answers *out)
{
    const ddp_node *loss = writer_of(evaluation, evaluation->loss);
    const ddp_value *v = &outputs->values[outputs->metrics[0]];
    int32_t compared = loss != NULL && loss->in_count > 1 ? origin_of(evaluation, loss->in[1]) : -1;

    *out = (infer_answers){.kind = INFER_VALUES, .field = UINT32_MAX, .width = v->elements};
    if (compared >= 0 && evaluation->values[compared].kind == DDP_VALUE_INPUT)
        out->field = (uint32_t)evaluation->values[compared].index;
    out->sigmoid = loss != NULL && loss->op == DDP_OP_BCE_WITH_LOGITS;
    if (loss == NULL || loss->op != DDP_OP_CROSS_ENTROPY) return;
    out->kind = INFER_CLASSES;
    out->width = out->classes = v->dims[v->rank - 1];
    if (loss->attrs.cross_entropy.classes > 0) out->classes = loss->attrs.cross_entropy.classes;
}

/* ---- classes ----------------------------------------------------------------------------------------------------- */
static void softmax(float *x, int64_t count)
{
    float most = x[0];
    double sum = 0.0;

    for (int64_t i = 1; i < count; i++) most = fmaxf(most, x[i]);
    for (int64_t i = 0; i < count; i++) {
        x[i] = expf(x[i] - most);
        sum += x[i];
    }
    for (int64_t i = 0; i < count; i++) x[i] = (float)(x[i] / sum);
}

static double value_of(const infer_answers *a, float x)
{
    return a->sigmoid ? 1.0 / (1.0 + exp(-(double)x)) : (double)x;
}

/* The likeliest that has not been taken; of equal ones the first. Taken ones are below 0. */
static int64_t take_likeliest(float *x, int64_t count, float *probability)
{
    int64_t best = 0;

    for (int64_t i = 1; i < count; i++)
        if (x[i] > x[best]) best = i;
    *probability = x[best];
    x[best] = -1.0f;
    return best;
}

static void class_text(infer_name name, void *ctx, int64_t value, ddp_text *out)
{
    const char *text = name(ctx, value);

    if (text == NULL)
        ddp_text_printf(out, "%lld", (long long)value);
    else
        ddp_text_append(out, text, strlen(text));
}

void infer_answer_text(const infer_answers *a, float *numbers, int32_t top, infer_name name, void *ctx,
                       const char *where, ddp_text *out)
{
    int64_t count = a->kind == INFER_CLASSES ? DDP_MIN_OF(a->classes, (int64_t)top) : a->width;
    size_t from = out->length;
    float probability;

    ddp_text_printf(out, "%s:", where);
    if (a->kind == INFER_CLASSES) softmax(numbers, a->classes);
    for (int64_t i = 0; i < count; i++) {
        ddp_text_printf(out, "%s ", i > 0 ? "," : "");
        if (a->kind == INFER_VALUES) {
            ddp_text_printf(out, "%.9g", value_of(a, numbers[i]));
            continue;
        }
        class_text(name, ctx, take_likeliest(numbers, a->classes, &probability), out);
        ddp_text_printf(out, " %.4f", (double)probability);
    }
    if (out->data != NULL) ddp_clean_text(out->data + from);
    ddp_text_append(out, "\n", 1);
}

/* ---- JSON -------------------------------------------------------------------------------------------------------- */
/* A text of a file, which may hold any byte. */
static json_t *json_text(const char *text)
{
    json_t *out = json_string(text);
    char *clean;

    if (out != NULL) return out;
    clean = strdup(text);
    if (clean != NULL) ddp_clean_text(clean);
    out = clean != NULL ? json_string(clean) : NULL;
    free(clean);
    return out;
}

static json_t *json_classes(const infer_answers *a, float *numbers, int32_t top, infer_name name, void *ctx)
{
    int64_t count = DDP_MIN_OF(a->classes, (int64_t)top);
    json_t *list = json_array();
    float probability;

    softmax(numbers, a->classes);
    for (int64_t i = 0; i < count; i++) {
        int64_t class = take_likeliest(numbers, a->classes, &probability);
        const char *text = name(ctx, class);
        json_t *one = json_object();

        if (text != NULL) (void)json_object_set_new(one, "class", json_text(text));
        (void)json_object_set_new(one, "index", json_integer(class));
        (void)json_object_set_new(one, "probability", json_real((double)probability));
        (void)json_array_append_new(list, one);
    }
    return list;
}

static json_t *json_values(const infer_answers *a, const float *numbers)
{
    json_t *list = json_array();

    for (int64_t i = 0; i < a->width; i++) {
        double value = value_of(a, numbers[i]);

        (void)json_array_append_new(list, isfinite(value) ? json_real(value) : json_null());
    }
    return list;
}

ddp_status infer_answer_json(const infer_answers *a, float *numbers, int32_t top, infer_name name, void *ctx,
                             const char *file, uint64_t row, ddp_text *out, ddp_err *err)
{
    json_t *object = json_object();
    char *text;

    (void)json_object_set_new(object, "file", json_text(file));
    (void)json_object_set_new(object, "row", json_integer((json_int_t)row));
    if (a->kind == INFER_CLASSES)
        (void)json_object_set_new(object, "predictions", json_classes(a, numbers, top, name, ctx));
    else
        (void)json_object_set_new(object, "values", json_values(a, numbers));
    text = json_dumps(object, JSON_REAL_PRECISION(9));
    json_decref(object);
    if (text == NULL) return ddp_fail(err, DDP_ERR_NOMEM, "out of memory for what is to be printed");
    ddp_text_printf(out, "%s\n", text);
    free(text);
    return DDP_OK;
}
