/* cli/report/ranks_read.c -- reads ranks.jsonl, and merges neighbours of many intervals. See ranks.h. */
#include "cli/report/ranks.h"
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

const char *const report_rank_fields[RANK_FIELDS] = {
    [RANK_STEP] = "step_ms", [RANK_DATA] = "data_ms",     [RANK_COMPUTE] = "compute_ms",
    [RANK_WAIT] = "wait_ms", [RANK_UPDATE] = "update_ms", [RANK_CHECKPOINT] = "checkpoint_ms"};

/* ---- merging ----------------------------------------------------------------------------------------------------- */
static void drop(report_interval *v)
{
    free(v->cells);
    *v = (report_interval){0};
}

static void merge_cell(report_cell *to, const report_cell *from)
{
    for (size_t f = 0; f < RANK_FIELDS; f++) {
        double steps = to->ms_steps[f] + from->ms_steps[f];

        if (!(from->ms_steps[f] > 0.0)) continue;
        to->ms[f] = to->ms_steps[f] > 0.0
                        ? to->ms[f] * (to->ms_steps[f] / steps) + from->ms[f] * (from->ms_steps[f] / steps)
                        : from->ms[f];
        to->ms_steps[f] = steps;
    }
    to->own_steps += from->own_steps;
    to->slowest_steps += from->slowest_steps;
}

/* Empties `from`, which comes next. */
static void merge(report_interval *to, report_interval *from)
{
    if (from->ranks > to->ranks) { /* into the larger of both */
        report_cell *cells = to->cells;
        size_t ranks = to->ranks;

        to->cells = from->cells;
        to->ranks = from->ranks;
        from->cells = cells;
        from->ranks = ranks;
    }
    for (size_t i = 0; i < from->ranks; i++) merge_cell(&to->cells[i], &from->cells[i]);
    to->step = from->step;
    to->steps += from->steps;
    to->lines += from->lines;
    drop(from);
}

/* At least twice as many as the page has columns. */
static size_t kept_most(size_t ranks)
{
    enum { LEAST = 64, MOST = 1024, CELLS = 1 << 17 };

    return DDP_MAX_OF((size_t)LEAST, DDP_MIN_OF((size_t)MOST, (size_t)CELLS / DDP_MAX_OF(ranks, (size_t)1)));
}

static void merge_pairs(report_ranks *r)
{
    size_t to = 1;

    for (size_t i = 1; i < r->count; i += 2, to++) {
        report_interval pair = r->intervals[i];

        if (i + 1 < r->count) merge(&pair, &r->intervals[i + 1]);
        r->intervals[to] = pair;
    }
    r->count = to;
    r->merged *= 2;
}

static ddp_status append(report_ranks *r, report_interval *v, ddp_err *err)
{
    if (r->merged == 0) r->merged = 1;
    r->ranks = DDP_MAX_OF(r->ranks, v->ranks);
    if (r->count > 1 && r->intervals[r->count - 1].lines < r->merged) {
        merge(&r->intervals[r->count - 1], v);
        return DDP_OK;
    }
    if (r->count == r->capacity) {
        size_t capacity = r->capacity * 2 + 64;
        report_interval *intervals = realloc(r->intervals, capacity * sizeof(*intervals));

        if (intervals == NULL) return ddp_fail(err, DDP_ERR_NOMEM, "out of memory for the times of ranks");
        r->intervals = intervals;
        r->capacity = capacity;
    }
    r->intervals[r->count++] = *v;
    *v = (report_interval){0};
    while (r->count >= kept_most(r->ranks)) merge_pairs(r);
    return DDP_OK;
}

/* Intervals that have steps which are made again are void. */
static void cut(report_ranks *r, double after)
{
    while (r->count > 0 && r->intervals[r->count - 1].step > after) drop(&r->intervals[--r->count]);
}

/* ---- reading ----------------------------------------------------------------------------------------------------- */
/* The rank that has place `i` in the arrays of a line: another one where ranks are missing. */
static size_t rank_at(const report_ranks *r, size_t i)
{
    const json_t *v = json_array_get(r->numbers, i);

    return json_is_integer(v) && json_integer_value(v) >= 0 && json_integer_value(v) < REPORT_RANKS_MOST
               ? (size_t)json_integer_value(v)
               : i;
}

static size_t places_of(const report_ranks *r, const json_t *line)
{
    size_t most = 0, own;

    for (int f = 0; f < RANK_FIELDS; f++) {
        own = json_array_size(json_object_get(line, report_rank_fields[f]));
        most = DDP_MAX_OF(most, own);
    }
    return DDP_MIN_OF(most, r->world > 0 ? r->world : (size_t)REPORT_RANKS_MOST);
}

static void take_start(report_ranks *r, json_t *line)
{
    const json_t *host;
    size_t i;

    r->world = (size_t)DDP_MIN_OF(report_count_of(line, "world_size"), (uint64_t)REPORT_RANKS_MOST);
    json_decref(r->numbers);
    r->numbers = json_incref(json_object_get(line, "ranks"));
    if (r->hosts == NULL) r->hosts = json_array();
    json_array_foreach(json_object_get(line, "hosts"), i, host)
    {
        size_t rank = rank_at(r, i);

        if (i == (r->world > 0 ? r->world : (size_t)REPORT_RANKS_MOST)) break;
        while (json_array_size(r->hosts) <= rank && r->hosts != NULL) report_push(&r->hosts, json_null());
        (void)json_array_set_new(r->hosts, rank, report_string(json_string_value(host)));
    }
}

static void take_numbers(const report_ranks *r, const json_t *line, size_t places, report_interval *v)
{
    for (size_t i = 0; i < v->ranks; i++)
        for (size_t f = 0; f < RANK_FIELDS; f++) v->cells[i].ms[f] = NAN;
    for (size_t f = 0; f < RANK_FIELDS; f++)
        for (size_t i = 0; i < places; i++) {
            const json_t *n = json_array_get(json_object_get(line, report_rank_fields[f]), i);
            report_cell *cell = &v->cells[rank_at(r, i)];

            if (!json_is_number(n) || !isfinite(json_number_value(n))) continue;
            cell->ms[f] = json_number_value(n);
            cell->ms_steps[f] = v->steps;
        }
}

/* Which rank had most to do: the others wait for it. */
static void find_slowest(report_interval *v)
{
    report_cell *slowest = NULL;
    double most = -INFINITY;

    for (size_t i = 0; i < v->ranks; i++) {
        report_cell *cell = &v->cells[i];
        double own = cell->ms[RANK_COMPUTE] + cell->ms[RANK_DATA] + cell->ms[RANK_UPDATE];

        if (isfinite(own)) cell->own_steps = v->steps;
        if (!(own > most)) continue;
        most = own;
        slowest = cell;
    }
    if (slowest != NULL) slowest->slowest_steps = v->steps;
}

static ddp_status take_interval(report_ranks *r, const json_t *line, ddp_err *err)
{
    report_interval v = {
        .step = (double)report_count_of(line, "step"), .steps = (double)report_count_of(line, "steps"), .lines = 1};
    size_t places = places_of(r, line);
    ddp_status st;

    if (v.step < 1.0 || v.steps < 1.0 || places == 0) return DDP_OK;
    for (size_t i = 0; i < places; i++) v.ranks = DDP_MAX_OF(v.ranks, rank_at(r, i) + 1);
    cut(r, v.step - DDP_MIN_OF(v.steps, v.step));
    v.cells = ddp_alloc(v.ranks * sizeof(*v.cells), err);
    if (v.cells == NULL) return err->status;
    take_numbers(r, line, places, &v);
    find_slowest(&v);
    st = append(r, &v, err);
    drop(&v);
    return st;
}

static ddp_status take(void *context, json_t *line, ddp_err *err)
{
    const char *event = json_string_value(json_object_get(line, "event"));

    if (event != NULL && strcmp(event, "start") == 0) take_start(context, line);
    return event != NULL && strcmp(event, "ranks") == 0 ? take_interval(context, line, err) : DDP_OK;
}

ddp_status report_ranks_read(const char *dir, report_ranks *out, ddp_err *err)
{
    char path[4096];
    bool there;

    *out = (report_ranks){0};
    if ((size_t)snprintf(path, sizeof(path), "%s/ranks.jsonl", dir) >= sizeof(path)) return DDP_OK;
    return report_read_lines(path, take, out, &there, err);
}

void report_ranks_free(report_ranks *r)
{
    cut(r, -1.0);
    free(r->intervals);
    json_decref(r->hosts);
    json_decref(r->numbers);
}
