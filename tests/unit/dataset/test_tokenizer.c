/* Tokenizers against Hugging Face's: what tests/parity/make/make_tokenizers.py stored of each kind of pipeline; the
 * matcher of its own against Oniguruma; files that cannot be used; several threads. */
#include "common/tokenizer/regex/pattern.h"
#include "common/tokenizer/tokenizer.h"
#include "common/tokenizer/utf8.h"
#include "support/dataset_util.h"
#include <glob.h>
#include <jansson.h>
#include <pthread.h>

#define VECTORS DDP_SRCDIR "/tests/parity/vectors/tokenizers/"

static tokenizer *open_good(const char *path)
{
    tokenizer *t = NULL;
    ddp_err err = {0};

    if (tokenizer_open(path, &t, &err) != DDP_OK) fail_msg("%s", err.msg);
    return t;
}

/* ---- parity ------------------------------------------------------------------------------------------------------ */
static void check_ids(const char *what, const char *text, const numbers *ids, const json_t *wanted)
{
    const json_t *id;
    size_t i;

    if (ids->size != json_array_size(wanted))
        fail_msg("%s of \"%s\": %zu tokens, not %zu", what, text, ids->size, json_array_size(wanted));
    json_array_foreach(wanted, i, id) if (ids->data[i] != json_integer_value(id))
        fail_msg("%s of \"%s\": token %zu is %u, not %d", what, text, i, ids->data[i], (int)json_integer_value(id));
}

static void check_decoded(const tokenizer *t, const numbers *ids, unsigned flags, const json_t *wanted)
{
    bytes text = {0};
    ddp_err err = {0};

    assert_int_equal(tokenizer_decode(t, ids->data, ids->size, flags, &text, &err), DDP_OK);
    if (text.size != json_string_length(wanted) ||
        (text.size > 0 && memcmp(text.data, json_string_value(wanted), text.size) != 0))
        fail_msg("decoded \"%.*s\", not \"%s\"", (int)text.size, (const char *)text.data, json_string_value(wanted));
    free(text.data);
}

/* [text, ids with what the template adds, ids, decoded, decoded without special tokens] */
static void check_case(const char *file, const tokenizer *t, tokenizer_scratch *s, const json_t *one)
{
    const char *text = json_string_value(json_array_get(one, 0));
    size_t size = json_string_length(json_array_get(one, 0));
    numbers ids = {0};
    ddp_err err = {0};

    assert_int_equal(tokenizer_encode(t, s, text, size, 0, &ids, &err), DDP_OK);
    check_ids(file, text, &ids, json_array_get(one, 2));
    ids.size = 0;
    assert_int_equal(tokenizer_encode(t, s, text, size, TOKENIZER_TEMPLATE, &ids, &err), DDP_OK);
    check_ids(file, text, &ids, json_array_get(one, 1));
    check_decoded(t, &ids, 0, json_array_get(one, 3));
    check_decoded(t, &ids, TOKENIZER_SKIP_SPECIAL, json_array_get(one, 4));
    free(ids.data);
}

static void check_file(const char *path)
{
    json_t *cases = json_load_file(path, JSON_ALLOW_NUL, NULL), *one;
    char model[512];
    tokenizer_scratch *s = NULL;
    tokenizer *t;
    ddp_err err = {0};
    size_t i;

    assert_non_null(cases);
    (void)snprintf(model, sizeof(model), "%.*s.json", (int)(strlen(path) - strlen(".cases")), path);
    t = open_good(model);
    assert_int_equal(tokenizer_scratch_new(&s, &err), DDP_OK);
    for (int round = 0; round < 2; round++) /* once more, out of the cache */
        json_array_foreach(cases, i, one) check_case(model, t, s, one);
    tokenizer_scratch_free(s);
    tokenizer_close(t);
    json_decref(cases);
}

static void the_same_as_hugging_face(void **state)
{
    glob_t found;

    (void)state;
    assert_int_equal(glob(VECTORS "*.cases", 0, NULL, &found), 0);
    assert_in_range(found.gl_pathc, 15, 100);
    for (size_t i = 0; i < found.gl_pathc; i++) check_file(found.gl_pathv[i]);
    globfree(&found);
}

/* ---- the matcher ------------------------------------------------------------------------------------------------- */
static const char *const regexes[] = {
    "'s|'t|'re|'ve|'m|'ll|'d| ?\\p{L}+| ?\\p{N}+| ?[^\\s\\p{L}\\p{N}]+|\\s+(?!\\S)|\\s+",
    "(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|\\p{N}{1,3}| ?[^\\s\\p{L}\\p{N}]+[\\r\\n]*|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+",
    "'(?i:[sdmt]|ll|ve|re)|[^\\r\\n\\p{L}\\p{N}]?\\p{Lu}*\\p{Ll}+|\\p{N}|[a-c-]{2,}|[\\W]\\d?",
    "[^\\r\\n\\p{L}\\p{N}]?[\\p{Lu}\\p{Lt}\\p{Lm}\\p{Lo}\\p{M}]*[\\p{Ll}\\p{Lm}\\p{Lo}\\p{M}]+|\\P{L}\\S|[\\w]+",
    "[一-龥\xe3\x81\x80-ゟ]+|x{3}|[^\\S\\n]+",
    "[^\\r\\n\\p{L}\\p{N}]?[\\p{Lu}\\p{Lt}\\p{Lm}\\p{Lo}\\p{M}]*[\\p{Ll}\\p{Lm}\\p{Lo}\\p{M}]+(?i:'s|'t|'re|'ll)?|"
    "[^\\r\\n\\p{L}\\p{N}]?[\\p{Lu}\\p{Lt}\\p{Lm}\\p{Lo}\\p{M}]+[\\p{Ll}\\p{Lm}\\p{Lo}\\p{M}]*(?i:'s|'t|'re|'ll)?|\\p{N}{1,3}| ?[^\\s\\p{L}\\p{N}]+"
    "[\\r\\n/]*|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+",
    "\\P{L}+|[\\P{Lu}a]|[\\W\\d]|\\D{2}|\\p{S}",
};

static size_t random_text(uint32_t *seed, uint8_t *out)
{
    static const char *const parts[] = {
        "'",  "s",          "S",          "ſ",          "LL",     "a",      "B",      "é",         "ß",
        "ﬁ",  "一",         "ゟ",         "1",          "٣",      "½",      " ",      "  ",        "\n",
        "\r", "\t",         "\u3000",     ".",          "-",      "\u0301", "x",      "Ⅷ",         "ǅ",
        "🎉",  "\U00010d51", "\U00010d71", "\U00010d41", "\u0897", "\u1b7f", "\u2427", "\U000323af"};
    size_t size = 0;

    for (int i = 0; i < 24; i++) {
        const char *part;

        *seed = *seed * 1664525u + 1013904223u;
        part = parts[(*seed >> 16) % (sizeof(parts) / sizeof(*parts))];
        memcpy(out + size, part, strlen(part));
        size += strlen(part);
    }
    return size;
}

static void the_matcher_is_onigurumas(void **state)
{
    uint32_t seed = 7;

    (void)state;
    for (size_t r = 0; r < sizeof(regexes) / sizeof(*regexes); r++) {
        pattern_search a = {0}, b = {0};
        pattern *fast, *slow;
        ddp_err err = {0};

        assert_int_equal(pattern_new("test", PATTERN_REGEX, regexes[r], strlen(regexes[r]), &fast, &err), DDP_OK);
        assert_int_equal(pattern_new("test", PATTERN_REGEX_SLOW, regexes[r], strlen(regexes[r]), &slow, &err), DDP_OK);
        assert_true(pattern_is_fast(fast));
        assert_false(pattern_is_fast(slow));
        for (int i = 0; i < 400; i++) {
            uint8_t text[256];
            size_t size = random_text(&seed, text);
            bool found = true, wanted;

            pattern_begin(&a, text, size);
            pattern_begin(&b, text, size);
            while (found) {
                assert_int_equal(pattern_next(fast, &a, &found, &err), DDP_OK);
                assert_int_equal(pattern_next(slow, &b, &wanted, &err), DDP_OK);
                if (found != wanted || (found && (a.begin != b.begin || a.end != b.end)))
                    fail_msg("%s in \"%.*s\"", regexes[r], (int)size, (const char *)text);
            }
        }
        pattern_free(fast);
        pattern_free(slow);
        pattern_search_free(&a);
        pattern_search_free(&b);
    }
}

/* Of "[^L]+('s|'LL)" the first length of the front counts with which either matches, not the first of the two. */
static void what_the_matcher_leaves_to_oniguruma(void **state)
{
    static const char *const left[] = {
        "[^L]+(?i:'s|'t|'ll)", "\\p{L}?(?i:'s|'ll)", "a*?b", "(a|b)c", "(?i:st)", "a(?=b)"};
    static const char *const own[] = {"[^L]+(?i:'s)", "[^L]+(?i:'s|'ll)?", "[^L]{2}(?i:'s|'ll)"};
    static const char text[] = "It's THEY'LL";
    pattern_search s = {0};
    pattern *p;
    ddp_err err = {0};
    bool found;

    (void)state;
    for (size_t i = 0; i < sizeof(left) / sizeof(*left); i++) {
        assert_int_equal(pattern_new("test", PATTERN_REGEX, left[i], strlen(left[i]), &p, &err), DDP_OK);
        if (pattern_is_fast(p)) fail_msg("%s", left[i]);
        pattern_begin(&s, text, strlen(text));
        assert_int_equal(pattern_next(p, &s, &found, &err), DDP_OK);
        if (i == 0) assert_true(found && s.begin == 0 && s.end == strlen(text));
        pattern_free(p);
    }
    for (size_t i = 0; i < sizeof(own) / sizeof(*own); i++) {
        assert_int_equal(pattern_new("test", PATTERN_REGEX, own[i], strlen(own[i]), &p, &err), DDP_OK);
        if (!pattern_is_fast(p)) fail_msg("%s", own[i]);
        pattern_free(p);
    }
    pattern_search_free(&s);
}

/* ---- bytes that are no text -------------------------------------------------------------------------------------- */
static void wrong_bytes_become_one_sign_each(void **state)
{
    static const char *const texts[][2] = {
        {"a\xff"
         "b",
         "a\ufffdb"},
        {"\xe4\xbd", "\ufffd"},
        {"\xe4\xbd"
         "x",
         "\ufffdx"},
        {"\xc0\xaf", "\ufffd\ufffd"},
        {"\xed\xa0\x80", "\ufffd\ufffd\ufffd"},
        {"\xf4\x90\x80\x80", "\ufffd\ufffd\ufffd\ufffd"},
        {"\xf0\x9f\x8e", "\ufffd"},
    };
    tokenizer *t = open_good(VECTORS "gpt2.json");
    tokenizer_scratch *s = NULL;
    ddp_err err = {0};

    (void)state;
    assert_int_equal(tokenizer_scratch_new(&s, &err), DDP_OK);
    for (size_t i = 0; i < sizeof(texts) / sizeof(*texts); i++) {
        numbers ids = {0};
        bytes text = {0};

        assert_int_equal(tokenizer_encode(t, s, texts[i][0], strlen(texts[i][0]), 0, &ids, &err), DDP_OK);
        assert_int_equal(tokenizer_decode(t, ids.data, ids.size, 0, &text, &err), DDP_OK);
        assert_int_equal(text.size, strlen(texts[i][1]));
        assert_memory_equal(text.data, texts[i][1], text.size);
        free(ids.data);
        free(text.data);
    }
    tokenizer_scratch_free(s);
    tokenizer_close(t);
}

/* ---- files ------------------------------------------------------------------------------------------------------- */
#define BYTES "{\"type\":\"ByteLevel\"}"
#define BPE   "{\"type\":\"BPE\",\"vocab\":{\"a\":0,\"b\":1,\"ab\":2},\"merges\":[\"a b\"]}"

static const struct {
    const char *text, *reason;
} bad[] = {
    {"", "no JSON"},
    {"[]", "no object"},
    {"{}", "model is missing"},
    {"{\"model\":{\"type\":\"Unigram\",\"vocab\":[]}}", "\"Unigram\" is not supported; BPE is"},
    {"{\"model\":{\"type\":\"BPE\",\"vocab\":{\"a\":0,\"b\":0},\"merges\":[]}}", "another token's"},
    {"{\"model\":{\"type\":\"BPE\",\"vocab\":{\"a\":-1},\"merges\":[]}}", "id -1"},
    {"{\"model\":{\"type\":\"BPE\",\"vocab\":{\"a\":0},\"merges\":[\"a b\"]}}", "merge 1"},
    {"{\"model\":{\"type\":\"BPE\",\"vocab\":{\"a\":0},\"merges\":[\"a\"]}}", "merge 1 is not two"},
    {"{\"model\":{\"type\":\"BPE\",\"dropout\":0.1,\"vocab\":{\"a\":0},\"merges\":[]}}", "\"dropout\""},
    {"{\"model\":{\"type\":\"BPE\",\"unk_token\":\"x\",\"vocab\":{\"a\":0},\"merges\":[]}}", "\"unk_token\" is \"x\""},
    {"{\"normalizer\":{\"type\":\"Precompiled\"},\"model\":" BPE "}", "normalizer of type \"Precompiled\""},
    {"{\"pre_tokenizer\":{\"type\":\"BertPreTokenizer\"},\"model\":" BPE "}", "pre_tokenizer of type"},
    {"{\"pre_tokenizer\":{\"type\":\"Split\",\"behavior\":\"Isolated\",\"pattern\":{\"Regex\":\"(\"}},\"model\":" BPE
     "}",
     "regular expression \"(\""},
    {"{\"pre_tokenizer\":{\"type\":\"Sequence\",\"pretokenizers\":[" BYTES ",{\"type\":\"Digits\"}]},\"model\":" BPE
     "}",
     "ByteLevel is supported as the last"},
    {"{\"decoder\":{\"type\":\"CTC\"},\"model\":" BPE "}", "decoder of type \"CTC\""},
    {"{\"post_processor\":{\"type\":\"X\"},\"model\":" BPE "}", "post_processor of type \"X\""},
    {"{\"added_tokens\":[{\"id\":9,\"content\":\"<s>\"}],\"model\":" BPE "}", "next free one is 3"},
    {"{\"added_tokens\":[{\"id\":1,\"content\":\"a\"}],\"model\":" BPE "}", "\"vocab\" says 0"},
    {"{\"added_tokens\":{},\"model\":" BPE "}", "no list"},
    {"{\"normalizer\":{\"type\":\"Replace\",\"pattern\":{\"String\":\"x\"},\"content\":\"\"},"
     "\"added_tokens\":[{\"id\":3,\"content\":\"x\"}],\"model\":" BPE "}",
     "leaves nothing of \"x\""},
    {"{\"model\":{\"type\":\"BPE\",\"vocab\":{\"a\":\"0\"},\"merges\":[]}}", "no whole number"},
    {"{\"decoder\":{\"type\":\"Strip\",\"content\":\"\",\"start\":1,\"stop\":0},\"model\":" BPE "}",
     "Strip has an empty"},
    {"{\"decoder\":{\"type\":\"Strip\",\"content\":\" \",\"start\":-1,\"stop\":0},\"model\":" BPE "}",
     "a whole number from 0"},
    {"{\"decoder\":{\"type\":\"Strip\",\"content\":\" \",\"start\":4294967296,\"stop\":0},\"model\":" BPE "}",
     "beyond"},
    {"{\"decoder\":{\"type\":\"Sequence\"},\"model\":" BPE "}", "needs its list \"decoders\""},
    {"{\"normalizer\":{\"type\":\"Replace\",\"content\":\"\",\"pattern\":{\"String\":\"\"}},\"model\":" BPE "}",
     "looks for an empty text"},
    {"{\"pre_tokenizer\":{\"type\":\"Split\",\"behavior\":\"Both\",\"pattern\":{\"String\":\"x\"}},\"model\":" BPE "}",
     "\"behavior\" is \"Both\", none of"},
    {"{\"post_processor\":{\"type\":\"RobertaProcessing\",\"cls\":[\"a\",0]},\"model\":" BPE "}", "\"sep\" is not"},
    {"{\"post_processor\":{\"type\":\"TemplateProcessing\",\"single\":[{\"SpecialToken\":{\"id\":\"x\"}}]},"
     "\"model\":" BPE "}",
     "\"special_tokens\" lacks \"x\""},
    {"{\"post_processor\":{\"type\":\"TemplateProcessing\",\"single\":[{\"Sequence\":{\"id\":\"B\"}}]},"
     "\"model\":" BPE "}",
     "more than one sequence"},
};

static void bad_files_are_named(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof(bad) / sizeof(*bad); i++) {
        tokenizer *t = NULL;
        ddp_err err = {0};

        write_file("tokenizer.json", bad[i].text, strlen(bad[i].text));
        assert_int_equal(tokenizer_open(path_of("tokenizer.json"), &t, &err), DDP_ERR_DATA);
        if (strstr(err.msg, bad[i].reason) == NULL || strstr(err.msg, "tokenizer.json") == NULL)
            fail_msg("\"%s\" lacks \"%s\"", err.msg, bad[i].reason);
        if (strchr(err.msg, ';') == NULL) fail_msg("\"%s\" says not what to do next", err.msg);
    }
}

static void a_folder_is_searched(void **state)
{
    static const char words[] = "{\"a\":0,\"b\":1,\"ab\":2,\"<|endoftext|>\":3}", merges[] = "#version: 0.2\na b\n";
    static const char names[] = "{\"bos_token\":\"a\",\"eos_token\":{\"content\":\"<|endoftext|>\"}}";
    tokenizer_scratch *s = NULL;
    numbers ids = {0};
    tokenizer *t = NULL;
    ddp_err err = {0};

    (void)state;
    assert_int_equal(tokenizer_open(folder, &t, &err), DDP_ERR_DATA);
    assert_non_null(strstr(err.msg, "has no tokenizer.json"));
    write_file("vocab.json", words, strlen(words));
    assert_int_equal(tokenizer_open(folder, &t, &err), DDP_ERR_DATA);
    assert_non_null(strstr(err.msg, "no merges.txt"));
    write_file("merges.txt", merges, strlen(merges));
    write_file("tokenizer_config.json", names, strlen(names));
    t = open_good(folder);
    assert_int_equal(tokenizer_vocabulary(t), 4);
    assert_int_equal(tokenizer_bos(t), 0);
    assert_int_equal(tokenizer_eos(t), 3);
    assert_int_equal(tokenizer_scratch_new(&s, &err), DDP_OK);
    assert_int_equal(tokenizer_encode(t, s, "aab<|endoftext|>", 16, 0, &ids, &err), DDP_OK);
    assert_int_equal(ids.size, 3);
    assert_int_equal(ids.data[1], 2);
    assert_int_equal(ids.data[2], 3);
    tokenizer_scratch_free(s);
    tokenizer_close(t);
    free(ids.data);
}

static void check_failure(const char *path, const char *reason)
{
    tokenizer *t = NULL;
    ddp_err err = {0};

    assert_int_equal(tokenizer_open(path, &t, &err), DDP_ERR_DATA);
    if (strstr(err.msg, reason) == NULL) fail_msg("\"%s\" lacks \"%s\"", err.msg, reason);
}

static void files_that_cannot_be_read(void **state)
{
    static const char json[] = "{\"model\":" BPE "}", words[] = "{\"a\":0,\"<|endoftext|>\":1}";

    (void)state;
    check_failure(path_of("none.json"), "is not there");
    assert_int_equal(mkdir(path_of("tokenizer.json"), 0777), 0);
    check_failure(folder, "not a file of at most 256 MiB");
    assert_int_equal(rmdir(path_of("tokenizer.json")), 0);
    assert_int_equal(symlink("/proc/self/mem", path_of("tokenizer.json")), 0); /* a file that fails where it is read */
    check_failure(folder, "cannot be read (Input/output error)");
    assert_int_equal(unlink(path_of("tokenizer.json")), 0);
    write_file("vocab.json", words, strlen(words));
    write_file("merges.txt", "a \xff\n", 4);
    check_failure(folder, "merges.txt beside it is no UTF-8");
    write_file("tokenizer.json", json, strlen(json));
    write_file("tokenizer_config.json", "{\"bos_token\":\"<s>\"}", 19);
    check_failure(folder, "\"bos_token\" is \"<s>\", which the tokenizer does not have");
    write_file("tokenizer_config.json", "{\"eos_token\":7}", 15);
    check_failure(folder, "\"eos_token\" is no text");
}

/* ---- ids that make no text by themselves ------------------------------------------------------------------------- */
static void check_text_of(const char *file, const char *const *pieces, size_t count, const char *wanted)
{
    tokenizer *t = open_good(file);
    uint32_t ids[8];
    bytes text = {0};
    ddp_err err = {0};

    for (size_t i = 0; i < count; i++) {
        int64_t id = tokenizer_id(t, pieces[i], strlen(pieces[i]));

        if (id < 0) fail_msg("%s has no \"%s\"", file, pieces[i]);
        ids[i] = (uint32_t)id;
    }
    assert_int_equal(tokenizer_decode(t, ids, count, 0, &text, &err), DDP_OK);
    assert_int_equal(text.size, strlen(wanted));
    assert_memory_equal(text.data, wanted, text.size);
    free(text.data);
    tokenizer_close(t);
}

/* As Rust's from_utf8_lossy for byte level; a row of byte tokens that is no text is a sign for each (decoders/
 * byte_fallback.rs). An added token is text as it is written, also where byte level has no such letter. */
static void parts_of_characters(void **state)
{
    static const char *const level[] = {"a", "\u00c3", "b"}, *const row[] = {"<0xE4>", "<0xBD>", "a", "<0xC3>",
                                                                             "<0xA9>"};
    static const char json[] =
        "{\"decoder\":" BYTES ",\"added_tokens\":[{\"id\":3,\"content\":\"一\"}],\"model\":" BPE "}";

    (void)state;
    check_text_of(VECTORS "gpt2.json", level, 3, "a\ufffdb");
    check_text_of(VECTORS "llama2.json", row, 5, "\ufffd\ufffda\u00e9");
    write_file("tokenizer.json", json, strlen(json));
    check_text_of(folder, (const char *const[]){"ab", "一"}, 2, "ab一");
}

/* ---- threads, and parts ------------------------------------------------------------------------------------------ */
static void *encode_much(void *argument)
{
    static const char text[] = "Several threads, one tokenizer; it's the same for each of them.\n";
    tokenizer_scratch *s = NULL;
    numbers ids = {0};
    ddp_err err = {0};
    size_t first = 0;
    bool good = tokenizer_scratch_new(&s, &err) == DDP_OK;

    for (int i = 0; i < 200 && good; i++) {
        ids.size = 0;
        good =
            tokenizer_encode(argument, s, text, strlen(text), 0, &ids, &err) == DDP_OK && (i == 0 || ids.size == first);
        first = ids.size;
    }
    tokenizer_scratch_free(s);
    free(ids.data);
    return good ? argument : NULL;
}

static void threads_share_a_tokenizer(void **state)
{
    tokenizer *t = open_good(VECTORS "slow.json");
    pthread_t threads[4];

    (void)state;
    for (int i = 0; i < 4; i++) assert_int_equal(pthread_create(&threads[i], NULL, encode_much, t), 0);
    for (int i = 0; i < 4; i++) {
        void *result = NULL;

        assert_int_equal(pthread_join(threads[i], &result), 0);
        assert_non_null(result);
    }
    tokenizer_close(t);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_same_as_hugging_face),
        cmocka_unit_test(the_matcher_is_onigurumas),
        cmocka_unit_test(what_the_matcher_leaves_to_oniguruma),
        cmocka_unit_test(wrong_bytes_become_one_sign_each),
        cmocka_unit_test_setup_teardown(bad_files_are_named, set_up, tear_down),
        cmocka_unit_test_setup_teardown(a_folder_is_searched, set_up, tear_down),
        cmocka_unit_test_setup_teardown(files_that_cannot_be_read, set_up, tear_down),
        cmocka_unit_test_setup_teardown(parts_of_characters, set_up, tear_down),
        cmocka_unit_test(threads_share_a_tokenizer),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
