/* observe/ranks/ranks.c -- see ranks.h. What is allocated is at the start. */
#include "observe/ranks/ranks.h"
#include "control/group.h"
#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define NUMBER 16  /* characters of one in an array, ", " with it */
#define HEAD   256 /* of a line without its arrays */
#define RECENT 0.3 /* weight of the newest interval */

static const char *const names[DDP_TIMES] = {
    [DDP_TIME_STEP] = "step_ms", [DDP_TIME_DATA] = "data_ms",     [DDP_TIME_COMPUTE] = "compute_ms",
    [DDP_TIME_WAIT] = "wait_ms", [DDP_TIME_UPDATE] = "update_ms", [DDP_TIME_CHECKPOINT] = "checkpoint_ms"};

/* ---- lines ------------------------------------------------------------------------------------------------------- */
/* {"event": "start", "time": .., "world_size": 2, "hosts": ["a", "a"], "ranks": [0, 1], "generation": 0} */
static void write_start(ddp_ranks *r)
{
    struct timespec now = {0};
    ddp_text t = {0};

    (void)clock_gettime(CLOCK_REALTIME, &now);
    ddp_text_printf(&t, "{\"event\": \"start\", \"time\": %lld.%03ld, \"world_size\": %d, \"hosts\": [",
                    (long long)now.tv_sec, now.tv_nsec / 1000000, (int)r->world);
    for (int32_t i = 0; i < r->world; i++) { /* host names are printable, and have no quotes */
        ddp_text_printf(&t, "%s\"", i > 0 ? ", " : "");
        for (const char *c = ddp_group_host_of(r->group, i); *c != '\0'; c++)
            ddp_text_printf(&t, "%s%c", *c == '"' || *c == '\\' ? "\\" : "", *c);
        ddp_text_printf(&t, "\"");
    }
    ddp_text_printf(&t, "], \"ranks\": [");
    for (int32_t i = 0; i < r->world; i++)
        ddp_text_printf(&t, "%s%d", i > 0 ? ", " : "", (int)ddp_group_home(r->group, i));
    ddp_text_printf(&t, "], \"generation\": %" PRIu32 "}\n", ddp_group_generation(r->group));
    if (!t.failed) observe_metrics_line(&r->file, t.data);
    ddp_text_free(&t);
}

static void write_interval(ddp_ranks *r)
{
    char number[32];
    int n = snprintf(r->line, r->capacity,
                     "{\"event\": \"ranks\", \"step\": %" PRIu64 ", \"steps\": %" PRIu64 ", \"generation\": %" PRIu32,
                     r->times.step, r->times.steps, ddp_group_generation(r->group));

    for (int k = 0; k < DDP_TIMES; k++) {
        n += snprintf(r->line + n, r->capacity - (size_t)n, ", \"%s\": [", names[k]);
        for (int32_t i = 0; i < r->world; i++)
            n += snprintf(r->line + n, r->capacity - (size_t)n, "%s%s", i > 0 ? ", " : "",
                          observe_json_number(r->times.ms[k * r->world + i], "%.6g", number));
        n += snprintf(r->line + n, r->capacity - (size_t)n, "]");
    }
    (void)snprintf(r->line + n, r->capacity - (size_t)n, "}\n");
    observe_metrics_line(&r->file, r->line);
}

/* ---- the slowest rank -------------------------------------------------------------------------------------------- */
double observe_ranks_busy_ms(const ddp_ranks *r, int32_t rank)
{
    const ptrdiff_t world = r->world;
    const double *ms = r->times.ms + rank;

    return ms[DDP_TIME_COMPUTE * world] + ms[DDP_TIME_DATA * world] + ms[DDP_TIME_UPDATE * world];
}

static int by_size(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;

    return (x > y) - (x < y);
}

/* Of `busy` by rank, of which some may be NaN. */
static ddp_slowest slowest_of(ddp_ranks *r, const double *busy)
{
    ddp_slowest s = {.rank = -1, .busy_ms = -1.0};
    size_t n = 0;
    double median;

    for (int32_t i = 0; i < r->world; i++) {
        if (!(busy[i] > s.busy_ms)) continue;
        s.rank = i;
        s.busy_ms = busy[i];
    }
    for (int32_t i = 0; i < r->world; i++)
        if (i != s.rank && !isnan(busy[i])) r->sorted[n++] = busy[i];
    if (n == 0) return (ddp_slowest){.rank = -1};
    qsort(r->sorted, n, sizeof(*r->sorted), by_size);
    median = n % 2 == 1 ? r->sorted[n / 2] : 0.5 * (r->sorted[n / 2 - 1] + r->sorted[n / 2]);
    s.excess = median > 0.0 ? s.busy_ms / median - 1.0 : 0.0;
    s.host = ddp_group_host_of(r->group, s.rank);
    s.rank = ddp_group_home(r->group, s.rank);
    return s;
}

ddp_slowest observe_ranks_of_run(ddp_ranks *r)
{
    if (r->group == NULL) return (ddp_slowest){.rank = -1};
    for (int32_t i = 0; i < r->world; i++) r->recent[i] = r->steps[i] > 0 ? r->sum[i] / (double)r->steps[i] : NAN;
    return slowest_of(r, r->recent);
}

bool observe_ranks_take(ddp_ranks *r, bool last)
{
    if (r->group == NULL || !ddp_group_times_take(r->group, last, &r->times)) return false;
    write_interval(r);
    for (int32_t i = 0; i < r->world; i++) {
        double busy = observe_ranks_busy_ms(r, i);

        if (isnan(busy)) continue;
        r->recent[i] = isnan(r->recent[i]) ? busy : (1.0 - RECENT) * r->recent[i] + RECENT * busy;
        if (r->times.step == r->times.steps) continue; /* the first step compiles and warms up: it is not typical */
        r->sum[i] += busy * (double)r->times.steps;
        r->steps[i] += r->times.steps;
    }
    r->slowest = slowest_of(r, r->recent);
    return true;
}

/* ---- life -------------------------------------------------------------------------------------------------------- */
ddp_status observe_ranks_open(ddp_ranks *r, const ddp_observe_params *p, const char *dir, ddp_err *err)
{
    size_t world = p->group == NULL ? 1 : (size_t)ddp_group_world(p->group);

    r->slowest.rank = -1;
    r->file.fd = -1;
    if (world == 1) return DDP_OK;
    r->world = (int32_t)world;
    r->capacity = HEAD + DDP_TIMES * (NUMBER * world + NUMBER);
    r->line = ddp_alloc(r->capacity, err);
    r->times.ms = ddp_alloc((DDP_TIMES + 3) * world * sizeof(*r->times.ms), err);
    r->steps = ddp_alloc(world * sizeof(*r->steps), err);
    if (r->line == NULL || r->times.ms == NULL || r->steps == NULL) return err->status;
    r->recent = r->times.ms + DDP_TIMES * world;
    r->sum = r->recent + world;
    r->sorted = r->sum + world;
    for (size_t i = 0; i < world; i++) r->recent[i] = NAN;
    DDP_TRY(observe_metrics_open(&r->file, dir, "ranks.jsonl", 2 * r->capacity, p->append, p->log, err));
    r->group = p->group;
    write_start(r);
    return DDP_OK;
}

void observe_ranks_flush(ddp_ranks *r) { observe_metrics_flush(&r->file); }

void observe_ranks_close(ddp_ranks *r)
{
    observe_metrics_close(&r->file);
    free(r->line);
    free(r->times.ms);
    free(r->steps);
}
