/* control/rank0/store.c -- the store of rank 0: a chained hash table of bytes to bytes. Who waits for a key is
 * pending.c's. */
#include "control/rank0/store.h"
#include "base/sys.h"
#include <stdlib.h>
#include <string.h>

typedef struct entry {
    struct entry *next;
    uint64_t hash;
    size_t key_length, length;
    unsigned char *value;
    unsigned char key[];
} entry;

struct ddp_table {
    entry **heads;
    size_t head_count, count, bytes; /* head_count is a power of two */
};

ddp_status rank0_table_open(ddp_table **out, ddp_err *err)
{
    ddp_table *t = ddp_alloc(sizeof(*t), err);

    if (t == NULL) return DDP_ERR_NOMEM;
    t->head_count = 64;
    t->heads = ddp_alloc(t->head_count * sizeof(*t->heads), err);
    if (t->heads == NULL) {
        free(t);
        return DDP_ERR_NOMEM;
    }
    *out = t;
    return DDP_OK;
}

static void entry_free(entry *e)
{
    free(e->value);
    free(e);
}

void rank0_table_close(ddp_table *t)
{
    if (t == NULL) return;
    for (size_t i = 0; i < t->head_count; i++) {
        while (t->heads[i] != NULL) {
            entry *e = t->heads[i];

            t->heads[i] = e->next;
            entry_free(e);
        }
    }
    free(t->heads);
    free(t);
}

/* The link that points to the entry, or to the NULL where it would stand. */
static entry **find(const ddp_table *t, const void *key, size_t key_length, uint64_t hash)
{
    entry **link = &t->heads[hash & (t->head_count - 1)];

    while (*link != NULL &&
           ((*link)->hash != hash || (*link)->key_length != key_length || memcmp((*link)->key, key, key_length) != 0))
        link = &(*link)->next;
    return link;
}

/* Without memory for it the table stays as it is, only slower. */
static void double_heads(ddp_table *t)
{
    size_t count = 2 * t->head_count;
    entry **heads = calloc(count, sizeof(*heads));

    if (heads == NULL) return;
    for (size_t i = 0; i < t->head_count; i++) {
        while (t->heads[i] != NULL) {
            entry *e = t->heads[i];

            t->heads[i] = e->next;
            e->next = heads[e->hash & (count - 1)];
            heads[e->hash & (count - 1)] = e;
        }
    }
    free(t->heads);
    t->heads = heads;
    t->head_count = count;
}

static ddp_status entry_new(const void *key, size_t key_length, uint64_t hash, entry **out, ddp_err *err)
{
    entry *e = ddp_alloc(sizeof(*e) + key_length, err);

    if (e == NULL) return DDP_ERR_NOMEM;
    e->hash = hash;
    e->key_length = key_length;
    memcpy(e->key, key, key_length);
    *out = e;
    return DDP_OK;
}

ddp_status rank0_table_set(ddp_table *t, const void *key, size_t key_length, const void *value, size_t length,
                           ddp_err *err)
{
    uint64_t hash = ddp_hash64(key, key_length, 0);
    entry **link = find(t, key, key_length, hash), *e = *link;
    size_t before = e == NULL ? 0 : key_length + e->length;
    unsigned char *copy;

    if (t->bytes - before + key_length + length > DDP_STORE_TOTAL_LIMIT)
        return ddp_fail(err, DDP_ERR_INVALID, "the store is full: it holds %zu of at most %u bytes", t->bytes,
                        DDP_STORE_TOTAL_LIMIT);
    copy = ddp_alloc(length + 1, err);
    if (copy == NULL) return DDP_ERR_NOMEM;
    if (e == NULL) {
        if (entry_new(key, key_length, hash, &e, err) != DDP_OK) {
            free(copy);
            return DDP_ERR_NOMEM;
        }
        *link = e;
        t->count++;
    }
    if (length > 0) memcpy(copy, value, length);
    free(e->value);
    e->value = copy;
    e->length = length;
    t->bytes += key_length + length - before;
    if (t->count > t->head_count) double_heads(t);
    return DDP_OK;
}

bool rank0_table_get(const ddp_table *t, const void *key, size_t key_length, const void **value, size_t *length)
{
    const entry *e = *find(t, key, key_length, ddp_hash64(key, key_length, 0));

    if (e == NULL) return false;
    *value = e->value;
    *length = e->length;
    return true;
}

void rank0_table_remove(ddp_table *t, const void *key, size_t key_length)
{
    entry **link = find(t, key, key_length, ddp_hash64(key, key_length, 0)), *e = *link;

    if (e == NULL) return;
    *link = e->next;
    t->count--;
    t->bytes -= key_length + e->length;
    entry_free(e);
}
