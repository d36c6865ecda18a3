/* plugin/internal.h -- what the files of core/plugin share with each other and with their unit test.
 *
 * elf.c     reads the frozen words of ddp_plugin_desc from a file's bytes
 * gate.c    owner and modes of the file and of the folders above it
 * kinds.c   the slots of each kind's function table: which are mandatory, which belong to a capability, their stubs
 * search.c  the folders, in order; file names; what else is there when a name is not found
 * load.c    dlopen of a checked descriptor, the checks that need memory, the full-size copies, unloading
 * registry.c  the interface of plugin.h over these */
#pragma once

#include "plugin/plugin.h"
#include <limits.h>
#include <sys/types.h>

#define DDP_PROC_FD_MAX    40   /* "/proc/self/fd/N" */
#define DDP_DESC_V1_SIZE   184u /* of ddp_plugin and ddp_option in the first release: the least that is accepted */
#define DDP_OPTION_V1_SIZE 48u
#define DDP_FIELD_V1_SIZE  96u /* likewise of the rows that datasets and hooks give */
#define DDP_STATE_V1_SIZE  32u

/* ---- elf.c ------------------------------------------------------------------------------------------------------- */
/* Any bytes at all are safe: nothing is read outside the file, every loop is bounded. `path` is for messages. */
ddp_status plugin_elf_read_facts(int fd, const char *path, ddp_gate_facts *out, ddp_err *err);

/* ---- kinds.c ----------------------------------------------------------------------------------------------------- */
typedef void (*ddp_any_function)(void);

typedef struct ddp_slot {
    const char *name;
    uint32_t offset;
    bool required;
    bool optional; /* `cap` alone asks for nothing: only a slot without it is wrong */
    uint64_t cap;  /* this bit is set if and only if the slot is filled; 0: no rule */
    const char *cap_name;
    ddp_any_function stub; /* what an optional slot gets in place of NULL */
} ddp_slot;

typedef struct ddp_kind_table {
    uint32_t abi, size, services;
    const ddp_slot *slots;
    size_t slot_count;
} ddp_kind_table;

const ddp_kind_table *plugin_kind_find(uint32_t kind); /* NULL: this release has no plugins of that kind */
/* Checks a plugin's table and writes its full-size copy with stubs in the holes to `out`, of table->size bytes. */
ddp_status plugin_kind_fill(uint32_t kind, const void *ops, void *out, ddp_err *err);
/* Compares the frozen words, in their order, with what this engine needs. The message starts with `path`. */
ddp_status plugin_kind_check(uint32_t kind, const ddp_gate_facts *facts, const char *path, ddp_err *err);

/* ---- search.c ---------------------------------------------------------------------------------------------------- */
typedef struct ddp_folder {
    const char *path, *source; /* source: "[plugins] path", for messages */
} ddp_folder;

typedef struct ddp_search {
    ddp_folder *items;
    size_t count;
} ddp_search;

ddp_status plugin_search_open(const ddp_list *paths, ddp_pool *pool, ddp_search *out, ddp_err *err);
/* "backend_gloo_tcp.so" */
void plugin_search_file_name(uint32_t kind, const char *name, char *out, size_t capacity);
/* Splits "backend_gloo_tcp.so"; `name` is "gloo-tcp". False: not the name of a plugin file. */
bool plugin_search_parse(const char *file, uint32_t *kind, char *name, size_t capacity);
/* Plugin files of a folder in alphabetical order; *out and each entry are free()d. 0 when the folder cannot be read. */
size_t plugin_search_files(const char *folder, char ***out);
/* The message for a name that no folder has: nearest name, another kind that has it, the places tried. */
ddp_status plugin_search_not_found(const ddp_search *s, uint32_t kind, const char *name, ddp_err *err);

/* ---- packages (packages.c) --------------------------------------------------------------------------------------- */
/* Appends the packages, "A, B", that have plugins of this kind, or the one of this name, which are not there. */
void plugin_packages_find(const ddp_search *s, uint32_t kind, const char *name, ddp_text *out);

/* ---- load.c ------------------------------------------------------------------------------------------------------ */
typedef struct ddp_entry {
    ddp_loaded loaded; /* first: users hold a pointer to it */
    ddp_pool pool;     /* owns the copies and every string of `loaded` that is not the plugin's */
    void *handle;
    int fd; /* of the "/proc/self/fd/N" that glibc knows the plugin by; open while it is mapped */
    dev_t dev;
    ino_t ino;
} ddp_entry;

/* Loads the file behind `fd`, which passed the gate; owns `fd` from now on, also on failure. `name` NULL: any name. */
ddp_status plugin_entry_load(uint32_t kind, const char *name, int fd, const ddp_gate_facts *facts, ddp_entry **out,
                             ddp_err *err);
ddp_status plugin_entry_check_name(const ddp_plugin *desc, const char *path, uint32_t kind, const char *name,
                                   ddp_err *err);
/* `unmap` false: the code and its descriptor stay for the rest of the process. */
void plugin_entry_free(ddp_entry *e, bool unmap);
/* The path of an open file, PATH_MAX bytes at `out`. */
ddp_status plugin_fd_path(int fd, char *out, ddp_err *err);
