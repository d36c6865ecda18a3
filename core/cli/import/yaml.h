/* cli/import/yaml.h -- a YAML file of LLaMA-Factory's kind: keys with a value or a list of values, by libyaml. */
#pragma once

#include "base/base.h"
#include <stdbool.h>

enum { YAML_BYTES = 1 << 20, YAML_ENTRIES = 512, YAML_VALUES = 1024 };

typedef struct yaml_entry {
    char *key, **values;
    size_t count; /* 0: null, or an empty list */
    uint64_t line;
    bool is_list, is_map; /* is_map: a mapping, whose content is not kept */
} yaml_entry;

typedef struct yaml_file {
    const char *path;
    yaml_entry *all;
    size_t count;
} yaml_file;

/* DDP_ERR_CONFIG with the file and the line. */
ddp_status yaml_read(const char *path, yaml_file *out, ddp_err *err);
const yaml_entry *yaml_find(const yaml_file *f, const char *key); /* or NULL */
void yaml_free(yaml_file *f);
