/* train/measure/evaluated.c -- see evaluated.h. */
#include "train/measure/evaluated.h"
#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { TABLE_CLASSES = 20 /* that the table shows as a matrix */, TABLE_MISTAKES = 20, NAME_BYTES = 24 };

/* ---- sums -------------------------------------------------------------------------------------------------------- */
static const ddp_program *program_of(const ddp_session *s)
{
    for (uint32_t i = 0; i < s->programs.count; i++)
        if (s->programs.variants[i].program != NULL && !s->programs.variants[i].program->training)
            return s->programs.variants[i].program;
    return NULL;
}

ddp_status ddp_sums_open(const ddp_session *s, ddp_sums *out, ddp_err *err)
{
    const ddp_program *p = program_of(s);
    uint64_t floats = 1;
    ddp_metric_info m;

    *out = (ddp_sums){0};
    for (uint32_t i = 0; p != NULL && i < p->metric_count; i++) {
        ddp_metric_of(p, i, &m);
        floats = DDP_MAX_OF(floats, m.floats);
        out->count += m.sums;
    }
    out->metrics = ddp_alloc((out->count + 1) * sizeof(*out->metrics), err);
    if (out->metrics != NULL) out->batch = ddp_alloc(floats * sizeof(*out->batch), err);
    if (out->batch != NULL) return DDP_OK;
    ddp_sums_close(out);
    return err->status;
}

void ddp_sums_clear(ddp_sums *sums)
{
    sums->loss = sums->samples = sums->counted = 0.0;
    memset(sums->metrics, 0, sums->count * sizeof(*sums->metrics));
}

void ddp_sums_add(ddp_sums *to, const ddp_sums *from)
{
    to->loss += from->loss;
    to->samples += from->samples;
    to->counted += from->counted;
    for (uint64_t i = 0; i < to->count; i++) to->metrics[i] += from->metrics[i];
}

void ddp_sums_close(ddp_sums *sums)
{
    free(sums->metrics);
    free(sums->batch);
    *sums = (ddp_sums){0};
}

/* ---- values ------------------------------------------------------------------------------------------------------ */
void ddp_evaluated_set(ddp_evaluated *e, const ddp_session *s, ddp_sums *sums)
{
    const ddp_program *p = program_of(s);
    const double *at = sums->metrics;

    ddp_evaluated_close(e);
    e->sums = *sums;
    *sums = (ddp_sums){0};
    for (uint32_t i = 0; p != NULL && i < p->metric_count && e->count < DDP_METRICS_MAX; i++) {
        ddp_metric_info *m = &e->metrics[e->count];

        ddp_metric_of(p, i, m);
        e->at[e->count] = at;
        e->values[e->count++] = ddp_metric_value(m, at, e->sums.samples);
        at += m->sums;
    }
}

void ddp_evaluated_close(ddp_evaluated *e)
{
    ddp_sums_close(&e->sums);
    e->count = 0;
}

double ddp_evaluated_value(const ddp_evaluated *e, const char *name)
{
    for (uint32_t i = 0; i < e->count; i++)
        if (strcmp(e->metrics[i].name, name) == 0) return e->values[i];
    return NAN;
}

/* The metric of that name which has a matrix; NULL. */
static const ddp_metric_info *matrix_of(const ddp_evaluated *e, const char *name, const double **counts)
{
    for (uint32_t i = 0; i < e->count; i++)
        if (strcmp(e->metrics[i].name, name) == 0 && e->metrics[i].classes > 0) {
            *counts = e->at[i];
            return &e->metrics[i];
        }
    return NULL;
}

/* ---- as text ----------------------------------------------------------------------------------------------------- */
void ddp_evaluated_text(const ddp_evaluated *e, int digits, ddp_text *out)
{
    for (uint32_t i = 0; i < e->count; i++)
        if (isfinite(e->values[i])) ddp_text_printf(out, ", %s %.*f", e->metrics[i].name, digits, e->values[i]);
}

static void number(double v, const char *format, ddp_text *out)
{
    char text[40] = "null";

    if (isfinite(v)) (void)snprintf(text, sizeof(text), format, v);
    ddp_text_printf(out, "%s", text);
}

static void by_class(const ddp_metric_info *m, const double *counts, ddp_text *out)
{
    ddp_text_printf(out, ", \"eval_f1_by_class\": [");
    for (uint64_t i = 0; i < m->classes; i++) {
        ddp_text_printf(out, "%s", i > 0 ? ", " : "");
        number(ddp_metric_class_f1(m, counts, i), "%.9g", out);
    }
    ddp_text_printf(out, "]");
}

static void matrix(const ddp_metric_info *m, const double *counts, ddp_text *out)
{
    ddp_text_printf(out, ", \"eval_confusion\": [");
    for (uint64_t i = 0; i < m->classes * m->classes; i++)
        ddp_text_printf(out, "%s%.0f", i == 0 ? "[" : i % m->classes == 0 ? "], [" : ", ", counts[i]);
    ddp_text_printf(out, "]]");
}

void ddp_evaluated_members(const ddp_evaluated *e, bool whole, ddp_text *out)
{
    const double *counts;
    const ddp_metric_info *m = matrix_of(e, "confusion", &counts);

    for (uint32_t i = 0; i < e->count; i++) {
        if (&e->metrics[i] == m || strcmp(e->metrics[i].name, "accuracy") == 0) continue;
        ddp_text_printf(out, ", \"eval_%s\": ", e->metrics[i].name);
        number(e->values[i], "%.9g", out);
    }
    if (m != NULL && (whole || m->classes <= TABLE_CLASSES)) matrix(m, counts, out);
    m = whole ? matrix_of(e, "f1", &counts) : NULL;
    if (m != NULL) by_class(m, counts, out);
}

/* ---- as a table -------------------------------------------------------------------------------------------------- */
typedef struct table {
    const ddp_metric_info *m;
    const double *counts;
    const ddp_source *source; /* that knows the classes' names */
    uint32_t field;
    ddp_text *out;
} table;

/* The class's name after some blanks; it may hold anything. */
static void add_name(const table *t, uint64_t class)
{
    const char *name = t->field < t->source->field_count
                           ? t->source->ops->class_name(t->source->dataset, t->field, (int64_t) class)
                           : NULL;
    size_t length = name != NULL ? strnlen(name, NAME_BYTES) : 0;

    if (length == NAME_BYTES) /* no part of a character */
        while (length > 0 && ((unsigned char)name[length] & 0xc0) == 0x80) length--;
    if (length > 0) ddp_text_append(t->out, "  ", 2);
    for (size_t i = 0; i < length; i++)
        ddp_text_append(t->out, (unsigned char)name[i] < 0x20 || name[i] == 0x7f ? "?" : name + i, 1);
}

static void whole_table(const table *t)
{
    uint64_t classes = t->m->classes;
    double most = (double)classes;
    int width;

    for (uint64_t i = 0; i < classes * classes; i++) most = t->counts[i] > most ? t->counts[i] : most;
    width = snprintf(NULL, 0, "%.0f", most);
    ddp_text_printf(t->out, "\nconfusion: a row for each label, a column for each prediction\n%7s", "");
    for (uint64_t i = 0; i < classes; i++) ddp_text_printf(t->out, " %*" PRIu64, width, i);
    for (uint64_t i = 0; i < classes; i++) {
        ddp_text_printf(t->out, "\n%7" PRIu64, i);
        for (uint64_t k = 0; k < classes; k++) ddp_text_printf(t->out, " %*.0f", width, t->counts[i * classes + k]);
        add_name(t, i);
    }
}

/* The largest count off the diagonal that comes after `last` in the order from the largest down, then by place. */
static uint64_t next_mistake(const table *t, uint64_t last)
{
    uint64_t cells = t->m->classes * t->m->classes, best = cells;
    const double *counts = t->counts;

    for (uint64_t i = 0; i < cells; i++) {
        if (i % (t->m->classes + 1) == 0 || counts[i] == 0.0) continue;
        if (last < cells && (counts[i] > counts[last] || (i <= last && counts[i] == counts[last]))) continue;
        if (best == cells || counts[i] > counts[best]) best = i;
    }
    return best;
}

static void mistakes(const table *t)
{
    uint64_t classes = t->m->classes, cells = classes * classes, at = cells;

    ddp_text_printf(t->out,
                    "\nconfusion of %" PRIu64 " classes, the most frequent mistakes:\n  label  predicted  samples",
                    classes);
    for (int i = 0; i < TABLE_MISTAKES; i++) {
        at = next_mistake(t, at);
        if (at == cells) break;
        ddp_text_printf(t->out, "\n%7" PRIu64 " %10" PRIu64 " %8.0f", at / classes, at % classes, t->counts[at]);
        add_name(t, at / classes);
        add_name(t, at % classes);
    }
}

void ddp_evaluated_table(const ddp_evaluated *e, const ddp_source *source, ddp_text *out)
{
    table t = {.source = source, .out = out};

    t.m = matrix_of(e, "confusion", &t.counts);
    if (t.m == NULL) return;
    while (t.field < source->field_count && strcmp(source->fields[t.field].name, "label") != 0) t.field++;
    if (t.m->classes <= TABLE_CLASSES)
        whole_table(&t);
    else
        mistakes(&t);
}
