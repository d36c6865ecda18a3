/* plugin/plugin.h -- finding, checking and loading plugins.
 *
 * gate.c checks a file before any of its code can run; registry.c searches, loads, checks and keeps what was loaded. */
#pragma once

#include "base/log.h"
#include <ddpengine/backend.h>
#include <ddpengine/dataset.h>
#include <ddpengine/device.h>
#include <ddpengine/hook.h>
#include <ddpengine/init.h>
#include <ddpengine/model.h>
#include <ddpengine/sampler.h>

/* What the gate read from the file's bytes: the descriptor up to its `name`, which is NULL here, as is what follows. */
typedef ddp_plugin ddp_gate_facts;

/* Opens `path` once and checks it without running any of its code: a regular file; owned by root, the effective user
 * or the owner of the ddpengine executable; not writable by others (everyone, or a group that somebody else is in),
 * nor any parent folder, a sticky one excepted; ELF for this machine; exports ddp_plugin_desc as data. *fd is open
 * (O_CLOEXEC) on success. */
ddp_status ddp_gate_open(const char *path, int *fd, ddp_gate_facts *facts, ddp_err *err);

typedef struct ddp_loaded {
    uint32_t kind;
    const char *name, *path; /* path: as opened, absolute */
    ddp_plugin desc;         /* a full-size copy; desc.ops points to `ops` */
    const void *ops; /* full-size, no slot is NULL: holes answer DDP_ERR_UNSUPPORTED; void functions and the optional
                                ones of init (rank -1, nothing to publish) do nothing */
    uint32_t live;   /* objects opened and not closed, kept by the users of the plugin for the registry's close */
    struct ddp_loaded *halves[2]; /* of a hierarchy (comm/hierarchy); NULL of what the registry has loaded */
} ddp_loaded;

typedef struct ddp_registry ddp_registry;

/* `paths`: [plugins] path. Search order: an explicit path (a name with '/'), `paths`, DDPENGINE_PLUGIN_PATH (colons),
 * the build tree or the bundle when the program runs from one, else the install's plugin folder. */
ddp_status ddp_registry_open(ddp_log *log, const ddp_list *paths, ddp_registry **out, ddp_err *err);
/* Loads "KIND_NAME.so" ('-' in the name becomes '_'), or finds it loaded. Every failure is one message: what, where,
 * why, what to do next; not found lists the places tried and the nearest name there. The pointer lives until close. */
ddp_status ddp_registry_load(ddp_registry *r, uint32_t kind, const char *name, ddp_loaded **out, ddp_err *err);
/* What the gate reads from the bytes of the file that ddp_registry_load would load; runs none of its code. */
ddp_status ddp_registry_facts(ddp_registry *r, uint32_t kind, const char *name, ddp_gate_facts *out, ddp_err *err);
#define DDP_MAX_OFFERS 32
/* A plugin that `auto` may take. */
typedef struct ddp_offer {
    char name[64];
    ddp_gate_facts facts;
} ddp_offer;
/* Those of this kind on the search path with a priority, at most `most`, the highest first and equal ones by name.
 * Runs none of their code; a file that the gate refuses is left out with a warning. */
size_t ddp_registry_offers(ddp_registry *r, uint32_t kind, ddp_offer *out, size_t most);
/* The names of the plugins of this kind on the search path, at most `most`, by name. Runs none of their code. */
size_t ddp_registry_names(ddp_registry *r, uint32_t kind, char (*out)[64], size_t most);
/* Appends the packages of the system, "A, B", that have plugins of this kind which are not there; nothing where that
 * is not known. */
void ddp_registry_packages(const ddp_registry *r, uint32_t kind, ddp_text *out);
/* Every plugin file on the search path, each checked by the gate; `visit` gets the loaded plugin, or NULL and the
 * error. */
ddp_status ddp_registry_list(ddp_registry *r,
                             void (*visit)(void *ctx, const char *path, const ddp_loaded *p, const ddp_err *err),
                             void *ctx, ddp_err *err);
/* Unloads in reverse order; what still has live objects is named in a warning and stays mapped. DDP_KEEP_PLUGINS=1
 * keeps all mapped (symbol names for leak checkers). */
void ddp_registry_close(ddp_registry *r);
