/* tests/unit/backend/plugin_util.h -- a backend that is loaded alone, without the engine: its table and its options. */
#pragma once

#include <ddpengine/backend.h>
#include <dlfcn.h>
#include <stdio.h>
#include <string.h>

static const ddp_plugin *plugin;
static const ddp_backend_ops *ops;

static inline void no_log(void *ctx, int level, const char *file, int line, const char *fmt, ...)
{
    (void)ctx, (void)level, (void)file, (void)line, (void)fmt;
}
static const ddp_host host = {.struct_size = sizeof(host), .log = no_log};

/* A group's set-up: -1 and a line where it cannot be loaded. */
static inline int load_plugin(const char *path)
{
    void *handle = dlopen(path, RTLD_NOW | RTLD_LOCAL);

    if (handle == NULL) {
        (void)fprintf(stderr, "# %s\n", dlerror());
        return -1;
    }
    plugin = dlsym(handle, DDP_PLUGIN_SYMBOL);
    if (plugin == NULL) return -1;
    ops = plugin->ops;
    return 0;
}

static inline void set_option(void *config, const char *key, uint64_t value)
{
    for (uint32_t i = 0; i < plugin->option_count; i++)
        if (strcmp(plugin->options[i].key, key) == 0)
            memcpy((char *)config + plugin->options[i].offset, &value, sizeof(value));
}
