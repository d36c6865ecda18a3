/* tests/unit/data/test_data.c -- the loader: order, remainders, resuming, errors in their place, closing at any
 * time, and that it allocates nothing once it runs. Run it under --enable-sanitizers=thread too. */
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <setjmp.h>
#include <cmocka.h>
#include "base/base.h"
#include "data/loader.h"
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

/* ---- counted and failing allocations (the link wraps these names) ------------------------------------------------ */
static atomic_int allocations, fail_at; /* fail_at: number of the allocation that fails, 0: none */

void *__real_malloc(size_t size);
void *__real_calloc(size_t count, size_t size);
void *__real_realloc(void *p, size_t size);
void *__real_aligned_alloc(size_t alignment, size_t size);
int __real_posix_memalign(void **p, size_t alignment, size_t size);
void *__wrap_malloc(size_t size);
void *__wrap_calloc(size_t count, size_t size);
void *__wrap_realloc(void *p, size_t size);
void *__wrap_aligned_alloc(size_t alignment, size_t size);
int __wrap_posix_memalign(void **p, size_t alignment, size_t size);

static bool refused(void) { return atomic_fetch_add(&allocations, 1) + 1 == atomic_load(&fail_at); }

void *__wrap_malloc(size_t size) { return refused() ? NULL : __real_malloc(size); }
void *__wrap_calloc(size_t count, size_t size) { return refused() ? NULL : __real_calloc(count, size); }
void *__wrap_realloc(void *p, size_t size) { return refused() ? NULL : __real_realloc(p, size); }
void *__wrap_aligned_alloc(size_t alignment, size_t size)
{
    return refused() ? NULL : __real_aligned_alloc(alignment, size);
}
int __wrap_posix_memalign(void **p, size_t alignment, size_t size)
{
    return refused() ? 12 : __real_posix_memalign(p, alignment, size);
}

/* ---- a dataset and a sampler whose every value can be told ------------------------------------------------------- */
enum { LENGTH = 1000, WIDTH = 3, BROKEN_NEVER = LENGTH };

struct ddp_dataset {
    uint64_t broken;        /* reading this sample fails */
    atomic_int gate;        /* > 0: reads wait until it is 0 */
    atomic_int reads, busy; /* busy: reads in progress */
    uint64_t slow;          /* every sample that this divides takes longer, so that workers overtake each other */
    ddp_field fields[2];
};

struct ddp_sampler {
    uint64_t count;
    bool broken, wrong; /* fails; gives an index that is not there */
};

static void nap(long microseconds)
{
    struct timespec t = {.tv_nsec = microseconds * 1000};

    nanosleep(&t, NULL);
}

static uint64_t dataset_length(const ddp_dataset *d)
{
    (void)d;
    return LENGTH;
}

static uint32_t dataset_fields(const ddp_dataset *d, const ddp_field **out)
{
    *out = d->fields;
    return 2;
}

static float element(uint64_t index, uint64_t epoch, int k) { return (float)(index * 8 + epoch * 8000 + (uint64_t)k); }

static ddp_status dataset_read(const ddp_dataset *d, uint64_t index, uint64_t epoch, void *const *buffers, ddp_err *err)
{
    ddp_dataset *m = (ddp_dataset *)d; /* only its counters are written */

    atomic_fetch_add(&m->reads, 1);
    atomic_fetch_add(&m->busy, 1);
    while (atomic_load(&m->gate) > 0) nap(50);
    if (d->slow > 0 && index % d->slow == 0) nap(300);
    for (int k = 0; k < WIDTH; k++) ((float *)buffers[0])[k] = element(index, epoch, k);
    *(int64_t *)buffers[1] = (int64_t)index;
    atomic_fetch_sub(&m->busy, 1);
    return index == d->broken ? ddp_fail(err, DDP_ERR_SYSTEM, "the disk is on fire") : DDP_OK;
}

static uint64_t sampler_count(const ddp_sampler *s) { return s->count; }

/* 371 and 1000 have no common factor: a permutation for count <= LENGTH. */
static uint64_t nth_index(uint64_t epoch, uint64_t i) { return (i * 371 + epoch * 17) % LENGTH; }

static ddp_status sampler_indices(ddp_sampler *s, uint64_t epoch, uint64_t *out, ddp_err *err)
{
    if (s->broken) return ddp_fail(err, DDP_ERR_CONFIG, "no order today");
    for (uint64_t i = 0; i < s->count; i++) out[i] = nth_index(epoch, i);
    if (s->wrong) out[1] = LENGTH;
    return DDP_OK;
}

static const ddp_dataset_ops dataset_ops = {.struct_size = sizeof(dataset_ops),
                                            .field_size = sizeof(ddp_field),
                                            .length = dataset_length,
                                            .fields = dataset_fields,
                                            .read = dataset_read};
static const ddp_sampler_ops sampler_ops = {
    .struct_size = sizeof(sampler_ops), .count = sampler_count, .indices = sampler_indices};

typedef struct setting {
    ddp_dataset data;
    ddp_sampler sampler;
    ddp_loader_params params;
} setting;

static void set_up(setting *s, uint64_t count, int64_t batch_size, int64_t workers, int64_t prefetch)
{
    memset(s, 0, sizeof(*s));
    s->data.broken = BROKEN_NEVER;
    s->data.fields[0] = (ddp_field){.name = "x", .dtype = DDP_F32, .rank = 1, .dims = {WIDTH}, .min = 1};
    s->data.fields[1] = (ddp_field){.name = "label", .dtype = DDP_I64};
    s->sampler.count = count;
    s->params = (ddp_loader_params){.dataset_ops = &dataset_ops,
                                    .dataset = &s->data,
                                    .sampler_ops = &sampler_ops,
                                    .sampler = &s->sampler,
                                    .batch_size = batch_size,
                                    .workers = workers,
                                    .prefetch = prefetch};
}

static ddp_loader *open_loader(const setting *s)
{
    ddp_loader *l = NULL;
    ddp_err err = {0};

    if (ddp_loader_open(&s->params, &l, &err) != DDP_OK) fail_msg("%s", err.msg);
    return l;
}

static void begin(ddp_loader *l, uint64_t epoch, uint64_t first)
{
    ddp_err err = {0};

    if (ddp_loader_begin(l, epoch, first, &err) != DDP_OK) fail_msg("%s", err.msg);
}

/* Takes batches first .. last - 1 and checks every value; the epoch goes on. */
static void take(ddp_loader *l, const setting *s, uint64_t epoch, uint64_t first, uint64_t last)
{
    uint64_t size = (uint64_t)s->params.batch_size;

    for (uint64_t b = first; b < last; b++) {
        ddp_batch batch;
        ddp_err err = {0};

        if (ddp_loader_next(l, &batch, &err) != DDP_OK) fail_msg("batch %d: %s", (int)b, err.msg);
        assert_int_equal(batch.count, DDP_MIN_OF(size, s->sampler.count - b * size));
        for (int f = 0; f < 2; f++) assert_int_equal((uintptr_t)batch.buffers[f] % 64, 0);
        for (int64_t i = 0; i < batch.count; i++) {
            uint64_t index = nth_index(epoch, b * size + (uint64_t)i);

            assert_int_equal(batch.indices[i], index);
            assert_int_equal(((int64_t *)batch.buffers[1])[i], index);
            for (int k = 0; k < WIDTH; k++)
                assert_true(((float *)batch.buffers[0])[i * WIDTH + k] == element(index, epoch, k));
        }
    }
}

static void expect_end(ddp_loader *l)
{
    ddp_batch batch = {.count = 99};
    ddp_err err = {0};

    assert_int_equal(ddp_loader_next(l, &batch, &err), DDP_IN_PROGRESS);
    assert_int_equal(batch.count, 0);
}

/* ---- tests ------------------------------------------------------------------------------------------------------- */
static const int64_t worker_counts[] = {0, 1, 3, 7};

/* Whole epochs, with and without a remainder, more workers than batches, a batch larger than the epoch. */
static void test_order(void **state)
{
    static const struct {
        uint64_t count;
        int64_t batch_size, prefetch;
        uint64_t batches;
    } cases[] = {{100, 10, 2, 10}, {101, 10, 3, 11}, {99, 10, 16, 10}, {7, 64, 2, 1}, {1000, 1, 4, 1000}, {1, 1, 1, 1}};
    setting s;

    (void)state;
    for (size_t w = 0; w < DDP_COUNT(worker_counts); w++)
        for (size_t c = 0; c < DDP_COUNT(cases); c++) {
            ddp_loader *l;

            set_up(&s, cases[c].count, cases[c].batch_size, worker_counts[w], cases[c].prefetch);
            s.data.slow = cases[c].count < 200 ? 7 : 0;
            l = open_loader(&s);
            for (uint64_t epoch = 0; epoch < 3; epoch++) {
                begin(l, epoch, 0);
                take(l, &s, epoch, 0, cases[c].batches);
                expect_end(l);
                expect_end(l);
            }
            assert_int_equal(atomic_load(&s.data.reads), 3 * (int)cases[c].count);
            ddp_loader_close(l);
        }
}

/* A batch in parts: as even as can be, in order, aligned; the last batch leaves some parts shorter or empty. */
static void test_parts(void **state)
{
    static const struct {
        uint64_t count;
        int64_t batch_size;
        uint32_t parts;
    } cases[] = {{96, 12, 3}, {97, 12, 3}, {98, 12, 3}, {95, 12, 4}, {101, 20, 1}, {5, 16, 8}, {40, 10, 10}};
    setting s;

    (void)state;
    for (size_t w = 0; w < DDP_COUNT(worker_counts); w++)
        for (size_t c = 0; c < DDP_COUNT(cases); c++) {
            ddp_loader *l;
            ddp_batch batch;
            ddp_err err = {0};
            uint64_t place = 0;

            set_up(&s, cases[c].count, cases[c].batch_size, worker_counts[w], 3);
            s.params.parts = cases[c].parts;
            l = open_loader(&s);
            begin(l, 2, 0);
            while (ddp_loader_next(l, &batch, &err) == DDP_OK) {
                int64_t rest = batch.count, longest = (batch.count + cases[c].parts - 1) / cases[c].parts;

                for (uint32_t p = 0; p < cases[c].parts; p++) {
                    ddp_batch part = ddp_batch_part(l, &batch, p);

                    assert_true(part.count == longest || part.count == batch.count / cases[c].parts);
                    rest -= part.count;
                    for (int f = 0; f < 2; f++) assert_int_equal((uintptr_t)part.buffers[f] % 64, 0);
                    for (int64_t i = 0; i < part.count; i++, place++) {
                        uint64_t index = nth_index(2, place);

                        assert_int_equal(part.indices[i], index);
                        assert_int_equal(((int64_t *)part.buffers[1])[i], index);
                        for (int k = 0; k < WIDTH; k++)
                            assert_true(((float *)part.buffers[0])[i * WIDTH + k] == element(index, 2, k));
                    }
                }
                assert_int_equal(rest, 0);
            }
            assert_int_equal(place, cases[c].count);
            ddp_loader_close(l);
        }
}

/* With `hold` the last batches stay as they are while later ones are made. */
/* Batches of a split differ in size, and one may be empty; so from the middle of an epoch. */
static void test_split(void **state)
{
    (void)state;
    for (int64_t workers = 0; workers <= 3; workers += 3)
        for (uint64_t begun = 0; begun < 4; begun += 3) {
            const ddp_split split = {.total = 11, .global = 4, .batch = 1, .world = 3};
            uint64_t taken = 0, batches = ddp_split_batches(&split), first, end;
            ddp_loader *l;
            ddp_batch b;
            setting s;

            set_up(&s, 4, 2, workers, 2); /* padded: rank 2 has positions 2, 5 and 8 */
            s.params.split = split;
            s.params.share = 2;
            l = open_loader(&s);
            begin(l, 1, begun);
            for (uint64_t k = begun; k < batches; k++) {
                ddp_err err = {0};

                ddp_split_range(&split, 2, k, &first, &end);
                assert_int_equal(ddp_loader_next(l, &b, &err), DDP_OK);
                assert_int_equal(b.count, end - first);
                assert_int_equal(b.position, first);
                for (int64_t i = 0; i < b.count; i++, taken++) {
                    assert_int_equal(b.indices[i], nth_index(1, first + (uint64_t)i));
                    assert_int_equal(((const int64_t *)b.buffers[1])[i], b.indices[i]);
                }
            }
            expect_end(l);
            assert_int_equal(taken, begun == 0 ? 3 : 1);
            ddp_loader_close(l);
        }
}

static void test_hold(void **state)
{
    enum { HOLD = 3 };
    setting s;

    (void)state;
    for (size_t w = 0; w < DDP_COUNT(worker_counts); w++) {
        ddp_batch batches[HOLD];
        ddp_loader *l;
        ddp_err err = {0};

        set_up(&s, 205, 10, worker_counts[w], 2);
        s.params.hold = HOLD;
        l = open_loader(&s);
        for (uint64_t epoch = 0; epoch < 2; epoch++) {
            begin(l, epoch, epoch);
            for (uint64_t b = epoch; b < 21; b++) {
                if (ddp_loader_next(l, &batches[b % HOLD], &err) != DDP_OK) fail_msg("batch %d: %s", (int)b, err.msg);
                for (uint64_t old = b >= epoch + HOLD ? b - HOLD + 1 : epoch; old <= b; old++)
                    for (int64_t i = 0; i < batches[old % HOLD].count; i++)
                        assert_int_equal(((int64_t *)batches[old % HOLD].buffers[1])[i],
                                         nth_index(epoch, old * 10 + (uint64_t)i));
            }
            expect_end(l);
        }
        ddp_loader_close(l);
    }
}

static void test_resume(void **state)
{
    setting s;

    (void)state;
    for (size_t w = 0; w < DDP_COUNT(worker_counts); w++) {
        ddp_loader *l;
        ddp_err err = {0};

        set_up(&s, 95, 10, worker_counts[w], 3);
        l = open_loader(&s);
        for (uint64_t first = 0; first <= 10; first++) {
            begin(l, 4, first);
            take(l, &s, 4, first, 10);
            expect_end(l);
        }
        assert_int_equal(ddp_loader_begin(l, 4, 11, &err), DDP_ERR_INVALID);
        assert_non_null(strstr(err.msg, "cannot begin at batch 11, it has 10"));
        ddp_loader_close(l);
    }
}

/* A new epoch while workers are in the middle of the old one. */
static void test_begin_again(void **state)
{
    setting s;

    (void)state;
    for (size_t w = 0; w < DDP_COUNT(worker_counts); w++) {
        ddp_loader *l;

        set_up(&s, 300, 10, worker_counts[w], 5);
        s.data.slow = 3;
        l = open_loader(&s);
        for (uint64_t epoch = 0; epoch < 30; epoch++) {
            begin(l, epoch, 0);
            take(l, &s, epoch, 0, epoch % 7);
        }
        begin(l, 30, 0);
        take(l, &s, 30, 0, 30);
        expect_end(l);
        ddp_loader_close(l);
    }
}

/* A rank without samples (an evaluation on more ranks than samples). */
static void test_empty(void **state)
{
    setting s;

    (void)state;
    for (size_t w = 0; w < DDP_COUNT(worker_counts); w++) {
        ddp_loader *l;

        set_up(&s, 0, 10, worker_counts[w], 2);
        l = open_loader(&s);
        begin(l, 0, 0);
        expect_end(l);
        ddp_loader_close(l);
    }
}

/* The good batches before the broken one still come, in order; the error then stays until a new epoch. */
static void test_read_error(void **state)
{
    setting s;

    (void)state;
    for (size_t w = 0; w < DDP_COUNT(worker_counts); w++) {
        ddp_loader *l;
        ddp_batch batch;

        set_up(&s, 200, 10, worker_counts[w], 6);
        s.data.broken = nth_index(2, 74); /* in batch 7 */
        l = open_loader(&s);
        begin(l, 2, 0);
        take(l, &s, 2, 0, 7);
        for (int i = 0; i < 2; i++) {
            ddp_err err = {0};
            char sample[64];

            assert_int_equal(ddp_loader_next(l, &batch, &err), DDP_ERR_DATA);
            assert_int_equal(err.status, DDP_ERR_DATA);
            (void)snprintf(sample, sizeof(sample), "sample %d of the dataset", (int)s.data.broken);
            if (strstr(err.msg, sample) == NULL) fail_msg("%s", err.msg);
            assert_non_null(strstr(err.msg, "(batch 7 of epoch 2)"));
            assert_non_null(strstr(err.msg, "the disk is on fire"));
        }
        begin(l, 5, 0); /* an epoch without that sample: the workers that stopped go on */
        take(l, &s, 5, 0, 20);
        expect_end(l);
        ddp_loader_close(l);
    }
}

static void test_sampler_error(void **state)
{
    setting s;

    (void)state;
    for (size_t w = 0; w < DDP_COUNT(worker_counts); w++) {
        ddp_err err = {0};
        ddp_batch batch;
        ddp_loader *l;

        set_up(&s, 100, 10, worker_counts[w], 2);
        l = open_loader(&s);
        assert_int_equal(ddp_loader_next(l, &batch, &err), DDP_ERR_INVALID);
        assert_non_null(strstr(err.msg, "no epoch has begun"));
        s.sampler.broken = true;
        assert_int_equal(ddp_loader_begin(l, 6, 0, &err), DDP_ERR_CONFIG);
        assert_non_null(strstr(err.msg, "sampler, epoch 6: no order today"));
        s.sampler.broken = false;
        s.sampler.wrong = true;
        assert_int_equal(ddp_loader_begin(l, 6, 0, &err), DDP_ERR_INTERNAL);
        assert_non_null(strstr(err.msg, "gave index 1000 at position 1 of epoch 6, the dataset has 1000 samples"));
        assert_int_equal(ddp_loader_next(l, &batch, &err), DDP_ERR_INVALID);
        s.sampler.wrong = false;
        begin(l, 6, 0);
        take(l, &s, 6, 0, 10);
        expect_end(l);
        ddp_loader_close(l);
    }
}

/* Close while nothing has begun, while the slots are full, and while reads are under way. */
static void test_close_early(void **state)
{
    setting s;

    (void)state;
    for (size_t w = 0; w < DDP_COUNT(worker_counts); w++) {
        ddp_loader *l;

        set_up(&s, 500, 10, worker_counts[w], 4);
        ddp_loader_close(open_loader(&s));
        ddp_loader_close(NULL);

        l = open_loader(&s);
        begin(l, 0, 0);
        take(l, &s, 0, 0, 3);
        while (worker_counts[w] > 0 && atomic_load(&s.data.reads) < 60) nap(100); /* 2 given back, 4 slots full */
        ddp_loader_close(l);
        assert_true(atomic_load(&s.data.reads) <= 60);

        s.data.slow = 1;
        atomic_store(&s.data.gate, 1); /* or all could have been read before this thread sees it */
        l = open_loader(&s);
        begin(l, 0, 0);
        while (worker_counts[w] > 0 && atomic_load(&s.data.busy) == 0) nap(10);
        atomic_store(&s.data.gate, 0);
        ddp_loader_close(l);
        assert_int_equal(atomic_load(&s.data.busy), 0);
    }
}

/* No batch is made before its slot is given back: with the consumer on batch 0, at most `prefetch` batches are read. */
static void test_prefetch_bound(void **state)
{
    setting s;
    ddp_loader *l;

    (void)state;
    set_up(&s, 500, 10, 3, 4);
    l = open_loader(&s);
    begin(l, 0, 0);
    take(l, &s, 0, 0, 1);
    while (atomic_load(&s.data.reads) < 40) nap(100);
    nap(5000); /* room for a wrong read to show */
    assert_int_equal(atomic_load(&s.data.reads), 40);
    ddp_loader_close(l);
}

/* Batches are really read beside each other: with all reads held, every worker gets into one. */
static void test_parallel(void **state)
{
    setting s;
    ddp_loader *l;

    (void)state;
    set_up(&s, 500, 10, 3, 4);
    atomic_store(&s.data.gate, 1);
    l = open_loader(&s);
    begin(l, 0, 0);
    while (atomic_load(&s.data.busy) < 3) nap(100);
    atomic_store(&s.data.gate, 0);
    take(l, &s, 0, 0, 50);
    ddp_loader_close(l);
}

static void test_no_allocation(void **state)
{
    setting s;

    (void)state;
    for (size_t w = 0; w < DDP_COUNT(worker_counts); w++) {
        ddp_loader *l;
        ddp_batch batch;
        ddp_err err;
        int before;

        set_up(&s, 500, 10, worker_counts[w], 4);
        l = open_loader(&s);
        begin(l, 0, 0);
        before = atomic_load(&allocations);
        for (uint64_t epoch = 1; epoch < 4; epoch++) {
            while (ddp_loader_next(l, &batch, &err) == DDP_OK) {}
            begin(l, epoch, 0);
        }
        while (ddp_loader_next(l, &batch, &err) == DDP_OK) {}
        assert_int_equal(atomic_load(&allocations), before);
        ddp_loader_close(l);
    }
}

/* Each allocation of open in turn fails: a clean error, no leak (ASan tells). */
static void test_out_of_memory(void **state)
{
    int failures = 0;
    setting s;

    (void)state;
    set_up(&s, 500, 10, 3, 4);
    for (int n = 1;; n++) {
        ddp_loader *l = NULL;
        ddp_err err = {0};
        ddp_status status;

        atomic_store(&fail_at, atomic_load(&allocations) + n);
        status = ddp_loader_open(&s.params, &l, &err);
        atomic_store(&fail_at, 0);
        if (status == DDP_OK) {
            ddp_loader_close(l);
            break;
        }
        assert_int_equal(status, DDP_ERR_NOMEM);
        assert_null(l);
        assert_true(err.msg[0] != '\0');
        failures++;
    }
    assert_true(failures >= 3);
}

static void test_bad_params(void **state)
{
    setting s;
    ddp_loader *l = NULL;
    ddp_err err = {0};

    (void)state;
    set_up(&s, 10, 0, 0, 2);
    assert_int_equal(ddp_loader_open(&s.params, &l, &err), DDP_ERR_INVALID);
    assert_non_null(strstr(err.msg, "batch_size 0"));
    set_up(&s, 10, INT64_MAX, 0, 2);
    assert_int_equal(ddp_loader_open(&s.params, &l, &err), DDP_ERR_NOMEM);
    assert_non_null(strstr(err.msg, "a batch of 9223372036854775807 samples"));
    set_up(&s, 10, 1, 0, 2);
    s.data.fields[0].dims[0] = 0;
    assert_int_equal(ddp_loader_open(&s.params, &l, &err), DDP_ERR_INVALID);
    assert_non_null(strstr(err.msg, "field x of the dataset"));
    assert_null(l);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_order),          cmocka_unit_test(test_parts),
        cmocka_unit_test(test_split),          cmocka_unit_test(test_hold),
        cmocka_unit_test(test_resume),         cmocka_unit_test(test_begin_again),
        cmocka_unit_test(test_empty),          cmocka_unit_test(test_read_error),
        cmocka_unit_test(test_sampler_error),  cmocka_unit_test(test_close_early),
        cmocka_unit_test(test_prefetch_bound), cmocka_unit_test(test_parallel),
        cmocka_unit_test(test_no_allocation),  cmocka_unit_test(test_out_of_memory),
        cmocka_unit_test(test_bad_params),
    };

    (void)alarm(120); /* a loader that hangs is a failure, not a hung test run */
    return cmocka_run_group_tests(tests, NULL, NULL);
}
