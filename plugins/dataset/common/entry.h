/* plugins/dataset/common/entry.h -- an entry of a cache: a file that is made once of other files and then kept.
 *
 * It is written under another name, synced and renamed, so that what has the name is whole, whenever a process is
 * killed. Processes that want the same one wait for the one that writes it. Compiled into the datasets that use it. */
#pragma once

#include "file.h"

enum { ENTRY_NAME = 4096 };

typedef struct cache_entry {
    const char *plugin;
    char name[ENTRY_NAME], part[ENTRY_NAME]; /* part: its name while it is written */
    int fd;                                  /* likewise */
    void *ctx;
    /* Does the open file of `size` bytes hold what is wanted, in full? */
    bool (*is_whole)(void *ctx, int fd, uint64_t size);
    ddp_status (*make)(void *ctx, struct cache_entry *to, ddp_err *err);
} cache_entry;

/* FOLDER/KEY.END, or BESIDE.KEY.END where the folder is ""; the folder is made where it is not there. */
ddp_status entry_set_name(cache_entry *e, const char *folder, const char *beside, uint64_t key, const char *end,
                          ddp_err *err);
/* Whether a path is that of an entry, or of one that is being written: a pattern for the files may match it too. */
bool entry_is_one(const char *path, const char *end);
/* Finds the entry, or makes it. */
ddp_status entry_open(cache_entry *e, data_file *out, ddp_err *err);
/* For `make`: appends; writes over bytes that are there. */
ddp_status entry_write(cache_entry *e, const void *data, size_t size, ddp_err *err);
ddp_status entry_write_at(cache_entry *e, const void *data, size_t size, uint64_t offset, ddp_err *err);
