/* conform/hook/hook.c -- the cases of a hook: what it leaves is the mean, as nearly as it promises, with the same
 * bits on all ranks and in any order of its calls; its state is all that it remembers; nothing beside the buckets is
 * written; leaks.
 *
 * The ranks are processes, each with the two threads of training (trial.c), and reach each other by
 * group.c. */
#include "conform/harness/leaks.h"
#include "conform/hook/group.h"
#include "conform/hook/trial.h"
#include "conform/suites.h"
#include <ctype.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

enum {
    FEW = 5, /* updates */
    SHORT_RUN = 256,
    LONG_RUN = 512,     /* of the same gradients */
    HEAP_ALLOWED = 256, /* bytes between updates */
    HEAP_OPENS = 256
};

/* ---- its state --------------------------------------------------------------------------------------------------- */
static bool name_holds(const char *name)
{
    if (name == NULL || name[0] == '\0') return false;
    for (; *name != '\0'; name++)
        if (!isgraph((unsigned char)*name)) return false;
    return true;
}

static bool state_makes_sense(ddp_hook_trial *t, const ddp_hook_state *all, uint32_t i)
{
    const ddp_hook_state *s = ddp_hook_state_at(t->ops, all, i);

    if (!DDP_HOOK_EXPECT(t, name_holds(s->name), "state %u has no name, or one with spaces", i)) return false;
    for (uint32_t k = 0; k < i; k++)
        if (!DDP_HOOK_EXPECT(t, strcmp(s->name, ddp_hook_state_at(t->ops, all, k)->name) != 0,
                             "two states are called \"%s\"", s->name))
            return false;
    return DDP_HOOK_EXPECT(t, s->data != NULL && s->elements > 0, "state \"%s\" is empty", s->name) &&
           DDP_HOOK_EXPECT(t, s->dtype == DDP_F32, "state \"%s\": its dtype is %u, not f32", s->name, s->dtype) &&
           DDP_HOOK_EXPECT(t, s->shared <= 1, "state \"%s\": `shared` is %u, not 0 or 1", s->name, s->shared);
}

/* Names, sizes and addresses; with `values` of those that all ranks share the contents. */
static uint64_t states_hash(const ddp_hook_trial *t, bool addresses, bool values)
{
    const ddp_hook_state *all;
    uint32_t n = hook_instance_states(t, &all);
    uint64_t hash = n;

    for (uint32_t i = 0; i < n; i++) {
        const ddp_hook_state *s = ddp_hook_state_at(t->ops, all, i);
        uint64_t facts[] = {s->elements, s->shared, addresses ? (uint64_t)(uintptr_t)s->data : 0};

        hash = ddp_hash64(s->name, strlen(s->name), hash);
        hash = ddp_hash64(facts, sizeof(facts), hash);
        if (values && s->shared != 0) hash = ddp_hash64(s->data, s->elements * sizeof(float), hash);
    }
    return hash;
}

/* The list makes sense, is every rank's, and stays what it was. */
static bool opens(ddp_hook_trial *t)
{
    const ddp_hook_state *s;
    uint32_t n = hook_instance_states(t, &s);
    uint64_t before;

    if (!DDP_HOOK_EXPECT(t, n == 0 || s != NULL, "states returns %u and gives no list", n)) return false;
    for (uint32_t i = 0; i < n; i++)
        if (!state_makes_sense(t, s, i)) return false;
    before = states_hash(t, true, false);
    t->update = 0;
    if (!hook_agree(t, states_hash(t, false, false), "the list of states")) return false;
    for (uint32_t u = 1; u <= FEW; u++) {
        if (!hook_next(t, u, DDP_WAY_AT_ONCE) ||
            !DDP_HOOK_EXPECT(t, states_hash(t, true, false) == before, "the list of states changes with update %u",
                             u) ||
            !hook_agree(t, states_hash(t, false, true), "the content of the shared states"))
            return false;
    }
    return true;
}

/* ---- the same bits, whatever else is going on -------------------------------------------------------------------- */
/* Hash of the results of some updates of a hook of its own; `together`, or NULL: another thread's is open meanwhile. */
static bool run_of_its_own(ddp_rank_process *a, uint32_t index, bool later, ddp_hook_way way,
                           pthread_barrier_t *together, uint64_t *hash)
{
    ddp_hook_trial t;
    bool good = hook_instance_open(&t, a, index, later);

    *hash = 0;
    if (together != NULL) (void)pthread_barrier_wait(together);
    for (uint32_t u = 1; u <= FEW && good; u++) {
        good = hook_next(&t, u, way);
        if (good) *hash = *hash * 31 + hook_bits(&t);
    }
    if (together != NULL) (void)pthread_barrier_wait(together);
    hook_instance_close(&t);
    return good;
}

static void orders(ddp_rank_process *a)
{
    static const char *const ways[] = {[DDP_WAY_AT_ONCE] = "buckets overlap",
                                       [DDP_WAY_BY_CALL] = "all buckets are compressed before the first is exchanged"};
    uint64_t alone, hash;

    if (!run_of_its_own(a, 0, false, DDP_WAY_ONE_BY_ONE, NULL, &alone)) return;
    for (uint32_t w = 0; w < DDP_COUNT(ways); w++) {
        if (ways[w] == NULL) continue;
        if (!run_of_its_own(a, 0, false, (ddp_hook_way)w, NULL, &hash)) return;
        (void)DDP_EXPECT(a, hash == alone, "when %s, the results are others than one by one", ways[w]);
    }
}

static void growth(ddp_rank_process *a)
{
    uint64_t plain, later;

    if (run_of_its_own(a, 0, false, DDP_WAY_AT_ONCE, NULL, &plain) &&
        run_of_its_own(a, 0, true, DDP_WAY_AT_ONCE, NULL, &later))
        (void)DDP_EXPECT(a, plain == later,
                         "structs of a later release, with their larger sizes, are not read by their strides");
}

typedef struct side {
    ddp_rank_process *a;
    pthread_barrier_t both; /* are open */
    uint64_t hash;
} side;

static void *run_side(void *arg)
{
    side *s = arg;

    (void)run_of_its_own(s->a, 1, false, DDP_WAY_AT_ONCE, &s->both, &s->hash);
    return NULL;
}

static void pair(ddp_rank_process *a)
{
    side other = {.a = a};
    uint64_t alone, beside;
    pthread_t thread;
    ddp_err err = {0};

    if (!run_of_its_own(a, 0, false, DDP_WAY_AT_ONCE, NULL, &alone)) return;
    (void)pthread_barrier_init(&other.both, NULL, 2);
    if (ddp_thread_start(&thread, "conform-two", run_side, &other, &err) != DDP_OK) {
        DDP_SKIP(a, "%.200s", err.msg);
        a->broken = true;
        atomic_store(&a->shared->given_up, 1);
        return;
    }
    (void)run_of_its_own(a, 0, false, DDP_WAY_AT_ONCE, &other.both, &beside);
    (void)pthread_join(thread, NULL);
    (void)pthread_barrier_destroy(&other.both);
    if (!a->broken)
        (void)DDP_EXPECT(a, beside == alone && other.hash == alone,
                         "two instances at once have other results than one alone");
}

/* ---- going on from a saved state --------------------------------------------------------------------------------- */
/* All states in a row, out of the hook or (`back`) into it; *size: floats, of `kept` where it is not NULL. */
static void move_states(const ddp_hook_trial *t, float *kept, bool back, uint64_t *size)
{
    const ddp_hook_state *all;
    uint32_t n = hook_instance_states(t, &all);

    *size = 0;
    for (uint32_t i = 0; i < n; i++) {
        const ddp_hook_state *s = ddp_hook_state_at(t->ops, all, i);

        if (kept != NULL && back) memcpy(s->data, kept + *size, s->elements * sizeof(float));
        if (kept != NULL && !back) memcpy(kept + *size, s->data, s->elements * sizeof(float));
        *size += s->elements;
    }
}

static bool go_on(ddp_hook_trial *t, uint64_t *hash)
{
    *hash = 0;
    for (uint32_t u = 1; u <= FEW; u++) {
        if (!hook_next(t, FEW + u, DDP_WAY_AT_ONCE)) return false;
        *hash = *hash * 31 + hook_bits(t);
    }
    return true;
}

/* A hook of its own that begins with the state of another goes on as that one has. */
static bool restores(ddp_hook_trial *t, float *kept, uint64_t size, uint64_t hash)
{
    uint64_t own, own_hash;

    move_states(t, NULL, true, &own);
    if (!DDP_HOOK_EXPECT(t, own == size, "a second instance has a state of %llu floats, the first of %llu",
                         (unsigned long long)own, (unsigned long long)size))
        return false;
    move_states(t, kept, true, &own);
    t->update = DDP_HOOK_BEGUN + FEW;
    return go_on(t, &own_hash) &&
           DDP_HOOK_EXPECT(t, own_hash == hash,
                           "a new instance with the saved state does not continue as the old one: "
                           "`states` is not all that it remembers");
}

/* Some updates, then the state is kept, which is the caller's to free, and some more. */
static bool keeps(ddp_hook_trial *t, float **kept, uint64_t *size, uint64_t *hash)
{
    ddp_err err = {0};

    for (uint32_t u = 1; u <= FEW; u++)
        if (!hook_next(t, u, DDP_WAY_AT_ONCE)) return false;
    move_states(t, NULL, false, size);
    *kept = ddp_alloc((*size + 1) * sizeof(float), &err);
    if (!DDP_HOOK_EXPECT(t, *kept != NULL, "%.200s", err.msg)) return false;
    move_states(t, *kept, false, size);
    return go_on(t, hash);
}

static void state(ddp_rank_process *a)
{
    ddp_hook_trial t;
    uint64_t size, hash;
    float *kept = NULL;
    bool good = hook_instance_open(&t, a, 0, false) && keeps(&t, &kept, &size, &hash);

    hook_instance_close(&t);
    if (good) {
        if (hook_instance_open(&t, a, 0, false)) (void)restores(&t, kept, size, hash);
        hook_instance_close(&t);
    }
    free(kept);
}

/* ---- memory ------------------------------------------------------------------------------------------------------ */
/* What malloc has given out is looked at between updates and whenever the hook calls a collective: the first update
 * may still warm up. */
static bool allocates_nothing(ddp_hook_trial *t)
{
    size_t before, after;

    if (!hook_next(t, 1, DDP_WAY_AT_ONCE)) return false;
    before = hook_heap();
    t->most = before;
    t->watch = true;
    for (uint32_t u = 2; u <= 2 * FEW; u++) {
        if (!hook_next(t, u, DDP_WAY_AT_ONCE)) return false;
        after = hook_heap();
        if (!DDP_HOOK_EXPECT(t, after <= before + HEAP_ALLOWED, "%zu bytes of memory more after update %llu",
                             after - before, (unsigned long long)t->update) ||
            !DDP_HOOK_EXPECT(t, t->most <= before + HEAP_ALLOWED,
                             "update %llu: %zu bytes of memory more when a collective was called than between updates",
                             (unsigned long long)t->update, t->most - before))
            return false;
    }
    return true;
}

/* ---- refusals, leaks --------------------------------------------------------------------------------------------- */
static void refusals(ddp_rank_process *a)
{
    ddp_err err = {0};
    ddp_status st = hook_open_i32(a, &err);

    (void)(DDP_EXPECT(a, st == DDP_ERR_UNSUPPORTED, "gradients of dtype i32: open answers \"%s\", not \"%s\"",
                      ddp_status_text(st), ddp_status_text(DDP_ERR_UNSUPPORTED)) &&
           DDP_EXPECT(a, err.msg[0] != '\0', "refused without a reason: ddp_fail() was not called"));
}

/* Also as a run ends that has made no update. */
static bool open_once(ddp_rank_process *a, uint32_t i)
{
    ddp_hook_trial t;
    bool good = hook_instance_open(&t, a, 0, false);

    if (good && i % 3 != 0) good = hook_next(&t, i, DDP_WAY_AT_ONCE);
    hook_instance_close(&t);
    return good;
}

/* ---- the mean ---------------------------------------------------------------------------------------------------- */
/* What is left is the mean: of one update where the hook remembers nothing, else of many, over which the errors that
 * it carries over must even out. */
/* What one update of a hook that remembers nothing may be wrong by, in shares of the largest gradient. Each rank
 * rounds once, and so does each sum: more of them in larger worlds. */
static double once_tolerance(uint32_t world) { return 0.01 * DDP_MAX_OF(1.0, (double)world / 3.0); }

/* Every single result, to a share of the largest gradient of its bucket. */
static bool near_the_mean(ddp_hook_trial *t)
{
    for (uint32_t b = 0; b < DDP_HOOK_BUCKETS; b++) {
        double allowed = once_tolerance(t->a->world) * t->largest[b];

        for (uint64_t i = 0; i < hook_count(b); i++)
            if (!DDP_HOOK_EXPECT(t, fabs((double)t->grads[b][i] - t->mean[b][i]) <= allowed,
                                 "update %llu: element %llu of bucket %u is %g, and the mean %g; "
                                 "a hook without a state of each rank may miss it by %g",
                                 (unsigned long long)t->update, (unsigned long long)i, b, (double)t->grads[b][i],
                                 t->mean[b][i], allowed))
                return false;
    }
    return true;
}

/* Root of the mean square by which sums / updates misses the mean, of the worst tensor, in shares of the gradients'
 * own. */
static double worst_tensor(const ddp_hook_trial *t, double *const *sums, uint32_t updates, const char **name)
{
    uint64_t offset, elements;
    double worst = -1.0;
    const char *tensor;

    for (uint32_t b = 0; b < DDP_HOOK_BUCKETS; b++)
        for (uint32_t k = 0; hook_checked_tensor(b, k, &tensor, &offset, &elements); k++) {
            double squares = 0.0, error;

            for (uint64_t i = offset; i < offset + elements; i++) {
                double e = sums[b][i] / updates - t->mean[b][i];
                squares += e * e;
            }
            error = sqrt(squares / (double)elements) / t->rms[b];
            if (error <= worst) continue; /* a NaN is the worst */
            worst = error;
            *name = tensor;
            if (isnan(error)) return error;
        }
    return worst;
}

/* What is held back goes out later, so that there is a bound to it, and twice the updates halve the error; a hook
 * that sends a matrix by few directions needs some updates until its bound is there, or lets the first ones pass. An
 * error that is made each time stays, or grows from there. */
static bool errors_even_out(ddp_hook_trial *t, double *const *sums)
{
    const char *name = "";
    double early = 0.0, late;

    for (uint32_t u = 1; u <= LONG_RUN; u++) {
        if (!hook_next(t, 1, DDP_WAY_AT_ONCE)) return false;
        for (uint32_t b = 0; b < DDP_HOOK_BUCKETS; b++)
            for (uint64_t i = 0; i < hook_count(b); i++) sums[b][i] += (double)t->grads[b][i];
        if (u == SHORT_RUN) early = worst_tensor(t, sums, u, &name);
    }
    late = worst_tensor(t, sums, LONG_RUN, &name);
    return DDP_HOOK_EXPECT(
        t, late <= 1e-4 || (late <= early * 0.75 && late <= 0.5),
        "the sum of %d updates of the same gradients, divided, misses the mean of \"%s\" by %.2g of their size; "
        "that of %d misses it by %.2g: what is held back never comes",
        LONG_RUN, name, late, SHORT_RUN, early);
}

static bool means_from_here(ddp_hook_trial *t)
{
    double *sums[DDP_HOOK_BUCKETS] = {NULL};
    ddp_err err = {0};
    bool good = true;

    if (!hook_remembers(t)) {
        for (uint32_t u = 1; u <= FEW && good; u++) good = hook_next(t, u, DDP_WAY_AT_ONCE) && near_the_mean(t);
        return good;
    }
    for (uint32_t b = 0; b < DDP_HOOK_BUCKETS && good; b++) {
        sums[b] = ddp_alloc(hook_count(b) * sizeof(double), &err);
        good = DDP_HOOK_EXPECT(t, sums[b] != NULL, "%.200s", err.msg);
    }
    good = good && errors_even_out(t, sums);
    for (uint32_t b = 0; b < DDP_HOOK_BUCKETS; b++) free(sums[b]);
    return good;
}

static bool means(ddp_hook_trial *t)
{
    t->update = 0;
    return means_from_here(t);
}

/* Directions that have died of them must come back. */
static bool zeros(ddp_hook_trial *t)
{
    for (uint32_t u = 1; u <= FEW; u++) {
        hook_fill(t, u, true);
        if (!hook_update(t, DDP_WAY_AT_ONCE)) return false;
        for (uint32_t b = 0; b < DDP_HOOK_BUCKETS; b++)
            for (uint64_t i = 0; i < hook_count(b); i++)
                if (!DDP_HOOK_EXPECT(t, t->grads[b][i] == 0.0f,
                                     "update %llu: element %llu of bucket %u is %g, of gradients that were always 0",
                                     (unsigned long long)t->update, (unsigned long long)i, b, (double)t->grads[b][i]))
                    return false;
    }
    return means_from_here(t);
}

/* ---- by name ----------------------------------------------------------------------------------------------------- */
static void with_hook(ddp_rank_process *a, bool (*test)(ddp_hook_trial *t))
{
    ddp_hook_trial t;

    if (hook_instance_open(&t, a, 0, false)) (void)test(&t);
    hook_instance_close(&t);
}

void ddp_hook_case(ddp_rank_process *a)
{
    switch (a->c->suite) {
    case DDP_SUITE_OPEN: with_hook(a, opens); break;
    case DDP_SUITE_RESULTS: with_hook(a, a->c->variant == DDP_TOPIC_ZERO ? zeros : means); break;
    case DDP_SUITE_ORDER: orders(a); break;
    case DDP_SUITE_STATE: state(a); break;
    case DDP_SUITE_MEMORY:
        if (DDP_SANITIZED)
            DDP_SKIP(a, "memory between updates: a sanitizer's allocator does not tell");
        else
            with_hook(a, allocates_nothing);
        break;
    case DDP_SUITE_REFUSALS: refusals(a); break;
    case DDP_SUITE_GROWTH: growth(a); break;
    case DDP_SUITE_PAIR: pair(a); break;
    default: ddp_leaks_check(a, open_once, HEAP_OPENS);
    }
}
