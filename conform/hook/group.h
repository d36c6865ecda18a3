/* conform/hook/group.h -- the collectives that a hook under test gets. */
#pragma once

#include "conform/hook/types.h"

void hook_group_open(ddp_hook_trial *t); /* fills t->group */
/* All ranks come here with the same value, or it is this rank's failure: "`what` differs between ranks". Compute
 * thread. */
bool hook_agree(ddp_hook_trial *t, uint64_t value, const char *what);
void hook_give_up(ddp_hook_trial *t); /* this rank has failed: ends the others' waits and this process */
size_t hook_heap(void);               /* bytes that malloc has given out */
#define DDP_HOOK_EXPECT(t, ok, ...) ((ok) || (DDP_FAIL((t)->a, __VA_ARGS__), hook_give_up(t), false))
