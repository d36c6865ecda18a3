/* session/epoch.h -- what a step and an epoch of the training data have: samples a rank, micro-batches, steps. */
#pragma once

#include "session/session.h"

/* The batches of the configuration for this session's ranks. How a global batch is made up matters to training
 * alone. */
ddp_status session_resolve_batches(ddp_session *s, ddp_err *err);
/* How the ranks share an epoch, and how many micro-batches and steps it has. Needs the batches. */
ddp_status session_count_epoch(ddp_session *s, ddp_err *err);
