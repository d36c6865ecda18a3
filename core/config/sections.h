/* config/sections.h -- the core's own sections as sections.c lists them, for config.c. */
#pragma once

#include "config/config.h"

struct ddp_plugin_config { /* of [model], [sampler] */
    const char *plugin;
};
struct ddp_plugins_config {
    ddp_list path;
};

/* That of [optimizer], in a file of its own. */
enum { CONFIG_OPTIMIZER_OPTIONS = 31 };
extern const ddp_option config_optimizer_options[CONFIG_OPTIMIZER_OPTIONS];

/* That of [lora], likewise. */
enum { CONFIG_LORA_OPTIONS = 8 };
extern const ddp_option config_lora_options[CONFIG_LORA_OPTIONS];

typedef struct ddp_core_section {
    const char *name;
    const ddp_option *options;
    size_t count, config_size;
} ddp_core_section;

const ddp_core_section *config_core_section_find(const char *name);
/* The name of the only section that has this key; NULL: none has, or several have. */
const char *config_core_section_with(const char *key);
