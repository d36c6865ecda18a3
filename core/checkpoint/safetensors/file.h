/* checkpoint/safetensors/file.h -- a safetensors file as it is open, for read.c and index.c. */
#pragma once

#include "checkpoint/safetensors/format.h"

struct safetensors_entry {
    ddp_named_tensor tensor;
    uint64_t begin, end; /* bytes from the start of the data */
};

struct safetensors_named {
    const struct safetensors_entry *entry;
};

struct ddp_safetensors {
    const char *path;   /* in the pool */
    unsigned char *map; /* NULL: of several files */
    size_t map_bytes;
    bool of_file; /* the map is of a file; else of memory alone */
    size_t count;
    struct safetensors_entry *entries; /* by offset in the file; of several files, file after file */
    struct safetensors_named *by_name; /* the same, sorted by name */
    ddp_pool pool;                     /* names */
    ddp_safetensors **parts;           /* the files that it is of */
    size_t part_count;
};

/* Makes by_name; of a name that is there twice *twice is set. */
ddp_status checkpoint_safetensors_sort(ddp_safetensors *s, const char **twice, ddp_err *err);
/* Names and JSON from a strange file end up in messages: no control character may reach the terminal. */
void checkpoint_safetensors_defuse(char *text);
