/* config/private.h -- for the files of core/config only. */
#pragma once

#include "config/config.h"

enum {
    DDP_INI_LINE_MAX = 4096, /* bytes of a line, of the value of --set too */
    DDP_INI_NAME_MAX = 49,   /* bytes of a section or key: inih cuts longer ones off */
    DDP_INI_FILE_MAX = 1 << 20,
    DDP_INI_ENTRIES_MAX = 4096,
    DDP_INI_SECTIONS_MAX = 1024,
    DDP_INI_DEPTH_MAX = 8 /* includes within includes */
};

/* ---- the store of entries (ini.c) -------------------------------------------------------------------------------- */
typedef struct ddp_ini_item {
    ddp_ini_entry entry;
    const char *continued; /* where an indented line first continues the value, or NULL */
    uint32_t file;         /* that it was last set in, to see a key twice in one file; 0: --set */
    struct ddp_ini_item *next;
} ddp_ini_item;

typedef struct ddp_ini_section {
    const char *name, *where;
    struct ddp_ini_section *next;
} ddp_ini_section;

struct ddp_ini {
    ddp_pool pool;
    const char *path;
    ddp_ini_item *items, **items_end;
    ddp_ini_section *sections, **sections_end;
    uint32_t file_count, item_count, section_count;
};

/* A file that is being read, and the chain of those that include it. */
typedef struct ddp_ini_file {
    const char *path;
    uint32_t index, depth;
    uint64_t device, inode;
    const struct ddp_ini_file *parent;
} ddp_ini_file;

ddp_ini_item *config_ini_item_find(const ddp_ini *ini, const char *section, const char *key);
/* Sets or overrides; every text is copied. */
ddp_status config_ini_put(ddp_ini *ini, const ddp_ini_item *item, ddp_err *err);
ddp_status config_ini_put_section(ddp_ini *ini, const char *name, const char *where, ddp_err *err);
/* Reads `name`, included at `where` by `from`. */
ddp_status config_ini_include(ddp_ini *ini, const ddp_ini_file *from, const char *name, const char *where,
                              ddp_err *err);

/* ---- one file's text through inih (reader.c) --------------------------------------------------------------------- */
ddp_status config_ini_read_text(ddp_ini *ini, const ddp_ini_file *file, const char *text, size_t length, ddp_err *err);

/* ---- single values (value.c) ------------------------------------------------------------------------------------- */
typedef union ddp_scalar {
    int64_t i;     /* INT, DURATION in ms */
    uint64_t u;    /* UINT, SIZE in bytes */
    double f;      /* FLOAT */
    int32_t e;     /* BOOL, ENUM */
    const char *s; /* STRING, PATH, HOSTPORT: the text itself */
} ddp_scalar;

#define DDP_WHY_MAX 256
size_t config_scalar_size(uint32_t type); /* of the field, 0 for an unknown type */
/* False with the reason in `why`. `text` has no blanks around it and must outlive *out. */
bool config_scalar_parse(const ddp_option *o, const char *text, ddp_scalar *out, char *why);
/* The text that every way of writing this value becomes; it parses to the same value. */
void config_scalar_print(const ddp_option *o, ddp_scalar value, ddp_text *out);
/* The bounds of a number or the names of an enum make sense for the type. */
bool config_range_check(const ddp_option *o, char *why);
const char *config_type_name(uint32_t type);

/* ---- messages ---------------------------------------------------------------------------------------------------- */
/* Where a key was written, "default" otherwise. */
static inline const char *where_of(const ddp_config *c, const char *section, const char *key)
{
    const ddp_setting *s = ddp_settings_find(&c->settings, section, key);

    return s != NULL ? s->where : "default";
}
