/* cli/report/text.c -- see text.h. A character of braille has two columns and four rows of dots. */
#include "cli/report/text.h"
#include "cli/report/page.h"
#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { ROWS = 10, LABEL = 11, COLUMNS_LEAST = 30, COLUMNS_MOST = 200, DOTS_MOST = 2 * COLUMNS_MOST };

static const char *const colours[] = {"\033[34m", "\033[33m", "\033[32m", "\033[35m", "\033[36m", "\033[31m"};

typedef struct drawing {
    const report_style *style;
    size_t columns;    /* characters of the curve */
    size_t wide, high; /* dots in a character */
    double first, last, bottom, top;
    unsigned char dots[ROWS][COLUMNS_MOST]; /* of braille; else 1 where there is one */
    unsigned char run[ROWS][COLUMNS_MOST];  /* that was drawn last, from 1 */
} drawing;

/* ---- a curve ----------------------------------------------------------------------------------------------------- */
static void measure(drawing *d, const report_series *s)
{
    for (size_t i = 0; i < s->count; i++) {
        d->first = fmin(d->first, s->steps[i]);
        d->last = fmax(d->last, s->steps[i]);
    }
}

/* Where v lies between least (0) and most (1), 0.5 where these are one. The range may be larger than a double. */
static double share_of(double v, double least, double most)
{
    double share = most > least ? (0.5 * v - 0.5 * least) / (0.5 * most - 0.5 * least) : 0.5;

    return share > 0.0 ? fmin(share, 1.0) : 0.0;
}

static size_t column_of(const drawing *d, double step)
{
    double share = d->last > d->first ? share_of(step, d->first, d->last) : 0.0;

    return (size_t)(share * (double)(d->columns * d->wide - 1) + 0.5);
}

/* The mean of the points of each column of dots; NaN where there is none. */
static void means(const drawing *d, const report_series *s, double out[DOTS_MOST])
{
    static const double none = NAN;
    double count[DOTS_MOST] = {0.0};

    for (size_t c = 0; c < d->columns * d->wide; c++) out[c] = none;
    for (size_t i = 0; i < s->count; i++) {
        size_t c = column_of(d, s->steps[i]);

        count[c] += 1.0; /* divided first: the difference of two may be larger than a double */
        out[c] = count[c] > 1.0 ? out[c] - out[c] / count[c] + s->values[i] / count[c] : s->values[i];
    }
}

static void measure_heights(drawing *d, const double column[DOTS_MOST])
{
    for (size_t c = 0; c < d->columns * d->wide; c++) {
        if (!isfinite(column[c])) continue;
        d->bottom = fmin(d->bottom, column[c]);
        d->top = fmax(d->top, column[c]);
    }
}

static size_t row_of(const drawing *d, double v)
{
    return (size_t)((1.0 - share_of(v, d->bottom, d->top)) * (double)(ROWS * d->high - 1) + 0.5);
}

static void dot(drawing *d, size_t column, size_t row, size_t run)
{
    static const unsigned char bits[4][2] = {{0x01, 0x08}, {0x02, 0x10}, {0x04, 0x20}, {0x40, 0x80}};
    size_t y = row / d->high, x = column / d->wide;

    d->dots[y][x] |= bits[row % d->high][column % d->wide];
    d->run[y][x] = (unsigned char)(run % 250 + 1);
}

/* From each column to the one before it the line has no gap. */
static void draw(drawing *d, const double column[DOTS_MOST], size_t run)
{
    bool any = false;
    size_t before = 0;

    for (size_t c = 0; c < d->columns * d->wide; c++) {
        size_t row, from, to;

        if (!isfinite(column[c])) continue;
        row = row_of(d, column[c]);
        from = !any || before == row ? row : before < row ? before + 1 : row;
        to = !any || before <= row ? row : before - 1;
        for (size_t r = from; r <= to; r++) dot(d, c, r, run);
        before = row;
        any = true;
    }
}

static void print_cell(const drawing *d, size_t y, size_t x, bool many, ddp_text *out)
{
    unsigned dots = d->dots[y][x], code = 0x2800 + dots;
    size_t run = d->run[y][x];

    if (dots == 0) {
        ddp_text_append(out, " ", 1);
    } else if (!d->style->unicode) {
        ddp_text_printf(out, "%c", many ? (int)('a' + (run - 1) % 26) : '*');
    } else {
        if (d->style->colour) ddp_text_printf(out, "%s", colours[(run - 1) % DDP_COUNT(colours)]);
        ddp_text_printf(out, "%c%c%c", (int)(0xe0 | code >> 12), (int)(0x80 | (code >> 6 & 0x3f)),
                        (int)(0x80 | (code & 0x3f)));
        if (d->style->colour) ddp_text_printf(out, "\033[0m");
    }
}

static void print_drawing(const drawing *d, bool many, ddp_text *out)
{
    const int digits = fmax(fabs(d->top), fabs(d->bottom)) < 1e99 ? 5 : 2; /* as wide as there is room */
    char left[32], right[32];
    int room;

    for (size_t y = 0; y < ROWS; y++) {
        double part = (double)y / (ROWS - 1);
        size_t end = d->columns;

        while (end > 0 && d->dots[y][end - 1] == 0) end--;
        if (y % 3 == 0)
            ddp_text_printf(out, "%*.*g |", LABEL - 2, digits, d->top - part * d->top + part * d->bottom);
        else
            ddp_text_printf(out, "%*s |", LABEL - 2, "");
        for (size_t x = 0; x < end; x++) print_cell(d, y, x, many, out);
        ddp_text_printf(out, "\n");
    }
    (void)snprintf(left, sizeof(left), "step %.0f", d->first);
    (void)snprintf(right, sizeof(right), "%.0f", d->last);
    room = (int)d->columns - (int)strlen(left);
    ddp_text_printf(out, "%*s %s%*s\n", LABEL - 1, "", left, room, right);
}

/* ---- a chart ----------------------------------------------------------------------------------------------------- */
static const report_series *series_of(const report_run *r, const char *name)
{
    const report_series *s = report_field(&r->history.steps, name);

    if (s == NULL) s = report_field(&r->history.evals, name);
    return s != NULL && s->count > 0 ? s : NULL;
}

/* Runs first .. end - 1 in one drawing. */
static void chart(const report_run *runs, size_t first, size_t end, const char *name, const report_style *style,
                  ddp_text *out)
{
    drawing d = {.style = style,
                 .wide = style->unicode ? 2 : 1,
                 .high = style->unicode ? 4 : 1,
                 .first = INFINITY,
                 .last = -INFINITY,
                 .bottom = INFINITY,
                 .top = -INFINITY};
    double column[DOTS_MOST];

    d.columns = DDP_MAX_OF(style->columns, (size_t)COLUMNS_LEAST) - LABEL;
    d.columns = DDP_MIN_OF(d.columns, (size_t)COLUMNS_MOST);
    for (size_t i = first; i < end; i++)
        if (series_of(&runs[i], name) != NULL) measure(&d, series_of(&runs[i], name));
    if (!(d.first <= d.last)) return;
    for (int pass = 0; pass < 2; pass++)
        for (size_t i = first; i < end; i++) {
            if (series_of(&runs[i], name) == NULL) continue;
            means(&d, series_of(&runs[i], name), column);
            if (pass == 0)
                measure_heights(&d, column);
            else
                draw(&d, column, i);
        }
    print_drawing(&d, end - first > 1, out);
}

/* "  a  NAME  last 0.231 at 2345, least 0.21 at 2301" */
static void legend(const report_run *runs, size_t count, size_t i, const char *name, const report_style *style,
                   ddp_text *out)
{
    const report_series *s = series_of(&runs[i], name);
    size_t least = 0, largest = 0;
    char label[256];

    if (s == NULL) return;
    ddp_copy_text(label, sizeof(label), report_label(runs, count, i));
    ddp_clean_text(label);
    for (size_t k = 0; k < s->count; k++) {
        if (s->values[k] < s->values[least]) least = k;
        if (s->values[k] > s->values[largest]) largest = k;
    }
    if (style->colour && count > 1) ddp_text_printf(out, "%s", colours[i % DDP_COUNT(colours)]);
    if (count > 1 && !style->unicode) ddp_text_printf(out, "  %c", (int)('a' + i % 26));
    ddp_text_printf(out, "  %s", label);
    if (style->colour && count > 1) ddp_text_printf(out, "\033[0m");
    ddp_text_printf(out, "  last %.6g at %.0f, least %.6g at %.0f, most %.6g at %.0f\n", s->values[s->count - 1],
                    s->steps[s->count - 1], s->values[least], s->steps[least], s->values[largest], s->steps[largest]);
}

/* Several runs are overlaid where they can be told apart. */
static void curves(const report_run *runs, size_t count, const char *name, const report_style *style, ddp_text *out)
{
    bool apart = count > 1 && style->unicode && !style->colour, any = false;

    for (size_t i = 0; i < count; i++) any = any || series_of(&runs[i], name) != NULL;
    if (!any) return;
    ddp_text_printf(out, "\n%s\n", name);
    if (!apart) chart(runs, 0, count, name, style, out);
    for (size_t i = 0; i < count; i++) {
        legend(runs, count, i, name, style, out);
        if (apart) chart(runs, i, i + 1, name, style, out);
    }
}

/* ---- all --------------------------------------------------------------------------------------------------------- */
static void head(const report_run *runs, size_t count, size_t i, ddp_text *out)
{
    const report_run *r = &runs[i];
    report_rank_totals *totals = report_ranks_totals(&r->ranks);
    char label[256], state[32], steps[32], time[32];
    ddp_text sentence = {0};

    ddp_copy_text(label, sizeof(label), report_label(runs, count, i));
    ddp_clean_text(label);
    ddp_text_printf(out, "%s: %s, step %s", label, report_state_text(&r->folder->facts, state, sizeof(state)),
                    ddp_format_count(r->folder->facts.steps, steps, sizeof(steps)));
    if (r->folder->facts.planned_steps > r->folder->facts.steps)
        ddp_text_printf(out, " of %s", ddp_format_count(r->folder->facts.planned_steps, steps, sizeof(steps)));
    ddp_text_printf(out, ", %s\n", ddp_format_seconds(r->folder->facts.seconds, time, sizeof(time)));
    if (totals != NULL) (void)report_ranks_sentence(&r->ranks, totals, &sentence);
    if (sentence.data != NULL) {
        ddp_clean_text(sentence.data);
        ddp_text_printf(out, "%s\n", sentence.data);
    }
    ddp_text_free(&sentence);
    free(totals);
}

void report_text(const report_run *runs, size_t count, const report_style *style, ddp_text *out)
{
    static const char *const first[] = {"loss", "eval_loss"}, *const last[] = {"lr", "samples_per_s", "step_ms"};

    for (size_t i = 0; i < count; i++) head(runs, count, i, out);
    for (size_t k = 0; k < DDP_COUNT(first); k++) curves(runs, count, first[k], style, out);
    for (size_t i = 0; i < count; i++) /* the other metrics, each once */
        for (size_t k = 0; k < runs[i].history.evals.count; k++) {
            const char *name = runs[i].history.evals.series[k].name;
            bool shown = strcmp(name, "eval_loss") == 0;

            for (size_t j = 0; j < i; j++) shown = shown || report_field(&runs[j].history.evals, name) != NULL;
            if (!shown) curves(runs, count, name, style, out);
        }
    for (size_t k = 0; k < DDP_COUNT(last); k++) curves(runs, count, last[k], style, out);
}
