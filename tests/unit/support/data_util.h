/* tests/unit/support/data_util.h -- for the tests of samplers and datasets: opens a built plugin without the
 * registry, fills its config struct from its own option table, and reads the stored vectors. */
#pragma once

#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <setjmp.h>
#include <cmocka.h>
#include <ddpengine/plugin.h>
#include <dlfcn.h>
#include <openssl/sha.h>
#include <stdlib.h>
#include <string.h>

/* The descriptor of a plugin of the build tree, "sampler_distributed". It stays loaded. */
static inline const ddp_plugin *plugin_open(const char *name)
{
    char path[4096];
    void *handle;
    const ddp_plugin *p;

    (void)snprintf(path, sizeof(path), "%s/.libs/%s.so", DDP_BUILDDIR, name);
    handle = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    if (handle == NULL) fail_msg("%s", dlerror());
    p = dlsym(handle, DDP_PLUGIN_SYMBOL);
    assert_non_null(p);
    assert_int_equal(p->magic, DDP_MAGIC);
    assert_int_equal(p->abi, DDP_ABI);
    return p;
}

/* Numbers, or texts, which then stay in `items` themselves. */
static inline void set_list(ddp_list *list, uint32_t type, const char *text)
{
    static char rooms[8][512]; /* of the last lists that were set */
    static unsigned turn;
    char *texts = rooms[turn++ % 8];
    int64_t *numbers = calloc(16, sizeof(*numbers));
    const char **items = (const char **)(void *)numbers;
    char *end;

    assert_non_null(numbers);
    free((void *)list->items);
    list->items = numbers;
    list->count = 0;
    if (type == DDP_OPT_INT) {
        for (; *text != '\0'; text = end + (*end == ',')) {
            numbers[list->count++] = strtoll(text, &end, 10);
            assert_true(end != text);
        }
        return;
    }
    assert_true(strlen(text) < sizeof(rooms[0]));
    (void)strcpy(texts, text);
    for (char *t = strtok(texts, ","); t != NULL; t = strtok(NULL, ",")) items[list->count++] = t;
}

/* The place of `text` in "a|b|c". */
static inline int32_t enum_index(const char *range, const char *text)
{
    size_t length = strlen(text);

    for (int32_t i = 0;; i++) {
        if (strcspn(range, "|") == length && strncmp(range, text, length) == 0) return i;
        range = strchr(range, '|');
        assert_non_null(range);
        range++;
    }
}

/* Sets one option from its text; `text` outlives the config. */
static inline void config_set(const ddp_plugin *p, void *config, const char *key, const char *text)
{
    for (uint32_t i = 0; i < p->option_count; i++) {
        const ddp_option *o = &p->options[i];
        void *at = (char *)config + o->offset;

        if (strcmp(o->key, key) != 0) continue;
        if (o->flags & DDP_OPT_F_LIST) {
            set_list(at, o->type, text);
            return;
        }
        switch (o->type) {
        case DDP_OPT_INT: *(int64_t *)at = strtoll(text, NULL, 10); return;
        case DDP_OPT_UINT: *(uint64_t *)at = strtoull(text, NULL, 10); return;
        case DDP_OPT_FLOAT: *(double *)at = strtod(text, NULL); return;
        case DDP_OPT_BOOL: *(int32_t *)at = strcmp(text, "yes") == 0; return;
        case DDP_OPT_ENUM: *(int32_t *)at = enum_index(o->range, text); return;
        default: *(const char **)at = text; return;
        }
    }
    fail_msg("no option %s", key);
}

/* All defaults; free with config_free. */
static inline void *config_new(const ddp_plugin *p)
{
    void *config = calloc(1, p->config_size);

    assert_non_null(config);
    for (uint32_t i = 0; i < p->option_count; i++) config_set(p, config, p->options[i].key, p->options[i].dflt);
    return config;
}

static inline void config_free(const ddp_plugin *p, void *config)
{
    for (uint32_t i = 0; i < p->option_count; i++)
        if (p->options[i].flags & DDP_OPT_F_LIST)
            free((void *)((ddp_list *)(void *)((char *)config + p->options[i].offset))->items);
    free(config);
}

/* SHA-256 in hex; `out` holds 65. */
static inline void sha256_hex(const void *data, size_t length, char *out)
{
    unsigned char digest[SHA256_DIGEST_LENGTH];

    SHA256(data, length, digest);
    for (int i = 0; i < SHA256_DIGEST_LENGTH; i++) (void)snprintf(out + 2 * (size_t)i, 3, "%02x", digest[i]);
}

/* Calls `check` with each line of tests/parity/vectors/NAME but its comments; returns their number. */
static inline int each_vector(const char *name, void (*check)(const char *line))
{
    char path[4096];
    static char line[16384];
    int count = 0;
    FILE *f;

    (void)snprintf(path, sizeof(path), "%s/tests/parity/vectors/%s", DDP_SRCDIR, name);
    f = fopen(path, "r");
    if (f == NULL) fail_msg("cannot read %s", path);
    while (fgets(line, sizeof(line), f) != NULL) {
        if (line[0] == '#') continue;
        check(line);
        count++;
    }
    fclose(f);
    return count;
}
