/* cli/import/merge.c -- see merge.h. Adapters have PEFT's adapter_config.json, whose sizes have to be those of
 * [lora]. */
#include "cli/import/merge.h"
#include <jansson.h>
#include <string.h>

static void set_targets(converter *c, const import_entry *adapters, const json_t *targets)
{
    ddp_text all = {0};
    const json_t *one;
    bool fits = true;
    size_t i;

    if (json_is_string(targets) && strcmp(json_string_value(targets), "all-linear") == 0)
        convert_set(c, SECTION_LORA, "target", "all-linear");
    json_array_foreach(targets, i, one) if (json_is_string(one))
    {
        fits = fits && json_string_length(one) > 0 && convert_fits_list(json_string_value(one));
        ddp_text_printf(&all, "%s%s", i > 0 ? ", " : "", json_string_value(one));
    }
    if (!fits)
        convert_refuse(c, adapters, "a name of target_modules in its adapter_config.json cannot stand in an INI");
    else if (all.length > 0 && !all.failed)
        convert_set(c, SECTION_LORA, "target", all.data);
    ddp_text_free(&all);
}

static void set_number(converter *c, const char *key, const json_t *value)
{
    char text[40];

    if (!json_is_number(value)) return;
    (void)snprintf(text, sizeof(text), "%.9g", json_number_value(value));
    convert_set(c, SECTION_LORA, key, text);
}

static void convert_adapters(converter *c, const import_entry *adapters)
{
    char path[4096];
    json_t *config;

    (void)snprintf(path, sizeof(path), "%.4000s/adapter_config.json", adapters->values[0]);
    config = json_load_file(path, JSON_REJECT_DUPLICATES, NULL);
    if (!json_is_object(config)) {
        convert_set(c, SECTION_LORA, "rank", "8");
        convert_refuse(c, adapters,
                       "there is no adapter_config.json in it yet; set [lora] rank, alpha and target as there");
    } else {
        set_number(c, "rank", json_object_get(config, "r"));
        set_number(c, "alpha", json_object_get(config, "lora_alpha"));
        set_targets(c, adapters, json_object_get(config, "target_modules"));
        if (json_is_true(json_object_get(config, "use_rslora"))) convert_set(c, SECTION_LORA, "rslora", "yes");
    }
    json_decref(config);
}

void convert_merge(converter *c)
{
    const import_entry *adapters = import_find(c->yaml, "adapter_name_or_path");

    if (adapters != NULL && adapters->count > 0) convert_adapters(c, adapters);
    convert_set(c, SECTION_DATA, "plugin", "synthetic"); /* for the form alone: nothing is trained */
    convert_set(c, SECTION_DATA_SYNTHETIC, "vocabulary", "2");
    convert_set(c, SECTION_DATA_SYNTHETIC, "shape", "16");
}
