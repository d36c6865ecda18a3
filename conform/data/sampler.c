/* conform/data/sampler.c -- a sampler: its indices are within the dataset, as many as it says, and a function of
 * seed, rank and epoch alone, so that a run that resumes sees what the run before it would have seen. */
#include "conform/harness/leaks.h"
#include "conform/suites.h"
#include <stdlib.h>
#include <string.h>

enum { SPARE = 8 }; /* words after the indices that must stay as they are */

typedef struct trial {
    ddp_rank_process *a;
    const ddp_sampler_ops *ops;
    ddp_sampler_params p;
    uint64_t count;
    uint64_t *first, *again; /* count + SPARE each */
} trial;

static ddp_status open_sampler(const trial *t, ddp_sampler **out, ddp_err *err)
{
    return t->ops->open(&t->a->host, t->a->config, &t->p, out, err);
}

/* One epoch, and that nothing else was written. */
static bool draw(const trial *t, ddp_sampler *s, uint64_t epoch, uint64_t *out)
{
    ddp_err err = {0};
    ddp_status st;

    memset(out, 0xa5, (t->count + SPARE) * sizeof(*out));
    st = t->ops->indices(s, epoch, out, &err);
    if (st != DDP_OK) return ddp_rank_process_fail_call(t->a, "indices", st, &err);
    for (uint64_t i = t->count; i < t->count + SPARE; i++)
        if (!DDP_EXPECT(t->a, out[i] == 0xa5a5a5a5a5a5a5a5u, "indices wrote more than count() = %llu of them",
                        (unsigned long long)t->count))
            return false;
    for (uint64_t i = 0; i < t->count; i++)
        if (!DDP_EXPECT(t->a, out[i] < t->p.length, "rank %u of %u: index %llu of a dataset of %llu samples", t->p.rank,
                        t->p.world_size, (unsigned long long)out[i], (unsigned long long)t->p.length))
            return false;
    return true;
}

/* A handle that has gone through epochs 0 and 1, and one that begins with epoch 2: the same indices. */
static bool compare_handles(const trial *t, ddp_sampler *old, ddp_sampler *fresh)
{
    return draw(t, old, 0, t->first) && draw(t, old, 1, t->first) && draw(t, old, 2, t->first) &&
           draw(t, fresh, 2, t->again) &&
           DDP_EXPECT(t->a, memcmp(t->first, t->again, t->count * sizeof(uint64_t)) == 0,
                      "rank %u of %u, %llu samples: epoch 2 depends on what was drawn before, so a resumed run differs",
                      t->p.rank, t->p.world_size, (unsigned long long)t->p.length);
}

static bool check_rank(trial *t, uint64_t *count)
{
    ddp_sampler *old, *fresh;
    ddp_err err = {0};
    ddp_status st = open_sampler(t, &old, &err);
    bool good;

    *count = UINT64_MAX;
    if (st == DDP_ERR_CONFIG && err.msg[0] != '\0') return true; /* cannot divide such a length: it says why */
    if (st != DDP_OK) return ddp_rank_process_fail_call(t->a, "open", st, &err);
    *count = t->count = t->ops->count(old);
    st = open_sampler(t, &fresh, &err);
    if (st != DDP_OK) {
        t->ops->close(old);
        return ddp_rank_process_fail_call(t->a, "open for the second time", st, &err);
    }
    t->first = ddp_alloc((t->count + SPARE) * sizeof(uint64_t), &err);
    t->again = ddp_alloc((t->count + SPARE) * sizeof(uint64_t), &err);
    good = t->first != NULL && t->again != NULL
               ? compare_handles(t, old, fresh)
               : DDP_EXPECT(t->a, false, "count() is %llu", (unsigned long long)t->count);
    free(t->again);
    free(t->first);
    t->ops->close(fresh);
    t->ops->close(old);
    return good;
}

static bool check_world(trial *t)
{
    uint64_t least = UINT64_MAX, most = 0;

    for (uint32_t rank = 0; rank < t->p.world_size; rank++) {
        uint64_t count;

        t->p.rank = rank;
        if (!check_rank(t, &count)) return false;
        least = DDP_MIN_OF(least, count);
        most = DDP_MAX_OF(most, count);
    }
    return DDP_EXPECT(t->a, least == most || most - least == 1,
                      "%llu samples on %u ranks: some get %llu, some %llu; they may differ by 1 at most",
                      (unsigned long long)t->p.length, t->p.world_size, (unsigned long long)least,
                      (unsigned long long)most);
}

static void indices(trial *t)
{
    static const uint64_t lengths[] = {1, 2, 7, 64, 1000, 60000};
    static const uint32_t worlds[] = {1, 2, 3, 8};

    for (size_t i = 0; i < DDP_COUNT(lengths); i++)
        for (size_t w = 0; w < DDP_COUNT(worlds); w++) {
            t->p = (ddp_sampler_params){
                .struct_size = sizeof(t->p), .world_size = worlds[w], .seed = 3 + i, .length = lengths[i]};
            if (!check_world(t)) return;
        }
}

static void refuses(trial *t)
{
    ddp_sampler *s;
    ddp_err err = {0};
    ddp_status st;

    t->p = (ddp_sampler_params){.struct_size = sizeof(t->p), .world_size = 2, .length = 0};
    st = open_sampler(t, &s, &err);
    if (st == DDP_OK) {
        (void)DDP_EXPECT(t->a, t->ops->count(s) == 0, "a dataset without samples gives %llu indices",
                         (unsigned long long)t->ops->count(s));
        t->ops->close(s);
    } else {
        (void)DDP_EXPECT(t->a, st == DDP_ERR_CONFIG && err.msg[0] != '\0',
                         "a dataset without samples: \"%s\", not \"%s\" with a reason", ddp_status_text(st),
                         ddp_status_text(DDP_ERR_CONFIG));
    }
}

static bool open_once(ddp_rank_process *a, uint32_t i)
{
    trial t = {.a = a, .ops = a->plugin->ops};
    uint64_t count;

    t.p = (ddp_sampler_params){.struct_size = sizeof(t.p), .world_size = 2, .seed = i, .length = 1000};
    return check_rank(&t, &count);
}

void ddp_sampler_case(ddp_rank_process *a)
{
    trial t = {.a = a, .ops = a->plugin->ops};

    switch (a->c->suite) {
    case DDP_SUITE_RESULTS: indices(&t); break;
    case DDP_SUITE_REFUSALS: refuses(&t); break;
    default: ddp_leaks_check(a, open_once, 256);
    }
}
