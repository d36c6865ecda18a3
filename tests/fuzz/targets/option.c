/* fuzz/targets/option.c -- one option of a plugin's table, and its value in an INI. Input: type and flags, a byte
 * each, then range, default and value, each ended by a byte 0; an empty range is none, and a default "-" is none. */
#include "config/private.h"
#include "fuzz.h"

/* What one value becomes is printed as text that becomes the same. */
static void check_value(const ddp_option *o, const char *text)
{
    char why[DDP_WHY_MAX] = "";
    ddp_text canonical = {0}, again = {0};
    ddp_scalar value, second;

    if (config_scalar_size(o->type) == 0 || !config_range_check(o, why)) return;
    if (!config_scalar_parse(o, text, &value, why)) {
        FUZZ_CHECK(why[0] != '\0' && memchr(why, '\0', sizeof(why)) != NULL);
        return;
    }
    config_scalar_print(o, value, &canonical);
    FUZZ_CHECK(config_scalar_parse(o, canonical.length > 0 ? canonical.data : "", &second, why));
    config_scalar_print(o, second, &again);
    FUZZ_CHECK(canonical.length == again.length);
    FUZZ_CHECK(again.length == 0 || memcmp(canonical.data, again.data, again.length) == 0);
    ddp_text_free(&canonical);
    ddp_text_free(&again);
}

static void parse_section(const ddp_option *o, const char *value)
{
    ddp_settings settings = {0};
    ddp_text text = {0};
    const void *config;
    ddp_ini *ini;
    ddp_err err = {0};
    ddp_status status;

    ddp_text_printf(&text, "[s]\nkey = %s\n", value);
    status = ddp_ini_load(fuzz_file(0, text.data, text.length, 0), &ini, &err);
    ddp_text_free(&text);
    fuzz_check_error(status, &err);
    if (status != DDP_OK) return;
    status = ddp_options_parse(ini, "s", o, 1, sizeof(*o), 2 * sizeof(ddp_list), &settings, &config, &err);
    fuzz_check_error(status, &err);
    if (status == DDP_OK) ddp_settings_print(&settings, &text);
    ddp_text_free(&text);
    ddp_settings_free(&settings);
    ddp_ini_free(ini);
}

/* A table of two rows, of which the other one's place and key are made of the value. Messages about a table quote what
 * the plugin's author wrote as it is. */
static void check_pair(const ddp_option *o, const char *value)
{
    ddp_option rows[2] = {*o, {.key = value, .dflt = "1", .doc = "Another.", .type = DDP_OPT_INT}};
    ddp_err err = {0};

    rows[1].offset = strlen(value) % 5 * sizeof(int64_t);
    (void)ddp_options_check(rows, 2, sizeof(rows[0]), 3 * sizeof(int64_t), &err);
    (void)ddp_options_check(rows, 2, DDP_MIN_OF(strlen(value), sizeof(rows[0])), 3 * sizeof(int64_t), &err);
}

FUZZ_TARGET(option)
{
    fuzz_input in = {data, size};
    ddp_option o = {.key = "key", .doc = "What it is for.", .offset = 0};
    char *range, *dflt, *value;
    ddp_err err = {0};
    ddp_status status;

    o.type = fuzz_u8(&in);
    o.flags = fuzz_u8(&in);
    range = fuzz_text(&in, 0);
    dflt = fuzz_text(&in, 0);
    value = fuzz_text(&in, 0);
    o.range = range[0] == '\0' ? NULL : range;
    o.dflt = strcmp(dflt, "-") == 0 ? NULL : dflt;
    check_value(&o, value);
    status = ddp_options_check(&o, 1, sizeof(o), 2 * sizeof(ddp_list), &err);
    if (status == DDP_OK) parse_section(&o, value);
    check_pair(&o, value);
    free(range);
    free(dflt);
    free(value);
    return 0;
}
