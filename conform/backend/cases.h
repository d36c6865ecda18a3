/* conform/backend/cases.h -- which cases a backend gets. */
#pragma once

#include "conform/harness/case.h"

/* The cases of one world of a backend with these capabilities; `suite` DDP_SUITE_END: all. */
ddp_status ddp_backend_cases(ddp_case_list *l, uint64_t caps, uint32_t world, bool quick, bool launched, uint32_t suite,
                             ddp_err *err);
