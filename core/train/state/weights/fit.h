/* train/state/weights/fit.h -- the tensors of a file, matched with those of the model. Rank 0. */
#pragma once

#include "train/state/tensors.h"

/* Fills these of the model's tensors with the file's. DDP_ERR_CONFIG: they do not fit, and the message has all that is
 * missing, of another shape or unknown. A trainer without arenas only finds out whether they do. */
ddp_status weights_take(ddp_trainer *t, const char *path, const ddp_safetensors *file, state_which which, ddp_err *err);
/* The same of a safetensors file, or of the index of several. */
ddp_status weights_open_and_take(ddp_trainer *t, const char *path, state_which which, ddp_err *err);
