/* tests/unit/train/test_schedule.c -- the learning rate of each update, beside what the closed forms of
 * torch.optim.lr_scheduler give for the same arguments, and what is refused. */
#include "session/session.h"
#include "support/data_util.h"
#include "train/schedule.h"
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h> /* last: it has a macro `fail` */

static void near(double got, double want, uint64_t step)
{
    if (!(fabs(got - want) <= 1e-14 * fabs(want) + 1e-300))
        fail_msg("update %llu: %.17g, not %.17g", (unsigned long long)step, got, want);
}

static void constant(void **state)
{
    const struct ddp_optimizer_config o = {.lr = 0.05};

    (void)state;
    for (uint64_t i = 0; i < 100; i++)
        assert_true(train_schedule_lr(&o, i, 10) == 0.05); /* to the bit, past the end too */
}

/* StepLR(step_size=3, gamma=0.5) of 0.8 */
static void step(void **state)
{
    static const double want[] = {0.8, 0.8, 0.8, 0.4, 0.4, 0.4, 0.2, 0.2, 0.2, 0.1, 0.1, 0.1, 0.05};
    const struct ddp_optimizer_config o = {.lr = 0.8, .schedule = DDP_SCHEDULE_STEP, .step_size = 3, .gamma = 0.5};

    (void)state;
    for (uint64_t i = 0; i < 13; i++) near(train_schedule_lr(&o, i, 5), want[i], i); /* it knows no end */
    near(train_schedule_lr(&o, 30, 5), 0.8 / 1024, 30);
}

/* LinearLR(start_factor=1, end_factor=0.1, total_iters=4) of 0.5 */
static void linear(void **state)
{
    static const double want[] = {0.5, 0.3875, 0.275, 0.1625, 0.05, 0.05, 0.05};
    struct ddp_optimizer_config o = {.lr = 0.5, .schedule = DDP_SCHEDULE_LINEAR, .min_lr = 0.05};

    (void)state;
    for (uint64_t i = 0; i < 7; i++) near(train_schedule_lr(&o, i, 4), want[i], i);
    o.min_lr = 0;
    assert_true(train_schedule_lr(&o, 4, 4) == 0.0 && train_schedule_lr(&o, 1000, 4) == 0.0);
}

/* CosineAnnealingLR(T_max=8, eta_min=0.02) of 0.1 */
static void cosine(void **state)
{
    static const double want[] = {0.1,
                                  0.09695518130045147,
                                  0.08828427124746191,
                                  0.07530733729460361,
                                  0.06,
                                  0.0446926627053964,
                                  0.0317157287525381,
                                  0.023044818699548534,
                                  0.02,
                                  0.02};
    const struct ddp_optimizer_config o = {.lr = 0.1, .schedule = DDP_SCHEDULE_COSINE, .min_lr = 0.02};

    (void)state;
    for (uint64_t i = 0; i < 10; i++) near(train_schedule_lr(&o, i, 8), want[i], i); /* torch's would rise again */
}

/* LinearLR(start_factor=1/4, total_iters=3), SequentialLR at 4: lr/4, 2 lr/4, 3 lr/4, lr, then the schedule from its
 * start */
static void warm_up(void **state)
{
    static const double rise[] = {0.1, 0.2, 0.3, 0.4};
    struct ddp_optimizer_config o = {.lr = 0.4, .warmup_steps = 4, .step_size = 2, .gamma = 0.1};

    (void)state;
    for (int32_t s = DDP_SCHEDULE_CONSTANT; s <= DDP_SCHEDULE_COSINE; s++) {
        o.schedule = s;
        for (uint64_t i = 0; i < 4; i++) near(train_schedule_lr(&o, i, 12), rise[i], i);
        near(train_schedule_lr(&o, 4, 12), 0.4, 4);
    }
    o.schedule = DDP_SCHEDULE_CONSTANT;
    assert_true(train_schedule_lr(&o, 11, 12) == 0.4);
    o.schedule = DDP_SCHEDULE_STEP;
    near(train_schedule_lr(&o, 5, 12), 0.4, 5);
    near(train_schedule_lr(&o, 6, 12), 0.04, 6);
    o.schedule = DDP_SCHEDULE_LINEAR; /* eight updates are left */
    near(train_schedule_lr(&o, 5, 12), 0.35, 5);
    near(train_schedule_lr(&o, 11, 12), 0.05, 11);
    assert_true(train_schedule_lr(&o, 12, 12) == 0.0);
    o.schedule = DDP_SCHEDULE_COSINE;
    near(train_schedule_lr(&o, 8, 12), 0.2, 8);
    near(train_schedule_lr(&o, 10, 12), 0.058578643762690495, 10);
}

/* schedule_steps counts the warm-up, and stands in the place of the run's length. */
static void steps_of_its_own(void **state)
{
    struct ddp_optimizer_config o = {
        .lr = 1, .schedule = DDP_SCHEDULE_LINEAR, .min_lr = 0.5, .schedule_steps = 6, .warmup_steps = 2};

    (void)state;
    near(train_schedule_lr(&o, 0, 1000), 0.5, 0);
    near(train_schedule_lr(&o, 2, 1000), 1, 2);
    near(train_schedule_lr(&o, 4, 1000), 0.75, 4);
    near(train_schedule_lr(&o, 5, 1000), 0.625, 5);
    for (uint64_t i = 6; i < 1000; i += 7) assert_true(train_schedule_lr(&o, i, 1000) == 0.5);
    near(train_schedule_lr(&o, 3, 4), 0.875, 3); /* a run that ends sooner does not hurry it */
    o.schedule_steps = 0;
    near(train_schedule_lr(&o, 3, 4), 0.75, 3);
    o.schedule = DDP_SCHEDULE_STEP;
    o.schedule_steps = 6; /* of linear and cosine alone */
    o.step_size = 10;
    o.gamma = 0.1;
    near(train_schedule_lr(&o, 12, 1000), 0.1, 12);
}

/* ---- what PyTorch gives ------------------------------------------------------------------------------------------ */
static const int64_t milestones[] = {3, 4, 9}, later[] = {3, 4};
#define CYCLE                                                                                                          \
    .lr = 0.1, .schedule = DDP_SCHEDULE_ONE_CYCLE, .pct_start = 0.3, .div_factor = 25, .final_div_factor = 1e4,        \
    .base_momentum = 0.85, .max_momentum = 0.95
#define PLATEAU .lr = 0.4, .gamma = 0.1, .threshold = 1e-4, .schedule = DDP_SCHEDULE_PLATEAU

/* The arguments of make_schedules.py. */
static const struct {
    const char *name;
    struct ddp_optimizer_config o;
    double momentum;
    uint64_t total;
    bool rises;
} cases[] = {
    {"multi_step",
     {.lr = 0.5, .schedule = DDP_SCHEDULE_MULTI_STEP, .gamma = 0.3, .milestones = {3, milestones}},
     0.9,
     10,
     false},
    {"multi_step_after_warmup",
     {.lr = 0.5, .schedule = DDP_SCHEDULE_MULTI_STEP, .gamma = 0.5, .warmup_steps = 4, .milestones = {2, later}},
     0.9,
     100,
     false},
    {"one_cycle", {CYCLE, .cycle_momentum = 1}, 0.9, 40, false},
    {"one_cycle_linear",
     {.lr = 0.01,
      .schedule = DDP_SCHEDULE_ONE_CYCLE,
      .pct_start = 0.4,
      .div_factor = 10,
      .final_div_factor = 100,
      .anneal_strategy = DDP_ANNEAL_LINEAR,
      .cycle_momentum = 1,
      .base_momentum = 0.8,
      .max_momentum = 0.9},
     0.9,
     23,
     false},
    {"one_cycle_still", {CYCLE, .schedule_steps = 7}, 0.9, 1000, false},
    {"one_cycle_three",
     {.lr = 0.2,
      .schedule = DDP_SCHEDULE_ONE_CYCLE,
      .pct_start = 0.3,
      .div_factor = 25,
      .final_div_factor = 1e4,
      .three_phase = 1,
      .cycle_momentum = 1,
      .base_momentum = 0.85,
      .max_momentum = 0.95},
     0.9,
     37,
     false},
    {"one_cycle_three_linear",
     {.lr = 0.01,
      .schedule = DDP_SCHEDULE_ONE_CYCLE,
      .pct_start = 0.4,
      .div_factor = 25,
      .final_div_factor = 1e4,
      .three_phase = 1,
      .anneal_strategy = DDP_ANNEAL_LINEAR,
      .cycle_momentum = 1,
      .base_momentum = 0.85,
      .max_momentum = 0.95},
     0.9,
     20,
     false},
    {"plateau", {PLATEAU, .patience = 2}, 0, 0, false},
    {"plateau_max", {.lr = 0.4, .gamma = 0.5, .threshold = 1e-4, .patience = 1, .cooldown = 2}, 0, 0, true},
    {"plateau_abs",
     {.lr = 0.4, .gamma = 0.5, .threshold = 0.05, .threshold_mode = DDP_THRESHOLD_ABS, .min_lr = 0.01},
     0,
     0,
     false},
    {"plateau_max_abs",
     {.lr = 0.4, .gamma = 0.7, .threshold = 0.02, .threshold_mode = DDP_THRESHOLD_ABS, .patience = 1, .cooldown = 1},
     0,
     0,
     true},
    {"plateau_rel", {.lr = 0.4, .gamma = 0.1, .threshold = 0.1, .patience = 3}, 0, 0, true},
};

static void close_to(double got, double want, const char *name, uint64_t step)
{
    if (!(fabs(got - want) <= 1e-12 * fabs(want)))
        fail_msg("%s, %llu: %.17g, not %.17g", name, (unsigned long long)step, got, want);
}

/* A pair of numbers of case `i`. */
static void check_pair(size_t i, uint64_t n, double first, double second, ddp_plateau *p)
{
    const struct ddp_optimizer_config *o = &cases[i].o;

    if (strncmp(cases[i].name, "plateau", 7) == 0) {
        train_plateau_take(o, p, first, n, cases[i].rises);
        close_to(train_schedule_lr(o, n, 100) * train_plateau_scale(p), second, cases[i].name, n);
        return;
    }
    close_to(train_schedule_lr(o, n, cases[i].total), first, cases[i].name, n);
    close_to(train_schedule_momentum(o, n, cases[i].total, cases[i].momentum), second, cases[i].name, n);
}

static void check_line(const char *line)
{
    size_t length = strcspn(line, " "), i = 0;
    ddp_plateau p = {0};
    uint64_t n = 0;

    while (i < DDP_COUNT(cases) && (strlen(cases[i].name) != length || strncmp(cases[i].name, line, length) != 0)) i++;
    if (i == DDP_COUNT(cases)) fail_msg("no case for: %.40s", line);
    for (char *at = (char *)line + length; *at == ' '; n++) {
        double first = strtod(at, &at), second = strtod(at, &at);

        check_pair(i, n, first, second, &p);
    }
    assert_true(n >= 7);
}

static void as_torch(void **state)
{
    (void)state;
    assert_int_equal(each_vector("schedules.txt", check_line), DDP_COUNT(cases));
}

/* The end of a cycle that the run outlasts, and a cycle without a rise. */
static void one_cycle_at_its_ends(void **state)
{
    struct ddp_optimizer_config o = {CYCLE, .cycle_momentum = 1, .schedule_steps = 10};
    ddp_err err = {0};

    (void)state;
    near(train_schedule_lr(&o, 9, 1000), 0.1 / 25 / 1e4, 9);
    near(train_schedule_lr(&o, 500, 1000), 0.1 / 25 / 1e4, 500);
    near(train_schedule_momentum(&o, 500, 1000, 0), 0.95, 500);
    o.pct_start = 0;
    assert_true(train_schedule_lr(&o, 0, 1000) < 0.1 && train_schedule_lr(&o, 0, 1000) > 0.09);
    o.pct_start = 1;
    near(train_schedule_lr(&o, 9, 1000), 0.1, 9);
    o.schedule_steps = 1;
    assert_int_equal(session_schedule_check(&o, 1000, &err), DDP_ERR_CONFIG);
    assert_non_null(strstr(err.msg, "at least 2 steps, schedule_steps has 1"));
}

/* What is not finite is no improvement, and never the best. */
static void not_finite(void **state)
{
    ddp_best b = {0};

    (void)state;
    assert_false(train_is_better(&b, NAN, false, 0, false));
    assert_false(train_is_better(&b, INFINITY, true, 0, false));
    train_best_take(&b, NAN, 1, false);
    assert_true(b.since == 1 && !b.found);
    assert_true(train_is_better(&b, 5, false, 0, false));
    train_best_take(&b, 5, 2, true);
    assert_true(b.since == 0 && b.found && b.step == 2 && b.value == 5);
    assert_false(train_is_better(&b, NAN, false, 0, false) || train_is_better(&b, INFINITY, true, 0, false));
    assert_false(train_is_better(&b, 5, false, 0, false) || train_is_better(&b, 4.5, false, 0.5, false));
    assert_true(train_is_better(&b, 4.4, false, 0.5, false) && train_is_better(&b, 4.99, false, 0, true));
}

static void refused(const struct ddp_optimizer_config *o, uint64_t total, const char *part, const char *other)
{
    ddp_err err = {0};

    assert_int_equal(session_schedule_check(o, total, &err), DDP_ERR_CONFIG);
    if (strstr(err.msg, part) == NULL || strstr(err.msg, other) == NULL) fail_msg("%s", err.msg);
}

static void a_warm_up_that_leaves_nothing(void **state)
{
    struct ddp_optimizer_config o = {.lr = 1, .warmup_steps = 10};
    ddp_err err = {0};

    (void)state;
    for (int32_t s = DDP_SCHEDULE_CONSTANT; s <= DDP_SCHEDULE_COSINE; s++) {
        o.schedule = s;
        o.schedule_steps = 0;
        assert_int_equal(session_schedule_check(&o, 11, &err), DDP_OK);
        if (s != DDP_SCHEDULE_LINEAR && s != DDP_SCHEDULE_COSINE) { /* these have no end to come to */
            assert_int_equal(session_schedule_check(&o, 3, &err), DDP_OK);
            continue;
        }
        refused(&o, 10, "warmup_steps = 10", "the 10 steps of the run");
        refused(&o, 3, "warmup_steps = 10", "train longer");
        o.schedule_steps = 10;
        refused(&o, 1000, "warmup_steps = 10", "of schedule_steps");
        o.schedule_steps = 11;
        assert_int_equal(session_schedule_check(&o, 3, &err), DDP_OK);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(constant),   cmocka_unit_test(step),
        cmocka_unit_test(linear),     cmocka_unit_test(cosine),
        cmocka_unit_test(warm_up),    cmocka_unit_test(steps_of_its_own),
        cmocka_unit_test(as_torch),   cmocka_unit_test(one_cycle_at_its_ends),
        cmocka_unit_test(not_finite), cmocka_unit_test(a_warm_up_that_leaves_nothing),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
