/* checkpoint/manifest.h -- MANIFEST.json: the last file of a checkpoint; what it lists is complete. Private to
 * checkpoint/. */
#pragma once

#include "checkpoint/checkpoint.h"

#define DDP_MANIFEST_FORMAT  "ddpengine checkpoint"
#define DDP_MANIFEST_VERSION 3 /* what is written; 1 and 2, of which files have a SHA-256, are read, too */
#define DDP_MANIFEST_FILE    "MANIFEST.json"

typedef struct ddp_manifest {
    ddp_checkpoint_meta meta;
    ddp_file_facts parts[DDP_PARTS]; /* bytes 0: there is no such file */
    ddp_file_facts *shards;          /* instead of that of the optimiser: its state in so many files; free() */
    uint32_t shard_count;
    char *settings; /* of one that was read; NULL: it has none */
} ddp_manifest;

enum { DDP_SHARDS_MOST = 4096, DDP_FILE_NAME = 64 };

const char *checkpoint_part_file(int part); /* "model.safetensors" */
void checkpoint_shard_file(char name[DDP_FILE_NAME], uint32_t shard,
                           uint32_t of); /* "optimizer-00001-of-00004.safetensors" */
/* File number `i` of those that the manifest lists, and its name; NULL behind the last. Those that are not there are
 * left out. */
const ddp_file_facts *checkpoint_manifest_file(const ddp_manifest *m, uint32_t *i, char name[DDP_FILE_NAME]);

/* DIR/step-STEP, whose manifest must be of that step; every file is verified, and shards fit together. What the first
 * one says of it is what a resume would find. */
ddp_status checkpoint_verify_step(const char *dir, uint64_t step, ddp_err *err);
ddp_status checkpoint_open_step(const char *dir, uint64_t step, ddp_checkpoint *out, ddp_err *err);

/* Writes path (O_EXCL) and fsyncs it; on failure removes it. `settings`: as of ddp_checkpoint_contents. */
ddp_status checkpoint_manifest_write(const char *path, const ddp_manifest *m, const char *settings, ddp_err *err);
/* DDP_ERR_DATA: damaged, with the reason; DDP_ERR_UNSUPPORTED: of a later version. */
ddp_status checkpoint_manifest_read(const char *path, ddp_manifest *m, ddp_err *err);
void checkpoint_manifest_free(ddp_manifest *m);
bool checkpoint_meta_equal(const ddp_checkpoint_meta *a, const ddp_checkpoint_meta *b);

/* "history" of the file, by history.c. NULL: no memory. */
struct json_t;
bool checkpoint_history_equal(const ddp_history *a, const ddp_history *b); /* bit for bit */
bool checkpoint_history_is_empty(const ddp_history *h);
struct json_t *checkpoint_history_json(const ddp_history *h);
/* NULL: nothing was written, all stays 0. False: not what checkpoint_history_json has written. */
bool checkpoint_history_read(const struct json_t *object, ddp_history *out);
