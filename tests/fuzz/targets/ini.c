/* fuzz/targets/ini.c -- INI files, what they include, and --set. Input: up to eight files, each ended by byte 0x1e,
 * of which file N is included as "20N"; after a byte 0x1d one override a line. Neither byte may be in an INI. */
#include "config/config.h"
#include "fuzz.h"

enum { FILES = 8, OVERRIDES = 8, FILE_END = 0x1e, FILES_END = 0x1d };

/* What is printed of the effective settings is an INI that says the same. Not where a secret was left out of it. */
static void round_trip(const ddp_config *c)
{
    char hash[65], hash_again[65];
    ddp_text text = {0};
    ddp_config again;
    ddp_err err = {0};

    ddp_settings_print(&c->settings, &text);
    FUZZ_CHECK(!text.failed);
    if (ddp_config_load(fuzz_file(FILES, text.data, text.length, 0), NULL, 0, &again, &err) != DDP_OK) {
        (void)fprintf(stderr, "%s\n%s", err.msg, text.data);
        abort();
    }
    FUZZ_CHECK(ddp_settings_hash(&c->settings, hash, &err) == DDP_OK);
    FUZZ_CHECK(ddp_settings_hash(&again.settings, hash_again, &err) == DDP_OK);
    FUZZ_CHECK(strcmp(hash, hash_again) == 0);
    ddp_config_free(&again);
    ddp_text_free(&text);
}

static void use(const ddp_config *c)
{
    ddp_text lines = {0};
    ddp_batches batches;
    ddp_err err = {0};

    ddp_settings_agreement(&c->settings, &lines);
    FUZZ_CHECK(!lines.failed);
    ddp_text_free(&lines);
    for (const char *s = NULL; (s = ddp_config_unused_section(c, s)) != NULL;) FUZZ_CHECK(s[0] != '\0');
    fuzz_check_error(ddp_config_batches(c, 1, &batches, &err), &err);
    if (ddp_config_batches(c, 6, &batches, &err) == DDP_OK)
        FUZZ_CHECK(batches.uneven ? batches.batch_size * batches.accumulate * 6 >= batches.global_batch
                                  : batches.batch_size * batches.accumulate * 6 == batches.global_batch);
    round_trip(c);
}

FUZZ_TARGET(ini)
{
    const uint8_t *files_end = size == 0 ? NULL : memchr(data, FILES_END, size);
    fuzz_input files = {data, files_end == NULL ? size : (size_t)(files_end - data)};
    fuzz_input lines = {files_end == NULL ? data + size : files_end + 1, files_end == NULL ? 0 : size - files.left - 1};
    const char *overrides[OVERRIDES], *path = fuzz_file(0, "", 0, 0);
    size_t count = 0;
    ddp_config c;
    ddp_err err = {0};
    ddp_status status;

    for (unsigned i = 0; i < FILES; i++) {
        const uint8_t *end = files.left == 0 ? NULL : memchr(files.at, FILE_END, files.left);
        size_t length = end == NULL ? files.left : (size_t)(end - files.at);

        (void)fuzz_file(i, files.at, length, 0);
        (void)fuzz_take(&files, length + (end != NULL));
    }
    while (count < OVERRIDES && lines.left > 0) overrides[count++] = fuzz_text(&lines, '\n');
    status = ddp_config_load(path, overrides, count, &c, &err);
    fuzz_check_error(status, &err);
    if (status == DDP_OK) {
        use(&c);
        ddp_config_free(&c);
    }
    while (count > 0) free((char *)(uintptr_t)overrides[--count]);
    return 0;
}
