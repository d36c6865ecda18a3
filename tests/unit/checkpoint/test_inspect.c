/* test_inspect.c -- what people are shown of checkpoints: lists, and what differs between two. */
#include "support/checkpoint_util.h"

#include "checkpoint/inspect.h"
#include "checkpoint/tensor_compare.h"
#include <errno.h>
#include <math.h>
#include <stdio.h>

static void save(struct place *p, const char *dir, uint64_t step, const ddp_named_tensor *model, size_t model_count,
                 const ddp_named_tensor *state, size_t state_count)
{
    const ddp_checkpoint_contents what = {
        .meta = {.step = step, .epoch = 2, .cursor = 7, .world_size = 4, .model = "mlp", .finished = step == 3},
        .parts = {{model, model_count}, {state, state_count}}};
    ddp_checkpoint_lock *lock;
    ddp_err err = {0};

    if (ddp_checkpoint_lock_take(in(p, dir), &p->log, &lock, &err) != DDP_OK) fail_msg("%s", err.msg);
    if (ddp_checkpoint_save(lock, &what, &(ddp_retention){0}, &p->log, &err) != DDP_OK) fail_msg("%s", err.msg);
    ddp_checkpoint_lock_release(lock);
}

/* ---- lists ------------------------------------------------------------------------------------------------------- */
struct listing {
    ddp_text text;
    size_t manifests; /* whose facts are right */
};

static void note_entry(void *ctx, const ddp_checkpoint_entry *e)
{
    struct listing *l = ctx;

    ddp_text_printf(&l->text, "%s %d %s; ", e->name, (int)e->kind,
                    e->valid                                   ? "valid"
                    : strstr(e->why.msg, "holds step") != NULL ? "renamed"
                    : strstr(e->why.msg, " bytes ") != NULL    ? "cut"
                                                               : "none");
    if (e->valid && e->meta.epoch == 2 && e->meta.cursor == 7 && e->meta.world_size == 4 && e->bytes > 100 &&
        e->meta.finished == (e->meta.step == 3))
        l->manifests++;
}

static void lists(void **state)
{
    struct place *p = *state;
    static const float values[300];
    const ddp_named_tensor t = {.name = "w", .dtype = DDP_F32, .rank = 1, .dims = {300}, .data = values};
    struct listing l = {0};
    ddp_err err = {0};

    for (uint64_t step = 1; step <= 6; step++) save(p, "ck", step, &t, 1, NULL, 0);
    assert_int_equal(rename(in(p, "ck/step-00000001"), in(p, "ck/step-00000009")), 0);
    assert_int_equal(rename(in(p, "ck/step-00000002"), in(p, "ck/step-00000002.old")), 0);
    assert_int_equal(truncate(in(p, "ck/step-00000004/model.safetensors"), 50), 0);
    flip(in(p, "ck/step-00000005/model.safetensors"), 500); /* contents are not read */
    assert_int_equal(unlink(in(p, "ck/step-00000006/MANIFEST.json")), 0);
    assert_int_equal(mkdir(in(p, "ck/step-00000010.tmp"), 0755), 0);
    assert_int_equal(mkdir(in(p, "ck/step-10"), 0755), 0);
    assert_int_equal(ddp_checkpoint_list(in(p, "ck"), note_entry, &l, &err), DDP_OK);
    assert_string_equal(l.text.data, "step-00000003 0 valid; step-00000004 0 cut; step-00000005 0 valid; "
                                     "step-00000006 0 none; step-00000009 0 renamed; step-00000002.old 1 valid; "
                                     "step-00000010.tmp 2 none; ");
    assert_int_equal(l.manifests, 3);
    ddp_text_free(&l.text);
    assert_true(ddp_checkpoint_is_one(in(p, "ck/step-00000003")));
    assert_false(ddp_checkpoint_is_one(in(p, "ck")));
    assert_int_equal(ddp_checkpoint_list(in(p, "absent"), note_entry, &l, &err), DDP_ERR_SYSTEM);
    assert_int_equal(err.sys_errno, ENOENT);
    assert_contains(err.msg, "absent");
    assert_null(l.text.data);
}

/* Nobody has saved just now: all count only if they verify, however many do not. */
static void what_may_be_removed(void **state)
{
    struct place *p = *state;
    static const float value = 0.0f;
    const ddp_named_tensor t = {.name = "w", .dtype = DDP_F32, .rank = 0, .data = &value};
    uint64_t *steps = NULL;
    size_t count = 0;
    ddp_err err = {0};

    for (uint64_t step = 1; step <= 5; step++) save(p, "ck", step, &t, 1, NULL, 0);
    for (int i = 100; i < 140; i++) {
        char name[64];

        (void)snprintf(name, sizeof(name), "ck/step-%08d", i);
        assert_int_equal(mkdir(in(p, name), 0755), 0);
    }
    assert_int_equal(ddp_checkpoint_removable(in(p, "ck"), UINT64_MAX, &(ddp_retention){2, 3}, &steps, &count, &err),
                     DDP_OK);
    assert_int_equal(count, 2);
    assert_int_equal(steps[0], 2); /* 5 and 4 are the newest, 3 a multiple of 3 */
    assert_int_equal(steps[1], 1);
    free(steps);
    assert_int_equal(ddp_checkpoint_removable(in(p, "ck"), UINT64_MAX, &(ddp_retention){6, 0}, &steps, &count, &err),
                     DDP_OK);
    assert_int_equal(count, 0);
    free(steps);
}

/* Only a name that nothing has is free; what cannot be looked at is not said to be there. */
static void what_is_free(void **state)
{
    struct place *p = *state;
    ddp_err err = {0};

    assert_int_equal(mkdir(in(p, "ck"), 0755), 0);
    assert_int_equal(mkdir(in(p, "ck/step-00000001"), 0755), 0);
    assert_int_equal(symlink("nowhere", in(p, "ck/step-00000002")), 0);
    assert_int_equal(ddp_checkpoint_is_free(in(p, "ck"), 3, &err), DDP_OK);
    assert_int_equal(ddp_checkpoint_is_free(in(p, "absent"), 3, &err), DDP_OK);
    for (uint64_t step = 1; step <= 2; step++) {
        assert_int_equal(ddp_checkpoint_is_free(in(p, "ck"), step, &err), DDP_ERR_SYSTEM);
        assert_contains(err.msg, "is there already, and is not replaced: name a folder without");
    }
    spill(in(p, "file"), "", 0);
    assert_int_equal(ddp_checkpoint_is_free(in(p, "file"), 1, &err), DDP_ERR_SYSTEM);
    assert_int_equal(err.sys_errno, ENOTDIR);
    assert_contains(err.msg, "cannot look whether there is a ");
    assert_contains(err.msg, "file/step-00000001: Not a directory");
}

/* ---- two checkpoints --------------------------------------------------------------------------------------------- */
static const ddp_tensor_difference *of(const ddp_tensor_differences *d, const char *name)
{
    for (size_t i = 0; i < d->count; i++)
        if (strcmp((d->items[i].a != NULL ? d->items[i].a : d->items[i].b)->name, name) == 0) return &d->items[i];
    fail_msg("%s is not there", name);
    return NULL;
}

static void differences(void **state)
{
    struct place *p = *state;
    static const float f[2][4] = {{1.0f, 0.0f, -3.0f, 4.0f}, {1.0f, -0.0f, -3.5f, 4.25f}};
    static const float odd[2][4] = {{NAN, INFINITY, 1.0f, 2.0f}, {NAN, 1.0f, 1.0f, 2.5f}};
    static const double d[2][1] = {{1e300}, {-1e300}};
    static const int64_t l[2][2] = {{5, 7}, {5, 4}};
    static const int32_t i32[2][1] = {{-1}, {2000000000}};
    static const uint8_t bytes[2][3] = {{1, 2, 3}, {1, 2, 200}};
    static const uint16_t bf16[2][2] = {{0x3f80, 0x4000}, {0x3f80, 0x4040}}; /* 1, 2; 1, 3 */
    static const uint16_t f16[2][2] = {{1, 2}, {1, 3}};
    ddp_named_tensor model[2][10], state_of[2][1];
    ddp_tensor_differences found;
    ddp_checkpoint a, b;
    ddp_err err = {0};

    for (int i = 0; i < 2; i++) {
        const ddp_named_tensor all[] = {
            {.name = "same", .dtype = DDP_F32, .rank = 1, .dims = {4}, .data = f[0]},
            {.name = "f32", .dtype = DDP_F32, .rank = 2, .dims = {2, 2}, .data = f[i]},
            {.name = "odd", .dtype = DDP_F32, .rank = 1, .dims = {4}, .data = odd[i]},
            {.name = "f64", .dtype = DDP_F64, .rank = 0, .data = d[i]},
            {.name = "i64", .dtype = DDP_I64, .rank = 1, .dims = {2}, .data = l[i]},
            {.name = "i32", .dtype = DDP_I32, .rank = 0, .data = i32[i]},
            {.name = "u8", .dtype = DDP_U8, .rank = 1, .dims = {3}, .data = bytes[i]},
            {.name = "bf16", .dtype = DDP_BF16, .rank = 1, .dims = {2}, .data = bf16[i]},
            {.name = "f16", .dtype = DDP_FILE_F16, .rank = 1, .dims = {2}, .data = f16[i]},
            {.name = i == 0 ? "only here" : "only there", .dtype = DDP_F32, .rank = 1, .dims = {4}, .data = f[0]}};

        memcpy(model[i], all, sizeof(all));
        state_of[i][0] =
            (ddp_named_tensor){.name = "f32", .dtype = DDP_F32, .rank = 1, .dims = {i == 0 ? 4 : 3}, .data = f[0]};
        save(p, i == 0 ? "a" : "b", 1, model[i], 10, state_of[i], 1);
    }
    assert_int_equal(ddp_checkpoint_open(in(p, "a/step-00000001"), &a, &err), DDP_OK);
    assert_int_equal(ddp_checkpoint_open(in(p, "b/step-00000001"), &b, &err), DDP_OK);
    assert_int_equal(ddp_checkpoint_compare_tensors(&a, &b, &found, &err), DDP_OK);
    assert_int_equal(found.common, 9);
    assert_int_equal(found.differing, 8);
    assert_int_equal(found.misfits, 1);
    assert_int_equal(found.only_a, 1);
    assert_int_equal(found.only_b, 1);
    assert_int_equal(found.count, 11);
    for (size_t i = 0; i < 3; i++) assert_false(found.items[i].comparable);
    assert_int_equal(found.items[2].part, DDP_PART_OPTIMIZER); /* the other shape */
    assert_int_equal(of(&found, "odd")->differing, 2);         /* NaN with the same bits is the same */
    assert_int_equal(of(&found, "odd")->not_finite, 1);
    assert_true(of(&found, "odd")->largest == 0.5);
    assert_true(of(&found, "f64")->largest == 2e300);
    assert_true(of(&found, "i64")->largest == 3.0);
    assert_int_equal(of(&found, "i64")->elements, 2);
    assert_int_equal(of(&found, "i64")->differing, 1);
    assert_true(of(&found, "i32")->largest == 2000000001.0);
    assert_true(of(&found, "u8")->largest == 197.0);
    assert_true(of(&found, "bf16")->largest == 1.0);
    assert_true(isnan(of(&found, "f16")->largest));
    assert_int_equal(of(&found, "f16")->differing, 1);
    assert_string_equal(found.items[found.count - 1].a->name, "f32"); /* the smallest */
    assert_int_equal(found.items[found.count - 1].differing, 3);      /* in their bits: 0 and -0 do */
    assert_true(found.items[found.count - 1].largest == 0.5);
    ddp_tensor_differences_free(&found);
    assert_int_equal(ddp_checkpoint_compare_tensors(&a, &a, &found, &err), DDP_OK);
    assert_int_equal(found.count, 0);
    assert_int_equal(found.common, 11);
    ddp_tensor_differences_free(&found);
    ddp_checkpoint_close(&a);
    ddp_checkpoint_close(&b);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(lists, place_setup, place_teardown),
        cmocka_unit_test_setup_teardown(what_may_be_removed, place_setup, place_teardown),
        cmocka_unit_test_setup_teardown(what_is_free, place_setup, place_teardown),
        cmocka_unit_test_setup_teardown(differences, place_setup, place_teardown),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
