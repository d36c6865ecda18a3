/* checkpoint/checkpoint.h -- step-NNNNNNNN folders: model.safetensors, optimizer.safetensors, hook.safetensors,
 * ema.safetensors, local_steps.safetensors, MANIFEST.json written last.
 *
 * Only rank 0 writes and reads, but that each rank may write its part of the optimiser's state (shards.h); what the
 * other ranks wait for is in train/state/resume.c. Durable when save returns:
 * each file fsynced, the folder renamed from .tmp, the parent fsynced. There is no pointer file: the newest is the
 * highest number that verifies, and a folder that does not verify is skipped with a warning. */
#pragma once

#include "checkpoint/retention.h"
#include "checkpoint/safetensors.h"

/* The best result of evaluations by one metric. */
typedef struct ddp_best {
    double value;
    uint64_t found; /* 1: there is one */
    uint64_t step;  /* after which update it was */
    uint64_t since; /* evaluations after it, none of which was better */
    uint64_t of;    /* which metric, and whether higher is better: a hash; 0: an earlier version has not said it */
} ddp_best;

/* [optimizer] schedule = plateau; torch.optim.lr_scheduler.ReduceLROnPlateau, whose num_bad_epochs is best.since */
typedef struct ddp_plateau {
    ddp_best best;
    uint64_t cooldown, drops; /* evaluations that do not count yet; drops of the learning rate so far */
    double scale;             /* the learning rate as a share of [optimizer] lr, once there was a drop */
} ddp_plateau;

/* What a run remembers of its evaluations. 0: nothing yet. */
typedef struct ddp_history {
    ddp_plateau plateau;
    ddp_best kept, stopping; /* [checkpoint] keep_best, [train] early_stopping */
    uint64_t averaged;       /* [optimizer] ema: updates that the average has taken in */
    uint64_t taken;          /* step of the newest evaluation that is in this; a step counts once */
    uint64_t due;            /* 1: the evaluation of the epoch that has ended is still to be made */
} ddp_history;

typedef struct ddp_checkpoint_meta {
    uint64_t step, epoch; /* updates done; epoch that the cursor is in */
    uint64_t cursor;      /* micro-batches of this epoch consumed by each rank */
    uint64_t seed;
    uint64_t world_size, bucket_size, first_bucket_size, batch_size, accumulate;
    uint64_t global_batch; /* samples of a step; 0: an earlier version has not said it, see ddp_checkpoint_batch */
    uint64_t uneven;       /* 1: ranks need not have equally many samples of a step */
    uint64_t micro_steps;  /* done by each rank since the start */
    char config_hash[DDP_SHA256_HEX];
    uint64_t hook_version;          /* of what the hook remembers */
    char model[64], hook[64];       /* hook: "" where none was used */
    char base_hash[DDP_XXH128_HEX]; /* the model file holds adapters of a model with this hash; "": it is whole */
    bool finished;                  /* the run that saved it was complete */
    ddp_history history;
} ddp_checkpoint_meta;

/* Samples of a step. */
static inline uint64_t ddp_checkpoint_batch(const ddp_checkpoint_meta *m)
{
    return m->global_batch > 0 ? m->global_batch : m->world_size * m->batch_size * m->accumulate;
}

/* The files of a checkpoint; one of the hook is there where it remembers something, one of the average of the
 * parameters (with the model's buffers) where there is one, one of local steps where they have something. */
enum { DDP_PART_MODEL, DDP_PART_OPTIMIZER, DDP_PART_HOOK, DDP_PART_EMA, DDP_PART_LOCAL, DDP_PARTS };
typedef struct ddp_part {
    const ddp_named_tensor *tensors;
    size_t count;
} ddp_part;

typedef struct ddp_file_facts {
    uint64_t bytes;
    char hash[DDP_SHA256_HEX]; /* XXH3 of 128 bits; where an earlier version has written it SHA-256: the longer text */
} ddp_file_facts;

/* How the ranks that write a checkpoint together report their shards to rank 0, in the thread that saves. `text` is
 * short, and of one line. */
typedef struct ddp_shard_exchange {
    void *ctx;
    ddp_status (*tell)(void *ctx, uint64_t step, uint32_t shard, const char *text, ddp_err *err);
    /* Waits until that shard's rank has; DDP_ERR_ABORTED when the run has failed. */
    ddp_status (*hear)(void *ctx, uint64_t step, uint32_t shard, char *text, size_t capacity, ddp_err *err);
    int32_t (*rank)(void *ctx, uint32_t shard); /* that writes it, as people know it */
} ddp_shard_exchange;

typedef struct ddp_checkpoint_contents {
    ddp_checkpoint_meta meta;
    const char *settings; /* all that ranks agree on, lines "section.key = value\n"; NULL: none are stored */
    ddp_part parts[DDP_PARTS];
    /* The optimiser's state is in so many shards, and its part here is that of number `shard`; 0: it is whole. Shard 0
     * is saved with the rest, when all others are there. */
    uint32_t shards, shard;
    uint64_t token; /* drawn for these ranks, since others from before may still be writing: part of the files' names */
    ddp_shard_exchange exchange;
    const atomic_bool *cancelled; /* set by another thread: the save ends soon, with DDP_ERR_ABORTED; may be NULL */
} ddp_checkpoint_contents;

/* Who writes has the folder's lock: that of `lock` is DIR.
 * Saves into DIR/step-%08llu; an existing one of that number that verifies and has the same meta is kept and counts as
 * saved, any other is replaced. A left-over .tmp is removed. Then removes the oldest that `keep` does not hold: the
 * new one and those of higher steps always stay. DDP_ERR_SYSTEM names the file; earlier checkpoints stay intact. */
ddp_status ddp_checkpoint_save(const ddp_checkpoint_lock *lock, const ddp_checkpoint_contents *what,
                               const ddp_retention *keep, ddp_log *log, ddp_err *err);
/* Renames every checkpoint of DIR at or above step `from` to step-NNNNNNNN.old, which nothing loads, highest first;
 * those that an earlier call left are removed before, when there is something to rename. For a run that starts afresh
 * or goes back: otherwise what an older run saved under higher steps would pass for this run's newest. */
ddp_status ddp_checkpoint_set_aside(const ddp_checkpoint_lock *lock, uint64_t from, ddp_log *log, ddp_err *err);
/* Checks that DIR can be listed and written, before training starts. */
ddp_status ddp_checkpoint_prepare(const ddp_checkpoint_lock *lock, ddp_err *err);

typedef struct ddp_shard_files ddp_shard_files;
/* One that is open: its files are mapped, and have been read for their hashes alone. */
typedef struct ddp_checkpoint {
    char path[4096];
    ddp_checkpoint_meta meta;
    char *settings;                    /* NULL: an earlier version wrote it */
    ddp_safetensors *parts[DDP_PARTS]; /* of the hook NULL where it has none; of the optimiser where it is in shards: */
    ddp_shard_files *shards;
} ddp_checkpoint;
/* The newest that verifies (sizes and SHA-256 of every file, shards that fit together); damaged ones are skipped with a
 * warning each. DDP_IN_PROGRESS: DIR has no checkpoint. DDP_ERR_DATA: it has some, and none verifies. One that cannot
 * be read (DDP_ERR_SYSTEM), or that a later format version wrote, is an error: an older one must not silently replace
 * it. */
ddp_status ddp_checkpoint_newest(const char *dir, ddp_checkpoint *out, ddp_log *log, ddp_err *err);
/* The manifest of the newest checkpoint that has one; the other files are not read. */
ddp_status ddp_checkpoint_meta_of(const char *path, ddp_checkpoint_meta *out, ddp_err *err);
ddp_status ddp_checkpoint_newest_meta(const char *dir, ddp_checkpoint_meta *out, ddp_err *err);
/* What the manifest of a checkpoint, or of the newest readable one of a folder, says of the settings; free(), NULL
 * where an earlier version wrote it. DDP_IN_PROGRESS: there is no such manifest. */
ddp_status ddp_checkpoint_settings_of(const char *path, char **out, ddp_err *err);
ddp_status ddp_checkpoint_open(const char *path, ddp_checkpoint *out, ddp_err *err);
void ddp_checkpoint_close(ddp_checkpoint *c);

/* The tensors of a part, be it a file or in shards, of which they have no `data`; none where there is no such part.
 * Copying one leaves none of its pages in this process. */
size_t ddp_checkpoint_count(const ddp_checkpoint *c, int part);
const ddp_named_tensor *ddp_checkpoint_at(const ddp_checkpoint *c, int part, size_t i);
const ddp_named_tensor *ddp_checkpoint_find(const ddp_checkpoint *c, int part, const char *name);
void ddp_checkpoint_copy(const ddp_checkpoint *c, int part, const ddp_named_tensor *t, void *to); /* t: one of those */
/* The same for one that is to be nowhere as a whole: its bytes in pieces of at most `most`. */
ddp_status ddp_checkpoint_pieces(const ddp_checkpoint *c, int part, const ddp_named_tensor *t, uint64_t most,
                                 checkpoint_take_piece take, void *ctx, ddp_err *err);
/* For those who want all of it at once, with its data: puts shards together in memory, where it has any. */
ddp_status ddp_checkpoint_join(ddp_checkpoint *c, ddp_err *err);
