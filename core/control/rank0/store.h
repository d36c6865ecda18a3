/* control/rank0/store.h -- the keys and values that rank 0 keeps for all ranks. One thread, the control thread of
 * rank 0. */
#pragma once

#include "base/base.h"

#define DDP_STORE_TOTAL_LIMIT (64u << 20) /* bytes of all keys and values */

typedef struct ddp_table ddp_table;

ddp_status rank0_table_open(ddp_table **out, ddp_err *err);
void rank0_table_close(ddp_table *t);
ddp_status rank0_table_set(ddp_table *t, const void *key, size_t key_length, const void *value, size_t length,
                           ddp_err *err);
/* The value in place until the next change; false when the key is absent. */
bool rank0_table_get(const ddp_table *t, const void *key, size_t key_length, const void **value, size_t *length);
void rank0_table_remove(ddp_table *t, const void *key, size_t key_length);
