/* conform/bench/print.c -- rows of `ddpengine bench`, in the columns of nccl-tests, and the same as JSON. */
#include "conform/bench/print.h"
#include <jansson.h>

/* 1e9 bytes a second: of the data, and of what travels, as nccl-tests defines them. */
static double algbw(const ddp_bench_row *r, uint32_t in_place)
{
    return r->median_us[in_place] > 0 ? (double)r->bytes / r->median_us[in_place] / 1e3 : 0;
}

static double busbw(const ddp_bench_row *r, uint32_t in_place, uint32_t world)
{
    return algbw(r, in_place) * 2 * (world - 1) / world;
}

void ddp_bench_head(const ddp_bench_plan *p, uint32_t world, void **document)
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

static void add_json(const ddp_bench_row *r, uint32_t world, json_t *document)
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

void ddp_bench_print(const ddp_bench_plan *p, uint32_t world, const ddp_bench_row *r, void *document)
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

bool ddp_bench_tail(const ddp_bench_plan *p, void *document)
{
    if (p->json) {
        (void)json_dumpf(document, stdout, JSON_INDENT(2) | JSON_REAL_PRECISION(6));
        (void)printf("\n");
        json_decref(document);
    }
    return fflush(stdout) == 0 && ferror(stdout) == 0;
}
