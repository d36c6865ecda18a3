/* session/plugins.h -- what session.c needs of plugins.c. */
#ifndef DDP_SESSION_PLUGINS_H
#define DDP_SESSION_PLUGINS_H

#include "session/session.h"

/* The options of each plugin, owned by the settings. */
typedef struct ddp_plugin_configs {
    const void *model, *data, *eval, *sampler, *eval_sampler, *device;
} ddp_plugin_configs;

/* Loads all plugins of the run and opens the init method; the error has the exit code. */
ddp_status ddp_plugins_load(ddp_session *s, ddp_plugin_configs *pc, ddp_err *err);

/* Puts in front of an error where the key that led to it stands, when somebody wrote it. */
ddp_status ddp_at_key(const ddp_session *s, const char *section, const char *key, ddp_err *err);

#endif
