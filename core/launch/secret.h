/* launch/secret.h -- the secret by which the ranks of a run know each other. */
#pragma once

#include "session/session.h"

/* Reads [group] secret_file, where it is given, into l->secret. */
ddp_status ddp_secret_load(const ddp_config *c, ddp_launch *l, ddp_err *err);
/* Makes a secret for the ranks of one supervisor. */
ddp_status launch_secret_make(ddp_launch *l, ddp_err *err);
/* Writes a new one to a new file that its owner alone may read, or (path NULL) to standard output. */
ddp_status ddp_secret_write(const char *path, ddp_err *err);
