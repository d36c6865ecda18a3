/* checkpoint/folder.h -- names of checkpoint folders and the contents of [checkpoint] dir. Private to checkpoint/. */
#pragma once

#include "checkpoint/manifest.h"

#define DDP_PATH_CAPACITY 4096
#define DDP_LOCK_FILE     ".lock"
#define DDP_BEST_LINK     "best"
#define DDP_TRIAL_FILE    ".write-test" /* earlier versions put a number behind it */
#define DDP_STEP_NAME     32            /* "step-" and up to 20 digits, ".tmp" */

typedef struct ddp_path {
    char text[DDP_PATH_CAPACITY];
} ddp_path;

/* DIR/NAME; DDP_ERR_INVALID when it is too long. */
ddp_status checkpoint_path_join(char out[DDP_PATH_CAPACITY], const char *dir, const char *name, ddp_err *err);
/* DIR/step-STEP and the suffix. */
ddp_status checkpoint_step_path(ddp_path *out, const char *dir, uint64_t step, const char *suffix, ddp_err *err);
void checkpoint_step_name(char name[DDP_STEP_NAME], uint64_t step); /* "step-00000500" */

/* The steps of which `dir` has step-STEPSUFFIX, highest first; free() *steps. An absent folder has none. */
ddp_status checkpoint_step_list(const char *dir, const char *suffix, uint64_t **steps, size_t *count, ddp_err *err);
/* Removes step-*SUFFIX: ".tmp" is left over from saves that did not finish, ".old" was set aside. What cannot be
 * removed stays, and the first such is the error. */
ddp_status checkpoint_sweep(const char *dir, const char *suffix, ddp_err *err);
/* What `wanted` says of the name and `text`. */
ddp_status checkpoint_sweep_named(const char *dir, bool (*wanted)(const char *name, const char *text), const char *text,
                                  ddp_err *err);
ddp_status checkpoint_sweep_trials(const char *dir, ddp_err *err); /* the same for DDP_TRIAL_FILE* */
ddp_status checkpoint_remove_path(const char *path, ddp_err *err); /* a folder with its files, or a file; absent: ok */
/* Every file that the manifest lists: its size, and its SHA-256 if `contents`. */
ddp_status checkpoint_verify_files(const char *dir, const ddp_manifest *m, bool contents, ddp_err *err);
/* DIR/best, which leads to the best checkpoint: its step; UINT64_MAX: there is none. */
uint64_t checkpoint_best_step(const char *dir);
/* Lets it lead to DIR/step-STEP, if that is there. */
ddp_status checkpoint_best_set(const char *dir, uint64_t step, ddp_err *err);
ddp_status checkpoint_best_clear(const char *dir, ddp_err *err); /* absent: ok */
/* The two halves of ddp_checkpoint_save. */
ddp_status checkpoint_save_durable(const ddp_checkpoint_lock *lock, const ddp_checkpoint_contents *what, ddp_log *log,
                                   ddp_err *err);
void checkpoint_save_prune(const ddp_checkpoint_lock *lock, uint64_t step, const ddp_retention *keep, ddp_log *log);
