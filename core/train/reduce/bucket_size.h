/* train/reduce/bucket_size.h -- how large a bucket is to be. */
#pragma once

#include "train/trainer.h"

/* [ddp] bucket_size = auto: plans the buckets again by the measured link. Collective. */
ddp_status ddp_trainer_bucket_size(ddp_trainer *t, ddp_err *err);
