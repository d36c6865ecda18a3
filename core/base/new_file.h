/* base/new_file.h -- a file that is written beside the one whose place it takes at its end: a reader sees the old one
 * or the new one, and two that write the same file at once do not disturb each other. */
#pragma once

#include "base/base.h"
#include <limits.h>

typedef struct ddp_new_file {
    int fd;              /* to write to */
    char path[PATH_MAX]; /* whose place it takes: of a link, what that leads to */
    char own[PATH_MAX];  /* PATH.ddp-XXXXXXXX.tmp, which nobody else has */
} ddp_new_file;

/* DDP_ERR_SYSTEM also where PATH is a device, a pipe or a folder. Removes what others that were killed while they wrote
 * PATH have left: a writer has its file locked until it ends. Where the file system has no locks, such files stay. */
ddp_status ddp_new_file_open(ddp_new_file *f, const char *path, ddp_err *err);
/* Puts the file in place, on disk, if `written` is DDP_OK, else or where that fails removes it; the first failure. */
ddp_status ddp_new_file_close(ddp_new_file *f, ddp_status written, ddp_err *err);
