/* plugins/model/layers/file.h -- the syntax of a .net file: sections in order, each with its keys. What a section and a
 * key mean is keys.c's.
 *
 *     [conv2d] out = 64, kernel = 3      keys in the line of the section, with commas between them
 *     padding = 1                        and in lines below it; sections may repeat and may be empty
 *     ; a comment, # too                 at the start of a line or after a blank
 * */
#pragma once

#include <ddpengine/plugin.h>

enum { NET_FILE_MAX = 1 << 20, NET_LINE_MAX = 1000, NET_SECTIONS_MAX = 4096, NET_KEYS_MAX = 16 };

typedef struct net_entry {
    const char *key, *value; /* without blanks around them */
    uint32_t line;
} net_entry;

typedef struct net_section {
    const char *kind; /* "conv2d" */
    uint32_t line, first, count;
} net_section;

typedef struct net_file {
    const char *path; /* the caller's */
    char *text;       /* that the strings of sections and entries are in */
    net_section *sections;
    net_entry *entries; /* of section s: first .. first + count - 1 */
    uint32_t section_count, section_capacity, entry_count, entry_capacity;
} net_file;

/* All of it is in memory afterwards. DDP_ERR_CONFIG with file and line where the file cannot be used. */
ddp_status net_file_read(const char *path, net_file *out, ddp_err *err);
void net_file_free(net_file *f);

/* `items` with room for one more than `count` of `size` bytes, perhaps elsewhere; NULL: no memory, `items` stays. */
void *net_grown(void *items, uint32_t *capacity, uint32_t count, size_t size);
