/* test_audit.c -- records of an audit, files cut and damaged at every place, and what the proof accepts and refuses. */
#include "support/checkpoint_util.h"

#include "observe/audit.h"
#include <inttypes.h>

enum { LENGTH = 10, RANKS = 3 };

static void check_ok(ddp_status st, const ddp_err *err)
{
    if (st != DDP_OK) fail_msg("%s", err->msg);
}

/* ---- records ----------------------------------------------------------------------------------------------------- */
static const uint64_t some_ids[3] = {7, 0, 9};

static ddp_audit_record some_record(void)
{
    return (ddp_audit_record){.kind = DDP_AUDIT_STEP,
                              .generation = 2,
                              .run = UINT64_C(0x1122334455667788),
                              .step = 12,
                              .epoch = 3,
                              .rank = 1,
                              .world = 2,
                              .length = LENGTH,
                              .share = 5,
                              .position = 4,
                              .count = 3};
}

static void a_record_comes_back(void **state)
{
    const ddp_audit_record r = some_record();
    uint8_t bytes[DDP_AUDIT_LEAST + 24], again[sizeof(bytes)];
    ddp_audit_record got = {0};
    ddp_err err = {0};

    (void)state;
    assert_int_equal(ddp_audit_bytes(3), sizeof(bytes));
    observe_audit_encode(&r, some_ids, bytes);
    assert_memory_equal(bytes, "DDPA\1\0\0\0", 8);
    check_ok(observe_audit_parse(bytes, sizeof(bytes), &got, &err), &err);
    observe_audit_encode(&got, some_ids, again);
    assert_memory_equal(again, bytes, sizeof(bytes));
    assert_true(got.run == r.run && got.step == 12 && got.epoch == 3 && got.rank == 1 && got.generation == 2);
    for (uint32_t i = 0; i < 3; i++) assert_int_equal(observe_audit_id(bytes, i), some_ids[i]);
}

static void every_cut_and_every_flipped_bit(void **state)
{
    const ddp_audit_record r = some_record();
    uint8_t bytes[DDP_AUDIT_LEAST + 24];
    ddp_audit_record got;
    ddp_err err = {0};

    (void)state;
    observe_audit_encode(&r, some_ids, bytes);
    for (size_t n = 0; n < sizeof(bytes); n++) {
        uint8_t *cut = malloc(n + 1); /* so that a sanitizer sees a read beyond it */

        assert_non_null(cut);
        memcpy(cut, bytes, n);
        assert_int_equal(observe_audit_parse(cut, n, &got, &err), DDP_IN_PROGRESS);
        free(cut);
    }
    for (size_t bit = 0; bit < 8 * sizeof(bytes); bit++) {
        ddp_status st;

        bytes[bit / 8] ^= (uint8_t)(1u << bit % 8);
        st = observe_audit_parse(bytes, sizeof(bytes), &got, &err);
        assert_true(st == DDP_ERR_DATA || st == DDP_IN_PROGRESS); /* a larger count wants more bytes */
        bytes[bit / 8] ^= (uint8_t)(1u << bit % 8);
    }
}

static void impossible_fields(void **state)
{
    const uint64_t beyond[1] = {LENGTH};
    uint8_t bytes[DDP_AUDIT_LEAST + 24];
    ddp_audit_record wrong[8], got;
    ddp_err err = {0};

    (void)state;
    for (size_t i = 0; i < 8; i++) wrong[i] = some_record();
    wrong[0].kind = DDP_AUDIT_END + 1;
    wrong[1].rank = 2;
    wrong[2].kind = DDP_AUDIT_BEGIN; /* has no samples */
    wrong[3].position = 6;
    wrong[4].position = 2; /* less than this record has */
    wrong[5].epoch = 0;
    wrong[6].length = 0;
    wrong[7].world = 1 << 20;
    for (size_t i = 0; i < 8; i++) {
        observe_audit_encode(&wrong[i], some_ids, bytes);
        assert_int_equal(observe_audit_parse(bytes, sizeof(bytes), &got, &err), DDP_ERR_DATA);
    }
    got = some_record();
    got.count = 1;
    observe_audit_encode(&got, beyond, bytes);
    assert_int_equal(observe_audit_parse(bytes, sizeof(bytes), &got, &err), DDP_ERR_DATA);
    assert_contains(err.msg, "sample 10");
}

/* ---- runs of ranks ----------------------------------------------------------------------------------------------- */
/* A process that trains a dataset of LENGTH samples, sample after sample: in each step every rank takes one. */
typedef struct run {
    struct place *p;
    uint64_t id, world, from, to; /* steps from + 1 .. to */
    uint64_t origin, epochs;      /* the epoch after `epochs` begins after step `origin` */
    uint32_t generation;
    uint64_t lost_step, lost_rank; /* this rank does not record this step, 0: all do */
    uint64_t cut_step, cut_rank;   /* nor this one any from this step on */
    uint64_t twice_step;           /* rank 0 takes sample 0 in it, 0: never */
    uint64_t left_out;             /* a step without its update */
    bool ended;
} run;

static uint64_t share_of(const run *r) { return (LENGTH + r->world - 1) / r->world; }

static ddp_audit_record record_of(const run *r, uint32_t kind, uint64_t rank, uint64_t step)
{
    return (ddp_audit_record){.kind = kind,
                              .generation = r->generation,
                              .run = r->id,
                              .step = step,
                              .rank = (uint32_t)rank,
                              .world = (uint32_t)r->world,
                              .length = LENGTH,
                              .share = share_of(r)};
}

static void put_step(const run *r, ddp_audit *a, uint64_t rank, uint64_t step)
{
    ddp_audit_record k = record_of(r, step == r->left_out ? DDP_AUDIT_LEFT_OUT : DDP_AUDIT_STEP, rank, step);
    uint64_t since = step - 1 - r->origin, in_epoch = since % k.share, id = (in_epoch * r->world + rank) % LENGTH;
    ddp_err err = {0};

    if (step == r->twice_step && rank == 0) id = 0;
    k.epoch = since / k.share + 1 + r->epochs;
    k.position = in_epoch + 1;
    k.count = 1;
    check_ok(ddp_audit_write(a, &k, &id, &err), &err);
}

static void record(const run *r)
{
    for (uint64_t rank = 0; rank < r->world; rank++) {
        ddp_audit_record k = record_of(r, DDP_AUDIT_BEGIN, rank, r->from);
        ddp_err err = {0};
        uint64_t newest;
        ddp_audit *a;

        check_ok(ddp_audit_open(r->p->dir, (int32_t)rank, 8, &r->p->log, &a, &newest, &err), &err);
        check_ok(ddp_audit_write(a, &k, NULL, &err), &err);
        for (uint64_t step = r->from + 1; step <= r->to; step++) {
            bool lost = step == r->lost_step && rank == r->lost_rank,
                 cut = r->cut_step > 0 && step >= r->cut_step && rank == r->cut_rank;

            if (!lost && !cut) put_step(r, a, rank, step);
        }
        k = record_of(r, DDP_AUDIT_END, rank, r->to);
        if (r->ended) check_ok(ddp_audit_write(a, &k, NULL, &err), &err);
        check_ok(ddp_audit_flush(a, &err), &err);
        ddp_audit_close(a);
    }
}

static void proven(const struct place *p, const char *text)
{
    const char *paths[] = {p->dir};
    ddp_text out = {0};
    ddp_err err = {0};

    check_ok(ddp_audit_check(paths, 1, &out, &err), &err);
    assert_contains(out.data, text);
    ddp_text_free(&out);
}

static void refused(const struct place *p, const char *a, const char *b)
{
    const char *paths[] = {p->dir};
    ddp_text out = {0};
    ddp_err err = {0};

    assert_int_equal(ddp_audit_check(paths, 1, &out, &err), DDP_ERR_DATA);
    assert_contains(err.msg, a);
    assert_contains(err.msg, b);
    ddp_text_free(&out);
}

static void whole_epochs(void **state)
{
    struct place *p = *state;

    record(&(run){.p = p, .id = 5, .world = 2, .to = 10, .ended = true});
    proven(p, "epoch 1: 10 of 10 samples exactly once\nepoch 2: 10 of 10 samples exactly once\nsteps 1 to 10 in 20");
    record(&(run){.p = p, .id = 6, .world = 2, .from = 10, .to = 12, .ended = true, .left_out = 12});
    proven(p, "epoch 3: 4 of 10 samples so far, in 2 steps; 2 of them in 1 steps whose update was left out\n");
}

static void what_the_sampler_repeats(void **state)
{
    struct place *p = *state;

    record(&(run){.p = p, .id = 5, .world = RANKS, .to = 4, .ended = true});
    proven(p,
           "epoch 1: 10 of 10 samples exactly once, but for 2 that the sampler repeats to give 3 ranks equally many");
}

/* Killed after step 7, of which the checkpoint of step 5, the end of an epoch, is left; then with other ranks; then the
 * ranks are started again within the run. */
static void a_later_run_makes_steps_again(void **state)
{
    struct place *p = *state;

    record(&(run){.p = p, .id = 5, .world = 2, .to = 7});
    proven(p, "epoch 2: 4 of 10 samples so far");
    record(&(run){.p = p, .id = 6, .world = 1, .from = 5, .to = 9, .origin = 5, .epochs = 1});
    proven(p, "epoch 1: 10 of 10");
    proven(p, "again do not count");
}

static void a_restart_within_a_run(void **state)
{
    struct place *p = *state;

    record(&(run){.p = p, .id = 5, .world = 2, .to = 4, .twice_step = 4});
    refused(p, "epoch 1: 1 uses", "sample 0, used in step 1 by rank 0 and in step 4 by rank 0");
    record(&(run){.p = p, .id = 5, .generation = 1, .world = 2, .from = 3, .to = 5, .ended = true});
    proven(p, "epoch 1: 10 of 10 samples exactly once");
}

static void a_sample_twice(void **state)
{
    struct place *p = *state;

    record(&(run){.p = p, .id = 5, .world = 2, .to = 5, .ended = true, .twice_step = 3});
    refused(p, "sample 0", "step 3 by rank 0");
}

/* The repeated ones are as many as the sampler's, but another sample is missing for it. */
static void a_sample_missing(void **state)
{
    struct place *p = *state;

    record(&(run){.p = p, .id = 5, .world = RANKS, .to = 4, .ended = true, .twice_step = 2});
    refused(p, "epoch 1", "sample 0");
}

static void a_record_missing(void **state)
{
    struct place *p = *state;

    record(&(run){.p = p, .id = 5, .world = 2, .to = 5, .lost_step = 3, .lost_rank = 1});
    refused(p, "step 3: rank 1 has no record", "missing or cut");
}

/* The end of a killed run is open; where the run says that it ended, or another went on from there, it may not be. */
static void the_end_of_a_killed_run(void **state)
{
    struct place *p = *state;

    record(&(run){.p = p, .id = 5, .world = 2, .to = 8, .cut_step = 7, .cut_rank = 1});
    proven(p, "2 steps at the end, which not all ranks had written");
    record(&(run){.p = p, .id = 6, .world = 2, .from = 7, .to = 10});
    refused(p, "step 7: rank 1", "missing or cut");
    record(&(run){.p = p, .id = 7, .world = 2, .from = 5, .to = 10, .cut_step = 9, .cut_rank = 0, .ended = true});
    refused(p, "step 9: rank 0", "missing or cut");
}

static void files_that_are_missing(void **state)
{
    struct place *p = *state;
    const char *none[] = {in(p, "none")};
    ddp_text out = {0};
    ddp_err err = {0};

    assert_int_equal(ddp_audit_check(none, 1, &out, &err), DDP_ERR_CONFIG);
    none[0] = p->dir;
    assert_int_equal(ddp_audit_check(none, 1, &out, &err), DDP_ERR_CONFIG);
    assert_contains(err.msg, "audit = yes");
    record(&(run){.p = p, .id = 5, .world = 2, .to = 5, .ended = true});
    assert_int_equal(unlink(in(p, "audit-rank1.bin")), 0);
    refused(p, "step 1: rank 1", "missing");
}

static void the_audit_was_off_before(void **state)
{
    struct place *p = *state;

    record(&(run){.p = p, .id = 5, .world = 2, .from = 5, .to = 10, .ended = true});
    refused(p, "before 6", "audit off");
}

/* The same records in two folders are one. */
static void copies(void **state)
{
    struct place *p = *state;
    const char *twice[] = {p->dir, p->dir};
    ddp_text out = {0};
    ddp_err err = {0};

    record(&(run){.p = p, .id = 5, .world = 2, .to = 5, .ended = true});
    check_ok(ddp_audit_check(twice, 2, &out, &err), &err);
    assert_contains(out.data, "10 of 10");
    ddp_text_free(&out);
}

/* Whatever a kill leaves: the next start cuts it off, and goes on behind the last whole record. */
static void a_file_cut_anywhere(void **state)
{
    struct place *p = *state;
    size_t size;
    char *whole;

    record(&(run){.p = p, .id = 5, .world = 1, .to = 3});
    whole = slurp(in(p, "audit-rank0.bin"), &size);
    for (size_t n = 0; n <= size; n += 5) {
        struct stat facts;
        ddp_err err = {0};
        uint64_t newest;
        ddp_audit *a;

        assert_int_equal(truncate(in(p, "audit-rank0.bin"), (off_t)n), 0);
        check_ok(ddp_audit_open(p->dir, 0, 8, &p->log, &a, &newest, &err), &err);
        assert_int_equal(newest, n >= ddp_audit_bytes(0) ? 5 : 0);
        ddp_audit_close(a);
        assert_int_equal(stat(in(p, "audit-rank0.bin"), &facts), 0);
        assert_true((size_t)facts.st_size <= n && n - (size_t)facts.st_size < ddp_audit_bytes(1));
        spill(in(p, "audit-rank0.bin"), whole, size);
    }
    free(whole);
}

static void a_full_disk(void **state)
{
    struct place *p = *state;
    const run r = {.p = p, .id = 5, .world = 1};
    ddp_audit_record k = record_of(&r, DDP_AUDIT_BEGIN, 0, 0);
    ddp_err err = {0};
    uint64_t newest;
    ddp_audit *a;

    if (access("/dev/full", W_OK) != 0) skip();
    assert_int_equal(symlink("/dev/full", in(p, "audit-rank0.bin")), 0);
    if (ddp_audit_open(p->dir, 0, 8, &p->log, &a, &newest, &err) != DDP_OK) skip(); /* reads zeros without end */
    check_ok(ddp_audit_write(a, &k, NULL, &err), &err);
    assert_int_not_equal(ddp_audit_flush(a, &err), DDP_OK);
    assert_contains(err.msg, "audit = no");
    assert_int_not_equal(ddp_audit_write(a, &k, NULL, &err), DDP_OK);
    ddp_audit_close(a);
}

/* More records than both buffers hold, from a trainer that does not wait. */
static void many_records(void **state)
{
    struct place *p = *state;

    record(&(run){.p = p, .id = 5, .world = 1, .to = 20000, .ended = true});
    proven(p, "epoch 2000: 10 of 10");
}

#define CASE(name) cmocka_unit_test_setup_teardown(name, place_setup, place_teardown)

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_record_comes_back),
        cmocka_unit_test(every_cut_and_every_flipped_bit),
        cmocka_unit_test(impossible_fields),
        CASE(whole_epochs),
        CASE(what_the_sampler_repeats),
        CASE(a_later_run_makes_steps_again),
        CASE(a_restart_within_a_run),
        CASE(a_sample_twice),
        CASE(a_sample_missing),
        CASE(a_record_missing),
        CASE(the_end_of_a_killed_run),
        CASE(files_that_are_missing),
        CASE(the_audit_was_off_before),
        CASE(copies),
        CASE(a_file_cut_anywhere),
        CASE(a_full_disk),
        CASE(many_records),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
