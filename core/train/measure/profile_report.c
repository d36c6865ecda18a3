/* train/measure/profile_report.c -- what the counters of `--profile` come to: a table on standard error, and
 * profile.json. */
#include "train/measure/profile.h"
#include "base/sys.h"
#include <inttypes.h>
#include <jansson.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

/* One line of it, a step's. NaN: not known, or nothing of the kind is done. */
typedef struct line {
    const char *name, *limit; /* limit: which of the two peaks percent is of, or "-" */
    double calls, ms, share, gflops, gbytes, percent;
} line;

typedef struct report {
    const ddp_profile *p;
    uint64_t steps, left_out;
    line *lines; /* by time, the longest first */
    uint32_t count;
    line total;
} report;

/* In 10^9 a second. */
static double rate(double done, int64_t ns) { return done > 0.0 && ns > 0 ? done / (double)ns : NAN; }
static double giga(double peak) { return peak > 0.0 ? peak * 1e-9 : NAN; }

static line line_of(const report *r, const ddp_profile_row *from, int64_t all_ns)
{
    const ddp_device_peaks *peaks = &r->p->peaks;
    line l = {.name = from->name,
              .limit = "-",
              .calls = (double)from->calls / (double)r->steps,
              .ms = (double)from->ns * 1e-6 / (double)r->steps,
              .share = 100.0 * (double)from->ns / (double)all_ns,
              .gflops = rate(from->flops, from->ns),
              .gbytes = rate(from->bytes, from->ns)};
    double compute = 100.0 * l.gflops / giga(peaks->flops_per_s), memory = 100.0 * l.gbytes / giga(peaks->bytes_per_s);

    l.percent = fmax(compute, memory); /* of a number and NaN the number */
    if (isfinite(l.percent)) l.limit = l.percent == compute ? "compute" : "memory";
    return l;
}

static int by_time(const void *a, const void *b)
{
    double x = ((const line *)a)->ms, y = ((const line *)b)->ms;

    return x < y ? 1 : x > y ? -1 : 0;
}

static ddp_status make_report(const ddp_profile *p, report *r, ddp_err *err)
{
    const ddp_profile_totals *t = p->later.steps > 0 ? &p->later : &p->early;
    ddp_profile_row all = {.name = "total", .calls = 0, .ns = t->ns};
    int64_t known = 0;

    *r = (report){.p = p, .steps = t->steps, .left_out = t == &p->later ? p->early.steps : 0};
    r->lines = ddp_alloc(p->row_count * sizeof(*r->lines), err);
    if (r->lines == NULL) return err->status;
    for (uint32_t i = 0; i < p->row_count; i++) known += t->rows[i].ns;
    for (uint32_t i = 0; i < p->row_count; i++) {
        ddp_profile_row from = t->rows[i];

        if (from.calls == 0) continue; /* of a batch size that did not come */
        if (i == DDP_ROW_OTHER) from.ns = DDP_MAX_OF(t->ns - known, 0);
        r->lines[r->count++] = line_of(r, &from, t->ns);
        all.calls += from.calls;
        all.flops += from.flops;
        all.bytes += from.bytes;
    }
    qsort(r->lines, r->count, sizeof(*r->lines), by_time);
    r->total = line_of(r, &all, t->ns);
    return DDP_OK;
}

/* A column of the table: the number, or a dash. */
static const char *cell(double v, int digits, char buf[32])
{
    (void)snprintf(buf, 32, isfinite(v) ? "%.*f" : "-", digits, v);
    return buf;
}

static void print_line(const line *l, int width, ddp_text *out)
{
    char flops[32], bytes[32], percent[32];

    ddp_text_printf(out, "%-*s %9.2f %10.4f %7.2f %9s %8s %9s  %s\n", width, l->name, l->calls, l->ms, l->share,
                    cell(l->gflops, 2, flops), cell(l->gbytes, 2, bytes), cell(l->percent, 1, percent), l->limit);
}

static void print_table(const report *r, ddp_text *out)
{
    const ddp_session *s = r->p->s;
    char flops[32], bytes[32];
    int width = 6;

    for (uint32_t i = 0; i < r->count; i++) width = DDP_MAX_OF(width, (int)strlen(r->lines[i].name));
    ddp_text_printf(out, "profile of rank 0: %" PRIu64 " step%s counted", r->steps, r->steps == 1 ? "" : "s");
    if (r->left_out > 0) ddp_text_printf(out, ", the first %" PRIu64 " left out", r->left_out);
    ddp_text_printf(out, "; peaks measured with %u thread%s: %s GFLOP/s (%s), %s GB/s\n", s->device.threads,
                    s->device.threads == 1 ? "" : "s", cell(giga(r->p->peaks.flops_per_s), 1, flops),
                    ddp_session_precision(s), cell(giga(r->p->peaks.bytes_per_s), 1, bytes));
    ddp_text_printf(out, "%-*s %9s %10s %7s %9s %8s %9s  %s\n", width, "kernel", "calls", "ms/step", "share %",
                    "GFLOP/s", "GB/s", "% of peak", "limit");
    for (uint32_t i = 0; i < r->count; i++) print_line(&r->lines[i], width, out);
    print_line(&r->total, width, out);
}

/* ---- profile.json ---------------------------------------------------------------------------------------------- */
static json_t *number(double v) { return isfinite(v) ? json_real(v) : json_null(); }

static json_t *line_json(const line *l)
{
    return json_pack("{s:s, s:f, s:f, s:f, s:o, s:o, s:o, s:s?}", "name", l->name, "calls", l->calls, "ms", l->ms,
                     "share", l->share, "gflops", number(l->gflops), "gbytes_per_s", number(l->gbytes),
                     "percent_of_peak", number(l->percent), "limit", isfinite(l->percent) ? l->limit : NULL);
}

static char *report_json(const report *r)
{
    const ddp_session *s = r->p->s;
    json_t *rows = json_array(), *o;
    int bad = rows == NULL;
    char *data;

    for (uint32_t i = 0; i < r->count && !bad; i++) bad = json_array_append_new(rows, line_json(&r->lines[i])) != 0;
    o = json_pack("{s:I, s:I, s:i, s:i, s:s, s:o, s:o, s:o, s:o}", "steps", (json_int_t)r->steps, "left_out",
                  (json_int_t)r->left_out, "world_size", (int)s->launch.world, "threads", (int)s->device.threads,
                  "precision", ddp_session_precision(s), "peak_gflops", number(giga(r->p->peaks.flops_per_s)),
                  "peak_gbytes_per_s", number(giga(r->p->peaks.bytes_per_s)), "rows", rows, "total",
                  line_json(&r->total));
    data = bad || o == NULL ? NULL : json_dumps(o, JSON_INDENT(2) | JSON_REAL_PRECISION(9));
    json_decref(o);
    return data;
}

static ddp_status write_json(const report *r, ddp_err *err)
{
    const char *dir = r->p->s->config->output->dir;
    char path[4096], *data;
    ddp_status st;

    if (dir[0] == '\0') return DDP_OK;
    data = report_json(r);
    if (data == NULL) return ddp_fail(err, DDP_ERR_NOMEM, "out of memory for profile.json");
    (void)snprintf(path, sizeof(path), "%s/profile.json", dir);
    st = ddp_file_replace(path, data, strlen(data), err);
    free(data);
    return st;
}

ddp_status ddp_profile_report(const ddp_profile *p, ddp_err *err)
{
    report r;
    ddp_text table = {0};
    ddp_err unseen; /* as for a line of the log, a stream that takes nothing is no failure */
    ddp_status st;

    if (p == NULL || p->early.steps == 0) return DDP_OK;
    DDP_TRY(make_report(p, &r, err));
    print_table(&r, &table);
    if (!table.failed) (void)ddp_write_all(p->s->log->fd, table.data, table.length, "profile", &unseen);
    ddp_text_free(&table);
    st = write_json(&r, err);
    free(r.lines);
    return st;
}
