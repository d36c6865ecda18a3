/* train/state/snapshot.h -- what a checkpoint holds: the tensors of rank 0 by name, and the settings, or of another
 * rank the shard that it writes; and a copy of them in memory of its own, which is written while training goes on. On
 * the trainer's thread, but that a writer reads what a snapshot holds until its save has ended. */
#pragma once

#include "train/state/tensors.h"

typedef struct ddp_contents {
    ddp_views model, states, hook, ema, local;
    ddp_text settings;
    ddp_checkpoint_contents what; /* over the above; its position is that of the newest state_contents_stamp */
} ddp_contents;

/* Whether each rank writes its shard of the optimiser's state. */
bool state_is_saved_in_shards(const ddp_trainer *t);
/* Of the arenas `a`, which outlive it: their states are this rank's shards where those are saved. Zeroed before; what
 * was made is freed by _close, also after a failure. */
ddp_status state_contents_open(const ddp_trainer *t, const ddp_state_arenas *a, ddp_contents *out, ddp_err *err);
void state_contents_stamp(const ddp_trainer *t, ddp_contents *c); /* with the trainer's position now */
void state_contents_close(ddp_contents *c);

typedef struct ddp_snapshot {
    ddp_state_arenas own; /* allocated here: of states that rank 0 gathers none */
    ddp_contents contents;
} ddp_snapshot;

/* What state_snapshot_open allocates, with what is gathered from other ranks. */
uint64_t state_snapshot_bytes(const ddp_trainer *t);
/* Where states are gathered, t->mem.whole is there, and is part of it; so is what hooks hold. Zeroed before; what was
 * made is freed by _close, also after a failure. */
ddp_status state_snapshot_open(ddp_trainer *t, ddp_snapshot *out, ddp_err *err);
/* One copy of all that is not gathered, straight from the device. Nothing is allocated. */
ddp_status state_snapshot_copy(ddp_trainer *t, ddp_snapshot *s, ddp_err *err);
void state_snapshot_close(ddp_trainer *t, ddp_snapshot *s);
