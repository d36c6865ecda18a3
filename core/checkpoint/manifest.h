/* checkpoint/manifest.h -- MANIFEST.json: the last file of a checkpoint; what it lists is complete. Private to
 * checkpoint/. */
#pragma once

#include "checkpoint/checkpoint.h"

#define DDP_MANIFEST_FORMAT  "ddpengine checkpoint"
#define DDP_MANIFEST_VERSION 1
#define DDP_MANIFEST_FILE    "MANIFEST.json"

typedef struct ddp_file_facts {
    uint64_t bytes;
    char sha256[DDP_SHA256_HEX];
} ddp_file_facts;

typedef struct ddp_manifest {
    ddp_checkpoint_meta meta;
    ddp_file_facts parts[DDP_PARTS]; /* bytes 0: there is no such file */
    char *settings;                  /* of one that was read; NULL: it has none */
} ddp_manifest;

const char *checkpoint_part_file(int part); /* "model.safetensors" */

/* DIR/step-STEP, whose manifest must be of that step; every file is verified. */
ddp_status checkpoint_open_step(const char *dir, uint64_t step, ddp_checkpoint *out, ddp_err *err);

/* Writes path (O_EXCL) and fsyncs it; on failure removes it. `settings`: as of ddp_checkpoint_contents. */
ddp_status checkpoint_manifest_write(const char *path, const ddp_manifest *m, const char *settings, ddp_err *err);
/* DDP_ERR_DATA: damaged, with the reason; DDP_ERR_UNSUPPORTED: of a later version. */
ddp_status checkpoint_manifest_read(const char *path, ddp_manifest *m, ddp_err *err);
void checkpoint_manifest_free(ddp_manifest *m);
bool checkpoint_meta_equal(const ddp_checkpoint_meta *a, const ddp_checkpoint_meta *b);
