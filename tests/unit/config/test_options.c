/* tests/unit/config/test_options.c -- tables of options: every type's texts, units, ranges and canonical form, the
 * refusals of a bad value, the check of a table, secrets and retired keys. */
#include "config/config.h"
#include <setjmp.h>
#include <cmocka.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* One field of each type; every test uses the table that it needs. */
struct fields {
    int64_t integer, duration;
    uint64_t natural, size;
    double real;
    int32_t flag, choice;
    const char *text, *path, *address, *token;
    ddp_list sizes, words, choices;
};
#define AT(field) offsetof(struct fields, field)
#define DOC       "What it does."

static char ini_path[64];

static int make_file(void **state)
{
    const char *base = getenv("TMPDIR");
    int fd;

    (void)state;
    (void)snprintf(ini_path, sizeof(ini_path), "%.40s/ddp-options-XXXXXX", base != NULL ? base : "/tmp");
    fd = mkstemp(ini_path);
    return fd < 0 || close(fd) != 0;
}

static int remove_file(void **state)
{
    (void)state;
    return unlink(ini_path);
}

static ddp_ini *ini_of(const char *text)
{
    FILE *f = fopen(ini_path, "w");
    ddp_ini *ini = NULL;
    ddp_err err = {0};

    assert_non_null(f);
    assert_true(fputs(text, f) >= 0);
    assert_int_equal(fclose(f), 0);
    if (ddp_ini_load(ini_path, &ini, &err) != DDP_OK) fail_msg("%s", err.msg);
    return ini;
}

/* A one-row table with `value` given by --set: the canonical text, or the message. */
static const char *one(ddp_option row, const char *value, struct fields *out)
{
    static char answer[sizeof(((ddp_err *)NULL)->msg)];
    char assignment[300];
    ddp_settings s = {0};
    ddp_err err = {0};
    ddp_ini *ini = ini_of("");
    const void *config = NULL;

    row.key = "key";
    row.doc = DOC;
    (void)snprintf(assignment, sizeof(assignment), "x.key=%s", value);
    if (ddp_options_check(&row, 1, sizeof(row), sizeof(struct fields), &err) != DDP_OK) fail_msg("%s", err.msg);
    if (ddp_ini_set(ini, assignment, &err) != DDP_OK) fail_msg("%s", err.msg);
    if (ddp_options_parse(ini, "x", &row, 1, sizeof(row), sizeof(struct fields), &s, &config, &err) == DDP_OK) {
        ddp_copy_text(answer, sizeof(answer), s.items[0].value);
        if (out != NULL) memcpy(out, config, sizeof(*out));
        assert_int_equal(s.count, 1);
    } else {
        assert_int_equal(err.status, DDP_ERR_CONFIG);
        assert_int_equal(s.count, 0);
        assert_null(config);
        ddp_copy_text(answer, sizeof(answer), err.msg);
    }
    ddp_settings_free(&s); /* texts of *out are gone from here on */
    ddp_ini_free(ini);
    return answer;
}

static const ddp_option integer = {.dflt = "5", .range = "-10..10", .type = DDP_OPT_INT, .offset = AT(integer)};
static const ddp_option natural = {.dflt = "5", .type = DDP_OPT_UINT, .offset = AT(natural)};
static const ddp_option real = {.dflt = "0.5", .range = "0..", .type = DDP_OPT_FLOAT, .offset = AT(real)};
static const ddp_option flag = {.dflt = "no", .type = DDP_OPT_BOOL, .offset = AT(flag)};
static const ddp_option choice = {
    .dflt = "ring", .range = "ring|tree|halving", .type = DDP_OPT_ENUM, .offset = AT(choice)};
static const ddp_option size = {.dflt = "1MiB", .range = "4KiB..1GiB", .type = DDP_OPT_SIZE, .offset = AT(size)};
static const ddp_option any_size = {.dflt = "0", .type = DDP_OPT_SIZE, .offset = AT(size)};
static const ddp_option duration = {.dflt = "30s", .range = "..1h", .type = DDP_OPT_DURATION, .offset = AT(duration)};
static const ddp_option any_duration = {.dflt = "0", .type = DDP_OPT_DURATION, .offset = AT(duration)};
static const ddp_option address = {.dflt = "", .type = DDP_OPT_HOSTPORT, .offset = AT(address)};

#define EXPECT(row, text, answer) assert_string_equal(one(row, text, NULL), answer)
#define NOT_SIZE                  "not a size; write a whole number and a unit of B, kB, MB, GB, TB, KiB, MiB, GiB, TiB, as in 25MiB"
#define NOT_TIME                  "not a time; write a whole number and a unit of ms, s, min, h, d, as in 30s"

static void integers(void **state)
{
    struct fields f;

    (void)state;
    assert_string_equal(one(integer, "-7", &f), "-7");
    assert_int_equal(f.integer, -7);
    EXPECT(integer, "007", "7");
    EXPECT(integer, "-0", "0");
    EXPECT(integer, "11", "--set: [x] key = 11: out of range -10..10 (int, -10..10, default 5)");
    EXPECT(integer, "-11", "--set: [x] key = -11: out of range -10..10 (int, -10..10, default 5)");
    EXPECT(integer, "", "--set: [x] key = : not a whole number (int, -10..10, default 5)");
    EXPECT(integer, "1.5", "--set: [x] key = 1.5: not a whole number (int, -10..10, default 5)");
    EXPECT(integer, "0x1", "--set: [x] key = 0x1: not a whole number (int, -10..10, default 5)");
    EXPECT(integer, "+1", "--set: [x] key = +1: not a whole number (int, -10..10, default 5)");
    EXPECT(integer, "99999999999999999999",
           "--set: [x] key = 99999999999999999999: too large, at most 64 bits (int, -10..10, default 5)");
    assert_string_equal(one(natural, "18446744073709551615", &f), "18446744073709551615");
    assert_true(f.natural == UINT64_MAX);
    EXPECT(natural, "-1", "--set: [x] key = -1: not a whole number of 0 or more (uint, default 5)");
    EXPECT(natural, "18446744073709551616",
           "--set: [x] key = 18446744073709551616: too large, at most 64 bits (uint, default 5)");
}

static void floats(void **state)
{
    struct fields f;

    (void)state;
    assert_string_equal(one(real, "0.1", &f), "0.1");
    assert_true(f.real == 0.1);
    EXPECT(real, "1E-8", "1e-08");
    EXPECT(real, "1e-08", "1e-08");
    EXPECT(real, "3", "3");
    EXPECT(real, ".5", "0.5");
    EXPECT(real, "0.30000000000000004", "0.30000000000000004");
    EXPECT(real, "123456789", "123456789");
    EXPECT(real, "-0.1", "--set: [x] key = -0.1: out of range 0.. (float, 0.., default 0.5)");
    EXPECT(real, "nan", "--set: [x] key = nan: not a number (float, 0.., default 0.5)");
    EXPECT(real, "inf", "--set: [x] key = inf: not a number (float, 0.., default 0.5)");
    EXPECT(real, "0x1p3", "--set: [x] key = 0x1p3: not a number (float, 0.., default 0.5)");
    EXPECT(real, "1e", "--set: [x] key = 1e: not a number (float, 0.., default 0.5)");
    EXPECT(real, "", "--set: [x] key = : not a number (float, 0.., default 0.5)");
    EXPECT(real, "1e999", "--set: [x] key = 1e999: too large for a double (float, 0.., default 0.5)");
}

static void words(void **state)
{
    static const char *const yes[] = {"yes", "true", "on", "1", "YES"}, *const no[] = {"no", "false", "off", "0",
                                                                                       "Off"};
    struct fields f;

    (void)state;
    for (size_t i = 0; i < DDP_COUNT(yes); i++) {
        assert_string_equal(one(flag, yes[i], &f), "yes");
        assert_int_equal(f.flag, 1);
        assert_string_equal(one(flag, no[i], &f), "no");
        assert_int_equal(f.flag, 0);
    }
    EXPECT(flag, "2", "--set: [x] key = 2: not yes or no (bool, default no)");
    EXPECT(flag, "", "--set: [x] key = : not yes or no (bool, default no)");
    assert_string_equal(one(choice, "halving", &f), "halving");
    assert_int_equal(f.choice, 2);
    EXPECT(
        choice, "tre",
        "--set: [x] key = tre: not one of ring|tree|halving; did you mean \"tree\"? (ring|tree|halving, default ring)");
    EXPECT(choice, "Tree",
           "--set: [x] key = Tree: not one of ring|tree|halving; did you mean \"tree\"? (ring|tree|halving, default "
           "ring)");
    EXPECT(choice, "ring|tree",
           "--set: [x] key = ring|tree: not one of ring|tree|halving (ring|tree|halving, default ring)");
    EXPECT(choice, "", "--set: [x] key = : not one of ring|tree|halving (ring|tree|halving, default ring)");
}

static void sizes(void **state)
{
    struct fields f;

    (void)state;
    assert_string_equal(one(size, "25MiB", &f), "25MiB");
    assert_int_equal(f.size, 25 << 20);
    EXPECT(any_size, "0", "0");
    EXPECT(any_size, "640", "640");
    EXPECT(any_size, "640 B", "640");
    EXPECT(any_size, "1024", "1KiB");
    EXPECT(any_size, "2048 KiB", "2MiB");
    EXPECT(any_size, "3GiB", "3GiB");
    EXPECT(any_size, "2TiB", "2TiB");
    EXPECT(any_size, "25MB", "25MB");
    EXPECT(any_size, "5kB", "5kB");
    EXPECT(any_size, "7GB", "7GB");
    EXPECT(any_size, "9TB", "9TB");
    EXPECT(any_size, "1024kB", "1000KiB");
    EXPECT(any_size, "1.5GiB", "--set: [x] key = 1.5GiB: " NOT_SIZE " (size, default 0)");
    EXPECT(any_size, "25mb", "--set: [x] key = 25mb: " NOT_SIZE " (size, default 0)");
    EXPECT(any_size, "-1", "--set: [x] key = -1: " NOT_SIZE " (size, default 0)");
    EXPECT(any_size, "MiB", "--set: [x] key = MiB: " NOT_SIZE " (size, default 0)");
    EXPECT(any_size, "", "--set: [x] key = : " NOT_SIZE " (size, default 0)");
    EXPECT(any_size, "16777216TiB", "--set: [x] key = 16777216TiB: too large, at most 64 bits (size, default 0)");
    EXPECT(size, "4095", "--set: [x] key = 4095: out of range 4KiB..1GiB (size, 4KiB..1GiB, default 1MiB)");
    EXPECT(size, "4KiB", "4KiB");
    EXPECT(size, "1GiB", "1GiB");
    EXPECT(size, "1025MiB", "--set: [x] key = 1025MiB: out of range 4KiB..1GiB (size, 4KiB..1GiB, default 1MiB)");
}

static void durations(void **state)
{
    struct fields f;

    (void)state;
    assert_string_equal(one(duration, "30s", &f), "30s");
    assert_int_equal(f.duration, 30000);
    EXPECT(any_duration, "0", "0");
    EXPECT(any_duration, "1500ms", "1500ms");
    EXPECT(any_duration, "90s", "90s");
    EXPECT(any_duration, "5m", "5min");
    EXPECT(any_duration, "300 s", "5min");
    EXPECT(any_duration, "60min", "1h");
    EXPECT(any_duration, "48h", "2d");
    EXPECT(any_duration, "3d", "3d");
    EXPECT(any_duration, "300", "--set: [x] key = 300: " NOT_TIME " (duration, default 0)");
    EXPECT(any_duration, "1.5s", "--set: [x] key = 1.5s: " NOT_TIME " (duration, default 0)");
    EXPECT(any_duration, "1min30s", "--set: [x] key = 1min30s: " NOT_TIME " (duration, default 0)");
    EXPECT(any_duration, "-1s", "--set: [x] key = -1s: " NOT_TIME " (duration, default 0)");
    EXPECT(any_duration, "110000000000d", "--set: [x] key = 110000000000d: too long (duration, default 0)");
    EXPECT(duration, "61min", "--set: [x] key = 61min: out of range ..1h (duration, ..1h, default 30s)");
}

static void addresses(void **state)
{
    (void)state;
    EXPECT(address, "", "");
    EXPECT(address, "host-1.example:29500", "host-1.example:29500");
    EXPECT(address, "[::1]:0", "[::1]:0");
    EXPECT(address, "host", "--set: [x] key = host: not host:port (host:port, default empty)");
    EXPECT(address, ":1", "--set: [x] key = :1: not host:port (host:port, default empty)");
    EXPECT(address, "a:65536", "--set: [x] key = a:65536: its port is not 0..65535 (host:port, default empty)");
    EXPECT(address, "a:", "--set: [x] key = a:: its port is not 0..65535 (host:port, default empty)");
    EXPECT(address, "::1:5",
           "--set: [x] key = ::1:5: an IPv6 address needs brackets, [address]:port (host:port, default empty)");
    EXPECT(address, "[]:5", "--set: [x] key = []:5: not [address]:port (host:port, default empty)");
}

static void lists(void **state)
{
    static const ddp_option list_of_sizes = {
        .dflt = "1KiB", .range = "1..1MiB", .type = DDP_OPT_SIZE, .flags = DDP_OPT_F_LIST, .offset = AT(sizes)};
    static const ddp_option list_of_choices = {
        .dflt = "", .range = "a|b", .type = DDP_OPT_ENUM, .flags = DDP_OPT_F_LIST, .offset = AT(choices)};
    static const ddp_option required = {.type = DDP_OPT_INT, .flags = DDP_OPT_F_LIST, .offset = AT(sizes)};
    struct fields f;

    (void)state;
    EXPECT(list_of_sizes, "1024,2 KiB ,  3", "1KiB, 2KiB, 3");
    EXPECT(list_of_sizes, "1024,", "1KiB");
    assert_string_equal(one(list_of_sizes, "", &f), "");
    assert_int_equal(f.sizes.count, 0);
    EXPECT(list_of_choices, "b,a,b", "b, a, b");
    EXPECT(list_of_sizes, "1,,2",
           "--set: [x] key = 1,,2: item 2 of the list is empty (list of size, 1..1MiB, default 1KiB)");
    EXPECT(list_of_sizes, ",", "--set: [x] key = ,: item 1 of the list is empty (list of size, 1..1MiB, default 1KiB)");
    EXPECT(list_of_sizes, "1,2MiB",
           "--set: [x] key = 1,2MiB: \"2MiB\" is out of range 1..1MiB (list of size, 1..1MiB, default 1KiB)");
    EXPECT(list_of_choices, "a,c", "--set: [x] key = a,c: \"c\" is not one of a|b (list of a|b, default empty)");
    EXPECT(required, "", "--set: [x] key = : empty (list of int, required)");
}

/* The arrays themselves, while the settings live. */
static void list_items(void **state)
{
    static const ddp_option rows[] = {
        {"sizes", "1, 2KiB, 3", NULL, DOC, DDP_OPT_SIZE, DDP_OPT_F_LIST, AT(sizes)},
        {"words", "a b , c", NULL, DOC, DDP_OPT_STRING, DDP_OPT_F_LIST, AT(words)},
        {"choices", "b, a, b", "a|b", DOC, DDP_OPT_ENUM, DDP_OPT_F_LIST, AT(choices)},
        {"text", "plain", NULL, DOC, DDP_OPT_STRING, 0, AT(text)},
    };
    ddp_ini *ini = ini_of("");
    ddp_settings s = {0};
    ddp_err err = {0};
    const struct fields *f;
    const void *config;

    (void)state;
    assert_int_equal(ddp_options_parse(ini, "x", rows, 4, sizeof(rows[0]), sizeof(*f), &s, &config, &err), DDP_OK);
    f = config;
    assert_int_equal(f->sizes.count, 3);
    assert_int_equal(((const uint64_t *)f->sizes.items)[1], 2048);
    assert_int_equal(f->words.count, 2);
    assert_string_equal(((const char *const *)f->words.items)[0], "a b");
    assert_string_equal(((const char *const *)f->words.items)[1], "c");
    assert_int_equal(((const int32_t *)f->choices.items)[2], 1);
    assert_string_equal(f->text, "plain");
    assert_string_equal(ddp_settings_find(&s, "x", "words")->where, "default");
    ddp_settings_free(&s);
    ddp_ini_free(ini);
}

/* ---- tables ------------------------------------------------------------------------------------------------------ */
static void expect_bad_table(const ddp_option *rows, size_t count, const char *message)
{
    ddp_err err = {0};

    assert_int_equal(ddp_options_check(rows, count, sizeof(*rows), sizeof(struct fields), &err), DDP_ERR_INVALID);
    assert_string_equal(err.msg, message);
}

static void expect_bad_row(const char *key, const char *dflt, const char *range, const char *doc, uint32_t type,
                           uint32_t flags, size_t offset, const char *message)
{
    const ddp_option row = {key, dflt, range, doc, type, flags, offset};

    expect_bad_table(&row, 1, message);
}

static void bad_tables(void **state)
{
    ddp_option rows[2] = {{"a", "1", NULL, DOC, DDP_OPT_INT, 0, AT(integer)},
                          {"a", "1", NULL, DOC, DDP_OPT_INT, 0, AT(size)}};
    ddp_err err = {0};
    char offset_message[128];

    (void)state;
    expect_bad_row(NULL, "1", NULL, DOC, DDP_OPT_INT, 0, 0, "option 1 has no key");
    expect_bad_row("Key", "1", NULL, DOC, DDP_OPT_INT, 0, 0, "option \"Key\": a key is at most 49 of a-z, 0-9 and _");
    expect_bad_row("k", "1", NULL, NULL, DDP_OPT_INT, 0, 0, "option \"k\" has no doc");
    expect_bad_row("k", "1", NULL, "", DDP_OPT_INT, 0, 0, "option \"k\" has no doc");
    expect_bad_row(
        "k", "a ;b", NULL, DOC, DDP_OPT_STRING, 0, AT(text),
        "option \"k\": its default cannot be in an INI file: it has over 1000 bytes, a control character or \" ;\"");
    expect_bad_row(
        "k", "1", NULL, "a\nb", DDP_OPT_INT, 0, 0,
        "option \"k\": its doc cannot be in an INI file: it has over 1000 bytes, a control character or \" ;\"");
    expect_bad_row("k", "1", NULL, DOC, 99, 0, 0, "option \"k\" has the unknown type 99");
    (void)snprintf(offset_message, sizeof(offset_message),
                   "option \"k\": 8 bytes at offset %zu are not a field of a struct of %zu", sizeof(struct fields) - 4,
                   sizeof(struct fields));
    expect_bad_row("k", "1", NULL, DOC, DDP_OPT_INT, 0, sizeof(struct fields) - 4, offset_message);
    (void)snprintf(offset_message, sizeof(offset_message),
                   "option \"k\": 8 bytes at offset 4 are not a field of a struct of %zu", sizeof(struct fields));
    expect_bad_row("k", "1", NULL, DOC, DDP_OPT_INT, 0, 4, offset_message);
    expect_bad_row("k", "0", "1..9", DOC, DDP_OPT_INT, 0, 0,
                   "option \"k\": its default \"0\" is refused: out of range 1..9");
    expect_bad_row("k", "1", "9..1", DOC, DDP_OPT_INT, 0, 0, "option \"k\": range \"9..1\" is empty");
    expect_bad_row("k", "1", "1-9", DOC, DDP_OPT_INT, 0, 0, "option \"k\": range \"1-9\" is not LOW..HIGH");
    expect_bad_row("k", "1", "1..x", DOC, DDP_OPT_INT, 0, 0, "option \"k\": not a whole number");
    expect_bad_row("k", "a", NULL, DOC, DDP_OPT_ENUM, 0, AT(flag), "option \"k\": an enum needs its names in range");
    expect_bad_row("k", "a", "a|b|a", DOC, DDP_OPT_ENUM, 0, AT(flag), "option \"k\": range \"a|b|a\" has \"a\" twice");
    expect_bad_row("k", "a", "a||b", DOC, DDP_OPT_ENUM, 0, AT(flag),
                   "option \"k\": range \"a||b\" is not names like a|b|c");
    expect_bad_row("k", "a", "a..b", DOC, DDP_OPT_STRING, 0, AT(text), "option \"k\": type string takes no range");
    expect_bad_row("k", NULL, NULL, DOC, DDP_OPT_INT, DDP_OPT_F_DEPRECATED, 0,
                   "option \"k\" is deprecated and so needs a default");
    expect_bad_table(rows, 2, "option \"a\" is in the table twice");
    rows[1].key = "b";
    assert_int_equal(ddp_options_check(rows, 2, sizeof(rows[0]), sizeof(struct fields), &err), DDP_OK);
    rows[1].offset = rows[0].offset;
    expect_bad_table(rows, 2, "options \"a\" and \"b\" fill the same field");
    assert_int_equal(ddp_options_check(rows, 2, 16, sizeof(struct fields), &err), DDP_ERR_INVALID);
    assert_string_equal(err.msg, "2 options in rows of 16 bytes: not a table of ddp_option");
    assert_int_equal(ddp_options_check(NULL, 1, sizeof(rows[0]), 8, &err), DDP_ERR_INVALID);
    assert_int_equal(ddp_options_check(NULL, 0, 0, 0, &err), DDP_OK);
}

/* A plugin built against a newer header: its rows are longer than ours. */
static void longer_rows(void **state)
{
    struct longer {
        ddp_option row;
        uint64_t later[3];
    } rows[] = {{{"a", "1", NULL, DOC, DDP_OPT_INT, 0, AT(integer)}, {9, 9, 9}},
                {{"b", "2MiB", NULL, DOC, DDP_OPT_SIZE, 0, AT(size)}, {9, 9, 9}}};
    ddp_ini *ini = ini_of("[x]\na = 3\n");
    ddp_settings s = {0};
    ddp_err err = {0};
    const void *config;

    (void)state;
    assert_int_equal(ddp_options_check(&rows[0].row, 2, sizeof(rows[0]), sizeof(struct fields), &err), DDP_OK);
    assert_int_equal(
        ddp_options_parse(ini, "x", &rows[0].row, 2, sizeof(rows[0]), sizeof(struct fields), &s, &config, &err),
        DDP_OK);
    memset(rows, 0, sizeof(rows)); /* settings do not point into the plugin */
    assert_int_equal(((const struct fields *)config)->integer, 3);
    assert_int_equal(((const struct fields *)config)->size, 2 << 20);
    assert_string_equal(s.items[1].key, "b");
    assert_string_equal(s.items[1].option->doc, DOC);
    ddp_settings_free(&s);
    ddp_ini_free(ini);
}

static void plugin_section(void **state)
{
    static const ddp_option rows[] = {{"interface", "", NULL, DOC, DDP_OPT_STRING, DDP_OPT_F_PER_RANK, AT(text)},
                                      {"images", NULL, NULL, "Path of the images.", DDP_OPT_PATH, 0, AT(path)}};
    ddp_plugin plugin = {
        .options = rows, .option_count = 2, .option_size = sizeof(rows[0]), .config_size = sizeof(struct fields)};
    ddp_config c = {.ini = ini_of("[data.idx]\nimages = /d/i.gz\n[data.other]\n[data.wrong]\nimagse = 1\n")};
    ddp_err err = {0};
    const void *config = NULL;
    char message[256];

    (void)state;
    assert_int_equal(ddp_config_plugin(&c, "data.idx", &plugin, &config, &err), DDP_OK);
    assert_string_equal(((const struct fields *)config)->path, "/d/i.gz");
    assert_int_equal(c.settings.count, 2);
    assert_true(config_ini_find(c.ini, "data.idx", "images")->used);
    assert_int_equal(ddp_config_plugin(&c, "data.other", &plugin, &config, &err), DDP_ERR_CONFIG);
    (void)snprintf(message, sizeof(message), "%s:3: [data.other] needs the key \"images\": Path of the images.",
                   ini_path);
    assert_string_equal(err.msg, message);
    assert_int_equal(ddp_config_plugin(&c, "data.wrong", &plugin, &config, &err), DDP_ERR_CONFIG);
    (void)snprintf(message, sizeof(message), "%s:5: unknown key \"imagse\" in [data.wrong]; did you mean \"images\"?",
                   ini_path);
    assert_string_equal(err.msg, message);
    plugin.option_count = 0;
    plugin.config_size = 0;
    assert_int_equal(ddp_config_plugin(&c, "data.idx", &plugin, &config, &err), DDP_ERR_CONFIG);
    (void)snprintf(message, sizeof(message), "%s:2: unknown key \"images\" in [data.idx]; it has no keys", ini_path);
    assert_string_equal(err.msg, message);
    assert_int_equal(c.settings.count, 2); /* a refused section records nothing */
    ddp_config_free(&c);
}

/* ---- secrets, retired keys, long lists --------------------------------------------------------------------------- */
static void secrets(void **state)
{
    static const ddp_option rows[] = {
        {"token", "", NULL, DOC, DDP_OPT_STRING, DDP_OPT_F_SECRET, AT(token)},
        {"port", "1", "1..9", DOC, DDP_OPT_INT, DDP_OPT_F_SECRET, AT(integer)},
        {"shown", "1", NULL, DOC, DDP_OPT_UINT, 0, AT(natural)},
    };
    ddp_ini *ini = ini_of("[x]\ntoken = hunter2\n");
    ddp_settings s = {0};
    ddp_text text = {0};
    ddp_err err = {0};
    const void *config;

    (void)state;
    assert_int_equal(ddp_options_parse(ini, "x", rows, 3, sizeof(rows[0]), sizeof(struct fields), &s, &config, &err),
                     DDP_OK);
    assert_string_equal(((const struct fields *)config)->token, "hunter2");
    assert_string_equal(ddp_settings_find(&s, "x", "token")->value, "***");
    ddp_settings_print(&s, &text);
    assert_null(strstr(text.data, "hunter2"));
    assert_non_null(strstr(text.data, "# token = ***"));
    text.length = 0;
    ddp_settings_agreement(&s, &text);
    assert_string_equal(text.data, "x.shown = 1\tdefault\n");
    text.length = 0;
    ddp_settings_text(&s, &text);
    assert_string_equal(text.data, "x.shown = 1\n");
    ddp_text_free(&text);
    assert_int_equal(ddp_ini_set(ini, "x.port=7654", &err), DDP_OK);
    assert_int_equal(ddp_options_parse(ini, "x", rows, 3, sizeof(rows[0]), sizeof(struct fields), &s, &config, &err),
                     DDP_ERR_CONFIG);
    assert_string_equal(err.msg, "--set: [x] port = ***: refused (int, 1..9, default 1)");
    ddp_settings_free(&s);
    ddp_ini_free(ini);
}

static void retired_keys(void **state)
{
    static const ddp_option rows[] = {
        {"old_size", "1KiB", NULL, "Use size.", DDP_OPT_SIZE, DDP_OPT_F_DEPRECATED, AT(size)},
        {"size", "2KiB", NULL, DOC, DDP_OPT_SIZE, 0, AT(size)},
    };
    ddp_ini *ini = ini_of("");
    ddp_settings s = {0};
    ddp_err err = {0};
    const void *config;

    (void)state;
    assert_int_equal(ddp_options_check(rows, 2, sizeof(rows[0]), sizeof(struct fields), &err), DDP_OK);
    assert_int_equal(ddp_options_parse(ini, "x", rows, 2, sizeof(rows[0]), sizeof(struct fields), &s, &config, &err),
                     DDP_OK);
    assert_int_equal(((const struct fields *)config)->size, 2048); /* the new key's default */
    assert_null(ddp_settings_find(&s, "x", "old_size"));
    assert_int_equal(ddp_ini_set(ini, "x.old_size=7", &err), DDP_OK);
    assert_int_equal(ddp_options_parse(ini, "x", rows, 2, sizeof(rows[0]), sizeof(struct fields), &s, &config, &err),
                     DDP_OK);
    assert_int_equal(((const struct fields *)config)->size, 7);
    assert_string_equal(ddp_settings_find(&s, "x", "old_size")->where, "--set");
    ddp_settings_free(&s);
    ddp_ini_free(ini);
}

/* Items that an indented line could not start with, and more than a line may hold, come back from what is printed. */
static void printed_lists(void **state)
{
    static const ddp_option rows[] = {{"words", "", NULL, DOC, DDP_OPT_STRING, DDP_OPT_F_LIST, AT(words)}};
    static const char *const odd[] = {"#a", ";b", "[c", "d = e", "/f", "plain", "a:b"};
    ddp_text text = {0};
    ddp_settings first = {0}, second = {0};
    ddp_err err = {0};
    const void *config;
    ddp_ini *ini;

    (void)state;
    ddp_text_printf(&text, "[x]\nwords = first");
    for (int i = 0; i < 700; i++) ddp_text_printf(&text, i % 70 == 69 ? ",\n  next%d, %s" : ", %d%s", i, odd[i % 7]);
    ini = ini_of(text.data);
    assert_int_equal(
        ddp_options_parse(ini, "x", rows, 1, sizeof(rows[0]), sizeof(struct fields), &first, &config, &err), DDP_OK);
    ddp_ini_free(ini);
    assert_true(strlen(first.items[0].value) > 4096);
    text.length = 0;
    ddp_settings_print(&first, &text);
    ini = ini_of(text.data);
    assert_int_equal(
        ddp_options_parse(ini, "x", rows, 1, sizeof(rows[0]), sizeof(struct fields), &second, &config, &err), DDP_OK);
    assert_string_equal(first.items[0].value, second.items[0].value);
    ddp_text_free(&text);
    ddp_settings_free(&first);
    ddp_settings_free(&second);
    ddp_ini_free(ini);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(integers),     cmocka_unit_test(floats),         cmocka_unit_test(words),
        cmocka_unit_test(sizes),        cmocka_unit_test(durations),      cmocka_unit_test(addresses),
        cmocka_unit_test(lists),        cmocka_unit_test(list_items),     cmocka_unit_test(bad_tables),
        cmocka_unit_test(longer_rows),  cmocka_unit_test(plugin_section), cmocka_unit_test(secrets),
        cmocka_unit_test(retired_keys), cmocka_unit_test(printed_lists),
    };

    return cmocka_run_group_tests(tests, make_file, remove_file);
}
