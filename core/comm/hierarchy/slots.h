/* comm/hierarchy/slots.h -- the functions of a hierarchy's table. */
#pragma once

#include "comm/hierarchy/state.h"

/* Fills all but `caps`, `launcher` and what make.c does itself. */
void hierarchy_slots_fill(ddp_backend_ops *ops);
