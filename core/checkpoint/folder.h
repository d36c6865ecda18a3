/* checkpoint/folder.h -- names of checkpoint folders and the contents of [checkpoint] dir. Private to checkpoint/. */
#pragma once

#include "checkpoint/manifest.h"

#define DDP_PATH_CAPACITY 4096
#define DDP_STEP_NAME     32 /* "step-" and up to 20 digits, ".tmp" */

typedef struct ddp_path {
    char text[DDP_PATH_CAPACITY];
} ddp_path;

/* DIR/NAME; DDP_ERR_INVALID when it is too long. */
ddp_status checkpoint_path_join(char out[DDP_PATH_CAPACITY], const char *dir, const char *name, ddp_err *err);
void checkpoint_step_name(char name[DDP_STEP_NAME], uint64_t step); /* "step-00000500" */

/* The steps that have a folder in `dir`, highest first; free() *steps. An absent folder has none. */
ddp_status checkpoint_step_list(const char *dir, uint64_t **steps, size_t *count, ddp_err *err);
/* Removes step-*SUFFIX: ".tmp" is left over from saves that did not finish, ".old" was set aside. */
ddp_status checkpoint_sweep(const char *dir, const char *suffix, ddp_err *err);
ddp_status checkpoint_remove_path(const char *path, ddp_err *err); /* a folder with its files, or a file; absent: ok */
/* Compares size and SHA-256 of a file with the manifest. */
ddp_status checkpoint_verify_file(const char *path, const ddp_file_facts *facts, ddp_err *err);
