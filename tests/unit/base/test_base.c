/* tests/unit/base/test_base.c -- core/base: errors in context, text, memory, the log's lines, clock, threads, files,
 * hashing. */
#include "base/log.h"
#include "base/sys.h"
#include <setjmp.h>
#include <cmocka.h>
#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

static char folder[64];

static int enter_folder(void **state)
{
    const char *base = getenv("TMPDIR");

    (void)state;
    (void)snprintf(folder, sizeof(folder), "%.40s/ddp-base-XXXXXX", base != NULL ? base : "/tmp");
    return mkdtemp(folder) == NULL || chdir(folder) != 0;
}

static int leave_folder(void **state)
{
    ddp_err err = {0};

    (void)state;
    return chdir("/") != 0 || ddp_remove_folder(folder, &err) != DDP_OK;
}

static void write_file(const char *path, const void *data, size_t length)
{
    int fd = open(path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666);
    ddp_err err = {0};

    assert_true(fd >= 0);
    assert_int_equal(ddp_write_all(fd, data, length, path, &err), DDP_OK);
    assert_int_equal(close(fd), 0);
}

/* ---- errors ------------------------------------------------------------------------------------------------------ */
static void errors_in_context(void **state)
{
    ddp_err err = {0};
    char longest[600];

    (void)state;
    assert_int_equal(ddp_fail(&err, DDP_ERR_PEER, "connection closed"), DDP_ERR_PEER);
    assert_int_equal(ddp_fail_context(&err, "rank %d", 2), DDP_ERR_PEER);
    assert_string_equal(err.msg, "rank 2: connection closed");
    assert_int_equal(err.status, DDP_ERR_PEER);

    memset(longest, 'x', sizeof(longest) - 1);
    longest[sizeof(longest) - 1] = '\0';
    (void)ddp_fail_context(&err, "%s", longest);
    assert_int_equal(strlen(err.msg), sizeof(err.msg) - 1);

    errno = ENOSPC;
    assert_int_equal(ddp_fail_errno(&err, "%s: cannot write", "a/b"), DDP_ERR_SYSTEM);
    assert_string_equal(err.msg, "a/b: cannot write: No space left on device");
    assert_int_equal(err.sys_errno, ENOSPC);
    assert_int_equal(err.rank, -1);
    errno = EMFILE;
    (void)ddp_fail_errno(&err, "cannot open a socket");
    assert_string_equal(err.msg, "cannot open a socket: Too many open files; raise the limit that ulimit -n shows");
}

static void names(void **state)
{
    (void)state;
    assert_string_equal(ddp_status_text(DDP_OK), "ok");
    assert_string_equal(ddp_status_text(DDP_ERR_DATA), "data are damaged or out of range");
    assert_string_equal(ddp_status_text(77), "unknown status");
    assert_string_equal(ddp_kind_name(DDP_KIND_BACKEND), "backend");
    assert_string_equal(ddp_kind_name(DDP_KIND_HOOK), "hook");
    assert_null(ddp_kind_name(0));
    assert_null(ddp_kind_name(DDP_KIND_END_));
    assert_string_equal(ddp_dtype_name(DDP_BF16), "bf16");
    assert_string_equal(ddp_dtype_name(99), "?");
    for (uint32_t kind = 1; kind < DDP_KIND_END_; kind++) assert_non_null(ddp_kind_name(kind));
    for (uint32_t dtype = 1; dtype < DDP_DTYPE_END_; dtype++) assert_string_not_equal(ddp_dtype_name(dtype), "?");
}

/* ---- memory ------------------------------------------------------------------------------------------------------ */
static bool is_zero(const unsigned char *p, size_t bytes)
{
    for (size_t i = 0; i < bytes; i++)
        if (p[i] != 0) return false;
    return true;
}

static void allocation(void **state)
{
    ddp_err err = {0};
    unsigned char *p = ddp_alloc_aligned(100, &err);
    char *text;
    volatile size_t huge = SIZE_MAX / 2; /* hidden from the compiler, which warns of it */

    (void)state;
    assert_non_null(p);
    assert_int_equal((uintptr_t)p % 64, 0);
    assert_true(is_zero(p, 128)); /* rounded up, so that vector loads at the end stay inside */
    free(p);
    text = ddp_strdup("text", &err);
    assert_string_equal(text, "text");
    free(text);
    text = ddp_alloc(0, &err);
    assert_non_null(text);
    free(text);
#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
    assert_null(ddp_alloc(huge, &err));
    assert_int_equal(err.status, DDP_ERR_NOMEM);
    assert_string_equal(err.msg, "out of memory, 9223372036854775807 bytes wanted");
#endif
    assert_null(ddp_alloc_aligned(huge * 2 + 1, &err)); /* wraps when it is rounded up */
    assert_int_equal(err.status, DDP_ERR_NOMEM);
}

static void pool(void **state)
{
    ddp_pool p = {0};
    ddp_err err = {0};
    unsigned char *blocks[1000];
    volatile size_t huge = SIZE_MAX;

    (void)state;
    for (size_t i = 0; i < DDP_COUNT(blocks); i++) {
        size_t bytes = i % 37 * (i % 10 == 0 ? 1000 : 1);

        blocks[i] = ddp_pool_alloc(&p, bytes, &err);
        assert_non_null(blocks[i]);
        assert_int_equal((uintptr_t)blocks[i] % 16, 0);
        assert_true(is_zero(blocks[i], bytes));
        memset(blocks[i], (int)(i % 251) + 1, bytes);
    }
    for (size_t i = 0; i < DDP_COUNT(blocks); i++) /* nobody wrote over another */
        for (size_t j = 0; j < i % 37; j++) assert_int_equal(blocks[i][j], i % 251 + 1);
    assert_string_equal(ddp_pool_strdup(&p, "a", &err), "a");
    assert_string_equal(ddp_pool_printf(&p, &err, "%s:%d", "node1.ini", 14), "node1.ini:14");
    assert_null(ddp_pool_alloc(&p, huge, &err));
    assert_int_equal(err.status, DDP_ERR_NOMEM);
    ddp_pool_free(&p);
    assert_null(p.head);
    ddp_pool_free(&p);
}

/* ---- text -------------------------------------------------------------------------------------------------------- */
static void growing_text(void **state)
{
    ddp_text t = {0};

    (void)state;
    for (int i = 0; i < 1000; i++) ddp_text_printf(&t, "%03d,", i);
    ddp_text_append(&t, "end", 3);
    assert_false(t.failed);
    assert_int_equal(t.length, 4003);
    assert_int_equal(strlen(t.data), 4003);
    assert_memory_equal(t.data, "000,001,", 8);
    assert_string_equal(t.data + 3996, "999,end");
    ddp_text_free(&t);
    assert_null(t.data);
    ddp_text_append(&t, NULL, 0);
    assert_string_equal(t.data, "");
    ddp_text_free(&t);
}

static void nearest(void **state)
{
    static const char *const keys[] = {"batch_size", "bucket_size", "lr", "momentum"};
    char longest[100];

    (void)state;
    assert_string_equal(ddp_nearest("bach_size", keys, 4), "batch_size");
    assert_string_equal(ddp_nearest("buckets_ize", keys, 4), "bucket_size");
    assert_string_equal(ddp_nearest("momemtun", keys, 4), "momentum");
    assert_null(ddp_nearest("zzzzzzz", keys, 4));
    assert_null(ddp_nearest("ab", keys, 4)); /* all of it would change */
    assert_string_equal(ddp_nearest("rl", (const char *const[]){"r"}, 1), "r");
    assert_null(ddp_nearest("", keys, 4));
    assert_null(ddp_nearest("lr", keys, 0));
    memset(longest, 'a', sizeof(longest));
    longest[sizeof(longest) - 1] = '\0';
    assert_null(ddp_nearest(longest, keys, 4));
}

static void figures(void **state)
{
    char b[32];

    (void)state;
    assert_string_equal(ddp_format_bytes(0, b, sizeof(b)), "0 B");
    assert_string_equal(ddp_format_bytes(640, b, sizeof(b)), "640 B");
    assert_string_equal(ddp_format_bytes(1024, b, sizeof(b)), "1 KiB");
    assert_string_equal(ddp_format_bytes(25u << 20, b, sizeof(b)), "25 MiB");
    assert_string_equal(ddp_format_bytes(1288490189, b, sizeof(b)), "1.2 GiB");
    assert_string_equal(ddp_format_bytes((1u << 20) - 1, b, sizeof(b)), "1 MiB"); /* not 1024 KiB */
    assert_string_equal(ddp_format_bytes(UINT64_MAX, b, sizeof(b)), "16 EiB");
    assert_string_equal(ddp_format_seconds(0, b, sizeof(b)), "0 us");
    assert_string_equal(ddp_format_seconds(12e-6, b, sizeof(b)), "12 us");
    assert_string_equal(ddp_format_seconds(3.42e-3, b, sizeof(b)), "3.4 ms");
    assert_string_equal(ddp_format_seconds(0.99999, b, sizeof(b)), "1 s");
    assert_string_equal(ddp_format_seconds(59.96, b, sizeof(b)), "1 min 0 s");
    assert_string_equal(ddp_format_seconds(125, b, sizeof(b)), "2 min 5 s");
    assert_string_equal(ddp_format_seconds(7260, b, sizeof(b)), "2 h 1 min");
    assert_string_equal(ddp_format_seconds((double)NAN, b, sizeof(b)), "?");
    assert_string_equal(ddp_format_seconds(-1, b, sizeof(b)), "?");
    assert_string_equal(ddp_format_count(0, b, sizeof(b)), "0");
    assert_string_equal(ddp_format_count(999, b, sizeof(b)), "999");
    assert_string_equal(ddp_format_count(1234567, b, sizeof(b)), "1,234,567");
    assert_string_equal(ddp_format_count(UINT64_MAX, b, sizeof(b)), "18,446,744,073,709,551,615");
    assert_string_equal(ddp_format_count(1234567, b, 4), "1,2");
}

static void copies(void **state)
{
    char b[4] = "zzz", none = 'n';

    (void)state;
    ddp_copy_text(b, sizeof(b), "abcdef");
    assert_string_equal(b, "abc");
    ddp_copy_text(b, sizeof(b), "abc");
    assert_string_equal(b, "abc");
    ddp_copy_text(b, sizeof(b), "");
    assert_string_equal(b, "");
    ddp_copy_text(&none, 0, "x");
    assert_int_equal(none, 'n');
}

/* ---- log --------------------------------------------------------------------------------------------------------- */
/* What one read takes from the pipe: pipes keep each small write whole, so a line that came in parts shows here. */
static const char *next_read(int fd)
{
    static char text[8192];
    ssize_t n = read(fd, text, sizeof(text) - 1);

    assert_true(n >= 0);
    text[n] = '\0';
    return text;
}

static void open_log(ddp_log *log, int *fd)
{
    int ends[2];

    assert_int_equal(pipe2(ends, O_CLOEXEC), 0);
    ddp_log_init(log);
    assert_int_equal(log->fd, STDERR_FILENO);
    assert_int_equal(log->level, DDP_LOG_INFO);
    log->fd = ends[1];
    log->terminal = false;
    *fd = ends[0];
}

static void close_log(const ddp_log *log, int fd)
{
    assert_int_equal(close(log->fd), 0);
    assert_int_equal(close(fd), 0);
}

static void log_lines(void **state)
{
    char longest[10000];
    const char *line;
    ddp_log log;
    int fd;

    (void)state;
    open_log(&log, &fd);
    ddp_log_line(&log, DDP_LOG_INFO, "step %d", 3);
    assert_string_equal(next_read(fd), "ddpengine: step 3\n");
    log.rank = 1;
    ddp_log_line(&log, DDP_LOG_DEBUG, "dropped");
    ddp_log_line(&log, DDP_LOG_ERROR, "TEXT");
    assert_string_equal(next_read(fd), "ddpengine[1]: error: TEXT\n");
    ddp_log_line(&log, DDP_LOG_WARN, "a\nb\033[31mc");
    assert_string_equal(next_read(fd), "ddpengine[1]: warning: a b [31mc\n");
    ddp_log_progress(&log, "50 %"); /* not a terminal */
    memset(longest, 'x', sizeof(longest) - 1);
    longest[sizeof(longest) - 1] = '\0';
    ddp_log_line(&log, DDP_LOG_INFO, "%s", longest);
    line = next_read(fd);
    assert_int_equal(strlen(line), 4095);
    assert_int_equal(line[4094], '\n');
    close_log(&log, fd);
}

static void log_progress(void **state)
{
    ddp_log log;
    int fd;

    (void)state;
    open_log(&log, &fd);
    log.terminal = true;
    ddp_log_progress(&log, "50 %");
    assert_string_equal(next_read(fd), "\r\033[K50 %");
    ddp_log_line(&log, DDP_LOG_INFO, "line");
    assert_string_equal(next_read(fd), "\r\033[Kddpengine: line\n");
    ddp_log_line(&log, DDP_LOG_INFO, "line");
    assert_string_equal(next_read(fd), "ddpengine: line\n");
    ddp_log_progress(&log, ""); /* none is shown */
    ddp_log_progress(&log, "60 %");
    assert_string_equal(next_read(fd), "\r\033[K60 %");
    ddp_log_progress(&log, "");
    assert_string_equal(next_read(fd), "\r\033[K");
    close_log(&log, fd);
}

static void log_host(void **state)
{
    ddp_host host;
    ddp_log log;
    int fd;

    (void)state;
    open_log(&log, &fd);
    host = ddp_log_host(&log);
    assert_int_equal(host.struct_size, sizeof(ddp_host));
    host.log(host.ctx, DDP_LOG_DEBUG, "plugin.c", 7, "dropped");
    host.log(host.ctx, DDP_LOG_WARN, "plugin.c", 7, "slow %s", "disk");
    assert_string_equal(next_read(fd), "ddpengine: warning: slow disk\n");
    log.level = DDP_LOG_DEBUG;
    host.log(host.ctx, DDP_LOG_DEBUG, "plugin.c", 7, "seen");
    assert_string_equal(next_read(fd), "ddpengine: debug: plugin.c:7: seen\n");
    close_log(&log, fd);
}

/* ---- clock, threads ---------------------------------------------------------------------------------------------- */
static void process_start(void **state)
{
    int64_t first = ddp_now_ns(), start = ddp_process_start_ns(), tick = 1000000000 / sysconf(_SC_CLK_TCK);
    struct timespec t;

    (void)state;
    assert_int_equal(clock_gettime(CLOCK_MONOTONIC, &t), 0);
    assert_true(first <= (int64_t)t.tv_sec * 1000000000 + t.tv_nsec);
    assert_true(start <= first);
    assert_true(first - start < 3600ll * 1000000000); /* this test has not run for an hour */
    assert_true(ddp_process_start_ns() - start < tick && start - ddp_process_start_ns() < tick);
}

typedef struct seen {
    pthread_mutex_t mutex;
    pthread_cond_t cond;
    bool go;
    char name[32];
    bool blocked;
} seen;

static void *look_around(void *arg)
{
    seen *s = arg;
    sigset_t set;

    (void)pthread_mutex_lock(&s->mutex);
    while (!s->go) (void)ddp_cond_wait_until(&s->cond, &s->mutex, INT64_MAX);
    (void)pthread_mutex_unlock(&s->mutex);
    (void)pthread_getname_np(pthread_self(), s->name, sizeof(s->name));
    (void)pthread_sigmask(SIG_SETMASK, NULL, &set);
    s->blocked = sigismember(&set, SIGTERM) == 1 && sigismember(&set, SIGINT) == 1 && sigismember(&set, SIGUSR1) == 1;
    return s;
}

static void threads(void **state)
{
    seen s = {.mutex = PTHREAD_MUTEX_INITIALIZER};
    ddp_err err = {0};
    pthread_t thread;
    void *result;
    sigset_t set;

    (void)state;
    ddp_cond_init(&s.cond);
    assert_int_equal(ddp_thread_start(&thread, "ddp-observe-longer", look_around, &s, &err), DDP_OK);
    (void)pthread_mutex_lock(&s.mutex);
    s.go = true;
    (void)pthread_cond_signal(&s.cond);
    (void)pthread_mutex_unlock(&s.mutex);
    assert_int_equal(pthread_join(thread, &result), 0);
    assert_ptr_equal(result, &s);
    assert_string_equal(s.name, "ddp-observe-lon");
    assert_true(s.blocked);
    assert_int_equal(pthread_sigmask(SIG_SETMASK, NULL, &set), 0);
    assert_int_equal(sigismember(&set, SIGTERM), 0); /* the caller's mask is as before */
    (void)pthread_cond_destroy(&s.cond);
}

/* Without room for its stack, and with a thread too many: which of both, and the exit code of a lack, in a process of
 * its own. */
static void thread_that_cannot_start(void **state)
{
    static const struct {
        int limit;
        const char *what;
    } cases[] = {
        {RLIMIT_NPROC, "ulimit -u"},
#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__) /* which need memory themselves */
        {RLIMIT_AS, "ulimit -v"},
#endif
    };

    (void)state;
    for (size_t i = 0; i < DDP_COUNT(cases); i++) {
        const struct rlimit none = {0, 0};
        int how = 0;
        pid_t child = fork();

        if (child == 0) {
            pthread_attr_t large;
            pthread_t thread;
            ddp_err err = {0};
            bool said;

            (void)pthread_attr_init(&large);
            (void)pthread_attr_setstacksize(&large,
                                            (size_t)64 << 20); /* no thread that has ended leaves such a stack */
            if (pthread_setattr_default_np(&large) != 0) _exit(6);
            if (geteuid() == 0 && setuid(65534) != 0) _exit(1); /* the number of root's threads has no limit */
            if (setrlimit((__rlimit_resource_t)cases[i].limit, &none) != 0) _exit(2);
            if (ddp_thread_start(&thread, "ddp-test", look_around, NULL, &err) == DDP_OK) _exit(3);
            said = strstr(err.msg, "cannot start thread ddp-test") != NULL && strstr(err.msg, cases[i].what) != NULL;
            (void)ddp_fail_as(&err, DDP_EXIT_DATA); /* as its caller does */
            _exit(!said ? 4 : ddp_err_exit_code(&err) != DDP_EXIT_INTERNAL ? 5 : 0);
        }
        assert_int_equal(waitpid(child, &how, 0), child);
        assert_int_equal(how, 0);
    }
}

static void deadlines(void **state)
{
    pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
    pthread_cond_t cond;
    int64_t deadline = ddp_now_ns() + 20000000;

    (void)state;
    ddp_cond_init(&cond);
    (void)pthread_mutex_lock(&mutex);
    while (ddp_cond_wait_until(&cond, &mutex, deadline)) {}
    assert_true(ddp_now_ns() >= deadline);
    assert_false(ddp_cond_wait_until(&cond, &mutex, -5));
    (void)pthread_mutex_unlock(&mutex);
    (void)pthread_cond_destroy(&cond);
}

static void *read_affinity(void *arg)
{
    if (sched_getaffinity(0, sizeof(cpu_set_t), arg) != 0) CPU_ZERO((cpu_set_t *)arg);
    return NULL;
}

static void cpus(void **state)
{
    cpu_set_t saved, one, seen;
    const int32_t *list;
    pthread_t thread;
    ddp_err err = {0};

    (void)state;
    assert_int_equal(sched_getaffinity(0, sizeof(saved), &saved), 0);
    assert_int_equal(ddp_cpu_count(), CPU_COUNT(&saved));
    assert_int_equal(ddp_processors(&list), CPU_COUNT(&saved));
    for (size_t i = 0; i < (size_t)CPU_COUNT(&saved); i++) {
        assert_true(CPU_ISSET((size_t)list[i], &saved));
        assert_true(i == 0 || list[i] > list[i - 1]);
    }
    assert_true(ddp_processors_are_own());
    CPU_ZERO(&one);
    CPU_SET((size_t)list[0], &one);
    assert_int_equal(sched_setaffinity(0, sizeof(one), &one), 0);
    assert_int_equal(ddp_cpu_count(), CPU_COUNT(&saved)); /* as it was at the start */
    assert_int_equal(ddp_processors_are_own(), CPU_COUNT(&saved) == 1);
    assert_int_equal(ddp_thread_start(&thread, "ddp-free", read_affinity, &seen, &err), DDP_OK);
    assert_int_equal(pthread_join(thread, NULL), 0);
    assert_true(CPU_EQUAL(&seen, &saved)); /* though its creator is bound */
    assert_int_equal(sched_setaffinity(0, sizeof(saved), &saved), 0);
}

/* ---- files ------------------------------------------------------------------------------------------------------- */
static void reading(void **state)
{
    char big[10000], *data = NULL;
    size_t length = 0;
    ddp_err err = {0};
    int ends[2];
    char path[64];

    (void)state;
    for (size_t i = 0; i < sizeof(big); i++) big[i] = (char)(i * 7);
    write_file("big", big, sizeof(big));
    assert_int_equal(ddp_file_read("big", sizeof(big), &data, &length, &err), DDP_OK);
    assert_int_equal(length, sizeof(big));
    assert_memory_equal(data, big, sizeof(big));
    assert_int_equal(data[length], '\0');
    free(data);

    data = NULL;
    assert_int_equal(ddp_file_read("big", sizeof(big) - 1, &data, &length, &err), DDP_ERR_DATA);
    assert_string_equal(err.msg, "big: larger than the 9999 bytes allowed here");
    assert_null(data);
    assert_int_equal(ddp_file_read("absent", 10, &data, &length, &err), DDP_ERR_SYSTEM);
    assert_string_equal(err.msg, "absent: cannot open: No such file or directory");
    assert_int_equal(ddp_file_read(".", 10, &data, &length, &err), DDP_ERR_SYSTEM);
    assert_string_equal(err.msg, ".: cannot read: Is a directory");

    write_file("empty", "", 0);
    assert_int_equal(ddp_file_read("empty", 0, &data, &length, &err), DDP_OK);
    assert_int_equal(length, 0);
    assert_string_equal(data, "");
    free(data);

    assert_int_equal(pipe(ends), 0); /* a size that stat does not know */
    assert_int_equal(write(ends[1], big, sizeof(big)), sizeof(big));
    assert_int_equal(close(ends[1]), 0);
    (void)snprintf(path, sizeof(path), "/proc/self/fd/%d", ends[0]);
    assert_int_equal(ddp_file_read(path, 1 << 20, &data, &length, &err), DDP_OK);
    assert_int_equal(length, sizeof(big));
    assert_memory_equal(data, big, sizeof(big));
    free(data);
    assert_int_equal(close(ends[0]), 0);
}

static void write_errors(void **state)
{
    int fd = open("/dev/full", O_WRONLY | O_CLOEXEC);
    ddp_err err = {0};

    (void)state;
    if (fd < 0) skip();
    assert_int_equal(ddp_write_all(fd, "x", 1, "metrics.jsonl", &err), DDP_ERR_SYSTEM);
    assert_string_equal(err.msg, "metrics.jsonl: cannot write: No space left on device");
    assert_int_equal(err.sys_errno, ENOSPC);
    assert_int_equal(close(fd), 0);
}

/* A device, a pipe or a folder stays what it is. */
static void only_a_regular_file_is_replaced(void **state)
{
    char folder[] = "/tmp/ddp-base-XXXXXX", path[64], other[80];
    struct stat st;
    ddp_err err = {0};

    (void)state;
    assert_non_null(mkdtemp(folder));
    (void)snprintf(path, sizeof(path), "%s/pipe", folder);
    (void)snprintf(other, sizeof(other), "%s.tmp", path);
    assert_int_equal(mkfifo(path, 0600), 0);
    assert_int_equal(ddp_file_replace(path, "x", 1, &err), DDP_ERR_SYSTEM);
    assert_non_null(strstr(err.msg, "/pipe: not a regular file, so it is not replaced; name another file"));
    assert_true(stat(path, &st) == 0 && S_ISFIFO(st.st_mode));
    assert_int_equal(access(other, F_OK), -1);
    assert_int_equal(unlink(path), 0);
    assert_int_equal(ddp_file_replace(path, "x", 1, &err), DDP_OK);
    assert_int_equal(ddp_file_replace(path, "yz", 2, &err), DDP_OK);
    assert_true(stat(path, &st) == 0 && S_ISREG(st.st_mode) && st.st_size == 2);
    (void)snprintf(other, sizeof(other), "%s/link", folder);
    assert_int_equal(symlink("pipe", other), 0); /* a link stays one, and what it leads to is replaced */
    assert_int_equal(ddp_file_replace(other, "abc", 3, &err), DDP_OK);
    assert_true(lstat(other, &st) == 0 && S_ISLNK(st.st_mode));
    assert_true(stat(path, &st) == 0 && st.st_size == 3);
    assert_int_equal(unlink(other), 0);
    assert_int_equal(unlink(path), 0);
    assert_int_equal(rmdir(folder), 0);
}

static int writes_left = -1; /* that still take something; -1: as the system has it */

ssize_t __real_write(int fd, const void *data, size_t length);
ssize_t __wrap_write(int fd, const void *data, size_t length);

ssize_t __wrap_write(int fd, const void *data, size_t length)
{
    if (writes_left < 0) return __real_write(fd, data, length);
    if (writes_left == 0) return 0;
    writes_left--;
    return __real_write(fd, data, length < 3 ? length : 3);
}

/* As some network file systems do when they are full: no error, and no end either. */
static void a_write_that_takes_nothing(void **state)
{
    ddp_err err = {0};
    char *text;
    size_t length;
    ddp_status st;
    int fd = open("short", O_WRONLY | O_CREAT | O_CLOEXEC, 0600);

    (void)state;
    assert_true(fd >= 0);
    writes_left = 2;
    (void)alarm(60); /* were it tried again for ever */
    st = ddp_write_all(fd, "0123456789", 10, "model.safetensors", &err);
    (void)alarm(0);
    writes_left = -1;
    assert_int_equal(st, DDP_ERR_SYSTEM);
    assert_string_equal(err.msg, "model.safetensors: cannot write: No space left on device");
    assert_int_equal(err.sys_errno, ENOSPC);
    assert_int_equal(close(fd), 0);
    assert_int_equal(ddp_file_read("short", 100, &text, &length, &err), DDP_OK);
    assert_string_equal(text, "012345");
    free(text);
}

static void folders(void **state)
{
    ddp_err err = {0};
    struct stat st;
    char absolute[128];

    (void)state;
    assert_int_equal(ddp_make_folders("a/b//c/", &err), DDP_OK);
    assert_int_equal(stat("a/b/c", &st), 0);
    assert_true(S_ISDIR(st.st_mode));
    assert_int_equal(ddp_make_folders("a/b/c", &err), DDP_OK);
    (void)snprintf(absolute, sizeof(absolute), "%s/a/d", folder);
    assert_int_equal(ddp_make_folders(absolute, &err), DDP_OK);
    assert_int_equal(ddp_fsync_folder("a/b", &err), DDP_OK);
    assert_int_equal(ddp_fsync_folder("absent", &err), DDP_ERR_SYSTEM);
    assert_string_equal(err.msg, "absent: cannot open the folder: No such file or directory");

    write_file("a/b/file", "x", 1);
    assert_int_equal(ddp_make_folders("a/b/file/d", &err), DDP_ERR_SYSTEM);
    assert_string_equal(err.msg, "a/b/file: cannot make a folder here, something else has that name");

    assert_int_equal(ddp_remove_folder("a/b", &err), DDP_ERR_SYSTEM); /* holds a folder: no recursion */
    assert_non_null(strstr(err.msg, "a/b/c: cannot remove: Is a directory"));
    write_file("a/d/kept", "x", 1);
    assert_int_equal(symlink("a/d", "link"), 0);
    assert_int_equal(ddp_remove_folder("link", &err), DDP_ERR_SYSTEM); /* never through a link */
    assert_int_equal(stat("a/d/kept", &st), 0);
    assert_int_equal(unlink("link"), 0);
    assert_int_equal(ddp_remove_folder("a/b/c", &err), DDP_OK);
    write_file("a/b/other", "x", 1);
    assert_int_equal(ddp_remove_folder("a/b", &err), DDP_OK);
    assert_int_equal(stat("a/b", &st), -1);
    assert_int_equal(ddp_remove_folder("a/b", &err), DDP_OK);
    assert_int_equal(ddp_remove_folder("a/d", &err), DDP_OK);
    assert_int_equal(ddp_remove_folder("a", &err), DDP_OK);
}

/* ---- hashing ----------------------------------------------------------------------------------------------------- */
static void sha256(void **state)
{
    char hex[DDP_SHA256_HEX];
    ddp_err err = {0};
    ddp_sha256 h;

    (void)state;
    assert_int_equal(ddp_sha256_begin(&h, &err), DDP_OK); /* FIPS 180-2, B.2 */
    ddp_sha256_add(&h, "abcdbcdecdefdefgefghfghighij", 28);
    ddp_sha256_add(&h, "", 0);
    ddp_sha256_add(&h, "hijkijkljklmklmnlmnomnopnopq", 28);
    ddp_sha256_end(&h, hex);
    assert_string_equal(hex, "248d6a61d20638b8e5c026930c3e6039a33ce45964ff2167f6ecedd419db06c1");
    assert_null(h.ctx);
    ddp_sha256_end(&h, hex);
    assert_string_equal(hex, "");
}

static void hash64(void **state)
{
    (void)state;
    /* xxHash's own figures: XXH3_64bits("") and ("a") with seed 0 */
    assert_int_equal(ddp_hash64("", 0, 0), 0x2d06800538d394c2ull);
    assert_int_equal(ddp_hash64("a", 1, 0), 0xe6c632b61e964e1full);
    assert_true(ddp_hash64("a", 1, 1) != ddp_hash64("a", 1, 0));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(errors_in_context),
        cmocka_unit_test(names),
        cmocka_unit_test(allocation),
        cmocka_unit_test(pool),
        cmocka_unit_test(growing_text),
        cmocka_unit_test(nearest),
        cmocka_unit_test(figures),
        cmocka_unit_test(copies),
        cmocka_unit_test(log_lines),
        cmocka_unit_test(log_progress),
        cmocka_unit_test(log_host),
        cmocka_unit_test(process_start),
        cmocka_unit_test(threads),
        cmocka_unit_test(thread_that_cannot_start),
        cmocka_unit_test(deadlines),
        cmocka_unit_test(cpus),
        cmocka_unit_test(reading),
        cmocka_unit_test(write_errors),
        cmocka_unit_test(only_a_regular_file_is_replaced),
        cmocka_unit_test(a_write_that_takes_nothing),
        cmocka_unit_test(folders),
        cmocka_unit_test(sha256),
        cmocka_unit_test(hash64),
    };

    return cmocka_run_group_tests(tests, enter_folder, leave_folder);
}
