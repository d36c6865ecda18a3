/* fuzz/targets/csv.c -- tables as CSV. Input: a byte each for delimiter, target_type and missing; for flags (1: no
 * header, 2: indicator, 4: standardize, 8: skip_bad, 16: a file of its own for fit, 32: ignore "b" and "?" for a
 * missing value, 64: "a" is categorical, 128: id "c"); for split and validation; for max_categories; the target's name
 * up to a 0 byte; with flag 16 the length of the fit file, 16 bits, and that; then the file. */
#define ddp_plugin_desc ddp_plugin_desc_csv
#include "csv/csv.c"
#include "fuzz_dataset.h"

FUZZ_TARGET(csv)
{
    static const char *const a[] = {"a"}, *const b[] = {"b"}, *const absent[] = {"?"};
    fuzz_input in = {data, size};
    csv_config c = {.fit = "", .id = ""};
    uint8_t flags, split;
    char *target;

    c.delimiter = fuzz_u8(&in) % 4;
    c.target_type = fuzz_u8(&in) % 3;
    c.missing = fuzz_u8(&in) % 3;
    flags = fuzz_u8(&in);
    split = fuzz_u8(&in);
    c.header = (flags & 1) == 0;
    c.indicator = (flags & 2) != 0;
    c.standardize = (flags & 4) != 0;
    c.skip_bad = (flags & 8) != 0;
    if ((flags & 32) != 0) c.ignore = (ddp_list){1, b};
    if ((flags & 32) != 0) c.na_values = (ddp_list){1, absent};
    if ((flags & 64) != 0) c.categorical = (ddp_list){1, a};
    if ((flags & 128) != 0) c.id = "c";
    c.split = split % 3;
    c.validation = (double)(split / 3 % 5) / 4.0;
    c.max_categories = 2u + fuzz_u8(&in);
    c.target = target = fuzz_text(&in, 0);
    if ((flags & 16) != 0) {
        size_t length = fuzz_u16(&in);
        const uint8_t *fit = fuzz_some(&in, &length);

        c.fit = fuzz_file(1, fit, length, 0);
    }
    c.path = fuzz_file(0, in.at, in.left, 0);
    fuzz_dataset(&c);
    if (c.fit[0] != '\0') {
        const char *file = c.path;

        c.path = c.fit;
        c.fit = "";
        fuzz_file_of_others(&c, file);
    }
    free(target);
    return 0;
}
