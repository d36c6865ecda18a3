/* tests/unit/backend/test_mpi.c -- backend mpi alone, by its function table. The test starts itself under mpirun as
 * 2 and 3 ranks (and once as more than there are processors); such a rank runs one body and says by its exit code
 * and a line on stderr what was wrong. Inputs are small integers, exact in every dtype, so that expected values do
 * not depend on the order of summing; what must have the bits of backend gloo-tcp over two ranks is computed as
 * written there. */
#include "base/sys.h"
#include "collective_util.h"
#include "support/until.h"
#include <dlfcn.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>
#include <setjmp.h>
#include <cmocka.h> /* last: it has a macro `fail` */

#define PLUGIN DDP_BUILDDIR "/.libs/backend_mpi.so"
#define SEED   77

typedef struct rank_of {
    uint32_t rank, world;
    size_t piece;
    const char *group;
    const ddp_plugin *plugin;
    const ddp_backend_ops *ops;
    ddp_backend *backend;
    ddp_comm *comm;
    ddp_err err;
} rank_of;

/* A wrong ends the rank, and mpirun the others. */
#define MUST(r, condition)                                                                                             \
    do {                                                                                                               \
        if (!(condition)) {                                                                                            \
            (void)fprintf(stderr, "# rank %u of %u: %s:%d: %s (%s)\n", (r)->rank, (r)->world, __FILE__, __LINE__,      \
                          #condition, (r)->err.msg);                                                                   \
            _exit(1);                                                                                                  \
        }                                                                                                              \
    } while (0)

static void no_log(void *ctx, int level, const char *file, int line, const char *fmt, ...)
{
    (void)ctx, (void)level, (void)file, (void)line, (void)fmt;
}
static const ddp_host host = {.struct_size = sizeof(host), .log = no_log};

/* ---- one rank ---------------------------------------------------------------------------------------------------- */
static void open_rank(rank_of *r)
{
    uint64_t config[8] = {0};
    ddp_comm_params p = {.struct_size = sizeof(p),
                         .rank = r->rank,
                         .world_size = r->world,
                         .timeout_ms = 60000,
                         .group = r->group,
                         .address = "127.0.0.1",
                         .interface = getenv("TEST_INTERFACE")};

    MUST(r, r->plugin->option_count == 2 && r->plugin->config_size <= sizeof(config));
    for (uint32_t i = 0; i < 2; i++) /* piece and message */
        memcpy((char *)config + r->plugin->options[i].offset, &r->piece, sizeof(r->piece));
    MUST(r, r->ops->open(&host, config, &r->backend, &r->err) == DDP_OK);
    MUST(r, r->ops->comm_create(r->backend, &p, &r->comm, &r->err) == DDP_OK);
}

static void close_rank(rank_of *r)
{
    r->ops->comm_destroy(r->comm);
    r->ops->close(r->backend);
}

static uint16_t bf16(float f)
{
    uint32_t bits;

    memcpy(&bits, &f, sizeof(bits));
    return (uint16_t)((bits + 0x7fff + ((bits >> 16) & 1)) >> 16);
}

static float from_bf16(uint16_t x)
{
    uint32_t bits = (uint32_t)x << 16;
    float f;

    memcpy(&f, &bits, sizeof(f));
    return f;
}

/* `count` elements from element `first` of rank's input, or of the result. */
static void fill(const rank_of *r, void *p, uint32_t dtype, uint32_t op, uint32_t rank, size_t first, size_t count,
                 bool result)
{
    for (size_t i = 0; i < count; i++)
        store_value(p, i, dtype,
                    result ? reduced(SEED, r->world, first + i, dtype, op) : input(SEED, rank, first + i, dtype));
}

static char *room(rank_of *r, size_t bytes)
{
    char *p = malloc(bytes + 64);

    MUST(r, p != NULL);
    memset(p, 0x5a, bytes + 64);
    return p;
}

/* Calls the slot and compares recv with what must lie there, and the bytes behind it. */
static void call(rank_of *r, ddp_collective slot, ddp_coll *a, const char *want, size_t bytes)
{
    MUST(r, slot(r->comm, a, NULL, &r->err) == DDP_OK);
    MUST(r, memcmp(a->recv, want, bytes) == 0);
}

static ddp_coll coll(uint32_t dtype, uint32_t op, uint32_t root, const void *send, void *recv, size_t n)
{
    return (ddp_coll){.struct_size = sizeof(ddp_coll),
                      .dtype = dtype,
                      .op = op,
                      .root = root,
                      .send = send,
                      .recv = recv,
                      .count = n};
}

/* ---- reductions -------------------------------------------------------------------------------------------------- */
/* given: this rank's input, want: the result; n elements for each rank */
static void reduce_one(rank_of *r, uint32_t dtype, uint32_t op, size_t n, bool in_place, const char *given,
                       const char *want)
{
    size_t bytes = n * ddp_dtype_size(dtype), all = bytes * r->world;
    char *in = room(r, all), *out = room(r, bytes);
    char *to = in_place ? in : out;
    ddp_coll a = coll(dtype, op, 0, in, to, n);

    MUST(r, r->ops->supports(r->comm, dtype, op) == DDP_OK);
    memcpy(in, given, bytes);
    call(r, r->ops->all_reduce, &a, want, bytes);
    MUST(r, (unsigned char)to[in_place ? all : bytes] == 0x5a);
    for (a.root = 0; a.root < r->world; a.root++) {
        memcpy(in, given, bytes);
        memset(out, 0x5a, bytes);
        a.recv = r->rank == a.root ? to : NULL;
        MUST(r, r->ops->reduce(r->comm, &a, NULL, &r->err) == DDP_OK);
        if (r->rank == a.root) MUST(r, memcmp(to, want, bytes) == 0);
    }
    memcpy(in, given, all);
    a = coll(dtype, op, 0, in, in_place ? in + r->rank * bytes : out, n);
    call(r, r->ops->reduce_scatter, &a, want + r->rank * bytes, bytes);
    free(in);
    free(out);
}

static void reduce_both(rank_of *r, uint32_t dtype, uint32_t op, size_t n)
{
    size_t all = n * ddp_dtype_size(dtype) * r->world;
    char *given = room(r, all), *want = room(r, all);

    fill(r, given, dtype, op, r->rank, 0, n * r->world, false);
    fill(r, want, dtype, op, 0, 0, n * r->world, true);
    for (int in_place = 0; in_place < 2; in_place++) reduce_one(r, dtype, op, n, in_place != 0, given, want);
    free(given);
    free(want);
}

/* Any floats: over two ranks the bits are those that backend gloo-tcp computes. */
static void same_bits_as_gloo(rank_of *r)
{
    enum { N = 5003 };
    static float f[2][N], want[N];
    static uint16_t b[2][N], want_b[N];
    ddp_coll a = coll(DDP_F32, DDP_AVG, 0, f[r->rank], f[r->rank], N);

    for (uint32_t k = 0; k < 2; k++)
        for (size_t i = 0; i < N; i++) {
            f[k][i] = (float)(int64_t)ddp_hash64(&i, sizeof(i), k) * 1e-19f;
            b[k][i] = bf16(f[k][i]);
        }
    for (size_t i = 0; i < N; i++) {
        want[i] = (f[0][i] + f[1][i]) / 2.0f;
        want_b[i] = bf16((from_bf16(b[0][i]) + from_bf16(b[1][i])) / 2.0f);
    }
    call(r, r->ops->all_reduce, &a, (char *)want, sizeof(want));
    a = coll(DDP_BF16, DDP_AVG, 0, b[r->rank], b[r->rank], N);
    call(r, r->ops->all_reduce, &a, (char *)want_b, sizeof(want_b));
}

/* Sums that wrap in the element do not in its average. */
static void average_does_not_wrap(rank_of *r)
{
    uint8_t u[100] = {0}, want_u[100];
    int32_t i[100] = {0}, want_i[100];
    ddp_coll a = coll(DDP_U8, DDP_AVG, 0, u, u, 100);

    memset(u, 200 + (int)r->rank, sizeof(u));
    memset(want_u, 200 + (int)(r->world - 1) / 2, sizeof(want_u));
    call(r, r->ops->all_reduce, &a, (char *)want_u, sizeof(want_u));
    for (int k = 0; k < 100; k++) i[k] = want_i[k] = INT32_MIN + k;
    a = coll(DDP_I32, DDP_AVG, 0, i, i, 100);
    call(r, r->ops->all_reduce, &a, (char *)want_i, sizeof(want_i));
}

static void body_reductions(rank_of *r)
{
    static const size_t sizes[] = {0, 1, 1237, 20011};

    for (uint32_t dtype = DDP_F32; dtype < DDP_DTYPE_END_; dtype++)
        for (uint32_t op = DDP_SUM; op < DDP_REDUCE_OP_END_; op++)
            for (size_t s = 0; s < DDP_COUNT(sizes); s++) reduce_both(r, dtype, op, sizes[s]);
    reduce_both(r, DDP_F32, DDP_AVG, 262144 + 3);
    if (r->world == 2) same_bits_as_gloo(r);
    average_does_not_wrap(r);
    MUST(r, r->ops->supports(r->comm, DDP_F32, DDP_REDUCE_OP_END_) == DDP_ERR_UNSUPPORTED);
    MUST(r, r->ops->supports(r->comm, DDP_DTYPE_END_, DDP_SUM) == DDP_ERR_UNSUPPORTED);
}

/* ---- what is moved ----------------------------------------------------------------------------------------------- */
static void gathers(rank_of *r, uint32_t dtype, size_t n)
{
    size_t bytes = n * ddp_dtype_size(dtype), all = bytes * r->world;
    char *in = room(r, bytes), *out = room(r, all), *want = room(r, all);

    fill(r, in, dtype, 0, r->rank, 0, n, false);
    for (uint32_t k = 0; k < r->world; k++) fill(r, want + k * bytes, dtype, 0, k, 0, n, false);
    for (int place = 0; place < 2; place++) { /* apart; the rank's own part */
        char *own = out + r->rank * bytes;
        const char *from = place == 0 ? in : own;
        ddp_coll a = coll(dtype, 0, 0, from, out, n);

        memset(out, 0, all);
        memcpy(own, in, bytes);
        call(r, r->ops->all_gather, &a, want, all);
        for (a.root = 0; a.root < r->world; a.root++) {
            bool root = a.root == r->rank;
            memset(out, 0, all);
            a.send = root ? from : in;
            if (root && place > 0) memcpy((char *)(uintptr_t)a.send, in, bytes);
            a.recv = root ? out : NULL;
            MUST(r, r->ops->gather(r->comm, &a, NULL, &r->err) == DDP_OK);
            if (root) MUST(r, memcmp(out, want, all) == 0);
        }
    }
    free(in);
    free(out);
    free(want);
}

static void scatters(rank_of *r, uint32_t dtype, size_t n)
{
    size_t bytes = n * ddp_dtype_size(dtype), all = bytes * r->world;
    char *in = room(r, all), *out = room(r, all), *want = room(r, all);
    ddp_coll moved;

    for (uint32_t root = 0; root < r->world; root++) {
        bool mine = root == r->rank;
        ddp_coll a = coll(dtype, 0, root, mine ? in : NULL, out, n);

        if (mine) fill(r, in, dtype, 0, root, 0, n * r->world, false);
        fill(r, want, dtype, 0, root, r->rank * n, n, false);
        call(r, r->ops->scatter, &a, want, bytes);
        if (mine) a.recv = in + root * bytes;
        memset(out, 0x5a, bytes);
        call(r, r->ops->scatter, &a, want, bytes);
    }
    for (uint32_t k = 0; k < r->world; k++) fill(r, want + k * bytes, dtype, 0, k, r->rank * n, n, false);
    fill(r, in, dtype, 0, r->rank, 0, n * r->world, false);
    moved = coll(dtype, 0, 0, in, out, n);
    call(r, r->ops->all_to_all, &moved, want, all);
    free(in);
    free(out);
    free(want);
}

static void hands_on(rank_of *r, uint32_t dtype, size_t n)
{
    size_t bytes = n * ddp_dtype_size(dtype);
    char *x = room(r, bytes), *want = room(r, bytes);
    uint32_t next = (r->rank + 1) % r->world, previous = (r->rank + r->world - 1) % r->world;
    ddp_coll to = coll(dtype, 0, next, want, NULL, n), from = coll(dtype, 0, previous, NULL, x, n);

    for (uint32_t root = 0; root < r->world; root++) {
        ddp_coll a = coll(dtype, 0, root, NULL, x, n);
        fill(r, x, dtype, 0, r->rank, 0, n, false);
        fill(r, want, dtype, 0, root, 0, n, false);
        call(r, r->ops->broadcast, &a, want, bytes);
    }
    fill(r, want, dtype, 0, r->rank, 0, n, false);
    if (r->rank % 2 == 0 && r->world > 1) MUST(r, r->ops->send(r->comm, &to, NULL, &r->err) == DDP_OK);
    if (r->world > 1) MUST(r, r->ops->recv(r->comm, &from, NULL, &r->err) == DDP_OK);
    if (r->rank % 2 == 1) MUST(r, r->ops->send(r->comm, &to, NULL, &r->err) == DDP_OK);
    fill(r, want, dtype, 0, previous, 0, n, false);
    if (r->world > 1) MUST(r, memcmp(x, want, bytes) == 0);
    free(x);
    free(want);
}

static void body_moves(rank_of *r)
{
    static const size_t sizes[] = {0, 1, 1237, 20011};

    for (uint32_t dtype = DDP_F32; dtype < DDP_DTYPE_END_; dtype++)
        for (size_t s = 0; s < DDP_COUNT(sizes); s++) {
            gathers(r, dtype, sizes[s]);
            scatters(r, dtype, sizes[s]);
            hands_on(r, dtype, sizes[s]);
            MUST(r, r->ops->barrier(r->comm, NULL, &r->err) == DDP_OK);
        }
}

static void body_collectives(rank_of *r)
{
    body_reductions(r);
    body_moves(r);
}

/* ---- arguments --------------------------------------------------------------------------------------------------- */
static void refused(rank_of *r, ddp_collective slot, ddp_coll a, ddp_status status, const char *word)
{
    MUST(r, slot(r->comm, &a, NULL, &r->err) == status);
    MUST(r, strstr(r->err.msg, word) != NULL);
}

static void body_arguments(rank_of *r)
{
    float x[16] = {0};

    refused(r, r->ops->all_reduce, coll(DDP_F32, 99, 0, x, x, 4), DDP_ERR_UNSUPPORTED, "operation 99");
    refused(r, r->ops->all_reduce, coll(99, DDP_SUM, 0, x, x, 4), DDP_ERR_UNSUPPORTED, "dtype 99");
    refused(r, r->ops->all_reduce, coll(DDP_F32, DDP_SUM, 0, x, x + 1, 4), DDP_ERR_INVALID, "overlap");
    refused(r, r->ops->all_reduce, coll(DDP_F32, DDP_SUM, 0, NULL, x, 4), DDP_ERR_INVALID, "without a buffer");
    refused(r, r->ops->broadcast, coll(DDP_F32, 0, r->world, NULL, x, 4), DDP_ERR_INVALID, "broadcast with rank");
    refused(r, r->ops->reduce_scatter, coll(DDP_F32, DDP_SUM, 0, x, x + 1 + r->rank * 2, 2), DDP_ERR_INVALID,
            "overlap");
    refused(r, r->ops->send, coll(DDP_F32, 0, r->rank, x, NULL, 4), DDP_ERR_INVALID, "itself");
    refused(r, r->ops->recv, coll(DDP_F32, 0, r->rank, NULL, x, 4), DDP_ERR_INVALID, "itself");
    MUST(r, r->ops->barrier(r->comm, NULL, &r->err) == DDP_OK); /* and the communicator still works */
}

/* A failing call of the library: a message longer than its receiver expects. Code and text are the library's, and
 * the process does not end MPI in order, which would wait for the others. */
enum { LEFT = 42 };
static void body_library_error(rank_of *r)
{
    float x[64] = {0};
    ddp_coll a = coll(DDP_F32, 0, r->rank == 0 ? 1 : 0, x, x, r->rank == 0 ? 64 : 32);

    if (r->rank == 0) MUST(r, r->ops->send(r->comm, &a, NULL, &r->err) == DDP_OK);
    if (r->rank != 1) return;
    MUST(r, r->ops->recv(r->comm, &a, NULL, &r->err) == DDP_ERR_LIBRARY);
    MUST(r,
         r->err.lib_code != 0 && strstr(r->err.msg, "MPI_Recv") != NULL && strcasestr(r->err.msg, "truncate") != NULL);
    MUST(r, r->ops->barrier(r->comm, NULL, &r->err) == DDP_ERR_LIBRARY && strstr(r->err.msg, "has failed") != NULL);
    close_rank(r);
    exit(LEFT);
}

/* ---- many communicators ------------------------------------------------------------------------------------------ */
static void *one_of_two(void *arg)
{
    rank_of *r = arg;

    open_rank(r);
    for (int i = 0; i < 10; i++) reduce_both(r, DDP_F32, DDP_SUM, 1 + (size_t)i * 622);
    close_rank(r);
    return NULL;
}

static void body_many(rank_of *r)
{
    pthread_t threads[2];
    rank_of two[2] = {*r, *r};

    two[0].group = "left";
    two[1].group = "right";
    for (int k = 0; k < 2; k++) MUST(r, pthread_create(&threads[k], NULL, one_of_two, &two[k]) == 0);
    for (int k = 0; k < 2; k++) (void)until_joined(threads[k]);
    for (int i = 0; i < 100; i++) {
        rank_of again = *r;
        open_rank(&again);
        MUST(&again, again.ops->barrier(again.comm, NULL, &again.err) == DDP_OK);
        close_rank(&again);
    }
}

/* ---- the ranks' program ------------------------------------------------------------------------------------------ */
static const struct {
    const char *name;
    void (*body)(rank_of *r);
} bodies[] = {{"collectives", body_collectives},
              {"arguments", body_arguments},
              {"library error", body_library_error},
              {"many", body_many}};

/* Of Open MPI's launcher, or of one that speaks PMI, as MPICH's does. */
static uint32_t number(const char *open_mpi, const char *pmi)
{
    const char *text = getenv(open_mpi) != NULL ? getenv(open_mpi) : getenv(pmi);

    return text == NULL ? 0 : (uint32_t)strtoul(text, NULL, 10);
}

static int rank_main(const char *name, size_t piece)
{
    void *handle = dlopen(PLUGIN, RTLD_NOW | RTLD_LOCAL);
    rank_of r = {.rank = number("OMPI_COMM_WORLD_RANK", "PMI_RANK"),
                 .world = number("OMPI_COMM_WORLD_SIZE", "PMI_SIZE"),
                 .piece = piece,
                 .group = "test",
                 .plugin = handle == NULL ? NULL : dlsym(handle, DDP_PLUGIN_SYMBOL)};

    MUST(&r, r.plugin != NULL);
    r.ops = r.plugin->ops;
    open_rank(&r);
    for (size_t i = 0; i < DDP_COUNT(bodies); i++)
        if (strcmp(bodies[i].name, name) == 0) bodies[i].body(&r);
    close_rank(&r);
    return 0;
}

/* ---- the tests --------------------------------------------------------------------------------------------------- */
enum { PATIENCE_MS = 300000 }; /* after which ranks count as hung */

/* The exit status of mpirun. */
static int wait_for(pid_t pid)
{
    int64_t limit = ddp_now_ms() + PATIENCE_MS;
    int status;

    while (waitpid(pid, &status, WNOHANG) == 0) {
        if (ddp_now_ms() > limit) {
            (void)kill(pid, SIGTERM); /* it ends its ranks */
            fail_msg("mpirun (pid %d) has not ended after %d s", (int)pid, PATIENCE_MS / 1000);
        }
        (void)usleep(10000);
    }
    return status;
}

/* Words that every mpirun knows. */
static void become_mpirun(const char *np, const char *self, const char *body, const char *piece)
{
    (void)setenv("OMPI_ALLOW_RUN_AS_ROOT", "1", 1);
    (void)setenv("OMPI_ALLOW_RUN_AS_ROOT_CONFIRM", "1", 1);
    /* what the library keeps for itself until the process ends */
    (void)setenv("LSAN_OPTIONS", "detect_leaks=0", 1);
    (void)setenv("ASAN_OPTIONS", "detect_leaks=0", 1);
    (void)execlp("mpirun", "mpirun", "--host", "localhost:64", "--bind-to", "none", "-np", np, self, body, piece, NULL);
    _exit(127);
}

/* The exit code of so many ranks. */
static int launch(int world, const char *body, const char *piece)
{
    char np[16], self[4096] = "";
    int status;
    pid_t pid;

#if defined(__SANITIZE_THREAD__)
    skip(); /* the MPI library is not built for it */
#endif
    if (access(PLUGIN, F_OK) != 0) skip(); /* not built */
    (void)snprintf(np, sizeof(np), "%d", world);
    assert_true(readlink("/proc/self/exe", self, sizeof(self) - 1) > 0);
    pid = fork();
    if (pid == 0) become_mpirun(np, self, body, piece);
    assert_true(pid > 0);
    status = wait_for(pid);
    if (WIFEXITED(status) && WEXITSTATUS(status) == 127) skip(); /* no mpirun */
    assert_true(WIFEXITED(status));
    return WEXITSTATUS(status);
}

static void run(int world, const char *body, const char *piece, int code)
{
    assert_int_equal(launch(world, body, piece), code);
}

#define WHOLE "1073741824"

static void test_collectives(void **state)
{
    (void)state;
    for (int world = 1; world <= 3; world++) run(world, "collectives", WHOLE, 0);
}

/* Reductions in pieces, messages of derived types. */
static void test_collectives_in_pieces(void **state)
{
    (void)state;
    for (int world = 2; world <= 3; world++) run(world, "collectives", "4096", 0);
}

static void test_arguments(void **state)
{
    (void)state;
    run(2, "arguments", WHOLE, 0);
}

static void test_library_error(void **state)
{
    (void)state;
    run(2, "library error", WHOLE, LEFT);
}

static void test_many_communicators(void **state)
{
    (void)state;
    run(5, "many", WHOLE, 0);
}

/* What goes by TCP goes by the interface that is named: by one that is not there nothing can. UCX, which MPICH may be
 * built with, finds interfaces in /sys. */
static void test_interface(void **state)
{
    (void)state;
    if (system("mpirun --version 2>&1 | grep -q 'Open MPI'") != 0 && access("/sys/class/net", F_OK) != 0) skip();
    (void)setenv("OMPI_MCA_btl", "self,tcp", 1);
    (void)setenv("UCX_TLS", "self,tcp", 1);
    (void)setenv("TEST_INTERFACE", "lo", 1);
    run(2, "arguments", WHOLE, 0);
    (void)setenv("TEST_INTERFACE", "none0", 1);
    assert_int_not_equal(launch(2, "arguments", WHOLE), 0);
    (void)unsetenv("OMPI_MCA_btl");
    (void)unsetenv("UCX_TLS");
    (void)unsetenv("TEST_INTERFACE");
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_collectives),        cmocka_unit_test(test_collectives_in_pieces),
        cmocka_unit_test(test_arguments),          cmocka_unit_test(test_library_error),
        cmocka_unit_test(test_many_communicators), cmocka_unit_test(test_interface),
    };

    if (argc == 3) return rank_main(argv[1], strtoul(argv[2], NULL, 10));
    return cmocka_run_group_tests_name("backend mpi", tests, NULL, NULL);
}
