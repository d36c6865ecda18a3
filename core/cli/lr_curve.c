/* cli/lr_curve.c -- see lr_curve.h. */
#include "cli/lr_curve.h"
#include "base/sys.h"
#include "cli/report/json.h"
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define DECAY 0.98

enum { COLUMNS = 64, ROWS = 16, POINTS_MOST = 1000000, LEFT_OUT = 5 };

/* ---- reading ----------------------------------------------------------------------------------------------------- */
static ddp_status append(lr_curve *c, size_t *capacity, lr_point p, ddp_err *err)
{
    if (c->count == *capacity) {
        size_t more = *capacity == 0 ? 128 : *capacity * 2;
        lr_point *grown = realloc(c->points, more * sizeof(*grown));

        if (grown == NULL) return ddp_fail(err, DDP_ERR_NOMEM, "out of memory for the curve");
        c->points = grown;
        *capacity = more;
    }
    c->points[c->count++] = p;
    return DDP_OK;
}

typedef struct reading {
    lr_curve *curve;
    size_t capacity;
    double average, weight;
    bool ended; /* by a loss that is not finite */
} reading;

static ddp_status take(void *context, json_t *line, ddp_err *err)
{
    reading *r = context;
    const char *event = json_string_value(json_object_get(line, "event"));
    lr_point p = {.lr = report_number_of(line, "lr"), .loss = report_number_of(line, "loss")};

    if (event == NULL || strcmp(event, "step") != 0 || isnan(p.lr)) return DDP_OK;
    r->ended |= !isfinite(p.loss);
    if (r->ended || r->curve->count == POINTS_MOST) return DDP_OK;
    r->average = r->average * DECAY + p.loss * (1.0 - DECAY);
    r->weight *= DECAY;
    p.smoothed = r->average / (1.0 - r->weight);
    return append(r->curve, &r->capacity, p, err);
}

ddp_status lr_curve_read(const char *path, lr_curve *out, ddp_err *err)
{
    reading r = {.curve = out, .weight = 1.0};
    ddp_status st;
    bool there;

    *out = (lr_curve){0};
    st = report_read_lines(path, take, &r, &there, err);
    if (st == DDP_OK && !there) st = ddp_fail(err, DDP_ERR_SYSTEM, "%s is gone", path);
    if (st == DDP_OK) return DDP_OK;
    free(out->points);
    *out = (lr_curve){0};
    return st;
}

/* ---- what it says ------------------------------------------------------------------------------------------------ */
double lr_curve_suggestion(const lr_curve *c, size_t planned)
{
    size_t first = planned / 10, end = c->count > LEFT_OUT ? c->count - LEFT_OUT : 0;
    double steepest = 0.0, lr = 0.0;

    for (size_t i = first; i + 1 < end; i++) {
        const lr_point *a = &c->points[i], *b = &c->points[i + 1];
        double slope = (b->smoothed - a->smoothed) / (log(b->lr) - log(a->lr));

        if (slope >= steepest) continue;
        steepest = slope;
        lr = a->lr;
    }
    return lr;
}

/* ---- drawing ----------------------------------------------------------------------------------------------------- */
typedef struct frame {
    double first, last; /* log10 of the learning rates */
    double bottom, top; /* losses */
    char cells[ROWS][COLUMNS];
} frame;

static int column_of(const frame *f, double lr)
{
    double share = f->last > f->first ? (log10(lr) - f->first) / (f->last - f->first) : 0.0;

    return (int)(share * (COLUMNS - 1) + 0.5);
}

/* What has diverged goes above the top. */
static void measure(const lr_curve *c, frame *f)
{
    double highest = c->points[0].smoothed;

    f->first = log10(c->points[0].lr);
    f->last = log10(c->points[c->count - 1].lr);
    f->bottom = highest;
    for (size_t i = 0; i < c->count; i++) {
        f->bottom = DDP_MIN_OF(f->bottom, c->points[i].smoothed);
        highest = DDP_MAX_OF(highest, c->points[i].smoothed);
    }
    f->top = DDP_MIN_OF(highest, f->bottom + 1.5 * (c->points[0].smoothed - f->bottom) + fabs(f->bottom) * 0.05);
    if (!(f->top > f->bottom)) f->top = f->bottom + 1.0;
}

static void fill(const lr_curve *c, double suggestion, frame *f)
{
    memset(f->cells, ' ', sizeof(f->cells));
    if (suggestion > 0.0)
        for (int r = 0; r < ROWS; r++) f->cells[r][column_of(f, suggestion)] = '|';
    for (size_t i = 0; i < c->count; i++) {
        double share = (c->points[i].smoothed - f->bottom) / (f->top - f->bottom);
        int row = (int)((1.0 - DDP_MIN_OF(share, 1.0)) * (ROWS - 1) + 0.5);

        f->cells[row][column_of(f, c->points[i].lr)] = share > 1.0 ? '^' : '*';
    }
}

void lr_curve_draw(const lr_curve *c, double suggestion, ddp_text *out)
{
    frame f = {0};

    if (c->count < 2) return;
    measure(c, &f);
    fill(c, suggestion, &f);
    ddp_text_printf(out, "smoothed loss\n");
    for (int r = 0; r < ROWS; r++) {
        int length = COLUMNS;

        while (length > 0 && f.cells[r][length - 1] == ' ') length--;
        if (r % 5 == 0)
            ddp_text_printf(out, "%10.4g |", f.top - (f.top - f.bottom) * r / (ROWS - 1));
        else
            ddp_text_printf(out, "%10s |", "");
        ddp_text_append(out, f.cells[r], (size_t)length);
        ddp_text_printf(out, "\n");
    }
    ddp_text_printf(out, "%10s +", "");
    for (int i = 0; i < COLUMNS; i++) ddp_text_append(out, "-", 1);
    ddp_text_printf(out, "\n%10s  %-*.3g%*.3g  learning rate, logarithmic\n", "", COLUMNS / 2, c->points[0].lr,
                    COLUMNS / 2, c->points[c->count - 1].lr);
}

ddp_status lr_curve_write(const lr_curve *c, const char *path, ddp_err *err)
{
    ddp_text text = {0};
    ddp_status st;

    ddp_text_printf(&text, "lr,loss,smoothed_loss\n");
    for (size_t i = 0; i < c->count; i++)
        ddp_text_printf(&text, "%.9g,%.9g,%.9g\n", c->points[i].lr, c->points[i].loss, c->points[i].smoothed);
    st = text.failed ? ddp_fail(err, DDP_ERR_NOMEM, "out of memory for the curve")
                     : ddp_file_replace(path, text.data, text.length, err);
    ddp_text_free(&text);
    return st;
}
