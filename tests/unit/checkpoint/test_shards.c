/* test_shards.c -- a checkpoint in two shards: what opening it takes, and what is read of it. */
#include "support/checkpoint_util.h"

#include "checkpoint/checkpoint.h"
#include "checkpoint/shards.h"
#include <errno.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/wait.h>

enum { ROWS = 3, COLUMNS = 1000, ELEMENTS = ROWS * COLUMNS, LARGE = 8 << 20 };

static float weight[ELEMENTS], moment[ELEMENTS];

/* ---- two ranks --------------------------------------------------------------------------------------------------- */
/* What shard 1 tells. */
static char told[sizeof(((ddp_err *)NULL)->msg) + 16];

static ddp_status tell(void *ctx, uint64_t step, uint32_t shard, const char *text, ddp_err *err)
{
    (void)ctx;
    (void)step;
    (void)err;
    assert_int_equal(shard, 1);
    ddp_copy_text(told, sizeof(told), text);
    return DDP_OK;
}

static ddp_status hear(void *ctx, uint64_t step, uint32_t shard, char *text, size_t capacity, ddp_err *err)
{
    (void)ctx;
    (void)step;
    (void)err;
    assert_int_equal(shard, 1);
    ddp_copy_text(text, capacity, told);
    return DDP_OK;
}

/* Ranks are missing, so that its number by the config is another one. */
static int32_t rank_of(void *ctx, uint32_t shard)
{
    (void)ctx;
    return (int32_t)shard + 40;
}

static uint64_t token; /* of the two */
static bool elsewhere; /* shard 1 is written to a folder that rank 0 does not look into */

static ddp_checkpoint_contents contents_of(uint64_t step, uint32_t shard, const ddp_part *model, const ddp_part *state)
{
    return (ddp_checkpoint_contents){.meta = {.step = step, .world_size = 2, .model = "mlp", .config_hash = "0"},
                                     .parts = {*model, *state},
                                     .shards = 2,
                                     .shard = shard,
                                     .token = token,
                                     .exchange = {.tell = tell, .hear = hear, .rank = rank_of}};
}

static const ddp_checkpoint_contents *after_it; /* a shard that is written when shard 1 has been; NULL: none */

static ddp_status save_after_it(const char *dir, ddp_err *err)
{
    const ddp_checkpoint_contents *what = after_it;
    char kept[sizeof(told)];
    ddp_status st;

    ddp_copy_text(kept, sizeof(kept), told);
    after_it = NULL;
    st = checkpoint_shard_save(dir, what, err);
    ddp_copy_text(told, sizeof(told), kept); /* it told the rank 0 of its own start */
    return st;
}

/* Of a model that has one tensor: its state is states[0] and states[1], a piece of it in each shard. */
static ddp_status save(struct place *p, uint64_t step, const ddp_named_tensor *model, const ddp_named_tensor states[2],
                       const ddp_retention *keep, ddp_err *err)
{
    const ddp_part whole = {model, 1}, none = {0}, parts[2] = {{&states[0], 1}, {&states[1], 1}};
    const ddp_checkpoint_contents first = contents_of(step, 0, &whole, &parts[0]),
                                  second = contents_of(step, 1, &none, &parts[1]);
    ddp_checkpoint_lock *lock;
    ddp_status st;

    DDP_TRY(ddp_checkpoint_lock_take(in(p, "ck"), &p->log, &lock, err));
    st = checkpoint_shard_save(in(p, elsewhere ? "" : "ck"), &second, err);
    if (st == DDP_OK && after_it != NULL) st = save_after_it(in(p, "ck"), err);
    if (st == DDP_OK) st = ddp_checkpoint_save(lock, &first, keep, &p->log, err);
    ddp_checkpoint_lock_release(lock);
    return st;
}

static const ddp_named_tensor small = {
    .name = "fc1.weight", .dtype = DDP_F32, .rank = 2, .dims = {ROWS, COLUMNS}, .data = weight};

/* Every element of the state is its number and the step; `second`: where the other shard says that its piece begins. */
static ddp_status save_small(struct place *p, uint64_t step, const char *second, const ddp_retention *keep,
                             ddp_err *err)
{
    const int64_t half = ELEMENTS / 2;
    const ddp_named_tensor states[2] = {
        {.name = "fc1.weight.exp_avg:0", .dtype = DDP_F32, .rank = 1, .dims = {half}, .data = moment},
        {.name = second, .dtype = DDP_F32, .rank = 1, .dims = {half}, .data = moment + half}};

    for (size_t i = 0; i < ELEMENTS; i++) moment[i] = (float)(i + step);
    return save(p, step, &small, states, keep, err);
}

/* Of renaming shard 1; 0: it is let through. */
static int rename_error;

int __real_rename(const char *from, const char *to);
int __wrap_rename(const char *from, const char *to);
int __wrap_rename(const char *from, const char *to)
{
    if (rename_error == 0 || strstr(from, "-1.part") == NULL) return __real_rename(from, to);
    errno = rename_error;
    return -1;
}

static int setup(void **state)
{
    rename_error = 0;
    token = 0;
    after_it = NULL;
    elsewhere = false;
    for (size_t i = 0; i < ELEMENTS; i++) weight[i] = -(float)i;
    return place_setup(state);
}

static void must_save(struct place *p, uint64_t step)
{
    ddp_err err = {0};

    if (save_small(p, step, "fc1.weight.exp_avg:1500", &(ddp_retention){0}, &err) != DDP_OK) fail_msg("%s", err.msg);
}

static void check_state(const float *state, uint64_t step)
{
    for (size_t i = 0; i < ELEMENTS; i++) assert_true(state[i] == (float)(i + step));
}

/* ---- reading ----------------------------------------------------------------------------------------------------- */
/* Tensor by tensor from the shards, and from one file in memory. */
static void both_ways_of_reading(void **state)
{
    struct place *p = *state;
    const ddp_named_tensor *t;
    float copy[ELEMENTS];
    ddp_checkpoint c;
    ddp_err err = {0};

    must_save(p, 5);
    assert_int_equal(ddp_checkpoint_open(in(p, "ck/step-00000005"), &c, &err), DDP_OK);
    for (int way = 0; way < 2; way++) {
        assert_int_equal(ddp_checkpoint_count(&c, DDP_PART_OPTIMIZER), 1);
        t = ddp_checkpoint_find(&c, DDP_PART_OPTIMIZER, "fc1.weight.exp_avg");
        assert_ptr_equal(t, ddp_checkpoint_at(&c, DDP_PART_OPTIMIZER, 0));
        assert_int_equal(t->rank, 2);
        assert_int_equal(t->dims[0], ROWS);
        memset(copy, 0, sizeof(copy));
        ddp_checkpoint_copy(&c, DDP_PART_OPTIMIZER, t, copy);
        check_state(copy, 5);
        ddp_checkpoint_copy(&c, DDP_PART_OPTIMIZER, t, copy); /* it is there as before */
        check_state(copy, 5);
        assert_true(way == 0 ? t->data == NULL : t->data != NULL);
        assert_null(ddp_checkpoint_find(&c, DDP_PART_OPTIMIZER, "fc1.weight"));
        assert_null(ddp_checkpoint_at(&c, DDP_PART_OPTIMIZER, 1));
        assert_int_equal(ddp_checkpoint_count(&c, DDP_PART_HOOK), 0);
        assert_int_equal(ddp_checkpoint_join(&c, &err), DDP_OK);
    }
    t = ddp_checkpoint_find(&c, DDP_PART_MODEL, "fc1.weight");
    ddp_checkpoint_copy(&c, DDP_PART_MODEL, t, copy);
    assert_memory_equal(copy, weight, sizeof(copy));
    assert_memory_equal(t->data, weight, sizeof(copy));
    ddp_checkpoint_close(&c);
}

/* Bytes of memory of this process that is its own, not a file's. */
static rlim_t own_memory(void)
{
    FILE *f = fopen("/proc/self/status", "re");
    unsigned long long kilobytes = 0;
    char line[256];

    assert_non_null(f);
    while (kilobytes == 0 && fgets(line, sizeof(line), f) != NULL) (void)sscanf(line, "VmData: %llu kB", &kilobytes);
    (void)fclose(f);
    assert_true(kilobytes > 0);
    return (rlim_t)kilobytes * 1024;
}

/* 0: with a quarter of the state's size as memory for all, it opens, and is read; the whole of it has no room. */
static int read_in_little_memory(struct place *p)
{
    const rlim_t most = own_memory() + LARGE * sizeof(float) / 4;
    const struct rlimit limit = {most, most};
    const ddp_named_tensor *t;
    ddp_checkpoint c;
    ddp_err err = {0};
    float *to = mmap(NULL, LARGE * sizeof(float), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);

    if (to == MAP_FAILED || setrlimit(RLIMIT_DATA, &limit) != 0) return 1;
    if (ddp_checkpoint_open(in(p, "ck/step-00000007"), &c, &err) != DDP_OK) return 2;
    if ((t = ddp_checkpoint_find(&c, DDP_PART_OPTIMIZER, "big.exp_avg")) == NULL) return 3;
    ddp_checkpoint_copy(&c, DDP_PART_OPTIMIZER, t, to);
    for (size_t i = 0; i < LARGE; i++)
        if (to[i] != (float)i) return 4;
    if (ddp_checkpoint_join(&c, &err) != DDP_ERR_NOMEM) return 5;
    ddp_checkpoint_close(&c);
    return 0;
}

/* Who opens it has not the state in memory. */
static void opens_without_the_state(void **state)
{
    struct place *p = *state;
    float *values = malloc(LARGE * sizeof(float));
    const ddp_named_tensor model = {.name = "big", .dtype = DDP_F32, .rank = 1, .dims = {LARGE}, .data = values};
    const ddp_named_tensor states[2] = {
        {.name = "big.exp_avg:0", .dtype = DDP_F32, .rank = 1, .dims = {12345}, .data = values},
        {.name = "big.exp_avg:12345", .dtype = DDP_F32, .rank = 1, .dims = {LARGE - 12345}, .data = values + 12345}};
    ddp_err err = {0};
    int status = 0;
    pid_t child;

    for (size_t i = 0; i < LARGE; i++) values[i] = (float)i;
    if (save(p, 7, &model, states, &(ddp_retention){0}, &err) != DDP_OK) fail_msg("%s", err.msg);
    free(values);
    child = fork();
    if (child == 0) _exit(read_in_little_memory(p));
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_true(WIFEXITED(status));
    assert_int_equal(WEXITSTATUS(status), 0);
}

/* A rank of an earlier start is still there, and writes its shard of the same step, while one of this start does:
 * neither is that taken for the other's, nor does it replace it. The next save removes it. */
static void a_rank_of_an_earlier_start(void **state)
{
    struct place *p = *state;
    const ddp_named_tensor theirs = {
        .name = "fc1.weight.exp_avg:1500", .dtype = DDP_F32, .rank = 1, .dims = {ELEMENTS / 2}, .data = weight};
    const ddp_part part = {&theirs, 1}, none = {0};
    const ddp_checkpoint_contents left = contents_of(5, 1, &none, &part);
    float copy[ELEMENTS];
    ddp_checkpoint c;
    ddp_err err = {0};

    after_it = &left;
    token = 0x1234567890abcdefu;
    must_save(p, 5);
    assert_null(after_it);
    assert_int_equal(ddp_checkpoint_open(in(p, "ck/step-00000005"), &c, &err), DDP_OK);
    ddp_checkpoint_copy(&c, DDP_PART_OPTIMIZER, ddp_checkpoint_at(&c, DDP_PART_OPTIMIZER, 0), copy);
    check_state(copy, 5);
    ddp_checkpoint_close(&c);
    assert_int_equal(checkpoint_shard_save(in(p, "ck"), &left, &err), DDP_OK);
    assert_true(exists(in(p, "ck/step-00000005.0000000000000000-1.part")));
    must_save(p, 6);
    assert_int_equal(entries(in(p, "ck")), 3);
}

/* Only a file that is not there is one that ranks do not share; and the rank at fault is named. */
static void what_failed(void **state)
{
    static const char shared[] = "[checkpoint] sharded needs a dir that all ranks share";
    struct place *p = *state;
    const ddp_part part = {&small, 1}, none = {0};
    const ddp_checkpoint_contents other = contents_of(2, 1, &none, &part);
    ddp_err err = {0};

    must_save(p, 1);
    for (int i = 0; i < 2; i++) {
        rename_error = i == 0 ? EIO : ENOENT; /* the folder that it goes to is not there, the file is */
        assert_int_equal(save_small(p, 2, "fc1.weight.exp_avg:1500", &(ddp_retention){0}, &err), DDP_ERR_SYSTEM);
        assert_int_equal(err.sys_errno, rename_error);
        assert_contains(err.msg, "-1.part, which rank 41 has written, to ");
        assert_contains(err.msg, i == 0 ? ": Input/output error" : ": No such file or directory");
        assert_null(strstr(err.msg, shared));
    }
    rename_error = 0;
    elsewhere = true;
    assert_int_equal(save_small(p, 2, "fc1.weight.exp_avg:1500", &(ddp_retention){0}, &err), DDP_ERR_SYSTEM);
    assert_contains(err.msg, "-1.part, which rank 41 has written, is not there on rank 0's host; ");
    assert_contains(err.msg, shared);

    spill(in(p, "file"), "", 0);
    assert_int_equal(checkpoint_shard_save(in(p, "file/ck"), &other, &err), DDP_ERR_SYSTEM);
    assert_contains(err.msg, "rank 41: cannot look into the checkpoint folder ");
    assert_contains(err.msg, "file/ck: Not a directory");
    assert_null(strstr(err.msg, shared));
    assert_contains(told, err.msg);
    assert_int_equal(checkpoint_shard_save(in(p, "absent"), &other, &err), DDP_ERR_SYSTEM);
    assert_contains(err.msg, "rank 41: ");
    assert_contains(err.msg, "absent is not there on this rank's host; ");
    assert_contains(err.msg, shared);
}

/* ---- what fits together ------------------------------------------------------------------------------------------ */
static const char misfit[] = "the shards of the optimiser's state do not fit together: "
                             "fc1.weight.exp_avg has a piece twice, or lacks one";

/* Of a checkpoint that was saved: another second shard, with the right size and hash, that says it begins elsewhere. */
static void make_misfit(const char *folder)
{
    const ddp_named_tensor t = {
        .name = "fc1.weight.exp_avg:1499", .dtype = DDP_F32, .rank = 1, .dims = {ELEMENTS / 2}, .data = moment};
    char shard[300], manifest[300];
    ddp_manifest m;
    ddp_err err = {0};

    (void)snprintf(shard, sizeof(shard), "%s/optimizer-00002-of-00002.safetensors", folder);
    (void)snprintf(manifest, sizeof(manifest), "%s/" DDP_MANIFEST_FILE, folder);
    assert_int_equal(checkpoint_manifest_read(manifest, &m, &err), DDP_OK);
    assert_int_equal(unlink(shard), 0);
    assert_int_equal(unlink(manifest), 0);
    assert_int_equal(checkpoint_safetensors_write(shard, &t, 1, NULL, NULL, m.shards[1].hash, &m.shards[1].bytes, &err),
                     DDP_OK);
    assert_int_equal(checkpoint_manifest_write(manifest, &m, m.settings, &err), DDP_OK);
    checkpoint_manifest_free(&m);
}

/* They are no checkpoint that another one may go for, neither after a save nor by hand. */
static void keep_counts_shards_that_fit(void **state)
{
    struct place *p = *state;
    const ddp_retention two = {.newest = 2};
    uint64_t *steps = NULL;
    size_t count = 0;
    ddp_checkpoint c;
    ddp_err err = {0};

    for (uint64_t step = 1; step <= 3; step++) must_save(p, step);
    make_misfit(in(p, "ck/step-00000003"));
    assert_int_equal(ddp_checkpoint_open(in(p, "ck/step-00000003"), &c, &err), DDP_ERR_DATA);
    assert_contains(err.msg, "ck/step-00000003: ");
    assert_contains(err.msg, misfit);
    if (save_small(p, 4, "fc1.weight.exp_avg:1500", &two, &err) != DDP_OK) fail_msg("%s", err.msg);
    assert_true(exists(in(p, "ck/step-00000002")));
    assert_false(exists(in(p, "ck/step-00000001")));

    must_save(p, 1);
    assert_int_equal(ddp_checkpoint_removable(in(p, "ck"), UINT64_MAX, &two, &steps, &count, &err), DDP_OK);
    assert_int_equal(count, 1);
    assert_int_equal(steps[0], 1);
    free(steps);
}

/* The one that is saved counts as valid without being read again. */
static void a_save_that_does_not_fit_fails(void **state)
{
    struct place *p = *state;
    ddp_err err = {0};

    must_save(p, 1);
    assert_int_equal(save_small(p, 2, "fc1.weight.exp_avg:1499", &(ddp_retention){.newest = 1}, &err), DDP_ERR_DATA);
    assert_contains(err.msg, "ck/step-00000002.tmp: ");
    assert_contains(err.msg, misfit);
    assert_true(exists(in(p, "ck/step-00000001")));
    assert_int_equal(entries(in(p, "ck")), 2); /* and the lock's file */
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(both_ways_of_reading, setup, place_teardown),
        cmocka_unit_test_setup_teardown(opens_without_the_state, setup, place_teardown),
        cmocka_unit_test_setup_teardown(a_rank_of_an_earlier_start, setup, place_teardown),
        cmocka_unit_test_setup_teardown(what_failed, setup, place_teardown),
        cmocka_unit_test_setup_teardown(keep_counts_shards_that_fit, setup, place_teardown),
        cmocka_unit_test_setup_teardown(a_save_that_does_not_fit_fails, setup, place_teardown),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
