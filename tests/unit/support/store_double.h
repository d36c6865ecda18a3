/* store_double.h -- a test double of ddp_store: a fixed table in shared memory, for ranks that are threads or forked
 * processes of one test. It stands in for the control plane's store; abort ends every pending get as an aborted run
 * does. */
#pragma once

#include <ddpengine/plugin.h>
#include <errno.h>
#include <pthread.h>
#include <stdbool.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>

enum { STORE_DOUBLE_ENTRIES = 256, STORE_DOUBLE_BYTES = 512 };

typedef struct store_double_entry {
    bool used;
    size_t length;
    char key[96], value[STORE_DOUBLE_BYTES];
} store_double_entry;

typedef struct store_double {
    pthread_mutex_t lock;
    pthread_cond_t changed;
    bool aborted;
    store_double_entry entries[STORE_DOUBLE_ENTRIES];
} store_double;

static inline store_double *store_double_new(void)
{
    store_double *s = mmap(NULL, sizeof(*s), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    pthread_mutexattr_t ma;
    pthread_condattr_t ca;

    if (s == MAP_FAILED) return NULL;
    pthread_mutexattr_init(&ma);
    pthread_mutexattr_setpshared(&ma, PTHREAD_PROCESS_SHARED);
    pthread_mutex_init(&s->lock, &ma);
    pthread_condattr_init(&ca);
    pthread_condattr_setpshared(&ca, PTHREAD_PROCESS_SHARED);
    pthread_condattr_setclock(&ca, CLOCK_MONOTONIC);
    pthread_cond_init(&s->changed, &ca);
    return s;
}

static inline void store_double_free(store_double *s) { munmap(s, sizeof(*s)); }

static inline void store_double_abort(store_double *s)
{
    pthread_mutex_lock(&s->lock);
    s->aborted = true;
    pthread_cond_broadcast(&s->changed);
    pthread_mutex_unlock(&s->lock);
}

/* The entry of `key`, or with `make` a free one; NULL when there is none. */
static inline store_double_entry *store_double_find(store_double *s, const char *key, bool make)
{
    store_double_entry *vacant = NULL;

    for (size_t i = 0; i < STORE_DOUBLE_ENTRIES; i++) {
        if (s->entries[i].used && strcmp(s->entries[i].key, key) == 0) return &s->entries[i];
        if (!s->entries[i].used && vacant == NULL) vacant = &s->entries[i];
    }
    if (!make || vacant == NULL) return NULL;
    memset(vacant, 0, sizeof(*vacant));
    vacant->used = true;
    (void)snprintf(vacant->key, sizeof(vacant->key), "%s", key);
    return vacant;
}

static inline ddp_status store_double_set(void *ctx, const char *key, const void *value, size_t len, ddp_err *err)
{
    store_double *s = ctx;
    store_double_entry *e;

    if (len > STORE_DOUBLE_BYTES) return ddp_fail(err, DDP_ERR_INVALID, "store double: value too long");
    pthread_mutex_lock(&s->lock);
    e = store_double_find(s, key, true);
    if (e != NULL) {
        memcpy(e->value, value, len);
        e->length = len;
        pthread_cond_broadcast(&s->changed);
    }
    pthread_mutex_unlock(&s->lock);
    return e != NULL ? DDP_OK : ddp_fail(err, DDP_ERR_NOMEM, "store double: full");
}

static inline ddp_status store_double_get(void *ctx, const char *key, void *buf, size_t capacity, size_t *len,
                                          int64_t timeout_ms, ddp_err *err)
{
    store_double *s = ctx;
    store_double_entry *e;
    struct timespec until;
    ddp_status st = DDP_OK;

    clock_gettime(CLOCK_MONOTONIC, &until);
    until.tv_sec += timeout_ms / 1000;
    until.tv_nsec += timeout_ms % 1000 * 1000000;
    if (until.tv_nsec >= 1000000000) until.tv_sec++, until.tv_nsec -= 1000000000;
    pthread_mutex_lock(&s->lock);
    while ((e = store_double_find(s, key, false)) == NULL && !s->aborted && st == DDP_OK)
        if (pthread_cond_timedwait(&s->changed, &s->lock, &until) == ETIMEDOUT)
            st = ddp_fail(err, DDP_ERR_TIMEOUT, "store double: no key %s", key);
    if (e != NULL) {
        st = DDP_OK;
        if (e->length > capacity) st = ddp_fail(err, DDP_ERR_INVALID, "store double: %s is longer", key);
    } else if (s->aborted) {
        st = ddp_fail(err, DDP_ERR_ABORTED, "store double: the run was aborted");
    }
    if (st == DDP_OK) {
        memcpy(buf, e->value, e->length);
        *len = e->length;
    }
    pthread_mutex_unlock(&s->lock);
    return st;
}

static inline ddp_status store_double_add(void *ctx, const char *key, int64_t delta, int64_t *value, ddp_err *err)
{
    store_double *s = ctx;
    store_double_entry *e;
    int64_t sum = 0;

    pthread_mutex_lock(&s->lock);
    e = store_double_find(s, key, true);
    if (e != NULL) {
        if (e->length == sizeof(sum)) memcpy(&sum, e->value, sizeof(sum));
        sum += delta;
        memcpy(e->value, &sum, sizeof(sum));
        e->length = sizeof(sum);
        *value = sum;
    }
    pthread_mutex_unlock(&s->lock);
    return e != NULL ? DDP_OK : ddp_fail(err, DDP_ERR_NOMEM, "store double: full");
}

static inline ddp_status store_double_remove(void *ctx, const char *key, ddp_err *err)
{
    store_double *s = ctx;
    store_double_entry *e;

    (void)err;
    pthread_mutex_lock(&s->lock);
    e = store_double_find(s, key, false);
    if (e != NULL) e->used = false;
    pthread_mutex_unlock(&s->lock);
    return DDP_OK;
}

static inline ddp_store store_double_table(store_double *s)
{
    return (ddp_store){.struct_size = sizeof(ddp_store),
                       .ctx = s,
                       .set = store_double_set,
                       .get = store_double_get,
                       .add = store_double_add,
                       .remove = store_double_remove};
}
