/* cli/import/yaml.h -- a YAML file of LLaMA-Factory's kind: keys with a value or a list of values, by libyaml, whose
 * names begin with yaml_. */
#pragma once

#include "base/base.h"
#include <stdbool.h>

enum { YAML_BYTES = 1 << 20, YAML_ENTRIES = 512, YAML_VALUES = 1024 };

typedef struct import_entry {
    char *key, **values;
    size_t count; /* 0: null, or an empty list */
    uint64_t line;
    bool is_list, is_map; /* is_map: a mapping, whose content is not kept */
} import_entry;

typedef struct import_file {
    const char *path;
    import_entry *all;
    size_t count;
} import_file;

/* DDP_ERR_CONFIG with the file and the line. */
ddp_status import_read(const char *path, import_file *out, ddp_err *err);
const import_entry *import_find(const import_file *f, const char *key); /* or NULL */
void import_free(import_file *f);
