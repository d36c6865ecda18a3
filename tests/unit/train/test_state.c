/* tests of train/state/buffer_sync.c, resume_settings.c and tensors.c: what a model keeps beside its parameters, and a
 * run's position, without a run around it */
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <setjmp.h>

#include "train/state/buffer_sync.h"
#include "train/state/resume_settings.h"
#include "train/state/tensors.h"
#include <string.h>
#include <cmocka.h> /* last: it makes a macro of fail */

/* ---- random numbers of a step ------------------------------------------------------------------------------------ */
struct rank {
    struct ddp_train_config train;
    ddp_config config;
    ddp_session session;
    ddp_trainer trainer;
    int64_t counts[1];
};

static ddp_trainer *rank_of(struct rank *r, int32_t rank, int32_t world, uint64_t seed)
{
    memset(r, 0, sizeof(*r));
    r->train.seed = seed;
    r->config.train = &r->train;
    r->session.config = &r->config;
    r->session.shares = (ddp_shares_of_rank){.count = world, .own = 1, .list = {rank}};
    r->session.devices.replicas = 1;
    r->trainer.s = &r->session;
    r->trainer.mem.counts = r->counts;
    return &r->trainer;
}

/* Every micro-step of every rank draws from a stream of its own, and a resumed run from the one of its place. */
static void streams(void **state)
{
    bool seen[3 * 40] = {false};
    struct rank ranks[3];

    (void)state;
    for (int32_t r = 0; r < 3; r++) {
        ddp_trainer *t = rank_of(&ranks[r], r, 3, 77);

        for (uint64_t i = 0; i < 40; i++) {
            ddp_random random = ddp_trainer_random(t, 0);

            assert_int_equal(random.seed, 77);
            assert_in_range(random.stream, 0, 119);
            assert_false(seen[random.stream]);
            seen[random.stream] = true;
            ddp_trainer_buffers_count(t);
        }
    }
    (void)rank_of(&ranks[0], 1, 3, 77);
    ranks[0].trainer.progress.micro_steps = 25; /* as a checkpoint says */
    assert_int_equal(ddp_trainer_random(&ranks[0].trainer, 0).stream, 25 * 3 + 1);
    ranks[0].session.shares.list[1] = 2; /* its rank is missing */
    assert_int_equal(ddp_trainer_random(&ranks[0].trainer, 1).stream, 25 * 3 + 2);
}

/* Of a run with other numbers of ranks, one after the other: 5 steps of each, of 12 samples in micro-batches of 3 at
 * most. The position is counted in steps, and no stream comes twice. */
static void another_number_of_ranks(void **state)
{
    const int32_t worlds[] = {2, 3, 1, 4, 12, 2};
    ddp_checkpoint_meta meta = {.world_size = 2, .accumulate = 2};
    bool seen[1000] = {false};

    (void)state;
    for (size_t k = 0; k < DDP_COUNT(worlds); k++) {
        uint64_t accumulate = (12 / (uint64_t)worlds[k] + 2) / 3, cursor = 0, micro_steps = 0;

        for (int32_t r = 0; r < worlds[k]; r++) {
            struct rank own;
            ddp_trainer *t = rank_of(&own, r, worlds[k], 1);

            own.session.batches.accumulate = (int64_t)accumulate;
            cursor = state_cursor(t, &meta);
            assert_int_equal(cursor, 5 * k * accumulate);
            t->progress.micro_steps = k == 0 ? 0 : state_micro_steps(t, &meta);
            for (uint64_t i = 0; i < 5 * accumulate; i++) {
                uint64_t stream = ddp_trainer_random(t, 0).stream;

                assert_in_range(stream, 0, DDP_COUNT(seen) - 1);
                assert_false(seen[stream]);
                seen[stream] = true;
                ddp_trainer_buffers_count(t);
            }
            micro_steps = t->progress.micro_steps;
        }
        meta = (ddp_checkpoint_meta){.world_size = (uint64_t)worlds[k],
                                     .accumulate = accumulate,
                                     .cursor = cursor + 5 * accumulate,
                                     .micro_steps = micro_steps};
    }
}

static void counts(void **state)
{
    const ddp_buffer_info infos[] = {{.dtype = DDP_F32}, {.dtype = DDP_I64}};
    int64_t count[2] = {0, 500}; /* a loaded one goes on from what it was */
    struct rank r;
    ddp_trainer *t = rank_of(&r, 0, 1, 0);

    (void)state;
    t->mem.counts = count;
    r.session.model.buffers = infos;
    r.session.model.buffer_count = 2;
    for (int i = 0; i < 7; i++) ddp_trainer_buffers_count(t);
    assert_int_equal(t->progress.micro_steps, 7);
    assert_int_equal(count[0], 0);
    assert_int_equal(count[1], 507);
}

/* ---- names ------------------------------------------------------------------------------------------------------- */
static void state_dict_order(void **state)
{
    static const char *const expected[] = {"first", "conv1.weight", "bn1.mean", "bn1.count", "fc.weight", "last"};
    const ddp_param_info params[] = {{.name = "conv1.weight", .rank = 1, .dims = {3}, .elements = 3},
                                     {.name = "fc.weight", .rank = 2, .dims = {2, 2}, .elements = 4}};
    const ddp_buffer_info infos[] = {
        {.name = "first", .dtype = DDP_F32, .elements = 1, .after_param = 0},
        {.name = "bn1.mean", .dtype = DDP_F32, .rank = 1, .dims = {5}, .elements = 5, .offset = 16, .after_param = 1},
        {.name = "bn1.count", .dtype = DDP_I64, .elements = 1, .after_param = 1},
        {.name = "last", .dtype = DDP_F32, .elements = 1, .offset = 32, .after_param = 2}};
    uint64_t offsets[] = {16, 0};
    ddp_layout layout = {.offset = offsets};
    float arena[32], buffers[48];
    int64_t count[4];
    struct rank r;
    ddp_trainer *t = rank_of(&r, 0, 1, 0);
    ddp_state_arenas a;
    ddp_err err = {0};
    ddp_views v;

    (void)state;
    r.session.model.params = params;
    r.session.model.param_count = 2;
    r.session.model.buffers = infos;
    r.session.model.buffer_count = 4;
    r.session.model.layout = &layout;
    t->mem.host.params = arena;
    t->mem.host.buffers = buffers;
    t->mem.counts = count;
    a = state_arenas(t);
    assert_int_equal(state_model_views(t, &a, STATE_BASE, &v, &err), DDP_OK);
    assert_int_equal(v.count, 6);
    for (size_t i = 0; i < v.count; i++) assert_string_equal(v.tensors[i].name, expected[i]);
    assert_ptr_equal(v.data[1], arena + 16);
    assert_ptr_equal(v.data[2], buffers + 16);
    assert_ptr_equal(v.data[3], &count[2]);
    assert_ptr_equal(v.data[4], arena);
    assert_int_equal(v.tensors[3].dtype, DDP_I64);
    assert_int_equal(v.tensors[3].rank, 0);
    assert_int_equal(state_tensor_elements(&v.tensors[4]), 4);
    state_views_free(&v);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(streams),
        cmocka_unit_test(another_number_of_ranks),
        cmocka_unit_test(counts),
        cmocka_unit_test(state_dict_order),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
