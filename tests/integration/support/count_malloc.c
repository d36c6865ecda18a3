/* tests/integration/support/count_malloc.c -- preloaded by test_step.py: counts allocations between the starts of
 * two epochs (which counting_sampler.c marks), by thread name and by the object whose code asked for them (the
 * nearest frame outside the C and C++ libraries), and writes the table to $COUNT_MALLOC.PID at exit. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <execinfo.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <unistd.h>

extern void *__libc_malloc(size_t);
extern void *__libc_calloc(size_t, size_t);
extern void *__libc_realloc(void *, size_t);
extern void *__libc_memalign(size_t, size_t);

#define ROWS 512
struct row {
    char thread[16], object[64];
    unsigned long count;
};
static struct row rows[ROWS];
static atomic_flag lock = ATOMIC_FLAG_INIT;
static __thread int inside __attribute__((tls_model("initial-exec")));
static int ready; /* the unwinder has been loaded */
static atomic_int counting;

static const char *base_name(const char *path)
{
    const char *slash = strrchr(path, '/');

    return slash == NULL ? path : slash + 1;
}

/* A plugin is loaded through its descriptor: the link tells which one. */
static const char *object_name(const char *path, char *buf, size_t capacity)
{
    ssize_t n = strncmp(path, "/proc/self/fd/", 14) == 0 ? readlink(path, buf, capacity - 1) : -1;

    if (n <= 0) return base_name(path);
    buf[n] = '\0';
    return base_name(buf);
}

static int is_runtime(const char *object)
{
    static const char *const names[] = {"libc.so", "libstdc++", "ld-linux", "libgcc_s", "libcount"};

    for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++)
        if (strncmp(object, names[i], strlen(names[i])) == 0) return 1;
    return 0;
}

static void count(void)
{
    void *frames[24];
    Dl_info info;
    const char *object = "?";
    char thread[16] = "", path[4096];
    int n, i;

    if (!ready || inside || !atomic_load(&counting)) return;
    inside = 1;
    n = backtrace(frames, 24);
    for (i = 1; i < n; i++)
        if (dladdr(frames[i], &info) != 0 && info.dli_fname != NULL &&
            !is_runtime(object_name(info.dli_fname, path, sizeof(path)))) {
            object = object_name(info.dli_fname, path, sizeof(path));
            break;
        }
    (void)prctl(PR_GET_NAME, thread);
    while (atomic_flag_test_and_set(&lock)) {}
    for (i = 0; i < ROWS - 1 && rows[i].count > 0; i++)
        if (strcmp(rows[i].thread, thread) == 0 && strncmp(rows[i].object, object, 63) == 0) break;
    (void)snprintf(rows[i].thread, sizeof(rows[i].thread), "%s", thread);
    (void)snprintf(rows[i].object, sizeof(rows[i].object), "%.63s", object);
    rows[i].count++;
    atomic_flag_clear(&lock);
    inside = 0;
}

void *malloc(size_t n)
{
    count();
    return __libc_malloc(n);
}
void *calloc(size_t n, size_t m)
{
    count();
    return __libc_calloc(n, m);
}
void *realloc(void *p, size_t n)
{
    count();
    return __libc_realloc(p, n);
}
void *aligned_alloc(size_t a, size_t n)
{
    count();
    return __libc_memalign(a, n);
}
void *memalign(size_t a, size_t n)
{
    count();
    return __libc_memalign(a, n);
}
int posix_memalign(void **out, size_t a, size_t n)
{
    void *p;

    count();
    p = __libc_memalign(a, n);
    if (p == NULL) return ENOMEM;
    *out = p;
    return 0;
}

/* Counts from the start of epoch $COUNT_FROM to the start of epoch $COUNT_TO, both from 0. */
void count_malloc_epoch(uint64_t epoch)
{
    const char *from = getenv("COUNT_FROM"), *to = getenv("COUNT_TO");

    if (from != NULL && epoch == strtoull(from, NULL, 10)) atomic_store(&counting, 1);
    if (to != NULL && epoch == strtoull(to, NULL, 10)) atomic_store(&counting, 0);
}

__attribute__((constructor)) static void begin(void)
{
    void *frames[2];

    (void)backtrace(frames, 2); /* loads the unwinder, which allocates, before anything is counted */
    ready = 1;
}

__attribute__((destructor)) static void end(void)
{
    const char *prefix = getenv("COUNT_MALLOC");
    char path[4096];
    FILE *f;

    ready = 0;
    if (prefix == NULL) return;
    (void)snprintf(path, sizeof(path), "%s.%d", prefix, (int)getpid());
    f = fopen(path, "w");
    if (f == NULL) return;
    for (int i = 0; i < ROWS && rows[i].count > 0; i++)
        (void)fprintf(f, "%s\t%s\t%lu\n", rows[i].thread, rows[i].object, rows[i].count);
    (void)fclose(f);
}
