/* data/cache.c -- see cache.h. Whoever reads an image first publishes it by an atomic pointer. */
#include "data/cache.h"
#include <stdatomic.h>
#include <stdlib.h>

struct data_cache {
    uint64_t length, limit;
    atomic_uint_fast64_t used;
    _Atomic(data_cached *) *images; /* by index */
};

ddp_status data_cache_open(uint64_t length, uint64_t limit, data_cache **out, ddp_err *err)
{
    data_cache *c = ddp_alloc(sizeof(*c), err);

    if (c == NULL) return err->status;
    c->images = length < SIZE_MAX / sizeof(*c->images) ? ddp_alloc((size_t)length * sizeof(*c->images) + 1, err) : NULL;
    if (c->images == NULL) {
        free(c);
        return ddp_fail(err, DDP_ERR_NOMEM, "no memory for a cache of so many samples");
    }
    c->length = length;
    c->limit = limit;
    atomic_init(&c->used, 0);
    *out = c;
    return DDP_OK;
}

void data_cache_close(data_cache *c)
{
    if (c == NULL) return;
    for (uint64_t i = 0; i < c->length; i++) free(atomic_load(&c->images[i]));
    free(c->images);
    free(c);
}

const data_cached *data_cache_find(data_cache *c, uint64_t index)
{
    return index < c->length ? atomic_load_explicit(&c->images[index], memory_order_acquire) : NULL;
}

static uint64_t bytes_of(const data_cached *image)
{
    return sizeof(*image) + (uint64_t)image->height * (uint64_t)image->width * 3 + image->rest;
}

data_cached *data_cache_reserve(data_cache *c, int64_t height, int64_t width, size_t rest)
{
    data_cached head = {.height = height, .width = width, .rest = rest}, *image = NULL;
    uint64_t bytes = bytes_of(&head), before = atomic_fetch_add(&c->used, bytes);

    if (before <= c->limit && bytes <= c->limit - before) image = malloc((size_t)bytes);
    if (image == NULL) {
        (void)atomic_fetch_sub(&c->used, bytes);
        return NULL;
    }
    *image = head;
    image->pixels = (uint8_t *)(image + 1);
    image->others = image->pixels + (size_t)(height * width) * 3;
    return image;
}

void data_cache_drop(data_cache *c, data_cached *image)
{
    if (image == NULL) return;
    (void)atomic_fetch_sub(&c->used, bytes_of(image));
    free(image);
}

void data_cache_keep(data_cache *c, uint64_t index, data_cached *image)
{
    data_cached *none = NULL;

    if (index >= c->length || !atomic_compare_exchange_strong(&c->images[index], &none, image))
        data_cache_drop(c, image); /* another thread was first */
}
