/* comm/hierarchy/scope.c -- see scope.h. */
#include "comm/hierarchy/scope.h"
#include <string.h>

enum { KEY_MAX = 1024 };

static ddp_status full_key(const hierarchy_scope *s, const char *key, char out[KEY_MAX], ddp_err *err)
{
    int n = snprintf(out, KEY_MAX, "%s%s", key[0] == '/' ? "" : s->prefix, key);

    return n >= 0 && n < KEY_MAX ? DDP_OK
                                 : ddp_fail(err, DDP_ERR_INVALID, "a key of %zu bytes is too long", strlen(key));
}

static ddp_status scope_set(void *ctx, const char *key, const void *value, size_t length, ddp_err *err)
{
    const hierarchy_scope *s = ctx;
    char full[KEY_MAX];

    DDP_TRY(full_key(s, key, full, err));
    return s->under->set(s->under->ctx, full, value, length, err);
}

static ddp_status scope_get(void *ctx, const char *key, void *buf, size_t capacity, size_t *length, int64_t timeout_ms,
                            ddp_err *err)
{
    const hierarchy_scope *s = ctx;
    char full[KEY_MAX];

    DDP_TRY(full_key(s, key, full, err));
    return s->under->get(s->under->ctx, full, buf, capacity, length, timeout_ms, err);
}

static ddp_status scope_add(void *ctx, const char *key, int64_t delta, int64_t *value, ddp_err *err)
{
    const hierarchy_scope *s = ctx;
    char full[KEY_MAX];

    DDP_TRY(full_key(s, key, full, err));
    return s->under->add(s->under->ctx, full, delta, value, err);
}

static ddp_status scope_remove(void *ctx, const char *key, ddp_err *err)
{
    const hierarchy_scope *s = ctx;
    char full[KEY_MAX];

    DDP_TRY(full_key(s, key, full, err));
    return s->under->remove(s->under->ctx, full, err);
}

void hierarchy_scope_open(hierarchy_scope *scope, const ddp_store *under, const char *prefix)
{
    *scope = (hierarchy_scope){.store = {.struct_size = sizeof(scope->store),
                                         .ctx = scope,
                                         .set = scope_set,
                                         .get = scope_get,
                                         .add = scope_add,
                                         .remove = scope_remove},
                               .under = under};
    ddp_copy_text(scope->prefix, sizeof(scope->prefix), prefix);
}
