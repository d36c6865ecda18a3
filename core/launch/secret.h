/* launch/secret.h -- the secret by which the ranks of a run know each other. */
#pragma once

#include "session/session.h"

enum { DDP_SECRET_PATH_MAX = 48 };

/* Reads [group] secret_file, else `of_supervisor` (NULL: none), into l->secret; without either there is none. */
ddp_status ddp_secret_load(const ddp_config *c, const char *of_supervisor, ddp_launch *l, ddp_err *err);
/* Makes a secret for the ranks of one supervisor. */
ddp_status launch_secret_make(ddp_launch *l, ddp_err *err);
/* Makes one in memory that has no name but `path`, DDP_SECRET_PATH_MAX bytes: it leads processes of this user there for
 * as long as *fd is open. */
ddp_status launch_secret_share(int *fd, char *path, ddp_err *err);
/* Writes a new one to a new file that its owner alone may read, or (path NULL) to standard output. */
ddp_status ddp_secret_write(const char *path, ddp_err *err);
