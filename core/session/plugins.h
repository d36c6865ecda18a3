/* session/plugins.h -- every plugin that the config names, with its options. */
#pragma once

#include "session/session.h"

/* The options of each plugin, owned by the settings. */
typedef struct ddp_plugin_configs {
    const void *model, *data, *eval, *sampler, *eval_sampler, *device;
} ddp_plugin_configs;

/* Loads all plugins of the run and opens the init method; the error has the exit code. */
ddp_status session_plugins_load(ddp_session *s, ddp_plugin_configs *pc, ddp_err *err);

/* Before the registry is closed. */
void session_free_hierarchy(ddp_session *s);
/* Another handle of the init method, for another rendezvous; does nothing where there is none. */
ddp_status ddp_session_renew_init(ddp_session *s, ddp_err *err);
void ddp_session_close_init(ddp_session *s);

/* Plugins and their settings alone: what --print-config needs. */
ddp_status ddp_session_load_plugins(ddp_session *s, ddp_err *err);
/* Loads the plugins whose sections this run does not use and checks their options. Every fault is a line of the log;
 * the exit code of the first. What is in order goes to `out`. */
int ddp_session_check_unused(ddp_session *s, ddp_text *out);
/* Once it is known whether all ranks share this host: sets s->backend. */
void ddp_session_choose_backend(ddp_session *s, bool one_host);
/* The same for a hierarchy of two backends: one of them alone will do where all ranks share a host, or no two do. */
void ddp_session_simplify_backend(ddp_session *s, int32_t hosts, int32_t world);
/* Whether the backend reduces the memory of this session's device, which is not the host's. */
bool session_takes_device(const ddp_session *s, const ddp_loaded *backend);
/* Its ordinal then, -1 else: what ddp_comm_params has. */
int32_t ddp_session_device_ordinal(const ddp_session *s, const ddp_loaded *backend);
/* "shm", or "shm or gloo-tcp" */
const char *ddp_session_backend_name(const ddp_session *s);
