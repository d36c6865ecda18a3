/* comm/hierarchy/scope.h -- a store within a store. */
#pragma once

#include "comm/hierarchy/state.h"

/* Keys of `scope` are those of `under` with `prefix` in front. */
void hierarchy_scope_open(hierarchy_scope *scope, const ddp_store *under, const char *prefix);
