/* cli/report/ranks.c -- see ranks.h. */
#include "cli/report/ranks.h"
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- means ------------------------------------------------------------------------------------------------------- */
/* The mean of a step over intervals first .. end - 1. NaN: nothing arrived. */
static double mean(const report_ranks *r, size_t field, size_t rank, size_t first, size_t end)
{
    double sum = 0.0, steps = 0.0, only = NAN;
    size_t count = 0;

    for (size_t i = first; i < end; i++) {
        const report_cell *cell = rank < r->intervals[i].ranks ? &r->intervals[i].cells[rank] : NULL;

        if (cell == NULL || !isfinite(cell->ms[field])) continue;
        only = cell->ms[field];
        sum += only * cell->ms_steps[field];
        steps += cell->ms_steps[field];
        count++;
    }
    return count > 1 ? sum / steps : only; /* digit for digit */
}

report_rank_totals *report_ranks_totals(const report_ranks *r)
{
    report_rank_totals *t = calloc(r->ranks + 1, sizeof(*t));
    size_t first = r->count > 1 && r->intervals[0].step <= r->intervals[0].steps ? 1 : 0;

    for (size_t i = 0; t != NULL && i < r->ranks; i++) {
        for (size_t f = 0; f < RANK_FIELDS; f++) t[i].ms[f] = mean(r, f, i, first, r->count);
        t[i].own_ms = t[i].ms[RANK_COMPUTE] + t[i].ms[RANK_DATA] + t[i].ms[RANK_UPDATE];
    }
    for (size_t k = first; t != NULL && k < r->count; k++)
        for (size_t i = 0; i < r->intervals[k].ranks; i++) {
            t[i].steps += r->intervals[k].cells[i].own_steps;
            t[i].slowest_steps += r->intervals[k].cells[i].slowest_steps;
        }
    return t;
}

/* ---- the slowest ------------------------------------------------------------------------------------------------- */
static int by_value(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;

    return x < y ? -1 : x > y;
}

static double total_of(const report_rank_totals *t, int field) { return field < 0 ? t->own_ms : t->ms[field]; }

/* The median of all ranks but one; field -1: own_ms. NaN: there is none. */
static double median_of_others(const report_ranks *r, const report_rank_totals *t, int field, size_t without)
{
    double *all = calloc(r->ranks + 1, sizeof(*all)), median = NAN;
    size_t count = 0;

    for (size_t i = 0; all != NULL && i < r->ranks; i++)
        if (i != without && isfinite(total_of(&t[i], field))) all[count++] = total_of(&t[i], field);
    if (count > 0) {
        qsort(all, count, sizeof(*all), by_value);
        median = count % 2 == 1 ? all[count / 2] : 0.5 * (all[count / 2 - 1] + all[count / 2]);
    }
    free(all);
    return median;
}

static const char *host_of(const report_ranks *r, size_t rank)
{
    const char *host = json_string_value(json_array_get(r->hosts, rank));

    return host != NULL ? host : "";
}

/* Which part of its work is most above that of the others. */
static const char *reason_of(const report_ranks *r, const report_rank_totals *t, size_t rank)
{
    static const int parts[] = {RANK_COMPUTE, RANK_DATA, RANK_UPDATE};
    static const char *const names[] = {"computing", "waiting for data", "the update"};
    double most = -INFINITY;
    size_t best = 0;

    for (size_t i = 0; i < DDP_COUNT(parts); i++) {
        double more = t[rank].ms[parts[i]] - median_of_others(r, t, parts[i], rank);

        if (!(more > most)) continue;
        most = more;
        best = i;
    }
    return names[best];
}

int report_ranks_sentence(const report_ranks *r, const report_rank_totals *totals, ddp_text *out)
{
    enum { NOTABLE = 5 }; /* percent */
    int slowest = -1;
    double others, more;

    for (size_t i = 0; i < r->ranks; i++)
        if (isfinite(totals[i].own_ms) && (slowest < 0 || totals[i].own_ms > totals[slowest].own_ms)) slowest = (int)i;
    others = slowest < 0 ? NAN : median_of_others(r, totals, -1, (size_t)slowest);
    if (slowest < 0 || !(others > 0.0)) return -1;
    more = 100.0 * (totals[slowest].own_ms / others - 1.0);
    if (more < NOTABLE) {
        ddp_text_printf(
            out,
            "No rank is much slower than the others: rank %d has the most work, %.3g ms in each step, %.2g %% more than the median of the others.",
            slowest, totals[slowest].own_ms, more);
        return slowest;
    }
    ddp_text_printf(out, "Rank %d", slowest);
    if (host_of(r, (size_t)slowest)[0] != '\0') ddp_text_printf(out, " on %s", host_of(r, (size_t)slowest));
    ddp_text_printf(
        out,
        " is the slowest: %.3g ms of work in each step, %.3g ms (%.0f %%) more than the median of the others, most of it %s. "
        "It was the slowest in %.0f %% of the steps.",
        totals[slowest].own_ms, totals[slowest].own_ms - others, more, reason_of(r, totals, (size_t)slowest),
        100.0 * totals[slowest].slowest_steps / fmax(1.0, totals[slowest].steps));
    return slowest;
}

/* ---- for the page ------------------------------------------------------------------------------------------------ */
static json_t *field_json(const report_ranks *r, size_t field, size_t columns)
{
    json_t *ranks = json_array();

    for (size_t i = 0; i < r->ranks; i++) {
        json_t *row = json_array();

        for (size_t k = 0; k < columns; k++)
            report_push(&row, report_number(mean(r, field, i, r->count * k / columns, r->count * (k + 1) / columns)));
        report_push(&ranks, row);
    }
    return ranks;
}

static json_t *totals_json(const report_ranks *r, const report_rank_totals *t)
{
    json_t *ranks = json_array();

    for (size_t i = 0; i < r->ranks; i++) {
        json_t *o = json_object();

        for (size_t f = 0; f < RANK_FIELDS; f++) report_put(&o, report_rank_fields[f], report_number(t[i].ms[f]));
        report_put(&o, "own_ms", report_number(t[i].own_ms));
        report_put(&o, "steps", report_number(t[i].steps));
        report_put(&o, "slowest_steps", report_number(t[i].slowest_steps));
        report_push(&ranks, o);
    }
    return ranks;
}

json_t *report_ranks_json(const report_ranks *r, size_t cells)
{
    enum { LEAST = 20, MOST = 400 };
    size_t columns = DDP_MAX_OF((size_t)LEAST, DDP_MIN_OF((size_t)MOST, cells / DDP_MAX_OF(r->ranks, (size_t)1)));
    report_rank_totals *totals = report_ranks_totals(r);
    json_t *o = json_object(), *step = json_array(), *steps = json_array();
    ddp_text sentence = {0};
    size_t lines = 0;

    for (size_t i = 0; i < r->count; i++) lines += r->intervals[i].lines;
    columns = DDP_MIN_OF(columns, r->count);
    for (size_t k = 0; k < columns; k++) {
        size_t first = r->count * k / columns, end = r->count * (k + 1) / columns;
        double covered = 0.0;

        for (size_t i = first; i < end; i++) covered += r->intervals[i].steps;
        report_push(&step, report_number(r->intervals[end - 1].step));
        report_push(&steps, report_number(covered));
    }
    report_put(&o, "ranks", json_integer((json_int_t)r->ranks));
    report_put(&o, "hosts", r->hosts != NULL ? json_incref(r->hosts) : json_array());
    report_put(&o, "intervals", json_integer((json_int_t)lines));
    report_put(&o, "step", step);
    report_put(&o, "steps", steps);
    for (size_t f = 0; f < RANK_FIELDS; f++) report_put(&o, report_rank_fields[f], field_json(r, f, columns));
    if (totals != NULL) {
        report_put(&o, "slowest", json_integer(report_ranks_sentence(r, totals, &sentence)));
        report_put(&o, "sentence", report_string(sentence.data));
        report_put(&o, "totals", totals_json(r, totals));
    }
    ddp_text_free(&sentence);
    free(totals);
    return o;
}
