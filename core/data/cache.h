/* data/cache.h -- decoded images in memory, of bounded size: [data] cache. An image stays from its first use on until
 * the memory is used up; none is ever taken out, since an epoch comes to each of them once. */
#pragma once

#include "base/base.h"

typedef struct data_cache data_cache;

typedef struct data_cached {
    int64_t height, width;
    size_t rest;     /* bytes of the sample's other fields, after the pixels */
    uint8_t *pixels; /* (height, width, 3) */
    uint8_t *others;
} data_cached;

/* `length`: samples of the dataset; `limit`: bytes. */
ddp_status data_cache_open(uint64_t length, uint64_t limit, data_cache **out, ddp_err *err);
void data_cache_close(data_cache *c);

/* Any number of threads at once. */
const data_cached *data_cache_find(data_cache *c, uint64_t index); /* NULL: not there */
/* Room for an image; NULL: there is none left. The caller fills it, then keeps it or drops it. */
data_cached *data_cache_reserve(data_cache *c, int64_t height, int64_t width, size_t rest);
void data_cache_keep(data_cache *c, uint64_t index, data_cached *image);
void data_cache_drop(data_cache *c, data_cached *image);
