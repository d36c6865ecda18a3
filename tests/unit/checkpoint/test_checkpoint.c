/* test_checkpoint.c -- a checkpoint is there whole or not at all: damage, full disks, left-overs, kill -9; and the
 * code that docs/checkpoints.md shows. */
#include "support/checkpoint_util.h"

#include "base/mt19937.h"
#include "checkpoint/checkpoint.h"
#include "checkpoint/settings_compare.h"
#include <errno.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#define ELEMENTS 3000

static float weight[ELEMENTS], moment[ELEMENTS];

/* Of every save here. */
static const char *settings;
static uint64_t keep_every;

static const char usual_settings[] = "train.seed = 18446744073709551615\nmodel.mlp.hidden = 24, 17\n"
                                     "train.freeze = \nhook.x.text = a = \"b\" \\xc3\ndata.length = 640\n";

static int setup(void **state)
{
    settings = usual_settings;
    keep_every = 0;
    return place_setup(state);
}

/* As a run of its own. */
static ddp_status save_parts(struct place *p, const ddp_checkpoint_meta *meta, const ddp_part parts[DDP_PARTS],
                             uint64_t keep, ddp_err *err)
{
    ddp_checkpoint_contents what = {.meta = *meta, .settings = settings};
    ddp_checkpoint_lock *lock;
    ddp_status st;

    memcpy(what.parts, parts, sizeof(what.parts));
    DDP_TRY(ddp_checkpoint_lock_take(in(p, "ck"), &p->log, &lock, err));
    st = ddp_checkpoint_save(lock, &what, &(ddp_retention){.newest = keep, .every = keep_every}, &p->log, err);
    ddp_checkpoint_lock_release(lock);
    return st;
}

/* Entries of the folder beside the lock's file. */
static size_t contents(const struct place *p) { return entries(in(p, "ck")) - exists(in(p, "ck/.lock")); }

/* Saves a checkpoint whose every element is its step. */
static ddp_status save(struct place *p, uint64_t step, uint64_t keep, ddp_err *err)
{
    const ddp_named_tensor model[] = {
        {.name = "fc1.weight", .dtype = DDP_F32, .rank = 2, .dims = {ELEMENTS / 10, 10}, .data = weight},
        {.name = "fc1.bias", .dtype = DDP_F32, .rank = 1, .dims = {10}, .data = weight}};
    const ddp_named_tensor state = {
        .name = "fc1.weight.exp_avg", .dtype = DDP_F32, .rank = 2, .dims = {ELEMENTS / 10, 10}, .data = moment};
    const ddp_checkpoint_meta meta = {.step = step,
                                      .epoch = 3,
                                      .cursor = 7,
                                      .seed = UINT64_MAX,
                                      .world_size = 4,
                                      .bucket_size = 26214400,
                                      .first_bucket_size = 1048576,
                                      .batch_size = 64,
                                      .accumulate = 2,
                                      .config_hash = "0123456789abcdef",
                                      .model = "mlp",
                                      .finished = true};

    for (size_t i = 0; i < ELEMENTS; i++) weight[i] = moment[i] = (float)step;
    return save_parts(p, &meta, (ddp_part[DDP_PARTS]){{model, 2}, {&state, 1}}, keep, err);
}

static void must_save(struct place *p, uint64_t step, uint64_t keep)
{
    ddp_err err = {0};

    if (save(p, step, keep, &err) != DDP_OK) fail_msg("%s", err.msg);
}

/* The step of the newest, whose contents must be of that step; 0: none. */
static uint64_t newest(struct place *p)
{
    ddp_err err = {0};
    ddp_checkpoint c;
    ddp_status st = ddp_checkpoint_newest(in(p, "ck"), &c, &p->log, &err);
    const ddp_named_tensor *t;
    uint64_t step;

    if (st == DDP_IN_PROGRESS) return 0;
    if (st != DDP_OK) fail_msg("%s", err.msg);
    step = c.meta.step;
    t = ddp_safetensors_find(c.parts[DDP_PART_MODEL], "fc1.weight");
    assert_non_null(t);
    for (size_t i = 0; i < ELEMENTS; i++) assert_true(((const float *)t->data)[i] == (float)step);
    assert_non_null(ddp_safetensors_find(c.parts[DDP_PART_OPTIMIZER], "fc1.weight.exp_avg"));
    ddp_checkpoint_close(&c);
    return step;
}

static void round_trip(void **state)
{
    struct place *p = *state;
    ddp_checkpoint c;
    ddp_err err = {0};

    assert_int_equal(newest(p), 0); /* not even the folder is there */
    must_save(p, 500, 0);
    assert_int_equal(contents(p), 1);
    assert_int_equal(entries(in(p, "ck/step-00000500")), 3);
    assert_int_equal(logged(p, "ck/step-00000500 is durable"), 1);
    assert_int_equal(ddp_checkpoint_open(in(p, "ck/step-00000500"), &c, &err), DDP_OK);
    assert_string_equal(c.path, in(p, "ck/step-00000500"));
    assert_int_equal(c.meta.step, 500);
    assert_int_equal(c.meta.epoch, 3);
    assert_int_equal(c.meta.cursor, 7);
    assert_true(c.meta.seed == UINT64_MAX);
    assert_int_equal(c.meta.world_size, 4);
    assert_int_equal(c.meta.bucket_size, 26214400);
    assert_int_equal(c.meta.first_bucket_size, 1048576);
    assert_int_equal(c.meta.batch_size, 64);
    assert_int_equal(c.meta.accumulate, 2);
    assert_string_equal(c.meta.config_hash, "0123456789abcdef");
    assert_string_equal(c.meta.model, "mlp");
    assert_true(c.meta.finished);
    assert_string_equal(c.settings, usual_settings);
    ddp_checkpoint_close(&c);
    assert_int_equal(newest(p), 500);
}

/* Those of earlier versions have none; more than a manifest may have are not written; no name or value of a file
 * reaches a terminal as it is. */
static void settings_are_optional(void **state)
{
    struct place *p = *state;
    ddp_text many = {0};
    ddp_checkpoint c;
    ddp_err err = {0};

    settings = NULL;
    must_save(p, 1, 0);
    assert_int_equal(ddp_checkpoint_open(in(p, "ck/step-00000001"), &c, &err), DDP_OK);
    assert_null(c.settings);
    ddp_checkpoint_close(&c);
    settings = usual_settings;
    must_save(p, 1, 0);
    assert_int_equal(logged(p, "is there already"), 1);

    for (int i = 0; i < 5000; i++) ddp_text_printf(&many, "key.number%d = %d\n", i, i);
    settings = many.data;
    must_save(p, 2, 0);
    assert_int_equal(ddp_checkpoint_open(in(p, "ck/step-00000002"), &c, &err), DDP_OK);
    assert_contains(c.settings, "key.number4095 = 4095\n");
    assert_null(strstr(c.settings, "4096"));
    ddp_checkpoint_close(&c);
    ddp_text_free(&many);

    settings = "a.\x1b[31m = 1\na.b = \x7f\tb\nno setting\n";
    must_save(p, 3, 0);
    assert_int_equal(ddp_checkpoint_open(in(p, "ck/step-00000003"), &c, &err), DDP_OK);
    assert_string_equal(c.settings, "a.b = ??b\n");
    ddp_checkpoint_close(&c);
}

static void note_difference(void *ctx, const char *key, const char *there, const char *here)
{
    ddp_text_printf(ctx, "%s: %s, %s; ", key, there != NULL ? there : "-", here != NULL ? here : "-");
}

static void settings_differ(void **state)
{
    ddp_text found = {0};
    ddp_err err = {0};

    (void)state;
    assert_int_equal(ddp_checkpoint_compare_settings("a = 1\nb = \nc = x = y\nd = 4\n",
                                                     "d = 4\nc = x = z\nb = 2\ne = \n", note_difference, &found, &err),
                     DDP_OK);
    assert_string_equal(found.data, "a: 1, -; b: , 2; c: x = y, x = z; e: -, ; ");
    ddp_text_free(&found);
    assert_int_equal(ddp_checkpoint_compare_settings(usual_settings, usual_settings, note_difference, &found, &err),
                     DDP_OK);
    assert_null(found.data);
    assert_int_equal(ddp_checkpoint_compare_settings("", "", note_difference, &found, &err), DDP_OK);
    assert_null(found.data);
}

static void the_same_again(void **state)
{
    struct place *p = *state;
    struct stat before, after;

    must_save(p, 5, 0);
    assert_int_equal(stat(in(p, "ck/step-00000005"), &before), 0);
    must_save(p, 5, 0);
    assert_int_equal(stat(in(p, "ck/step-00000005"), &after), 0);
    assert_int_equal(before.st_ino, after.st_ino);
    assert_int_equal(logged(p, "is there already"), 1);

    flip(in(p, "ck/step-00000005/model.safetensors"), 5000);
    must_save(p, 5, 0);
    assert_int_equal(logged(p, "step-00000005 was damaged or of another run: replaced"), 1);
    assert_int_equal(newest(p), 5);
    assert_int_equal(contents(p), 1);
}

static void another_run_in_the_folder(void **state)
{
    struct place *p = *state;
    ddp_checkpoint_meta meta = {.step = 5, .model = "mlp", .config_hash = "other"};
    ddp_checkpoint c;
    ddp_err err = {0};

    must_save(p, 5, 0);
    must_save(p, 9, 0);
    assert_int_equal(save_parts(p, &meta, (ddp_part[DDP_PARTS]){{NULL, 0}}, 1, &err), DDP_OK);
    assert_int_equal(ddp_checkpoint_open(in(p, "ck/step-00000005"), &c, &err), DDP_OK);
    assert_string_equal(c.meta.config_hash, "other");
    assert_int_equal(ddp_safetensors_count(c.parts[DDP_PART_MODEL]), 0);
    ddp_checkpoint_close(&c);
    assert_int_equal(contents(p), 2); /* keep = 1: the one just written, and what is further on */
}

/* What a run remembers of its evaluations comes back with the same bits; "best" leads to the best one, which stays. */
static void the_best_one(void **state)
{
    struct place *p = *state;
    ddp_checkpoint_meta meta = {.step = 5,
                                .model = "mlp",
                                .config_hash = "c",
                                .history = {.plateau = {{1.0 / 3, 1, 4, 9}, 2, 3, 1e-300},
                                            .kept = {-0.1, 1, 5, 0},
                                            .stopping = {0, 0, 0, 7},
                                            .averaged = 11,
                                            .taken = 5,
                                            .due = 1}};
    ddp_checkpoint_meta none = {.model = "mlp", .config_hash = "c"};
    ddp_checkpoint c;
    ddp_err err = {0};

    assert_int_equal(save_parts(p, &meta, (ddp_part[DDP_PARTS]){{NULL, 0}}, 1, &err), DDP_OK);
    assert_int_equal(ddp_checkpoint_open(in(p, "ck/best"), &c, &err), DDP_OK);
    assert_int_equal(c.meta.step, 5);
    assert_memory_equal(&c.meta.history, &meta.history, sizeof(meta.history));
    ddp_checkpoint_close(&c);
    for (meta.step = 6; meta.step < 9; meta.step++)
        assert_int_equal(save_parts(p, &meta, (ddp_part[DDP_PARTS]){{NULL, 0}}, 1, &err), DDP_OK);
    assert_int_equal(contents(p), 3); /* 5 and 8, and the link */
    assert_true(exists(in(p, "ck/step-00000005")) && exists(in(p, "ck/step-00000008")));
    meta.step = 9;
    meta.history.kept.step = 7; /* one that is not there: the link stays as it was */
    assert_int_equal(save_parts(p, &meta, (ddp_part[DDP_PARTS]){{NULL, 0}}, 1, &err), DDP_OK);
    assert_true(exists(in(p, "ck/best/MANIFEST.json")) && exists(in(p, "ck/step-00000005")));
    meta.step = meta.history.kept.step = 10;
    assert_int_equal(save_parts(p, &meta, (ddp_part[DDP_PARTS]){{NULL, 0}}, 1, &err), DDP_OK);
    assert_int_equal(contents(p), 2);
    none.step = 11;
    assert_int_equal(save_parts(p, &none, (ddp_part[DDP_PARTS]){{NULL, 0}}, 1, &err), DDP_OK);
    assert_true(exists(in(p, "ck/step-00000010")));
}

static void a_file_in_the_place(void **state)
{
    struct place *p = *state;

    must_save(p, 1, 0);
    spill(in(p, "ck/step-00000002"), "x", 1);
    spill(in(p, "ck/step-00000007.tmp"), "x", 1);
    must_save(p, 2, 0);
    assert_int_equal(newest(p), 2);
    assert_int_equal(contents(p), 2);
}

static void left_overs(void **state)
{
    struct place *p = *state;

    assert_int_equal(mkdir(in(p, "ck"), 0755), 0);
    assert_int_equal(mkdir(in(p, "ck/step-00000004.tmp"), 0755), 0);
    spill(in(p, "ck/step-00000004.tmp/model.safetensors"), "half", 4);
    assert_int_equal(mkdir(in(p, "ck/notes.tmp"), 0755), 0);
    assert_int_equal(newest(p), 0);
    must_save(p, 4, 0);
    assert_false(exists(in(p, "ck/step-00000004.tmp")));
    assert_true(exists(in(p, "ck/notes.tmp")));
    assert_int_equal(newest(p), 4);
}

static void keeps_what_verifies(void **state)
{
    struct place *p = *state;

    for (uint64_t step = 1; step <= 4; step++) must_save(p, step, 0);
    assert_int_equal(contents(p), 4);
    flip(in(p, "ck/step-00000004/optimizer.safetensors"), 4000);
    must_save(p, 5, 3); /* 5, 3, 2 verify; 4 does not count */
    assert_true(exists(in(p, "ck/step-00000005")));
    assert_true(exists(in(p, "ck/step-00000003")));
    assert_true(exists(in(p, "ck/step-00000002")));
    assert_false(exists(in(p, "ck/step-00000001")));
    must_save(p, 6, 1);
    assert_int_equal(contents(p), 1);
    must_save(p, 123456789012, 2);
    assert_true(exists(in(p, "ck/step-123456789012")));
    assert_int_equal(newest(p), 123456789012);
}

/* Beside the newest: whatever their state, for a save reads no more than the newest. */
static void keeps_every_so_many_steps(void **state)
{
    struct place *p = *state;

    keep_every = 10;
    for (uint64_t step = 5; step <= 40; step += 5) {
        must_save(p, step, 2);
        if (step == 20) flip(in(p, "ck/step-00000010/model.safetensors"), 5000);
    }
    assert_int_equal(contents(p), 5); /* 10, 20, 30; 35 and 40 are the newest */
    for (uint64_t step = 10; step <= 40; step += 5) {
        char name[64];

        (void)snprintf(name, sizeof(name), "ck/step-%08d", (int)step);
        assert_true(exists(in(p, name)) == (step % 10 == 0 || step == 35));
    }
    keep_every = 0;
    must_save(p, 45, 2);
    assert_int_equal(contents(p), 2);
    keep_every = 10;
    must_save(p, 50, 0); /* all */
    must_save(p, 55, 0);
    assert_int_equal(contents(p), 4);
}

static void replace_text(const char *path, const char *from, const char *to)
{
    char *text = slurp(path, NULL), *at = strstr(text, from);
    ddp_text out = {0};

    assert_non_null(at);
    ddp_text_printf(&out, "%.*s%s%s", (int)(at - text), text, to, at + strlen(from));
    spill(path, out.data, out.length);
    ddp_text_free(&out);
    free(text);
}

/* Damages step 2 in every way; each time the older one is found and the log says why. */
static void damage_is_skipped(void **state)
{
    struct place *p = *state;
    ddp_checkpoint c;
    ddp_err err = {0};
    const char *model = "ck/step-00000002/model.safetensors", *manifest = "ck/step-00000002/MANIFEST.json";
    static const char *const parts[] = {"checkpoint step-00000002 is skipped:",
                                        "model.safetensors is damaged: its XXH128 is",
                                        "model.safetensors has 100 bytes where the manifest says",
                                        "cannot open ",
                                        "do not match its checksum",
                                        "MANIFEST.json is not valid JSON",
                                        "has no MANIFEST.json: not a checkpoint, or its save did not finish",
                                        "MANIFEST.json is not the manifest of a ddpengine checkpoint"};

    for (size_t i = 1; i < DDP_COUNT(parts); i++) {
        must_save(p, 1, 0);
        must_save(p, 2, 0);
        switch (i) {
        case 1: flip(in(p, model), 9000); break;
        case 2: assert_int_equal(truncate(in(p, model), 100), 0); break;
        case 3: assert_int_equal(unlink(in(p, "ck/step-00000002/optimizer.safetensors")), 0); break;
        case 4: replace_text(in(p, manifest), "\"cursor\": 7", "\"cursor\": 8"); break;
        case 5: assert_int_equal(truncate(in(p, manifest), 100), 0); break;
        case 6: assert_int_equal(unlink(in(p, manifest)), 0); break;
        default: spill(in(p, manifest), "{}", 2); break;
        }
        assert_int_equal(newest(p), 1);
        assert_int_equal(logged(p, parts[0]), i);
        assert_int_equal(logged(p, parts[i]), 1);
    }
    assert_int_equal(rename(in(p, "ck/step-00000001"), in(p, "ck/step-00000008")), 0);
    assert_int_equal(ddp_checkpoint_newest(in(p, "ck"), &c, &p->log, &err), DDP_ERR_DATA);
    assert_int_equal(logged(p, "step-00000008 holds step 1: the folder was renamed"), 1);
    assert_contains(err.msg, "none of the 2 checkpoints in ");
    assert_contains(err.msg, "step-00000008 holds step 1");
    assert_contains(err.msg, "resume = never");
}

/* Thousands may be damaged: a line each for some, and one for the rest; a good one below all of them is found. */
static void many_are_damaged(void **state)
{
    struct place *p = *state;
    ddp_checkpoint c;
    ddp_err err = {0};
    char name[64];

    must_save(p, 1, 0);
    for (int i = 100; i < 150; i++) {
        (void)snprintf(name, sizeof(name), "ck/step-%08d", i);
        assert_int_equal(mkdir(in(p, name), 0755), 0);
    }
    assert_int_equal(newest(p), 1);
    assert_int_equal(logged(p, "warning"), 9);
    assert_int_equal(logged(p, " is skipped: "), 8);
    assert_int_equal(logged(p, "checkpoint step-00000149 is skipped: "), 1);
    assert_int_equal(logged(p, "warning: 42 more checkpoints in "), 1);
    assert_int_equal(rename(in(p, "ck/step-00000001"), in(p, "ck/good")), 0);
    assert_int_equal(ddp_checkpoint_newest(in(p, "ck"), &c, &p->log, &err), DDP_ERR_DATA);
    assert_contains(err.msg, "none of the 50 checkpoints in ");
    assert_contains(err.msg, "step-00000149 has no MANIFEST.json");
    assert_int_equal(logged(p, "warning"), 18);
}

/* The sizes of all files are looked at before the contents of any, which may be gigabytes. */
static void sizes_come_first(void **state)
{
    struct place *p = *state;
    ddp_checkpoint c;
    ddp_err err = {0};

    must_save(p, 2, 0);
    flip(in(p, "ck/step-00000002/model.safetensors"), 5000);
    assert_int_equal(truncate(in(p, "ck/step-00000002/optimizer.safetensors"), 100), 0);
    assert_int_equal(ddp_checkpoint_open(in(p, "ck/step-00000002"), &c, &err), DDP_ERR_DATA);
    assert_contains(err.msg, "optimizer.safetensors has 100 bytes where the manifest says");
}

/* A save reads a bounded number of damaged ones; what is below them goes with a later save. */
static void a_save_reads_few_damaged_ones(void **state)
{
    struct place *p = *state;
    char name[64];

    must_save(p, 1, 0);
    must_save(p, 2, 0);
    for (int i = 10; i < 30; i++) {
        (void)snprintf(name, sizeof(name), "ck/step-%08d", i);
        assert_int_equal(mkdir(in(p, name), 0755), 0);
    }
    must_save(p, 30, 2);
    assert_int_equal(contents(p), 23);
    must_save(p, 31, 2);
    assert_int_equal(contents(p), 2);
    assert_true(exists(in(p, "ck/step-00000030")));
}

/* What cannot be read may be as good as ever: no older one stands in for it. */
static void an_unreadable_one_is_not_skipped(void **state)
{
    struct place *p = *state;
    static const char *const files[] = {"ck/step-00000002/model.safetensors", "ck/step-00000002/MANIFEST.json"};
    ddp_checkpoint c;

    must_save(p, 1, 0);
    must_save(p, 2, 0);
    for (size_t i = 0; i < DDP_COUNT(files); i++) {
        ddp_err err = {0};

        assert_int_equal(rename(in(p, files[i]), in(p, "kept")), 0);
        assert_int_equal(symlink(strrchr(files[i], '/') + 1, in(p, files[i])), 0); /* a loop: ELOOP, for root too */
        assert_int_equal(ddp_checkpoint_newest(in(p, "ck"), &c, &p->log, &err), DDP_ERR_SYSTEM);
        assert_int_equal(err.sys_errno, ELOOP);
        assert_contains(err.msg, files[i]);
        assert_int_equal(rename(in(p, "kept"), in(p, files[i])), 0);
    }
    assert_int_equal(logged(p, "is skipped"), 0);
    assert_int_equal(newest(p), 2);
}

static void higher_steps_stay(void **state)
{
    struct place *p = *state;

    for (uint64_t step = 5; step <= 7; step++) must_save(p, step, 0);
    must_save(p, 3, 1);
    must_save(p, 4, 1);
    assert_false(exists(in(p, "ck/step-00000003")));
    assert_int_equal(contents(p), 4);
    assert_int_equal(newest(p), 7);
}

static void a_later_version(void **state)
{
    struct place *p = *state;
    ddp_checkpoint c;
    ddp_err err = {0};

    must_save(p, 1, 0);
    must_save(p, 2, 0);
    replace_text(in(p, "ck/step-00000002/MANIFEST.json"), "\"version\": 3", "\"version\": 4");
    assert_int_equal(ddp_checkpoint_newest(in(p, "ck"), &c, &p->log, &err), DDP_ERR_UNSUPPORTED);
    assert_contains(err.msg, "step-00000002/MANIFEST.json is of format version 4, this ddpengine reads 1 to 3");
}

static void wrong_paths(void **state)
{
    struct place *p = *state;
    ddp_checkpoint c;
    ddp_err err = {0};

    must_save(p, 3, 0);
    assert_int_equal(ddp_checkpoint_open(in(p, "ck"), &c, &err), DDP_ERR_DATA);
    assert_contains(err.msg, "ck holds checkpoints but is none: name one of them, such as ");
    assert_contains(err.msg, "ck/step-00000003");
    assert_int_equal(ddp_checkpoint_open(in(p, "nowhere"), &c, &err), DDP_ERR_DATA);
    assert_contains(err.msg, "nowhere has no MANIFEST.json");
    spill(in(p, "file"), "x", 1);
    assert_int_equal(ddp_checkpoint_newest(in(p, "file"), &c, &p->log, &err), DDP_ERR_SYSTEM);
    assert_contains(err.msg, "file: Not a directory");
}

static int wait_for(pid_t child)
{
    int status = 0;

    assert_int_equal(waitpid(child, &status, 0), child);
    return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

static void no_room(void **state)
{
    struct place *p = *state;
    pid_t child;

    must_save(p, 1, 1);
    child = fork();
    if (child == 0) {
        const struct rlimit limit = {5000, 5000};
        ddp_err err = {0};

        (void)signal(SIGXFSZ, SIG_IGN);
        if (setrlimit(RLIMIT_FSIZE, &limit) != 0 || save(p, 2, 1, &err) != DDP_ERR_SYSTEM) _exit(1);
        if (strstr(err.msg, "step-00000002.tmp/model.safetensors") == NULL || err.sys_errno != EFBIG) _exit(2);
        _exit(0);
    }
    assert_int_equal(wait_for(child), 0);
    assert_int_equal(contents(p), 1);
    assert_int_equal(newest(p), 1);
}

/* What a run does before it trains. */
static ddp_status begin(struct place *p, const char *dir, ddp_err *err)
{
    ddp_checkpoint_lock *lock;
    ddp_status st;

    DDP_TRY(ddp_checkpoint_lock_take(in(p, dir), &p->log, &lock, err));
    st = ddp_checkpoint_prepare(lock, err);
    ddp_checkpoint_lock_release(lock);
    return st;
}

static void prepare(void **state)
{
    struct place *p = *state;
    ddp_err err = {0};
    pid_t child;

    for (int i = 0; i < 2; i++) {
        assert_int_equal(begin(p, "a/b/c", &err), DDP_OK);
        assert_int_equal(entries(in(p, "a/b/c")), 1);
        assert_true(exists(in(p, "a/b/c/.lock")));
    }
    spill(in(p, "a/file"), "x", 1);
    assert_int_not_equal(begin(p, "a/file", &err), DDP_OK);
    assert_contains(err.msg, in(p, "a/file"));
    assert_int_not_equal(begin(p, "a/file/below", &err), DDP_OK);
    assert_contains(err.msg, in(p, "a/file"));

    assert_int_equal(chmod(p->dir, 0755), 0);
    assert_int_equal(chmod(in(p, "a/b/c"), 0555), 0);
    child = fork();
    if (child == 0) {
        if (geteuid() == 0 && (setgid(65534) != 0 || setuid(65534) != 0)) _exit(77); /* root may write anywhere */
        if (begin(p, "a/b/c", &err) != DDP_ERR_SYSTEM) _exit(1);
        if (strstr(err.msg, in(p, "a/b/c")) == NULL || strstr(err.msg, "Permission denied") == NULL) _exit(2);
        _exit(0);
    }
    assert_int_equal(wait_for(child), 0);
    assert_int_equal(chmod(in(p, "a/b/c"), 0755), 0);
}

/* A full disk shows at the start, and what shows it is gone again; so is what a kill in that moment has left. */
static void the_trial_leaves_nothing(void **state)
{
    struct place *p = *state;
    ddp_err err = {0};
    pid_t child;

    assert_int_equal(begin(p, "ck", &err), DDP_OK);
    spill(in(p, "ck/.write-test"), "x", 1);
    spill(in(p, "ck/.write-test-4711"), "x", 1);
    spill(in(p, "ck/.write-test-mine"), "x", 1);
    child = fork();
    if (child == 0) {
        const struct rlimit limit = {1000, 1000};

        (void)signal(SIGXFSZ, SIG_IGN);
        if (setrlimit(RLIMIT_FSIZE, &limit) != 0 || begin(p, "ck", &err) != DDP_ERR_SYSTEM) _exit(1);
        _exit(strstr(err.msg, "/ck/.write-test: cannot write") != NULL && err.sys_errno == EFBIG ? 0 : 2);
    }
    assert_int_equal(wait_for(child), 0);
    assert_false(exists(in(p, "ck/.write-test")));
    assert_false(exists(in(p, "ck/.write-test-4711")));
    assert_true(exists(in(p, "ck/.write-test-mine"))); /* not one of ours */
    assert_int_equal(contents(p), 1);
}

/* A child saves one step after the other and is killed at random moments: what is there loads, and never goes back.
 * A machine on which it comes to nothing gives it longer. */
static void killed_at_any_moment(void **state)
{
    struct place *p = *state;
    uint64_t last = 0, most_ms = 40;
    ddp_mt19937 g;

    ddp_mt19937_seed(&g, 7);
    for (int i = 0; i < 30; i++) {
        uint64_t found, us = base_mt19937_next(&g) % (most_ms * 1000);
        pid_t child = fork();

        if (child == 0) {
            ddp_err err = {0};

            p->log.level = DDP_LOG_WARN;
            for (uint64_t step = last + 1; save(p, step, 2, &err) == DDP_OK; step++) continue;
            _exit(1);
        }
        (void)usleep((useconds_t)us);
        assert_int_equal(kill(child, SIGKILL), 0);
        assert_int_equal(wait_for(child), 128 + SIGKILL);
        found = newest(p);
        assert_true(found >= last);
        if (found == last && most_ms < 2000) most_ms *= 2;
        last = found;
    }
    assert_true(last > 0);
    assert_int_equal(logged(p, "warning"), 0);
}

/* ---- the code in docs/checkpoints.md ----------------------------------------------------------------------------- */
/* Writes the `index`-th ```python block of the page to `to`. */
static void extract(int index, const char *to)
{
    char *text = slurp(DDP_SRCDIR "/docs/checkpoints.md", NULL), *at = text, *end;

    for (int i = 0; i <= index; i++) {
        at = strstr(at, "```python\n");
        assert_non_null(at);
        at += strlen("```python\n");
    }
    end = strstr(at, "```");
    assert_non_null(end);
    spill(to, at, (size_t)(end - at));
    free(text);
}

/* Runs the block with the checkpoint's path in argv; skips where there is no module `needs`. */
static void run_block(struct place *p, int index, const char *needs)
{
    static const char *const pythons[] = {"/usr/bin/python3", "python3"};
    char command[4096];
    size_t i = 0;

    for (; i < DDP_COUNT(pythons); i++) {
        (void)snprintf(command, sizeof(command),
                       "%s -c 'import importlib.util as i; exit(i.find_spec(\"%s\") is None)' >/dev/null 2>&1",
                       pythons[i], needs);
        if (system(command) == 0) break;
    }
    if (i == DDP_COUNT(pythons)) skip();
    must_save(p, 500, 0);
    extract(index, in(p, "block.py"));
    (void)snprintf(command, sizeof(command), "cd '%s' && %s block.py ck/step-00000500 >out 2>&1", p->dir, pythons[i]);
    if (system(command) != 0) {
        char *out = slurp(in(p, "out"), NULL);

        fail_msg("%s", out);
    }
}

static void docs_python(void **state)
{
    struct place *p = *state;
    char *out;

    run_block(p, 0, "json");
    out = slurp(in(p, "out"), NULL);
    assert_contains(out, "fc1.weight F32 [300, 10] 500.0");
    assert_contains(out, "fc1.bias F32 [10] 500.0");
    free(out);
    run_block(p, 2, "hashlib");
    out = slurp(in(p, "out"), NULL);
    assert_contains(out, "step 500 verifies");
    free(out);
}

static void docs_torch(void **state)
{
    struct place *p = *state;
    char *out;

    run_block(p, 1, "torch");
    out = slurp(in(p, "out"), NULL);
    assert_contains(out, "fc1.weight (300, 10)");
    free(out);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(round_trip, setup, place_teardown),
        cmocka_unit_test_setup_teardown(settings_are_optional, setup, place_teardown),
        cmocka_unit_test(settings_differ),
        cmocka_unit_test_setup_teardown(the_same_again, setup, place_teardown),
        cmocka_unit_test_setup_teardown(another_run_in_the_folder, setup, place_teardown),
        cmocka_unit_test_setup_teardown(the_best_one, setup, place_teardown),
        cmocka_unit_test_setup_teardown(a_file_in_the_place, setup, place_teardown),
        cmocka_unit_test_setup_teardown(left_overs, setup, place_teardown),
        cmocka_unit_test_setup_teardown(keeps_what_verifies, setup, place_teardown),
        cmocka_unit_test_setup_teardown(keeps_every_so_many_steps, setup, place_teardown),
        cmocka_unit_test_setup_teardown(damage_is_skipped, setup, place_teardown),
        cmocka_unit_test_setup_teardown(many_are_damaged, setup, place_teardown),
        cmocka_unit_test_setup_teardown(sizes_come_first, setup, place_teardown),
        cmocka_unit_test_setup_teardown(a_save_reads_few_damaged_ones, setup, place_teardown),
        cmocka_unit_test_setup_teardown(an_unreadable_one_is_not_skipped, setup, place_teardown),
        cmocka_unit_test_setup_teardown(higher_steps_stay, setup, place_teardown),
        cmocka_unit_test_setup_teardown(a_later_version, setup, place_teardown),
        cmocka_unit_test_setup_teardown(wrong_paths, setup, place_teardown),
        cmocka_unit_test_setup_teardown(no_room, setup, place_teardown),
        cmocka_unit_test_setup_teardown(prepare, setup, place_teardown),
        cmocka_unit_test_setup_teardown(the_trial_leaves_nothing, setup, place_teardown),
        cmocka_unit_test_setup_teardown(killed_at_any_moment, setup, place_teardown),
        cmocka_unit_test_setup_teardown(docs_python, setup, place_teardown),
        cmocka_unit_test_setup_teardown(docs_torch, setup, place_teardown),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
