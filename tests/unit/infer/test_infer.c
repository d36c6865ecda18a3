/* tests/unit/infer/test_infer.c -- libddpinfer as a program of somebody else uses it: its header and the shared library
 * alone, plugins of the build tree, weights that are written here. The reference is computed here too, in double. */
#include "infer/lib/ddpinfer.h"
#include "checkpoint/safetensors.h"
#include <dirent.h>
#include <errno.h>
#include <math.h>
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>
#include <cmocka.h> /* last: it has a macro `fail` */

enum { IN = 12, HIDDEN = 17, OUT = 4, MOST = 9 };

static const char ini[] = "[model]\nplugin = mlp\n[model.mlp]\nhidden = 17\nclasses = 4\ninput = input\n"
                          "[data]\nplugin = synthetic\n[data.synthetic]\nsamples = 64\nshape = 12\nclasses = 4\n";

typedef struct fixture {
    char folder[64], config[96], weights[96];
    float w1[HIDDEN * IN], b1[HIDDEN], w2[OUT * HIDDEN], b2[OUT];
} fixture;

static float next(uint64_t *state)
{
    *state = *state * 6364136223846793005u + 1442695040888963407u;
    return (float)(int32_t)(*state >> 32) * 0x1p-32f;
}

static void fill(float *x, size_t count, uint64_t *state)
{
    for (size_t i = 0; i < count; i++) x[i] = next(state);
}

static void write_text(const char *path, const char *text)
{
    FILE *f = fopen(path, "w");

    assert_non_null(f);
    assert_true(fputs(text, f) >= 0);
    assert_int_equal(fclose(f), 0);
}

static int set_up(void **state)
{
    fixture *f = calloc(1, sizeof(*f));
    char sha256[DDP_SHA256_HEX];
    ddp_err err = {0};
    uint64_t seed = 7, bytes;

    assert_non_null(f);
    (void)snprintf(f->folder, sizeof(f->folder), "/tmp/ddp_infer.XXXXXX");
    assert_non_null(mkdtemp(f->folder));
    (void)snprintf(f->config, sizeof(f->config), "%s/x.ini", f->folder);
    (void)snprintf(f->weights, sizeof(f->weights), "%s/w.safetensors", f->folder);
    write_text(f->config, ini);
    fill(f->w1, HIDDEN * IN, &seed);
    fill(f->b1, HIDDEN, &seed);
    fill(f->w2, OUT * HIDDEN, &seed);
    fill(f->b2, OUT, &seed);
    const ddp_named_tensor t[] = {
        {.name = "fc1.weight", .dtype = DDP_F32, .rank = 2, .dims = {HIDDEN, IN}, .data = f->w1},
        {.name = "fc1.bias", .dtype = DDP_F32, .rank = 1, .dims = {HIDDEN}, .data = f->b1},
        {.name = "fc2.weight", .dtype = DDP_F32, .rank = 2, .dims = {OUT, HIDDEN}, .data = f->w2},
        {.name = "fc2.bias", .dtype = DDP_F32, .rank = 1, .dims = {OUT}, .data = f->b2}};
    assert_int_equal(checkpoint_safetensors_write(f->weights, t, 4, NULL, NULL, sha256, &bytes, &err), DDP_OK);
    *state = f;
    return 0;
}

static int tear_down(void **state)
{
    fixture *f = *state;

    (void)unlink(f->config);
    (void)unlink(f->weights);
    assert_int_equal(rmdir(f->folder), 0);
    free(f);
    return 0;
}

static ddp_infer *open_model(const fixture *f, const ddp_infer_options *more)
{
    ddp_infer_options o = more != NULL ? *more : (ddp_infer_options){0};
    ddp_infer_error error = {""};
    ddp_infer *m = NULL;

    o.struct_size = sizeof(o);
    o.plugins = DDP_BUILDDIR "/.libs";
    if (ddp_infer_open(f->config, f->weights, &o, &m, &error) != DDP_INFER_OK) fail_msg("%s", error.text);
    return m;
}

static void reference(const fixture *f, const float *x, double *y)
{
    double h[HIDDEN];

    for (int i = 0; i < HIDDEN; i++) {
        h[i] = (double)f->b1[i];
        for (int k = 0; k < IN; k++) h[i] += (double)f->w1[i * IN + k] * (double)x[k];
        h[i] = fmax(h[i], 0.0);
    }
    for (int i = 0; i < OUT; i++) {
        y[i] = (double)f->b2[i];
        for (int k = 0; k < HIDDEN; k++) y[i] += (double)f->w2[i * HIDDEN + k] * h[k];
    }
}

/* `shift`: floats that the input stands behind an aligned address. */
static void check_batch(const fixture *f, ddp_infer *m, int batch, int shift)
{
    float *memory = aligned_alloc(64, 1024), *x = memory + shift, y[MOST * OUT] = {0};
    uint64_t seed = (uint64_t)batch;
    double expected[OUT];
    ddp_infer_error error = {""};

    assert_non_null(memory);
    fill(x, (size_t)batch * IN, &seed);
    if (ddp_infer_run(m, batch, (const void *[]){x}, (void *[]){y}, &error) != DDP_INFER_OK) fail_msg("%s", error.text);
    for (int n = 0; n < batch; n++) {
        reference(f, x + n * IN, expected);
        for (int i = 0; i < OUT; i++) assert_true(fabs((double)y[n * OUT + i] - expected[i]) < 1e-5);
    }
    free(memory);
}

/* More sizes than stay ready, aligned and not. */
static void test_batches(void **state)
{
    const fixture *f = *state;
    ddp_infer *m = open_model(f, NULL);

    for (int round = 0; round < 2; round++)
        for (int batch = 1; batch <= MOST; batch++) check_batch(f, m, batch, round);
    check_batch(f, m, 1, 3);
    assert_int_equal(ddp_infer_prepare(m, 3, NULL), DDP_INFER_OK);
    check_batch(f, m, 3, 0);
    ddp_infer_close(m);
}

static void test_descriptions(void **state)
{
    ddp_infer *m = open_model(*state, NULL);
    ddp_infer_tensor t;

    assert_int_equal(ddp_infer_inputs(m), 1);
    assert_int_equal(ddp_infer_input(m, 0, &t), DDP_INFER_OK);
    assert_string_equal(t.name, "input");
    assert_int_equal(t.rank, 1);
    assert_int_equal(t.dims[0], IN);
    assert_int_equal(t.dtype, DDP_INFER_F32);
    assert_int_equal(t.bytes, IN * sizeof(float));
    assert_int_equal(ddp_infer_input(m, 1, &t), DDP_INFER_CONFIG);
    assert_int_equal(ddp_infer_input(m, -1, &t), DDP_INFER_CONFIG);
    assert_int_equal(ddp_infer_outputs(m), 1);
    assert_int_equal(ddp_infer_output(m, 0, &t), DDP_INFER_OK);
    assert_string_equal(t.name, "logits");
    assert_int_equal(t.dims[0], OUT);
    ddp_infer_close(m);
    assert_true(strlen(ddp_infer_version()) > 0);
}

static int threads_of_process(void)
{
    DIR *d = opendir("/proc/self/task");
    int n = -2; /* . and .. */

    assert_non_null(d);
    while (readdir(d) != NULL) n++;
    (void)closedir(d);
    return n;
}

/* Whether a file of this name is mapped into the process. */
static bool is_mapped(const char *name)
{
    FILE *f = fopen("/proc/self/maps", "r");
    char line[4096];
    bool found = false;

    assert_non_null(f);
    while (fgets(line, sizeof(line), f) != NULL) found = found || strstr(line, name) != NULL;
    (void)fclose(f);
    return found;
}

/* No thread unless asked for, no backend, and nothing on standard error. */
static void test_quiet(void **state)
{
    const fixture *f = *state;
    int before = threads_of_process(), saved = dup(STDERR_FILENO), pipe_fd[2];
    ddp_infer *m;
    char c;

    assert_int_equal(pipe(pipe_fd), 0);
    assert_true(dup2(pipe_fd[1], STDERR_FILENO) >= 0);
    m = open_model(f, NULL);
    check_batch(f, m, 2, 0);
    assert_int_equal(threads_of_process(), before);
    assert_true(is_mapped("/model_mlp.so") && !is_mapped("/backend_") && !is_mapped("/sampler_"));
    ddp_infer_close(m);
    assert_true(dup2(saved, STDERR_FILENO) >= 0);
    (void)close(saved);
    (void)close(pipe_fd[1]);
    assert_int_equal(read(pipe_fd[0], &c, 1), 0);
    (void)close(pipe_fd[0]);
}

static void count_lines(void *ctx, int level, const char *line)
{
    (void)level;
    assert_null(strchr(line, '\n'));
    ++*(int *)ctx;
}

static void test_log(void **state)
{
    const fixture *f = *state;
    int lines = 0;
    ddp_infer_options o = {.threads = 2, .log = count_lines, .log_ctx = &lines};
    ddp_infer *m = open_model(f, &o);

    check_batch(f, m, MOST, 0);
    ddp_infer_close(m);
    assert_true(lines >= 0);
}

static void *run_in_thread(void *arg)
{
    const fixture *f = arg;
    ddp_infer *m = open_model(f, NULL);

    for (int i = 0; i < 50; i++) check_batch(f, m, 1 + i % MOST, i % 2);
    ddp_infer_close(m);
    return NULL;
}

static void test_a_model_each_thread(void **state)
{
    pthread_t threads[3];

    for (size_t i = 0; i < DDP_COUNT(threads); i++)
        assert_int_equal(pthread_create(&threads[i], NULL, run_in_thread, *state), 0);
    for (size_t i = 0; i < DDP_COUNT(threads); i++) assert_int_equal(pthread_join(threads[i], NULL), 0);
}

static void refuse(const char *config, const char *weights, const ddp_infer_options *o, int code, const char *text)
{
    ddp_infer_error error = {""};
    ddp_infer *m = NULL;

    assert_int_equal(ddp_infer_open(config, weights, o, &m, &error), code);
    assert_null(m);
    if (strstr(error.text, text) == NULL) fail_msg("\"%s\" is not in: %s", text, error.text);
    assert_int_equal(ddp_infer_open(config, weights, o, &m, NULL), code);
}

static void test_errors(void **state)
{
    const fixture *f = *state;
    const char *const set[] = {"model.mlp.hidden=18"}, *const unknown[] = {"model.mlp.hiden=18"},
                      *const absent[] = {"model.plugin=nosuch"};
    ddp_infer_options o = {.struct_size = sizeof(o), .plugins = DDP_BUILDDIR "/.libs"}, none = {0};
    ddp_infer_error error = {""};
    float x[IN] = {0}, y[OUT];
    ddp_infer *m;

    refuse("/no/such.ini", NULL, &o, DDP_INFER_CONFIG, "/no/such.ini");
    refuse(NULL, NULL, &o, DDP_INFER_CONFIG, "NULL");
    refuse(f->config, f->weights, &none, DDP_INFER_CONFIG, "struct_size");
    refuse(f->config, "/no/such.safetensors", &o, DDP_INFER_WEIGHTS, "/no/such.safetensors");
    refuse(f->config, NULL, &o, DDP_INFER_WEIGHTS, "no weights to use");
    o.set_count = 1;
    o.set = set;
    refuse(f->config, f->weights, &o, DDP_INFER_WEIGHTS, "fc1.weight");
    o.set = unknown;
    refuse(f->config, f->weights, &o, DDP_INFER_CONFIG, "hidden");
    o.set = absent;
    refuse(f->config, f->weights, &o, DDP_INFER_PLUGIN, "nosuch");
    m = open_model(f, NULL);
    assert_int_equal(ddp_infer_run(m, 0, (const void *[]){x}, (void *[]){y}, &error), DDP_INFER_CONFIG);
    assert_non_null(strstr(error.text, "batch"));
    assert_int_equal(ddp_infer_run(m, 1, (const void *[]){NULL}, (void *[]){y}, &error), DDP_INFER_CONFIG);
    assert_int_equal(ddp_infer_run(NULL, 1, (const void *[]){x}, (void *[]){y}, &error), DDP_INFER_CONFIG);
    assert_int_equal(ddp_infer_run(m, 1, (const void *[]){x}, (void *[]){NULL}, &error), DDP_INFER_OK);
    ddp_infer_close(m);
    ddp_infer_close(NULL);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_quiet, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_batches, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_descriptions, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_log, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_a_model_each_thread, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_errors, set_up, tear_down),
    };

    return cmocka_run_group_tests_name("libddpinfer", tests, NULL, NULL);
}
