/* launch/identify.h -- who this process is in the run. */
#pragma once

#include "launch/args.h"
#include "session/session.h"

/* Rank, world and init method of the first rank of this process: from --nproc and the config, a launcher, or nodes. */
ddp_status ddp_launch_resolve(const ddp_args *args, const ddp_config *c, ddp_launch *out, ddp_err *err);
