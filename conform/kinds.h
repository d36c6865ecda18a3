/* conform/kinds.h -- the cases of all kinds but backend. */
#pragma once

#include "conform/harness/rank_process.h"

ddp_status conform_kind_cases(ddp_case_list *l, uint32_t kind, uint32_t suite, ddp_err *err);
void ddp_kind_case(ddp_rank_process *a); /* runs a->c */
