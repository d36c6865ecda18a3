#pragma once
/* train/join.h -- how a rank joins the others for a generation of the run. */
#include "control/group.h"
#include "train/trainer.h"

/* Opens t->group. Where ranks may be missing and [group] nodes names the hosts, a later host serves the others when the
 * earlier ones are lost, and each rank looks on all of them. `expired` gets t. DDP_IN_PROGRESS: the run has ended
 * without this spare. On failure *failure is what all ranks hear. */
ddp_status trainer_join(ddp_trainer *t, uint32_t generation, void (*expired)(void *ctx, const ddp_failure *cause),
                        ddp_failure *failure, ddp_err *err);
