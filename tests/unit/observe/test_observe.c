/* test_observe.c -- what a run leaves and shows: every step once and in order, valid JSON, the summary's names and
 * figures, disks that are full. */
#include "support/checkpoint_util.h"
#include "support/until.h"

#include "config/config.h"
#include "observe/observe.h"
#include <jansson.h>
#include <math.h>
#include <pthread.h>

static ddp_observe_params params(struct place *p, const char *dir)
{
    return (ddp_observe_params){.dir = dir,
                                .log_every = 100,
                                .progress = DDP_PROGRESS_PLAIN,
                                .total_steps = 400,
                                .steps_per_epoch = 200,
                                .epochs = 2,
                                .log = &p->log};
}

static ddp_observer *open_it(const ddp_observe_params *p)
{
    ddp_observer *o = NULL;
    ddp_err err = {0};

    if (ddp_observer_open(p, &o, &err) != DDP_OK) fail_msg("%s", err.msg);
    return o;
}

/* Steps of 1.25 ms each but the first (1000 ms), 32 samples a step. */
static ddp_step_record step_of(uint64_t step)
{
    double ms = step == 1 ? 1000.0 : 1.25;

    return (ddp_step_record){.step = step,
                             .epoch = (step - 1) / 200 + 1,
                             .loss = 1.0 / (double)step,
                             .lr = 0.1,
                             .grad_norm = NAN,
                             .step_ms = ms,
                             .data_ms = 0.01,
                             .wait_ms = 0.2,
                             .samples_per_s = 32.0 / (ms * 1e-3)};
}

static ddp_summary summary_of(uint64_t steps)
{
    return (ddp_summary){.steps = steps,
                         .epochs = 2,
                         .parameters = 669706,
                         .world_size = 2,
                         .final_loss = 1.0 / (double)steps,
                         .eval_loss = 0.25,
                         .eval_accuracy = NAN,
                         .parameter_sha256 = "abc123",
                         .first_step_s = 1.5,
                         .backend = "gloo-tcp",
                         .device = "cpu",
                         .precision = "f32",
                         .exit_code = 0};
}

/* The lines of a metrics file, each of them parsed. */
static json_t *parse_lines(const char *path)
{
    char *text = slurp(path, NULL), *line = text, *end;
    json_t *all = json_array();

    while ((end = strchr(line, '\n')) != NULL) {
        json_error_t why;
        json_t *v;

        *end = '\0';
        v = json_loads(line, JSON_REJECT_DUPLICATES, &why);
        if (v == NULL) fail_msg("line %zu: %s: %s", json_array_size(all) + 1, line, why.text);
        assert_int_equal(json_array_append_new(all, v), 0);
        line = end + 1;
    }
    assert_string_equal(line, ""); /* nothing behind the last newline */
    free(text);
    return all;
}

/* Of a file that is being written. */
static int line_count(const char *path)
{
    FILE *f = fopen(path, "re");
    int n = 0, c;

    while (f != NULL && (c = getc(f)) != EOF) n += c == '\n';
    if (f != NULL) (void)fclose(f);
    return n;
}

static const char *event_of(const json_t *line) { return json_string_value(json_object_get(line, "event")); }
static double real(const json_t *o, const char *key)
{
    const json_t *v = json_object_get(o, key);

    if (!json_is_number(v)) fail_msg("%s is not a number", key);
    return json_number_value(v);
}

/* 5000 steps as fast as they go (the ring holds 1024), with an event in between: all there, in order. */
static void every_step_in_order(void **state)
{
    struct place *p = *state;
    ddp_observe_params own = params(p, in(p, "out"));
    ddp_observer *o;
    ddp_step_record r;
    uint64_t next = 1;
    json_t *lines;

    own.progress = DDP_PROGRESS_OFF;
    o = open_it(&own);
    for (uint64_t step = 1; step <= 5000; step++) {
        r = step_of(step);
        ddp_observe_step(o, &r);
        if (step == 2500) ddp_observe_event(o, "eval", "\"eval_loss\": 0.5", "shown to nobody");
    }
    ddp_observer_close(o);
    lines = parse_lines(in(p, "out/metrics.jsonl"));
    assert_int_equal(json_array_size(lines), 5001);
    for (size_t i = 0; i < 5001; i++) {
        const json_t *line = json_array_get(lines, i);

        if (i == 2500) {
            assert_string_equal(event_of(line), "eval");
            assert_true(real(line, "time") > 1.6e9);
            assert_true(real(line, "eval_loss") == 0.5);
            continue;
        }
        assert_string_equal(event_of(line), "step");
        assert_true(real(line, "step") == (double)next++);
    }
    json_decref(lines);
    assert_int_equal(logged(p, "\n"), 0);
}

static void fields_of_a_step(void **state)
{
    struct place *p = *state;
    ddp_observe_params own = params(p, in(p, "out"));
    ddp_observer *o = open_it(&own);
    ddp_step_record r = step_of(7);
    json_t *lines;
    const json_t *line;

    r.loss = 2.302585093;
    ddp_observe_step(o, &r);
    r.loss = NAN;
    r.lr = INFINITY;
    r.step_ms = -INFINITY;
    r.grad_norm = INFINITY;
    ddp_observe_step(o, &r);
    ddp_observer_close(o);
    lines = parse_lines(in(p, "out/metrics.jsonl"));
    line = json_array_get(lines, 0);
    assert_int_equal(json_object_size(line), 9);
    assert_true(real(line, "step") == 7 && real(line, "epoch") == 1 && real(line, "loss") == 2.30258509);
    assert_true(real(line, "lr") == 0.1 && real(line, "step_ms") == 1.25 && real(line, "data_ms") == 0.01);
    assert_true(real(line, "wait_ms") == 0.2 && real(line, "samples_per_s") == 25600);
    line = json_array_get(lines, 1);
    assert_true(json_is_null(json_object_get(line, "loss")));
    assert_true(json_is_null(json_object_get(line, "lr")));
    assert_true(json_is_null(json_object_get(line, "step_ms")));
    assert_true(json_is_null(json_object_get(line, "grad_norm")));
    json_decref(lines);
}

static void plain_lines(void **state)
{
    struct place *p = *state;
    ddp_observe_params own = params(p, "");
    ddp_summary s = summary_of(400);
    ddp_observer *o;
    ddp_step_record r;
    ddp_err err = {0};

    own.total_steps = 350;
    o = open_it(&own);
    ddp_observe_event(o, "start", "\"world_size\": 2", "training mlp");
    for (uint64_t step = 1; step <= 350; step++) {
        r = step_of(step);
        ddp_observe_step(o, &r);
    }
    assert_int_equal(ddp_observer_finish(o, &s, &err), DDP_OK);
    ddp_observer_close(o);
    assert_int_equal(logged(p, "training mlp\n"), 1);
    assert_int_equal(logged(p, "  step "), 4); /* 100, 200, 300 and the last */
    assert_int_equal(
        logged(p, "epoch 1/2  step 100/350  loss 0.0100  25,600 samples/s  1.25 ms/step (data 0.01, wait 0.20)  "
                  "ETA 1 s\n"),
        1); /* 250 x 1.25 ms: whole seconds, rounded up */
    assert_int_equal(
        logged(p, "epoch 2/2  step 350/350  loss 0.0029  25,600 samples/s  1.25 ms/step (data 0.01, wait 0.20)\n"), 1);
    assert_int_equal(
        logged(p, "done at step 400  loss 0.0025  eval loss 0.2500  25,600 samples/s  1.25 ms/step (median)\n"), 1);
    assert_int_equal(logged(p, "summary in"), 0); /* no folder, no files */
    assert_int_equal(entries(p->dir), 0);
}

/* One line that is rewritten, at most ten times a second; texts stand above it. */
static void live_line(void **state)
{
    struct place *p = *state;
    ddp_observe_params own = params(p, "");
    ddp_summary s = summary_of(400);
    const struct timespec pause = {.tv_nsec = 1000000};
    ddp_observer *o;
    ddp_step_record r;
    ddp_err err = {0};
    int64_t from = ddp_now_ns(), took;
    size_t shown;

    p->log.terminal = true;
    own.progress = DDP_PROGRESS_AUTO;
    o = open_it(&own);
    for (uint64_t step = 1; step <= 300; step++) {
        r = step_of(step);
        ddp_observe_step(o, &r);
        (void)nanosleep(&pause, NULL);
    }
    ddp_observe_event(o, "eval", "", "eval loss 0.3");
    took = ddp_now_ns() - from;
    assert_int_equal(ddp_observer_finish(o, &s, &err), DDP_OK);
    ddp_observer_close(o);
    shown = logged(p, "\033[Kepoch ");
    assert_true(shown >= 1);
    assert_true((int64_t)shown <= took / 100000000 + 2);
    assert_int_equal(logged(p, "eval loss 0.3\n"), 1);
    assert_int_equal(logged(p, "ms/step (data 0.01, wait 0.20)  ETA"), shown);
    assert_int_equal(logged(p, "done at step 400"), 1);
}

static void quiet(void **state)
{
    struct place *p = *state;
    ddp_observe_params own = params(p, in(p, "out"));
    ddp_summary s = summary_of(200);
    ddp_observer *o;
    ddp_step_record r = step_of(200);
    ddp_err err = {0};

    p->log.terminal = true;
    own.progress = DDP_PROGRESS_OFF;
    o = open_it(&own);
    ddp_observe_step(o, &r);
    ddp_observe_event(o, "eval", "", "eval");
    assert_int_equal(ddp_observer_finish(o, &s, &err), DDP_OK);
    ddp_observer_close(o);
    assert_int_equal(logged(p, "epoch"), 0);
    assert_int_equal(logged(p, "\n"), 0);
}

static json_t *summary_file(const char *path)
{
    json_error_t why;
    json_t *v = json_load_file(path, JSON_REJECT_DUPLICATES, &why);

    if (v == NULL) fail_msg("%s: %s", path, why.text);
    return v;
}

static void the_summary(void **state)
{
    static const char *const names[] = {"steps",          "epochs",         "final_loss",       "eval_loss",
                                        "eval_accuracy",  "parameters",     "parameter_sha256", "buffer_sha256",
                                        "first_step_s",   "median_step_ms", "samples_per_s",    "peak_rss_bytes",
                                        "peak_pss_bytes", "backend",        "device",           "precision",
                                        "world_size",     "best",           "stopped_early",    "exit_code"};
    struct place *p = *state;
    ddp_observe_params own = params(p, in(p, "out"));
    ddp_summary s = summary_of(400);
    ddp_observer *o = open_it(&own);
    ddp_step_record r;
    ddp_err err = {0};
    json_t *v;

    for (uint64_t step = 1; step <= 400; step++) {
        r = step_of(step);
        if (step == 400) r.step_ms = 900.0, r.samples_per_s = 0.0; /* one slow step moves no median */
        ddp_observe_step(o, &r);
    }
    if (ddp_observer_finish(o, &s, &err) != DDP_OK) fail_msg("%s", err.msg);
    ddp_observer_close(o);
    v = summary_file(in(p, "out/summary.json"));
    assert_int_equal(json_object_size(v), DDP_COUNT(names));
    for (size_t i = 0; i < DDP_COUNT(names); i++)
        if (json_object_get(v, names[i]) == NULL) fail_msg("%s is not there", names[i]);
    assert_true(real(v, "steps") == 400 && real(v, "epochs") == 2 && real(v, "final_loss") == 0.0025);
    assert_true(real(v, "eval_loss") == 0.25 && real(v, "parameters") == 669706 && real(v, "first_step_s") == 1.5);
    assert_true(json_is_null(json_object_get(v, "eval_accuracy")));
    assert_true(real(v, "median_step_ms") == 1.25);
    assert_true(fabs(real(v, "samples_per_s") - 398 * 32 / (398 * 1.25e-3 + 0.9)) < 0.01);
    assert_in_range((uint64_t)real(v, "peak_rss_bytes"), 1 << 20, (uint64_t)1 << 50);
    if (access("/proc/self/smaps_rollup", R_OK) == 0)
        assert_in_range((uint64_t)real(v, "peak_pss_bytes"), 1 << 16, (uint64_t)1 << 50);
    assert_true(real(v, "world_size") == 2 && real(v, "exit_code") == 0);
    assert_true(json_is_null(json_object_get(v, "best")) && json_is_false(json_object_get(v, "stopped_early")));
    assert_string_equal(json_string_value(json_object_get(v, "parameter_sha256")), "abc123");
    assert_true(json_is_null(json_object_get(v, "buffer_sha256")));
    assert_string_equal(json_string_value(json_object_get(v, "backend")), "gloo-tcp");
    assert_string_equal(json_string_value(json_object_get(v, "device")), "cpu");
    assert_string_equal(json_string_value(json_object_get(v, "precision")), "f32");
    json_decref(v);
    v = parse_lines(in(p, "out/metrics.jsonl"));
    assert_string_equal(event_of(json_array_get(v, 400)), "end");
    assert_true(real(json_array_get(v, 400), "final_loss") == 0.0025);
    json_decref(v);
    assert_int_equal(entries(in(p, "out")), 2); /* no .tmp */
    assert_int_equal(logged(p, "out/summary.json"), 1);
}

/* Every second of 300,000 steps takes 1 ms, the others 3 ms: beyond the exact part the median stays one of the two. */
static void a_long_run(void **state)
{
    struct place *p = *state;
    ddp_observe_params own = params(p, in(p, "out"));
    ddp_summary s = summary_of(300000);
    ddp_observer *o;
    ddp_err err = {0};
    json_t *v;

    own.progress = DDP_PROGRESS_OFF;
    o = open_it(&own);
    for (uint64_t step = 1; step <= 300000; step++) {
        ddp_step_record r = step_of(step);

        r.step_ms = step % 3 == 0 ? 1.0 : 3.0;
        ddp_observe_step(o, &r);
    }
    assert_int_equal(ddp_observer_finish(o, &s, &err), DDP_OK);
    ddp_observer_close(o);
    v = summary_file(in(p, "out/summary.json"));
    assert_true(real(v, "median_step_ms") == 3.0);
    json_decref(v);
}

static void no_step_at_all(void **state)
{
    struct place *p = *state;
    ddp_observe_params own = params(p, in(p, "out"));
    ddp_summary s = {.final_loss = NAN, .eval_loss = NAN, .eval_accuracy = NAN, .first_step_s = NAN, .exit_code = 7};
    ddp_observer *o = open_it(&own);
    ddp_err err = {0};
    json_t *v;

    s.device = "\xff";
    assert_int_equal(ddp_observer_finish(o, &s, &err), DDP_OK);
    ddp_observer_close(o);
    v = summary_file(in(p, "out/summary.json"));
    assert_true(json_is_null(json_object_get(v, "median_step_ms")) &&
                json_is_null(json_object_get(v, "samples_per_s")));
    assert_true(json_is_null(json_object_get(v, "final_loss")) && json_is_null(json_object_get(v, "device")));
    assert_true(json_is_null(json_object_get(v, "parameter_sha256")));
    assert_true(real(v, "exit_code") == 7);
    json_decref(v);
    assert_int_equal(logged(p, "ended after step 0 with exit code 7\n"), 1);
}

static void a_resumed_run_adds(void **state)
{
    static const char torn[] = "{\"event\": \"step\", \"step\": 3, \"lo";
    struct place *p = *state;
    ddp_observe_params own = params(p, in(p, "out"));
    ddp_step_record r = step_of(2);
    ddp_observer *o = open_it(&own);
    json_t *lines;
    int fd;

    ddp_observe_step(o, &r);
    ddp_observer_close(o);
    fd = open(in(p, "out/metrics.jsonl"), O_WRONLY | O_APPEND);
    assert_int_equal(write(fd, torn, sizeof(torn) - 1), sizeof(torn) - 1);
    close(fd);
    own.append = true;
    o = open_it(&own);
    r = step_of(3);
    ddp_observe_step(o, &r);
    ddp_observer_close(o);
    lines = parse_lines(in(p, "out/metrics.jsonl"));
    assert_int_equal(json_array_size(lines), 2);
    assert_true(real(json_array_get(lines, 1), "step") == 3);
    json_decref(lines);

    own.append = false;
    ddp_observer_close(open_it(&own));
    lines = parse_lines(in(p, "out/metrics.jsonl"));
    assert_int_equal(json_array_size(lines), 0);
    json_decref(lines);
}

static void members_that_are_not_json(void **state)
{
    struct place *p = *state;
    ddp_observe_params own = params(p, in(p, "out"));
    ddp_observer *o = open_it(&own);
    json_t *lines;

    ddp_observe_event(o, "warning", "\"text\": \"a \"quoted\" word\"", NULL);
    ddp_observe_event(o, "warning", "\"text\":\n1", NULL);
    ddp_observe_event(o, "warning", NULL, NULL);
    ddp_observer_close(o);
    lines = parse_lines(in(p, "out/metrics.jsonl"));
    assert_int_equal(json_array_size(lines), 3);
    for (size_t i = 0; i < 3; i++) assert_string_equal(event_of(json_array_get(lines, i)), "warning");
    assert_string_equal(json_string_value(json_object_get(json_array_get(lines, 0), "text")),
                        "\"text\": \"a \"quoted\" word\"");
    json_decref(lines);
}

/* Nothing can be written: one warning, and the run goes on to its end. */
/* A loss above three times the median of the steps before: once, then not for 100 steps; not before there are 16. */
static void a_loss_spike(void **state)
{
    static const uint64_t spikes[] = {10, 40, 45, 139, 140, 200};
    struct place *p = *state;
    ddp_observe_params own = params(p, in(p, "out"));
    uint64_t warned[4] = {0};
    size_t count = 0;
    ddp_observer *o;
    json_t *lines;

    own.loss_spike = 3.0;
    o = open_it(&own);
    for (uint64_t step = 1; step <= 200; step++) {
        ddp_step_record r = step_of(step);

        r.loss = step % 2 == 0 ? 2.0 : 2.2;
        for (size_t i = 0; i < DDP_COUNT(spikes); i++)
            if (step == spikes[i]) r.loss = 9.0;
        if (step == 30) r.loss = NAN;
        if (step == 31) r.loss = 5.9; /* below 3 x 2 */
        ddp_observe_step(o, &r);
    }
    ddp_observer_close(o);
    lines = parse_lines(in(p, "out/metrics.jsonl"));
    for (size_t i = 0; i < json_array_size(lines); i++) {
        const json_t *line = json_array_get(lines, i);

        if (strcmp(event_of(line), "warning") != 0) continue;
        assert_true(count < 4 && real(line, "loss") == 9.0);
        assert_true(real(line, "usual_loss") >= 2.0 && real(line, "usual_loss") <= 2.2);
        warned[count++] = (uint64_t)real(line, "step");
    }
    json_decref(lines);
    assert_int_equal(count, 2);
    assert_true(warned[0] == 40 && warned[1] == 140);
    assert_int_equal(logged(p, "times the usual"), 2);
}

static void a_full_disk(void **state)
{
    struct place *p = *state;
    ddp_observe_params own = params(p, in(p, "out"));
    ddp_observer *o;
    ddp_step_record r;

    if (access("/dev/full", W_OK) != 0) skip();
    assert_int_equal(mkdir(in(p, "out"), 0755), 0);
    assert_int_equal(symlink("/dev/full", in(p, "out/metrics.jsonl")), 0);
    o = open_it(&own);
    for (uint64_t step = 1; step <= 3000; step++) {
        r = step_of(step);
        ddp_observe_step(o, &r);
    }
    ddp_observer_close(o);
    assert_int_equal(logged(p, "metrics.jsonl: cannot write: No space left on device; the run continues"), 1);
    assert_int_equal(logged(p, "metrics.jsonl lacks 3000 lines"), 1);
}

/* Somebody removes [output] dir, or what is in it, while the run writes there. */
static void removed_during_the_run(void **state)
{
    struct place *p = *state;
    ddp_observe_params own = params(p, in(p, "out"));
    ddp_summary s = summary_of(20);
    ddp_observer *o = open_it(&own);
    ddp_step_record r;
    ddp_err err = {0};
    json_t *lines;

    for (uint64_t step = 1; step <= 10; step++) {
        r = step_of(step);
        ddp_observe_step(o, &r);
    }
    UNTIL(line_count(in(p, "out/metrics.jsonl")) == 10);
    assert_int_equal(unlink(in(p, "out/metrics.jsonl")), 0);
    assert_int_equal(rmdir(in(p, "out")), 0);
    for (uint64_t step = 11; step <= 20; step++) {
        r = step_of(step);
        ddp_observe_step(o, &r);
    }
    if (ddp_observer_finish(o, &s, &err) != DDP_OK) fail_msg("%s", err.msg);
    ddp_observer_close(o);
    lines = parse_lines(in(p, "out/metrics.jsonl"));
    assert_string_equal(event_of(json_array_get(lines, 0)), "warning");
    assert_contains(json_string_value(json_object_get(json_array_get(lines, 0), "text")), "was removed");
    assert_int_equal(json_array_size(lines), 1 + 10 + 1);
    assert_int_equal((int)real(json_array_get(lines, 1), "step"), 11);
    assert_string_equal(event_of(json_array_get(lines, 11)), "end");
    json_decref(lines);
    assert_true(exists(in(p, "out/summary.json")));
    assert_int_equal(logged(p, "out/metrics.jsonl was removed during the run: the lines written so far are lost"), 1);
    assert_int_equal(logged(p, "out/metrics.jsonl lacks the lines from before it was removed"), 1);
}

/* And it cannot be made again: that is said once, and what is missing is counted. */
static void removed_for_good(void **state)
{
    struct place *p = *state;
    ddp_observe_params own = params(p, in(p, "out"));
    ddp_observer *o = open_it(&own);
    ddp_step_record r = step_of(1);

    ddp_observe_step(o, &r);
    UNTIL(line_count(in(p, "out/metrics.jsonl")) == 1);
    assert_int_equal(unlink(in(p, "out/metrics.jsonl")), 0);
    assert_int_equal(rmdir(in(p, "out")), 0);
    spill(in(p, "out"), "x", 1); /* a file of that name */
    for (uint64_t step = 2; step <= 2000; step++) {
        r = step_of(step);
        ddp_observe_step(o, &r);
    }
    ddp_observer_close(o);
    assert_int_equal(logged(p, "out/metrics.jsonl was removed, and its lines are lost: "), 1);
    assert_int_equal(logged(p, "out/metrics.jsonl lacks 1999 lines"), 1);
}

static void folders_that_cannot_be(void **state)
{
    struct place *p = *state;
    ddp_observe_params own = params(p, in(p, "file"));
    ddp_summary s = summary_of(1);
    ddp_observer *o = NULL;
    ddp_err err = {0};

    spill(in(p, "file"), "x", 1);
    assert_int_not_equal(ddp_observer_open(&own, &o, &err), DDP_OK);
    assert_null(o);
    assert_contains(err.msg, in(p, "file"));

    own.dir = in(p, "out");
    o = open_it(&own);
    assert_int_equal(mkdir(in(p, "out/summary.json"), 0755), 0);
    assert_int_equal(ddp_observer_finish(o, &s, &err), DDP_ERR_SYSTEM);
    assert_contains(err.msg, "out/summary.json");
    assert_int_equal(entries(in(p, "out")), 2); /* that folder, and metrics.jsonl */
    assert_int_equal(rmdir(in(p, "out/summary.json")), 0);
    assert_int_equal(ddp_observer_finish(o, &s, &err), DDP_OK); /* may be tried again, with another exit code */
    ddp_observer_close(o);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(every_step_in_order, place_setup, place_teardown),
        cmocka_unit_test_setup_teardown(fields_of_a_step, place_setup, place_teardown),
        cmocka_unit_test_setup_teardown(plain_lines, place_setup, place_teardown),
        cmocka_unit_test_setup_teardown(live_line, place_setup, place_teardown),
        cmocka_unit_test_setup_teardown(quiet, place_setup, place_teardown),
        cmocka_unit_test_setup_teardown(the_summary, place_setup, place_teardown),
        cmocka_unit_test_setup_teardown(a_long_run, place_setup, place_teardown),
        cmocka_unit_test_setup_teardown(no_step_at_all, place_setup, place_teardown),
        cmocka_unit_test_setup_teardown(a_resumed_run_adds, place_setup, place_teardown),
        cmocka_unit_test_setup_teardown(members_that_are_not_json, place_setup, place_teardown),
        cmocka_unit_test_setup_teardown(a_loss_spike, place_setup, place_teardown),
        cmocka_unit_test_setup_teardown(a_full_disk, place_setup, place_teardown),
        cmocka_unit_test_setup_teardown(removed_during_the_run, place_setup, place_teardown),
        cmocka_unit_test_setup_teardown(removed_for_good, place_setup, place_teardown),
        cmocka_unit_test_setup_teardown(folders_that_cannot_be, place_setup, place_teardown),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
