/* model_util.h -- the model plugins as built, with options and data as tests/parity/vectors/models.json has them. */
#pragma once

#include "base/log.h"
#include "checkpoint/safetensors.h"
#include "config/config.h"
#include "graph/graph.h"
#include "graph/internal.h"
#include "plugin/plugin.h"
#include <ddpengine/model.h>
#include <jansson.h>
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

#define VECTORS DDP_SRCDIR "/tests/parity/vectors"

#define ok(call)                                                                                                       \
    do {                                                                                                               \
        if ((call) != DDP_OK) fail_msg("%s: %s: %s", name, #call, err.msg);                                            \
    } while (0)

typedef struct fixture {
    json_t *vectors;
    ddp_log log;
    ddp_registry *registry;
    const ddp_device_ops *device_ops; /* NULL: no device to test */
    ddp_device *device;
} fixture;

static inline int fixture_open(void **state)
{
    const char *name = "fixture", *const folders[] = {DDP_BUILDDIR "/.libs"};
    const ddp_list build_tree = {.count = 1, .items = folders};
    ddp_device_params p = {.struct_size = sizeof(p), .threads = 1, .local_size = 1};
    fixture *f = calloc(1, sizeof(*f));
    json_error_t where;
    ddp_loaded *plugin;
    ddp_host host;
    ddp_err err = {0};

    if (f == NULL) return -1;
    *state = f;
    f->vectors = json_load_file(VECTORS "/models.json", 0, &where);
    if (f->vectors == NULL) fail_msg("models.json:%d: %s", where.line, where.text);
    ddp_log_init(&f->log);
    host = ddp_log_host(&f->log);
    ok(ddp_registry_open(&f->log, &build_tree, &f->registry, &err));
    if (ddp_registry_load(f->registry, DDP_KIND_DEVICE, "cpu", &plugin, &err) != DDP_OK) return 0;
    f->device_ops = plugin->ops;
    ok(f->device_ops->open(&host, NULL, &p, &f->device, &err));
    return 0;
}

static inline int fixture_close(void **state)
{
    fixture *f = *state;

    if (f->device != NULL) f->device_ops->close(f->device);
    ddp_registry_close(f->registry);
    json_decref(f->vectors);
    free(f);
    return 0;
}

static inline const char *text_of(const json_t *o, const char *key)
{
    return json_string_value(json_object_get(o, key));
}

/* ---- a model ----------------------------------------------------------------------------------------------------- */
typedef struct model {
    const char *name;
    ddp_field fields[2];
    ddp_graph *g;
    ddp_layout *layout;
} model;

/* [channels, size] are images with labels, a number is the length of the sequences. */
static inline void fields_of(const json_t *data, ddp_field *fields)
{
    if (json_is_integer(data)) {
        for (int i = 0; i < 2; i++)
            fields[i] = (ddp_field){.name = i == 0 ? "input" : "target",
                                    .dtype = DDP_I64,
                                    .rank = 1,
                                    .dims = {json_integer_value(data)},
                                    .min = 1};
        return;
    }
    fields[0] = (ddp_field){.name = "image", .dtype = DDP_F32, .rank = 3, .min = 1};
    for (size_t i = 0; i < 3; i++) fields[0].dims[i] = json_integer_value(json_array_get(data, i > 0));
    fields[1] = (ddp_field){.name = "label", .dtype = DDP_I64, .min = 1};
}

static inline const void *options_of(const json_t *described, const ddp_plugin *p, ddp_settings *settings)
{
    const char *name = text_of(described, "name"), *key, *plugin = text_of(described, "plugin");
    const void *config;
    ddp_ini *ini;
    json_t *value;
    char line[256], section[64];
    ddp_err err = {0};

    (void)snprintf(section, sizeof(section), "model.%s", plugin);
    ok(ddp_ini_load("/dev/null", &ini, &err));
    json_object_foreach(json_object_get(described, "options"), key, value)
    {
        (void)snprintf(line, sizeof(line), "%s.%s=%s", section, key, json_string_value(value));
        ok(ddp_ini_set(ini, line, &err));
    }
    ok(ddp_options_parse(ini, section, p->options, p->option_count, p->option_size, p->config_size, settings, &config,
                         &err));
    ddp_ini_free(ini);
    return config;
}

static inline void model_open(const fixture *f, const json_t *described, model *m)
{
    const char *name = text_of(described, "name");
    ddp_settings settings = {0};
    ddp_loaded *plugin;
    const ddp_model_ops *ops;
    ddp_err err = {0};

    *m = (model){.name = name};
    fields_of(json_object_get(described, "data"), m->fields);
    ok(ddp_registry_load(f->registry, DDP_KIND_MODEL, text_of(described, "plugin"), &plugin, &err));
    ops = plugin->ops;
    ok(ddp_graph_create(m->fields, 2, &m->g, &err));
    ok(ops->build(m->g, options_of(described, &plugin->desc, &settings), &err));
    ok(ddp_graph_finish(m->g, &err));
    ok(ddp_layout_create(m->g, 1 << 20, 25 << 20, 1, &m->layout, &err));
    ddp_settings_free(&settings);
}

static inline void model_close(model *m)
{
    ddp_layout_free(m->layout);
    ddp_graph_free(m->g);
}
