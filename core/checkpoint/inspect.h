/* checkpoint/inspect.h -- what lies in a folder of checkpoints, for people: nothing is written, and no lock taken. */
#pragma once

#include "checkpoint/checkpoint.h"

typedef enum ddp_entry_kind { DDP_ENTRY_SAVED = 0, DDP_ENTRY_SET_ASIDE, DDP_ENTRY_UNFINISHED } ddp_entry_kind;

typedef struct ddp_checkpoint_entry {
    char name[40]; /* "step-00000500", "step-00000500.old" */
    ddp_entry_kind kind;
    bool valid;               /* the manifest verifies, and the sizes of the files are what it says */
    ddp_checkpoint_meta meta; /* with `valid`, as `bytes` */
    uint64_t bytes;
    ddp_err why; /* without it */
} ddp_checkpoint_entry;

/* Calls `each` for every step-*, those of a kind together and by step. DDP_ERR_SYSTEM: the folder cannot be read; an
 * absent one is an error, too. */
ddp_status ddp_checkpoint_list(const char *dir, void (*each)(void *ctx, const ddp_checkpoint_entry *e), void *ctx,
                               ddp_err *err);
/* DDP_OK: `dir` has nothing under the name of that step, be it a checkpoint or not. */
ddp_status ddp_checkpoint_is_free(const char *dir, uint64_t step, ddp_err *err);
/* The folder has a manifest, so it is meant as a checkpoint. */
bool ddp_checkpoint_is_one(const char *path);
