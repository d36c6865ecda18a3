/* conform/suites.h -- the suites of a kind; each function runs a->c. */
#pragma once

#include "conform/harness/rank_process.h"

void conform_init_case(ddp_rank_process *a);
void ddp_device_case(ddp_rank_process *a);
void conform_model_case(ddp_rank_process *a);
void ddp_sampler_case(ddp_rank_process *a);
void ddp_dataset_case(ddp_rank_process *a);
void ddp_hook_case(ddp_rank_process *a);
