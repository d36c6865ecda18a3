/* Dataset sft: samples against LLaMA-Factory's, of which tests/parity/make/make_sft.py stored hashes; the cache; rows
 * and templates that cannot be used; what a row's place is. */
#include "support/dataset_util.h"
#include <glob.h>
#include <jansson.h>
#define XXH_INLINE_ALL
#include <xxhash.h>

enum { MOST_FIELDS = 4 };

static const char *vectors(void)
{
    const char *other = getenv("DDP_SFT_VECTORS");

    return other != NULL ? other : DDP_SRCDIR "/tests/parity/vectors/sft";
}

/* ---- parity ------------------------------------------------------------------------------------------------------ */
static void set_case(subject *s, const json_t *one)
{
    static const char *const named[][2] = {{"alpaca", "alpaca.json"},
                                           {"sharegpt", "sharegpt.jsonl"},
                                           {"messages", "messages.jsonl"},
                                           {"text", "text.jsonl"},
                                           {"named", "named.jsonl"}};
    const char *data = json_string_value(json_object_get(one, "data"));
    static char texts[16][600]; /* the configuration points there */
    char *text = texts[0];
    size_t used = 0;
    const char *key;
    json_t *value;

    for (size_t i = 0; i < sizeof(named) / sizeof(*named); i++) {
        if (strcmp(data, named[i][0]) != 0) continue;
        (void)snprintf(text, sizeof(*texts), "%s/%s", vectors(), named[i][1]);
        config_set(s->plugin, s->config, "files", text);
    }
    config_set(s->plugin, s->config, "format", strcmp(data, "named") == 0 ? "alpaca" : data);
    if (strcmp(data, "named") == 0) config_set(s->plugin, s->config, "columns", "prompt:q,query:,response:a");
    config_set(s->plugin, s->config, "cache", folder);
    json_object_foreach((json_t *)one, key, value)
    {
        if (strcmp(key, "data") == 0 || strcmp(key, "samples") == 0 || strcmp(key, "hash") == 0) continue;
        text = texts[++used];
        if (json_is_integer(value))
            (void)snprintf(text, sizeof(*texts), "%d", (int)json_integer_value(value));
        else if (json_is_boolean(value))
            (void)snprintf(text, sizeof(*texts), "%s", json_is_true(value) ? "yes" : "no");
        else if (strcmp(key, "tokenizer") == 0)
            (void)snprintf(text, sizeof(*texts), "%s/%s", vectors(), json_string_value(value));
        else if (strcmp(json_string_value(value), "own") == 0 || strcmp(json_string_value(value), "bare") == 0)
            (void)snprintf(text, sizeof(*texts), "%s/%s.json", vectors(), json_string_value(value));
        else
            (void)snprintf(text, sizeof(*texts), "%s", json_string_value(value));
        config_set(s->plugin, s->config, key, text);
    }
}

/* All fields of all samples; dumped where a folder of other vectors is being looked at. */
static uint64_t hash_samples(const subject *s, const ddp_dataset *d, const char *dump)
{
    const ddp_field *fields;
    uint32_t count = s->ops->fields(d, &fields);
    size_t length = (size_t)fields[0].dims[0];
    int64_t *values = malloc(MOST_FIELDS * length * sizeof(*values));
    FILE *f = dump != NULL ? fopen(dump, "wb") : NULL;
    XXH3_state_t hash;
    ddp_err err = {0};

    assert_non_null(values);
    assert_in_range(count, 2, MOST_FIELDS);
    XXH3_INITSTATE(&hash);
    (void)XXH3_64bits_reset(&hash);
    for (uint64_t i = 0; i < s->ops->length(d); i++) {
        void *buffers[MOST_FIELDS] = {values, values + length, values + 2 * length, values + 3 * length};

        if (s->ops->read(d, i, 0, buffers, &err) != DDP_OK) fail_msg("%s", err.msg);
        (void)XXH3_64bits_update(&hash, values, count * length * sizeof(*values));
        if (f != NULL) assert_int_equal(fwrite(values, sizeof(*values), count * length, f), count * length);
    }
    if (f != NULL) assert_int_equal(fclose(f), 0);
    free(values);
    return XXH3_64bits_digest(&hash);
}

static void check_case(const json_t *one, size_t number)
{
    subject s = begin("dataset_sft");
    char *text = json_dumps(one, JSON_COMPACT), dump[600];
    ddp_dataset *d;
    uint64_t hash;

    set_case(&s, one);
    d = open_ok(&s);
    if (s.ops->length(d) != (uint64_t)json_integer_value(json_object_get(one, "samples")))
        fail_msg("%s: %u samples", text, (unsigned)s.ops->length(d));
    (void)snprintf(dump, sizeof(dump), "%s/here%zu.bin", vectors(), number);
    hash = hash_samples(&s, d, getenv("DDP_SFT_VECTORS") != NULL ? dump : NULL);
    if (hash != strtoull(json_string_value(json_object_get(one, "hash")), NULL, 16))
        fail_msg("case %zu: %s", number, text);
    s.ops->close(d);
    end(&s);
    free(text);
}

static void the_same_as_llama_factory(void **state)
{
    char path[600];
    json_t *cases, *one;
    size_t i;

    (void)state;
    (void)snprintf(path, sizeof(path), "%s/cases.json", vectors());
    cases = json_load_file(path, 0, NULL);
    assert_in_range(json_array_size(cases), 100, 1000);
    json_array_foreach(cases, i, one) check_case(one, i);
    json_decref(cases);
}

/* ---- small files ------------------------------------------------------------------------------------------------- */
static subject begin_file(const char *name, const char *text)
{
    subject s = begin("dataset_sft");

    write_file(name, text, strlen(text));
    config_set(s.plugin, s.config, "files", path_of(name));
    config_set(s.plugin, s.config, "tokenizer", DDP_SRCDIR "/tests/parity/vectors/sft/llama3");
    config_set(s.plugin, s.config, "length", "64");
    return s;
}

static const char good[] = "{\"instruction\": \"a\", \"output\": \"b\"}\n";

static void expect_bad(const char *text, const char *format, const char *place, const char *why)
{
    subject s = begin_file("bad.jsonl", text);
    char where[600];

    config_set(s.plugin, s.config, "format", format);
    (void)snprintf(where, sizeof(where), "%s:%s: ", path_of("bad.jsonl"), place);
    expect_error(&s, DDP_ERR_DATA, where, why);
    end(&s);
}

static void bad_rows_have_a_place(void **state)
{
    (void)state;
    expect_bad("{\"instruction\": \"a\", \"output\": \"b\"}\n\n{\"instruction\": 1, \"output\": \"b\"}", "alpaca", "3",
               "\"instruction\" is no text; mend it, or leave such rows out: skip_bad = yes");
    expect_bad("{\"instruction\": \"a\"}", "alpaca", "1", "no text under the key \"output\"");
    expect_bad("{\"output\": \"a\"}", "alpaca", "1", "no text under the key \"instruction\"");
    expect_bad("{\"instruction\": \"a\", \"output\": \"b\", \"history\": [[\"a\"]]}", "alpaca", "1", "array of pairs");
    expect_bad("{\"instruction\": \"a\", \"output\": \"b\", \"tools\": \"[]x\"}", "alpaca", "1",
               "tools are not supported");
    expect_bad("[\n{\"instruction\": \"a\",\n \"output\": \"b\"},\n{\"instruction\": \"a\",\n \"output\": b}]",
               "alpaca", "5", "no JSON");
    expect_bad("[{}, ", "alpaca", "1", "no text under");
    expect_bad("[1]", "alpaca", "1", "no object");
    expect_bad("[{\"instruction\": \"a\", \"output\": \"b\"}\n", "alpaca", "2",
               "neither a comma nor the end of the array");
    expect_bad("[{\"instruction\": \"a\", \"output\": \"b\"}]\n\n7", "alpaca", "3", "something follows");
    expect_bad("[{\"instruction\": \"a\", \"output\": \"b\"},\n]", "alpaca", "2", "a row is missing");
    expect_bad("[\n{\"instruction\": \"a\"", "alpaca", "2", "the file ends within this row");
    expect_bad("{\"conversations\": [{\"from\": \"human\", \"value\": \"a\"}]}", "sharegpt", "1",
               "1 messages; the last one has to be of \"gpt\"");
    expect_bad("{\"conversations\": [{\"from\": \"gpt\", \"value\": \"a\"}]}", "sharegpt", "1",
               "message 1 is of \"gpt\" where one of \"human\" has to be");
    expect_bad("{\"conversations\": []}", "sharegpt", "1", "0 messages");
    expect_bad("{\"messages\": [{\"role\": \"user\"}]}", "messages", "1",
               "message 1 has no text under the key \"content\"");
    expect_bad(
        "{\"messages\": [{\"role\": \"user\", \"content\": \"a\"}, {\"role\": \"assistant\", \"tool_calls\": [1]}]}",
        "messages", "1", "message 2 calls a tool");
    expect_bad("{\"text\": 1}", "text", "1", "no text under the key \"text\"");
}

static void bad_rows_are_left_out(void **state)
{
    char text[600];
    subject s;
    ddp_dataset *d;

    (void)state;
    (void)snprintf(text, sizeof(text), "%s{\n%s[]\n%s", good, good, good);
    s = begin_file("some.jsonl", text);
    config_set(s.plugin, s.config, "skip_bad", "yes");
    for (int round = 0; round < 2; round++) { /* once more, out of the cache */
        d = open_ok(&s);
        assert_int_equal(s.ops->length(d), 3);
        if (strstr(s.ops->describe(d), "5 rows, 3 samples") == NULL || strstr(s.ops->describe(d), "2 bad rows") == NULL)
            fail_msg("%s", s.ops->describe(d));
        s.ops->close(d);
    }
    end(&s);
}

/* ---- cache ------------------------------------------------------------------------------------------------------- */
static size_t count_entries(void)
{
    glob_t found;
    size_t count = 0;

    if (glob(path_of("*.sft"), 0, NULL, &found) == 0) count = found.gl_pathc;
    globfree(&found);
    return count;
}

static void the_cache_is_used_and_kept_apart(void **state)
{
    static const char *const changes[][2] = {{"length", "32"},       {"packing", "yes"},      {"mask_history", "yes"},
                                             {"pack_rows", "7"},     {"template", "alpaca"},  {"default_system", "x"},
                                             {"columns", "query:x"}, {"limit", "1"},          {"skip_bad", "yes"},
                                             {"format", "text"},     {"tags", "role_tag:who"}};
    char text[600], first[600];
    uint64_t mark;
    glob_t found;
    FILE *f;

    (void)state;
    (void)snprintf(text, sizeof(text), "%s{\"instruction\": \"a\", \"output\": \"b\", \"text\": \"c\"}\n", good);
    for (size_t i = 0; i < sizeof(changes) / sizeof(*changes); i++) {
        subject s = begin_file("kept.jsonl", text), other = begin_file("kept.jsonl", text);

        if (strcmp(changes[i][0], "format") == 0) config_set(s.plugin, other.config, "columns", "prompt:instruction");
        config_set(s.plugin, other.config, changes[i][0], changes[i][1]);
        mark = fingerprint(&s);
        assert_int_equal(fingerprint(&s), mark);
        assert_int_not_equal(fingerprint(&other), mark);
        assert_int_equal(count_entries(), i + 2);
        end(&s);
        end(&other);
    }
    assert_int_equal(glob(path_of("*.sft"), 0, NULL, &found), 0);
    (void)snprintf(first, sizeof(first), "%s", found.gl_pathv[0]);
    globfree(&found);
    f = fopen(first, "r+b"); /* one that was cut short is made again */
    assert_non_null(f);
    assert_int_equal(fclose(f), 0);
    assert_int_equal(truncate(first, 1030), 0);
    for (size_t i = 0; i < sizeof(changes) / sizeof(*changes); i++) {
        subject s = begin_file("kept.jsonl", text);

        config_set(s.plugin, s.config, changes[i][0], changes[i][1]);
        if (strcmp(changes[i][0], "format") == 0) config_set(s.plugin, s.config, "columns", "prompt:instruction");
        s.ops->close(open_ok(&s));
        end(&s);
    }
    assert_int_equal(count_entries(), sizeof(changes) / sizeof(*changes) + 1);
}

static void a_pattern_does_not_match_what_was_made(void **state)
{
    subject s = begin_file("a.jsonl", good);
    ddp_dataset *d;

    (void)state;
    write_file("b.jsonl", good, strlen(good));
    config_set(s.plugin, s.config, "files", path_of("*.json*"));
    for (int round = 0; round < 2; round++) {
        d = open_ok(&s);
        assert_int_equal(s.ops->length(d), 2);
        s.ops->close(d);
    }
    assert_int_equal(count_entries(), 1);
    end(&s);
}

/* ---- parts ------------------------------------------------------------------------------------------------------- */
static void the_parts_are_all_and_apart(void **state)
{
    static const char *const parts[] = {"train", "validation", "all"};
    char text[40 * 60] = "";
    uint64_t lengths[3];

    (void)state;
    for (int i = 0; i < 40; i++)
        (void)snprintf(text + strlen(text), sizeof(text) - strlen(text),
                       "{\"instruction\": \"%d\", \"output\": \"b\"}\n", i);
    for (int i = 0; i < 3; i++) {
        subject s = begin_file("parts.jsonl", text);
        ddp_dataset *d;

        config_set(s.plugin, s.config, "split", parts[i]);
        if (i == 0) expect_error(&s, DDP_ERR_CONFIG, "split = train needs the share", "validation = 0.1");
        config_set(s.plugin, s.config, "validation", "0.3");
        d = open_ok(&s);
        lengths[i] = s.ops->length(d);
        s.ops->close(d);
        end(&s);
    }
    assert_int_equal(lengths[2], 40);
    assert_int_equal(lengths[0] + lengths[1], 40);
    assert_in_range(lengths[1], 4, 24);
}

/* ---- options and templates --------------------------------------------------------------------------------------- */
static void expect_template(const char *text, const char *why)
{
    subject s = begin_file("one.jsonl", good);

    write_file("t.json", text, strlen(text));
    config_set(s.plugin, s.config, "template", path_of("t.json"));
    expect_error(&s, DDP_ERR_DATA, "t.json", why);
    end(&s);
}

static void templates_are_checked(void **state)
{
    (void)state;
    expect_template("{\n\"user\": [}", ":2: ");
    expect_template("[]", "no object");
    expect_template("{\"usr\": []}", "\"usr\" is no key of a template");
    expect_template("{\"user\": []}", "\"user\" has no {{content}}");
    expect_template("{\"user\": \"x\"}", "\"user\" is no array of slots");
    expect_template("{\"user\": [1]}", "\"user\" has a slot that is neither");
    expect_template("{\"prefix\": [\"{{content}}\"]}", "\"prefix\" may not have {{content}}");
    expect_template("{\"stop_words\": [1]}", "\"stop_words\" is no array of texts");
    expect_template("{\"replace_eos\": 1}", "\"replace_eos\" is neither true nor false");
    expect_template("{\"replace_eos\": true}", "needs a first word in \"stop_words\"");
    expect_template("{\"default_system\": 1}", "\"default_system\" is no text");
    expect_template("{\"user\": [\"<x>{{content}}\"], \"stop_words\": [\"<x>\"]}", "needs the token \"<x>\"");
    expect_template("{\"user\": [{\"token\": \"<x>\"}, \"{{content}}\"]}", "needs the token \"<x>\"");
}

static void expect_option(const char *key, const char *value, const char *other, const char *yes, const char *why)
{
    subject s = begin_file("one.jsonl", good);

    config_set(s.plugin, s.config, key, value);
    if (other != NULL) config_set(s.plugin, s.config, other, yes);
    expect_error(&s, DDP_ERR_CONFIG, "dataset sft: ", why);
    end(&s);
}

static void options_are_checked(void **state)
{
    (void)state;
    expect_option("files", "", NULL, NULL, "files is not set");
    expect_option("tokenizer", "", NULL, NULL, "tokenizer is not set");
    expect_option("template", "lama3", NULL, NULL,
                  "template = lama3: there is none of this name; write one of alpaca, chatml");
    expect_option("columns", "promt:x", NULL, NULL, "columns = promt:x: write NAME:KEY");
    expect_option("tags", "x", NULL, NULL, "tags = x: write NAME:KEY");
    expect_option("mask_history", "yes", "train_on_prompt", "yes", "do not go together");
    expect_option("packing", "separate", "format", "text", "packing = separate is not for format = text");
    expect_option("template", DDP_SRCDIR "/tests/parity/vectors/sft/own.json", "train_on_prompt", "yes",
                  "efficient_eos");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(the_same_as_llama_factory, set_up, tear_down),
        cmocka_unit_test_setup_teardown(bad_rows_have_a_place, set_up, tear_down),
        cmocka_unit_test_setup_teardown(bad_rows_are_left_out, set_up, tear_down),
        cmocka_unit_test_setup_teardown(the_cache_is_used_and_kept_apart, set_up, tear_down),
        cmocka_unit_test_setup_teardown(a_pattern_does_not_match_what_was_made, set_up, tear_down),
        cmocka_unit_test_setup_teardown(the_parts_are_all_and_apart, set_up, tear_down),
        cmocka_unit_test_setup_teardown(templates_are_checked, set_up, tear_down),
        cmocka_unit_test_setup_teardown(options_are_checked, set_up, tear_down),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
