/* conform/bench/bench.c -- all_reduce timed on each rank: every backend in the same processes, in turn, round after
 * round, so that what else the machine does hits all of them alike.
 *
 * A sample is the mean time of one call in a batch of about BATCH_NS; of a sample the slowest rank counts, of the
 * rounds the minimum and the median. Zeros are reduced while the clock runs, known values afterwards, to count what
 * is wrong. */
#include "conform/bench/bench.h"
#include "comm/communicator.h"
#include "conform/backend/pattern.h"
#include "conform/backend/trial.h"
#include <errno.h>
#include <inttypes.h>
#include <jansson.h>
#include <stdlib.h>
#include <string.h>

enum { BATCH_NS = 10000000, ITERATIONS_MAX = 20000, CALIBRATE = 3, TIMEOUT_MS = 300000, ROUNDS_MAX = 101 };

typedef struct side {   /* one backend */
    ddp_rank_process a; /* its registry, plugin and options; group and threads are the bench's own */
    ddp_trial t;
    ddp_communicator *queue; /* instead of `t` */
    float *send, *recv;
    bool own; /* buffers of the backend */
    uint32_t iterations;
    double samples[2][ROUNDS_MAX]; /* us; [0] out of place */
} side;

typedef struct bench {
    ddp_rank_process *a;
    const ddp_bench_plan *plan;
    side *sides;
    uint32_t gathers; /* names of gathers */
    ddp_err err;
} bench;

/* ---- rows -------------------------------------------------------------------------------------------------------- */
/* In the columns of nccl-tests, or as JSON. On rank 0; rows go out as they come, or with JSON all at the end:
 * `document` (json_t) collects them. */
typedef struct row { /* one backend, one size; [0] out of place, [1] in place */
    const char *backend;
    uint64_t bytes, wrong[2];
    uint32_t iterations;
    double min_us[2], median_us[2]; /* of one all_reduce, the slowest rank's, over the rounds */
} row;

/* 1e9 bytes a second: of the data, and of what travels, as nccl-tests defines them. */
static double algbw(const row *r, uint32_t in_place)
{
    return r->median_us[in_place] > 0 ? (double)r->bytes / r->median_us[in_place] / 1e3 : 0;
}

static double busbw(const row *r, uint32_t in_place, uint32_t world)
{
    return algbw(r, in_place) * 2 * (world - 1) / world;
}

static void print_head(const ddp_bench_plan *p, uint32_t world, void **document)
{
    if (p->json) {
        *document = json_pack("{s:s, s:i, s:s, s:s, s:s, s:i, s:[]}", "collective", "all_reduce", "world_size",
                              (int)world, "type", "f32", "redop", "sum", "through", p->queue ? "queue" : "slots",
                              "rounds", (int)p->rounds, "results");
        return;
    }
    (void)printf("# all_reduce, %u ranks, %s; the backends in turn, minimum and median (time) of %u rounds\n", world,
                 p->queue ? "through the work queue" : "slots called directly", p->rounds);
    (void)printf("#%55s%-52s%s\n", "", "out-of-place", "in-place");
    (void)printf("#%10s %11s %5s %6s  %-12s", "size", "count", "type", "redop", "backend");
    for (int in_place = 0; in_place < 2; in_place++)
        (void)printf(" %10s %10s %8s %8s %7s ", "min", "time", "algbw", "busbw", "#wrong");
    (void)printf("\n#%10s %11s %5s %6s  %-12s", "(B)", "(elements)", "", "", "");
    for (int in_place = 0; in_place < 2; in_place++)
        (void)printf(" %10s %10s %8s %8s %7s ", "(us)", "(us)", "(GB/s)", "(GB/s)", "");
    (void)printf("\n");
    (void)fflush(stdout);
}

static void add_json(const row *r, uint32_t world, json_t *document)
{
    for (uint32_t in_place = 0; in_place < 2; in_place++) {
        json_t *row = json_pack("{s:s, s:I, s:I, s:b, s:i, s:f, s:f, s:f, s:f, s:I}", "backend", r->backend, "size",
                                (json_int_t)r->bytes, "count", (json_int_t)(r->bytes / sizeof(float)), "in_place",
                                (int)in_place, "iterations", (int)r->iterations, "min_us", r->min_us[in_place],
                                "time_us", r->median_us[in_place], "algbw_gbps", algbw(r, in_place), "busbw_gbps",
                                busbw(r, in_place, world), "wrong", (json_int_t)r->wrong[in_place]);

        (void)json_array_append_new(json_object_get(document, "results"), row);
    }
}

static void print_row(const ddp_bench_plan *p, uint32_t world, const row *r, void *document)
{
    if (p->json) return add_json(r, world, document);
    (void)printf(" %10llu %11llu %5s %6s  %-12s", (unsigned long long)r->bytes,
                 (unsigned long long)(r->bytes / sizeof(float)), "f32", "sum", r->backend);
    for (uint32_t in_place = 0; in_place < 2; in_place++)
        (void)printf(" %10.2f %10.2f %8.2f %8.2f %7llu ", r->min_us[in_place], r->median_us[in_place],
                     algbw(r, in_place), busbw(r, in_place, world), (unsigned long long)r->wrong[in_place]);
    (void)printf("\n");
    (void)fflush(stdout);
}

static bool print_tail(const ddp_bench_plan *p, void *document)
{
    if (p->json) {
        (void)json_dumpf(document, stdout, JSON_INDENT(2) | JSON_REAL_PRECISION(6));
        (void)printf("\n");
        json_decref(document);
    }
    return fflush(stdout) == 0 && ferror(stdout) == 0;
}

/* ---- buffers and communicators ----------------------------------------------------------------------------------- */
static ddp_status buffer(side *s, size_t bytes, float **out, ddp_err *err)
{
    void *p = NULL;

    if (s->own && s->queue != NULL)
        DDP_TRY(ddp_communicator_alloc(s->queue, bytes, &p, err));
    else if (s->own)
        DDP_TRY(s->a.ops->mem_alloc(s->t.comm, bytes, &p, err));
    else
        p = ddp_alloc_aligned(bytes, err);
    *out = p;
    return p == NULL ? err->status : DDP_OK;
}

static ddp_status open_side(bench *b, uint32_t i, size_t bytes)
{
    side *s = &b->sides[i];
    const char *settings = "";
    char name[32];

    s->a = *b->a;
    s->a.registry = NULL;
    s->a.plugin = s->a.hierarchy = NULL;
    s->a.ini = NULL;
    s->a.settings = (ddp_settings){0};
    s->t.comm = NULL;
    DDP_TRY(ddp_rank_process_load(&s->a, DDP_KIND_BACKEND, b->plan->paths[i], settings, &b->err));
    s->a.ops = s->a.plugin->ops;
    (void)snprintf(name, sizeof(name), "bench-%u", i);
    if (b->plan->queue)
        DDP_TRY(ddp_communicator_open(b->a->group, s->a.plugin, &s->a.host, s->a.config, -1, TIMEOUT_MS, &s->queue,
                                      &b->err));
    else
        DDP_TRY(ddp_trial_open(&s->t, &s->a, name, TIMEOUT_MS, &b->err));
    s->own = (s->a.ops->caps & DDP_CAP_MEM_ALLOC) != 0;
    DDP_TRY(buffer(s, bytes, &s->send, &b->err));
    return buffer(s, bytes, &s->recv, &b->err);
}

static void release(side *s, float *p)
{
    if (p == NULL) return;
    if (s->own && s->queue != NULL)
        ddp_communicator_free(s->queue, p);
    else if (s->own)
        s->a.ops->mem_free(s->t.comm, p);
    else
        free(p);
}

static void close_side(side *s)
{
    release(s, s->recv);
    release(s, s->send);
    if (s->queue != NULL) (void)ddp_communicator_close(s->queue);
    if (s->t.comm != NULL) ddp_trial_close(&s->t);
    ddp_rank_process_unload(&s->a);
}

/* ---- calls ------------------------------------------------------------------------------------------------------- */
static ddp_status run_slots(side *s, const ddp_coll *args, uint32_t n, ddp_err *err)
{
    const ddp_backend_ops *ops = s->a.ops;
    bool async = (ops->caps & DDP_CAP_ASYNC) != 0;
    ddp_comm *comm = s->t.comm;

    for (uint32_t i = 0; i < n; i++) {
        ddp_work *work = NULL;
        ddp_status st = ops->all_reduce(comm, args, &work, err);

        if (st == DDP_OK && async && work != NULL) {
            st = ops->work_wait(work, TIMEOUT_MS, err);
            ops->work_free(work);
        }
        if (st != DDP_OK) return st;
    }
    return DDP_OK;
}

static ddp_status run_calls(side *s, uint64_t bytes, bool in_place, uint32_t n, ddp_err *err)
{
    ddp_task task = {.what = DDP_COLL_ALL_REDUCE,
                     .coll = {.struct_size = sizeof(task.coll),
                              .dtype = DDP_F32,
                              .op = DDP_SUM,
                              .send = in_place ? s->recv : s->send,
                              .recv = s->recv,
                              .count = bytes / sizeof(float)}};

    if (s->queue == NULL) return run_slots(s, &task.coll, n, err);
    for (uint32_t i = 0; i < n; i++) DDP_TRY(ddp_communicator_run(s->queue, &task, err));
    return DDP_OK;
}

/* Mean time of a call in us; one call before it lets the ranks begin together. */
static ddp_status batch(side *s, uint64_t bytes, bool in_place, uint32_t n, double *us, ddp_err *err)
{
    int64_t begin;

    DDP_TRY(run_calls(s, bytes, in_place, 1, err));
    begin = ddp_now_ns();
    DDP_TRY(run_calls(s, bytes, in_place, n, err));
    *us = (double)(ddp_now_ns() - begin) / 1e3 / n;
    return DDP_OK;
}

/* ---- between the ranks ------------------------------------------------------------------------------------------- */
/* values[i] becomes the largest of all ranks. */
static ddp_status largest(bench *b, double *values, size_t count)
{
    const void *theirs[DDP_CONFORM_MAX_WORLD];
    size_t lengths[DDP_CONFORM_MAX_WORLD];
    char name[32];
    void *block;

    (void)snprintf(name, sizeof(name), "bench %u", b->gathers++);
    DDP_TRY(ddp_group_gather(b->a->group, name, values, count * sizeof(*values), &block, theirs, lengths, TIMEOUT_MS,
                             &b->err));
    for (uint32_t r = 0; r < b->a->world; r++)
        for (size_t i = 0; i < DDP_MIN_OF(count, lengths[r] / sizeof(double)); i++) {
            double v;

            memcpy(&v, (const char *)theirs[r] + i * sizeof(v), sizeof(v));
            values[i] = DDP_MAX_OF(values[i], v);
        }
    free(block);
    return DDP_OK;
}

/* ---- one size ---------------------------------------------------------------------------------------------------- */
static ddp_status calibrate(bench *b, uint64_t bytes)
{
    double us[DDP_BENCH_BACKENDS] = {0};

    for (uint32_t i = 0; i < b->plan->backend_count; i++) {
        memset(b->sides[i].send, 0, bytes);
        memset(b->sides[i].recv, 0, bytes);
        DDP_TRY(batch(&b->sides[i], bytes, false, CALIBRATE, &us[i], &b->err));
    }
    DDP_TRY(largest(b, us, b->plan->backend_count)); /* the same number on all ranks */
    for (uint32_t i = 0; i < b->plan->backend_count; i++) {
        double n = BATCH_NS / 1e3 / (us[i] > 0.01 ? us[i] : 0.01);

        b->sides[i].iterations = n < 1 ? 1 : n > ITERATIONS_MAX ? ITERATIONS_MAX : (uint32_t)n;
    }
    return DDP_OK;
}

static ddp_status count_wrong(bench *b, side *s, uint64_t bytes, bool in_place, uint64_t *wrong)
{
    const ddp_pattern p = {.dtype = DDP_F32, .op = DDP_SUM, .world = b->a->world, .seed = bytes + in_place};
    size_t count = bytes / sizeof(float);
    double w = 0;

    ddp_pattern_fill(&p, b->a->rank, 0, count, in_place ? s->recv : s->send);
    DDP_TRY(run_calls(s, bytes, in_place, 1, &b->err));
    w = (double)ddp_pattern_wrong(&p, count, s->recv);
    DDP_TRY(largest(b, &w, 1));
    *wrong = (uint64_t)w;
    return DDP_OK;
}

static int by_value(const void *a, const void *b)
{
    double x, y;

    memcpy(&x, a, sizeof(x));
    memcpy(&y, b, sizeof(y));
    return (x > y) - (x < y);
}

static ddp_status finish_row(bench *b, side *s, uint64_t bytes, void *document)
{
    uint32_t rounds = b->plan->rounds;
    row r = {.backend = s->a.plugin->name, .bytes = bytes, .iterations = s->iterations};

    for (uint32_t in_place = 0; in_place < 2; in_place++) {
        DDP_TRY(largest(b, s->samples[in_place], rounds));
        qsort(s->samples[in_place], rounds, sizeof(double), by_value);
        r.min_us[in_place] = s->samples[in_place][0];
        r.median_us[in_place] = (s->samples[in_place][(rounds - 1) / 2] + s->samples[in_place][rounds / 2]) / 2;
        DDP_TRY(count_wrong(b, s, bytes, in_place == 1, &r.wrong[in_place]));
    }
    if (b->a->rank == 0) print_row(b->plan, b->a->world, &r, document);
    if (r.wrong[0] + r.wrong[1] > 0)
        (void)DDP_FAIL(b->a, "backend \"%s\" has %" PRIu64 " wrong values at %" PRIu64 " bytes", r.backend,
                       r.wrong[0] + r.wrong[1], bytes);
    return DDP_OK;
}

static ddp_status measure(bench *b, uint64_t bytes, void *document)
{
    DDP_TRY(calibrate(b, bytes));
    for (uint32_t round = 0; round < b->plan->rounds; round++)
        for (uint32_t i = 0; i < b->plan->backend_count; i++)
            for (uint32_t in_place = 0; in_place < 2; in_place++) {
                side *s = &b->sides[i];

                DDP_TRY(batch(s, bytes, in_place == 1, s->iterations, &s->samples[in_place][round], &b->err));
            }
    for (uint32_t i = 0; i < b->plan->backend_count; i++) DDP_TRY(finish_row(b, &b->sides[i], bytes, document));
    return DDP_OK;
}

static ddp_status run(bench *b, void **document)
{
    uint64_t most = 0;

    for (uint32_t i = 0; i < b->plan->size_count; i++) most = DDP_MAX_OF(most, b->plan->sizes[i]);
    for (uint32_t i = 0; i < b->plan->backend_count; i++) DDP_TRY(open_side(b, i, most));
    if (b->a->rank == 0) print_head(b->plan, b->a->world, document);
    for (uint32_t i = 0; i < b->plan->size_count; i++) DDP_TRY(measure(b, b->plan->sizes[i], *document));
    if (b->a->rank == 0 && !print_tail(b->plan, *document))
        DDP_SKIP(b->a, "cannot write to standard output: %s", strerror(errno));
    for (uint32_t i = b->plan->backend_count; i-- > 0;) close_side(&b->sides[i]);
    return DDP_OK;
}

void ddp_bench_case(ddp_rank_process *a)
{
    bench b = {.a = a, .plan = &a->shared->bench};
    void *document = NULL;

    b.sides = ddp_alloc(b.plan->backend_count * sizeof(*b.sides), &b.err);
    if (b.sides == NULL || run(&b, &document) != DDP_OK) {
        (void)DDP_FAIL(a, "%.220s", b.err.msg);
        a->broken = true; /* the process ends with all that is open */
        return;
    }
    free(b.sides);
}
