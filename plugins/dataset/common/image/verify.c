/* plugins/dataset/common/image/verify.c -- see verify.h. */
#include "verify.h"
#include <inttypes.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { THREADS_MAX = 16, ROOM = 65536, CLASSES_SHOWN = 100 };

ddp_status catalog_decode(const catalog *c, const catalog_entry *e, const ddp_image_sink *sink, ddp_err *err)
{
    image_source source = {.plugin = c->base.plugin, .name = catalog_name(c, e), .size = (size_t)e->size};
    bool final = c->is_file || c->config->skip_bad != 0;
    image_options options = {.max_pixels = c->config->max_pixels, .orient = c->config->exif_orientation != 0};
    uint64_t most = c->config->max_pixels * 8 + (UINT64_C(16) << 20);
    char name[2 * CATALOG_NAME_MAX];
    uint8_t *bytes;

    source.advice = final ? "" : "; remove it, or set skip_bad = yes to leave broken images out";
    if (c->root != NULL && source.name[0] != '/') {
        (void)snprintf(name, sizeof(name), "%s/%s", c->root, source.name);
        source.name = name;
    }
    if (c->container != NULL) {
        (void)snprintf(name, sizeof(name), "%s: %s", c->container(c, e), source.name);
        source.name = name;
    }
    if (e->size > most)
        return ddp_fail(err, DDP_ERR_DATA,
                        "dataset %s: \"%s\" has %" PRIu64 " bytes, more than any image of max_pixels = %" PRIu64,
                        c->base.plugin, source.name, e->size, c->config->max_pixels);
    bytes = sink->memory(sink->ctx, 0, (size_t)e->size, err);
    if (bytes == NULL) return err->status;
    DDP_TRY(c->read_bytes(c, e, bytes, (size_t)e->size, err));
    source.bytes = bytes;
    return image_decode(&source, &options, sink, err);
}

/* ---- broken files ------------------------------------------------------------------------------------------------ */
typedef struct checker {
    const catalog *c;
    uint8_t *bad; /* by entry */
    size_t first, step;
    pthread_t thread;
    ddp_err err; /* of the first bad one, or what ended this thread */
    size_t first_bad;
    bool failed;
} checker;

static void *check_main(void *arg)
{
    checker *k = arg;
    image_room room = {.sizes = {0}};
    ddp_image_sink sink;

    image_room_sink(&room, &sink);
    k->first_bad = SIZE_MAX;
    for (size_t i = k->first; i < k->c->count && !k->failed; i += k->step) {
        ddp_err err = {0};
        ddp_status status = catalog_decode(k->c, &k->c->entries[i], &sink, &err);

        k->bad[i] = status != DDP_OK;
        k->failed = status == DDP_ERR_NOMEM; /* which is not the file's fault */
        if (k->failed || (status != DDP_OK && k->first_bad == SIZE_MAX)) {
            k->err = err;
            k->first_bad = i;
        }
    }
    image_room_free(&room);
    return NULL;
}

static size_t processors(void)
{
    cpu_set_t set;

    return sched_getaffinity(0, sizeof(set), &set) == 0 ? (size_t)CPU_COUNT(&set) : 1;
}

/* As many threads as there are processors, or as can be started; what none has is done here. */
static void check_all(checker *checkers, size_t count)
{
    sigset_t all, before;
    size_t started = 0;

    (void)sigfillset(&all);
    (void)pthread_sigmask(SIG_SETMASK, &all, &before);
    while (started + 1 < count && pthread_create(&checkers[started].thread, NULL, check_main, &checkers[started]) == 0)
        started++;
    (void)pthread_sigmask(SIG_SETMASK, &before, NULL);
    for (size_t i = started; i < count; i++) (void)check_main(&checkers[i]);
    for (size_t i = 0; i < started; i++) (void)pthread_join(checkers[i].thread, NULL);
}

static void take_out(catalog *c, const uint8_t *bad)
{
    size_t kept = 0;

    for (size_t i = 0; i < c->count; i++)
        if (!bad[i]) c->entries[kept++] = c->entries[i];
    c->bad = c->count - kept;
    c->count = kept;
}

ddp_status catalog_leave_out_bad(catalog *c, ddp_err *err)
{
    checker checkers[THREADS_MAX];
    size_t count = processors(), first = SIZE_MAX;
    uint8_t *bad = calloc(c->count + 1, 1);
    ddp_status status = DDP_OK;

    if (bad == NULL) return data_no_memory(c->base.plugin, err);
    if (count > THREADS_MAX) count = THREADS_MAX;
    if (count > c->count) count = c->count;
    for (size_t i = 0; i < count; i++) checkers[i] = (checker){.c = c, .bad = bad, .first = i, .step = count};
    check_all(checkers, count);
    for (size_t i = 0; i < count; i++) {
        if (checkers[i].failed) {
            *err = checkers[i].err;
            status = err->status;
        }
        if (checkers[i].first_bad >= first) continue;
        first = checkers[i].first_bad;
        (void)snprintf(c->first_bad, sizeof(c->first_bad), "%s", checkers[i].err.msg);
    }
    if (status == DDP_OK) take_out(c, bad);
    free(bad);
    return status;
}

/* ---- for --check ------------------------------------------------------------------------------------------------- */
typedef struct text {
    char *bytes; /* ROOM */
    size_t used;
} text;

/* Texts of files may hold anything: no control characters but the newline at the end. */
static void add(text *t, const char *fmt, ...) DDP_PRINTF_(2, 3);
static void add(text *t, const char *fmt, ...)
{
    size_t from = t->used, room = ROOM - t->used;
    va_list ap;
    int length;

    va_start(ap, fmt);
    length = vsnprintf(t->bytes + t->used, room, fmt, ap);
    va_end(ap);
    if (length > 0) t->used += (size_t)length < room ? (size_t)length : room - 1;
    for (; from < t->used; from++)
        if ((unsigned char)t->bytes[from] < ' ' || t->bytes[from] == 127) t->bytes[from] = '?';
}

static void end_line(text *t)
{
    if (t->used < ROOM - 1) t->bytes[t->used++] = '\n';
}

static void add_classes(text *t, const catalog *c, const uint64_t *counts)
{
    for (uint32_t i = 0; i < c->class_count && i < CLASSES_SHOWN; i++) {
        if (c->numbered)
            add(t, "%-6u", i);
        else
            add(t, "%-20.60s", c->classes.bytes + c->classes.entries[i].at);
        add(t, " %" PRIu64 " image%s", counts[i], counts[i] == 1 ? "" : "s");
        end_line(t);
    }
    if (c->class_count <= CLASSES_SHOWN) return;
    add(t, "and %u more classes", c->class_count - CLASSES_SHOWN);
    end_line(t);
}

char *catalog_description(const catalog *c, const char *what)
{
    text t = {.bytes = malloc(ROOM)};
    uint64_t *counts = calloc(c->class_count + 1u, sizeof(*counts));
    char *out = NULL;

    if (t.bytes == NULL || counts == NULL) goto free_all;
    for (size_t i = 0; i < c->count; i++) counts[c->entries[i].label]++;
    add(&t, "%.300s: %zu", what, c->count);
    if (c->count + c->bad < c->all) add(&t, " of %" PRIu64, c->all);
    add(&t, " images of %u classes", c->class_count);
    if (c->bad > 0) add(&t, "; %" PRIu64 " broken ones are left out", c->bad);
    if (c->other > 0) add(&t, "; %" PRIu64 " other files are not read", c->other);
    end_line(&t);
    add_classes(&t, c, counts);
    t.bytes[t.used < ROOM ? t.used : ROOM - 1] = '\0';
    out = realloc(t.bytes, t.used + 1);
    if (out != NULL) t.bytes = NULL;
free_all:
    free(t.bytes);
    free(counts);
    return out;
}
