/* tokenizer.model of SentencePiece: the tokens of random models against those of its library, which models are left to
 * it, and what a tokenizer says of one. Files are made here, as sentencepiece_model.proto says. */
#include "common/tokenizer/pieces.h"
#include "common/tokenizer/tokenizer.h"
#include "base/base.h"
#include "support/dataset_util.h"

enum { NORMAL = 1, UNKNOWN, CONTROL, USER_DEFINED, UNUSED, BYTE };
enum { WORDS_MAX = 64 };

/* ---- files ------------------------------------------------------------------------------------------------------- */
static void put(bytes *out, const void *data, size_t size)
{
    ddp_err err = {0};

    assert_int_equal(bytes_add(out, data, size, &err), DDP_OK);
}

static void put_number(bytes *out, uint64_t n)
{
    for (; n > 127; n >>= 7) put(out, &(uint8_t){(uint8_t)(n | 128)}, 1);
    put(out, &(uint8_t){(uint8_t)n}, 1);
}

static void put_varint(bytes *out, uint64_t field, uint64_t value)
{
    put_number(out, field << 3);
    put_number(out, value);
}

static void put_bytes(bytes *out, uint64_t field, const void *data, size_t size)
{
    put_number(out, field << 3 | 2);
    put_number(out, size);
    put(out, data, size);
}

static void put_piece(bytes *out, const char *text, float score, int type)
{
    bytes piece = {0};

    put_bytes(&piece, 1, text, strlen(text));
    put_number(&piece, 2 << 3 | 5);
    put(&piece, &score, sizeof(score));
    if (type != NORMAL) put_varint(&piece, 3, (uint64_t)type);
    put_bytes(out, 1, piece.data, piece.size);
    free(piece.data);
}

typedef struct settings {
    int kind; /* 1: unigram, 2: BPE */
    bool falls_back, no_prefix, removes, no_escapes, suffix;
} settings;

static void put_settings(bytes *out, settings s)
{
    bytes trainer = {0}, normalizer = {0};

    put_varint(&trainer, 3, (uint64_t)s.kind);
    put_varint(&trainer, 24, s.suffix);
    put_varint(&trainer, 35, s.falls_back);
    put_bytes(&normalizer, 1, "identity", 8);
    put_varint(&normalizer, 3, !s.no_prefix);
    put_varint(&normalizer, 4, s.removes);
    put_varint(&normalizer, 5, !s.no_escapes);
    put_bytes(out, 2, trainer.data, trainer.size);
    put_bytes(out, 3, normalizer.data, normalizer.size);
    free(trainer.data);
    free(normalizer.data);
}

static void put_first(bytes *out, bool with_bytes)
{
    put_piece(out, "<unk>", 0, UNKNOWN);
    put_piece(out, "<s>", 0, CONTROL);
    put_piece(out, "</s>", 0, CONTROL);
    for (unsigned i = 0; i < 256 && with_bytes; i++) {
        char name[8];

        (void)snprintf(name, sizeof(name), "<0x%02X>", i);
        put_piece(out, name, 0, BYTE);
    }
}

/* ---- random models ----------------------------------------------------------------------------------------------- */
static const char *const letters[] = {"▁", "a", "b", "c", "é", "一", "\n"};
static const char *const others[] = {" ", "  ", " a", "x", "🎉", "▁", "<s>", "<0x0A>", "\t"};

static uint32_t draw(uint32_t *seed, uint32_t below)
{
    *seed = *seed * 1664525u + 1013904223u;
    return (*seed >> 8) % below;
}

/* Words of up to five letters; the scores are few, so that many are equal. */
static void random_words(bytes *out, uint32_t *seed, bool crossed)
{
    char words[WORDS_MAX][32];
    size_t count = 0;

    for (size_t i = 0; i < 6; i++) put_piece(out, letters[i], -30.0f, NORMAL);
    while (count < WORDS_MAX) {
        char *word = words[count];
        uint32_t size = 2 + draw(seed, 4);
        bool twice = false;

        word[0] = '\0';
        for (uint32_t i = 0; i < size; i++)
            strcat(word, letters[i == 0 || crossed || strcmp(word, "▁") == 0 ? draw(seed, 6) : 1 + draw(seed, 5)]);
        for (size_t i = 0; i < count; i++) twice |= strcmp(words[i], word) == 0;
        if (twice) continue;
        put_piece(out, word, -(float)draw(seed, 12), NORMAL);
        count++;
    }
}

static size_t random_text(uint32_t *seed, uint32_t parts, char *out)
{
    out[0] = '\0';
    for (uint32_t i = draw(seed, parts); i > 0; i--) {
        if (draw(seed, 3) > 0)
            strcat(out, letters[draw(seed, 7)]);
        else
            strcat(out, others[draw(seed, sizeof(others) / sizeof(*others))]);
    }
    return strlen(out);
}

static void check_text(const pieces *p, bpe_scratch *s, const char *text, size_t size)
{
    numbers ids = {0}, wanted = {0};
    bytes escaped = {0};
    ddp_err err = {0}, why = {0};
    ddp_status status = spm_encode(p->library, (const uint8_t *)text, size, &wanted, &why);

    assert_int_equal(pieces_encode(p, s, &escaped, (const uint8_t *)text, size, &ids, &err), status);
    assert_string_equal(err.msg, why.msg);
    if (ids.size != wanted.size || (ids.size > 0 && memcmp(ids.data, wanted.data, ids.size * sizeof(*ids.data)) != 0)) {
        for (size_t i = 0; i < ids.size; i++) print_message("%u ", ids.data[i]);
        print_message("\n");
        for (size_t i = 0; i < wanted.size; i++) print_message("%u ", wanted.data[i]);
        fail_msg("\"%s\"", text);
    }
    free(ids.data);
    free(wanted.data);
    free(escaped.data);
}

static void the_same_as_the_library(void **state)
{
    uint32_t seed = 3;

    (void)state;
    for (unsigned i = 0; i < 64; i++) {
        settings how = {.kind = 2, .falls_back = i & 1, .no_prefix = i & 2};
        bytes model = {0};
        pieces p = {0};
        bpe_scratch *s = NULL;
        ddp_err err = {0};
        char text[2048];

        put_first(&model, how.falls_back);
        random_words(&model, &seed, i & 4);
        put_settings(&model, how);
        if (pieces_open(&model, &p, &err) != DDP_OK) fail_msg("%s", err.msg);
        assert_true(p.fast);
        assert_int_equal(p.model.cut_at_marks, (i & 4) == 0);
        assert_int_equal(bpe_scratch_new(&s, &err), DDP_OK);
        for (unsigned k = 0; k < 100; k++) check_text(&p, s, text, random_text(&seed, k < 90 ? 20 : 250, text));
        bpe_scratch_free(s);
        pieces_close(&p);
        free(model.data);
    }
}

/* ---- what is left to the library --------------------------------------------------------------------------------- */
static const struct left {
    const char *what;
    settings how;
    const char *text; /* one more piece */
    float score;
    int type;
} left[] = {
    {"unigram", {.kind = 1}, "ab", -1, NORMAL},
    {"removes spaces", {.kind = 2, .removes = true}, "ab", -1, NORMAL},
    {"spaces as they are", {.kind = 2, .no_escapes = true}, "ab", -1, NORMAL},
    {"mark behind", {.kind = 2, .suffix = true}, "ab", -1, NORMAL},
    {"user-defined", {.kind = 2}, "ab", -1, USER_DEFINED},
    {"unused", {.kind = 2}, "ab", -1, UNUSED},
    {"no number", {.kind = 2}, "ab", 0.0f / 0.0f, NORMAL},
    {"no UTF-8", {.kind = 2}, "a\xff", -1, NORMAL},
    {"a character of its own", {.kind = 2}, "aq", -1, NORMAL},
    {"a text twice", {.kind = 2}, "a", -1, CONTROL},
};

static void check_left(const struct left *l)
{
    bytes model = {0};
    pieces p = {0};
    bpe_scratch *s = NULL;
    ddp_err err = {0};
    uint32_t seed = 5;
    char text[512];

    put_first(&model, false);
    for (size_t i = 0; i < 6; i++) put_piece(&model, letters[i], -30, NORMAL);
    put_piece(&model, l->text, l->score, l->type);
    put_settings(&model, l->how);
    if (pieces_open(&model, &p, &err) != DDP_OK) fail_msg("%s: %s", l->what, err.msg);
    if (p.fast) fail_msg("%s", l->what);
    assert_int_equal(bpe_scratch_new(&s, &err), DDP_OK);
    for (int k = 0; k < 20; k++) check_text(&p, s, text, random_text(&seed, 20, text));
    bpe_scratch_free(s);
    pieces_close(&p);
    free(model.data);
}

static void other_models_are_left_to_the_library(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof(left) / sizeof(*left); i++) check_left(&left[i]);
}

static void unknown_of_one_character(void **state)
{
    bytes model = {0};
    pieces p = {0};
    ddp_err err = {0};

    (void)state;
    put_piece(&model, "?", 0, UNKNOWN);
    put_piece(&model, "a", -1, NORMAL);
    put_settings(&model, (settings){.kind = 2});
    assert_int_equal(pieces_open(&model, &p, &err), DDP_OK);
    assert_false(p.fast);
    check_text(&p, NULL, "a?q??", 5);
    pieces_close(&p);
    free(model.data);
}

/* ---- the map of characters --------------------------------------------------------------------------------------- */
/* "a" becomes "b": a trie of 256 units, and the text. */
typedef struct charsmap {
    uint32_t words[1 + 256];
    char text[4];
} charsmap;

static charsmap a_becomes_b(void)
{
    charsmap m = {.words = {[0] = 1024}, .text = "b"};

    m.words[1] = 0;                                             /* its children begin at 0 */
    m.words[1 + 97] = 97u | 1u << 8 | (uint32_t)(97 ^ 1) << 10; /* 'a'; its leaf is unit 1 */
    m.words[1 + 1] = 1u << 31 | 0;                              /* the text at 0 */
    return m;
}

/* Parts of the file: 3 the normalizer's, 5 the denormalizer's; `tag` as it stands in the file. */
static ddp_status open_mapped(const charsmap *m, size_t size, uint64_t tag, pieces *p)
{
    bytes model = {0}, part = {0};
    ddp_err err = {0};
    ddp_status status;

    put_first(&model, false);
    put_piece(&model, "a", -1, NORMAL);
    put_piece(&model, "b", -1, NORMAL);
    put_settings(&model, (settings){.kind = 2, .no_prefix = true});
    put_bytes(&part, 2, m, size);
    put_number(&model, tag);
    put_number(&model, part.size);
    put(&model, part.data, part.size);
    status = pieces_open(&model, p, &err);
    if (status != DDP_OK) assert_non_null(strstr(err.msg, "map of characters"));
    free(part.data);
    free(model.data);
    return status;
}

static void a_map_is_followed(void **state)
{
    charsmap m = a_becomes_b();
    numbers ids = {0};
    bytes escaped = {0};
    pieces p = {0};
    ddp_err err = {0};

    (void)state;
    assert_int_equal(open_mapped(&m, sizeof(m), 3 << 3 | 2, &p), DDP_OK);
    assert_int_equal(pieces_encode(&p, NULL, &escaped, (const uint8_t *)"a", 1, &ids, &err), DDP_OK);
    assert_int_equal(ids.size, 1);
    assert_int_equal(ids.data[0], 4);
    free(ids.data);
    pieces_close(&p);
}

/* The library would read beside it. A tag of 64 bits is one of 32 to it. */
static void a_map_that_leads_out_is_refused(void **state)
{
    static const uint64_t tags[] = {3 << 3 | 2, 5 << 3 | 2, UINT64_C(1) << 32 | 3 << 3 | 2};
    charsmap far = a_becomes_b(), times = far, text = far, cut = far, empty = far, open = far;

    (void)state;
    far.words[1 + 97] = 97u | 1u << 8 | 256u << 10;
    times.words[1] = 1u << 9 | 1u << 10;
    text.words[1 + 1] = 1u << 31 | 4;
    cut.words[0] = 1020;
    empty.words[0] = 0;
    open.text[3] = 'x';
    for (size_t i = 0; i < DDP_COUNT(tags); i++) {
        pieces p = {0};

        assert_int_equal(open_mapped(&far, sizeof(far), tags[i], &p), DDP_ERR_DATA);
        assert_int_equal(open_mapped(&times, sizeof(times), tags[i], &p), DDP_ERR_DATA);
        assert_int_equal(open_mapped(&text, sizeof(text), tags[i], &p), DDP_ERR_DATA);
        assert_int_equal(open_mapped(&cut, sizeof(cut), tags[i], &p), DDP_ERR_DATA);
        assert_int_equal(open_mapped(&empty, sizeof(empty), tags[i], &p), DDP_ERR_DATA);
        assert_int_equal(open_mapped(&open, sizeof(open), tags[i], &p), DDP_ERR_DATA);
        assert_int_equal(open_mapped(&far, 3, tags[i], &p), DDP_ERR_DATA);
        assert_int_equal(open_mapped(&far, 1028, tags[i], &p), DDP_ERR_DATA);
    }
}

/* ---- as a tokenizer ---------------------------------------------------------------------------------------------- */
static void write_model(bytes *model)
{
    put_first(model, true);
    for (size_t i = 0; i < 6; i++) put_piece(model, letters[i], -30, NORMAL);
    put_piece(model, "▁a", -1, NORMAL);
    put_piece(model, "bc", -2, NORMAL);
    put_settings(model, (settings){.kind = 2, .falls_back = true});
    write_file("tokenizer.model", model->data, model->size);
}

static void a_tokenizer_of_pieces(void **state)
{
    static const uint32_t wanted[] = {1, 265, 266, 3 + 'x', 3 + 0xc3, 3 + 0xbc, 259};
    bytes model = {0}, text = {0};
    numbers ids = {0};
    tokenizer *t = NULL;
    tokenizer_scratch *s = NULL;
    ddp_err err = {0};
    size_t size = 0;

    (void)state;
    write_model(&model);
    assert_int_equal(tokenizer_open(folder, &t, &err), DDP_OK);
    assert_int_equal(tokenizer_scratch_new(&s, &err), DDP_OK);
    assert_int_equal(tokenizer_encode(t, s, "abcxü ", 7, TOKENIZER_TEMPLATE, &ids, &err), DDP_OK);
    assert_int_equal(ids.size, 7);
    assert_memory_equal(ids.data, wanted, sizeof(wanted));
    assert_int_equal(numbers_add(&ids, 5000, &err), DDP_OK); /* no token */
    assert_int_equal(tokenizer_decode(t, ids.data, ids.size, 0, &text, &err), DDP_OK);
    assert_int_equal(text.size, 7);
    assert_memory_equal(text.data, "abcxü ", 7);
    assert_int_equal(tokenizer_vocabulary(t), 267);
    assert_int_equal(tokenizer_bos(t), 1);
    assert_int_equal(tokenizer_eos(t), 2);
    assert_int_equal(tokenizer_id(t, "bc", 2), 266);
    assert_int_equal(tokenizer_id(t, "bcd", 3), -1);
    assert_memory_equal(tokenizer_piece(t, 266, &size), "bc", 2);
    assert_null(tokenizer_piece(t, 267, &size));
    assert_false(tokenizer_is_local(t));
    text.size = 0;
    assert_int_equal(tokenizer_decode(t, (uint32_t[]){1, 265, 2}, 3, TOKENIZER_SKIP_SPECIAL, &text, &err), DDP_OK);
    assert_int_equal(text.size, 1);
    tokenizer_scratch_free(s);
    tokenizer_close(t);
    free(ids.data);
    free(text.data);
    free(model.data);
}

static void a_damaged_file_is_named(void **state)
{
    bytes model = {0};
    tokenizer *t = NULL;
    ddp_err err = {0};

    (void)state;
    write_model(&model);
    write_file("tokenizer.model", model.data, model.size / 2);
    assert_int_equal(tokenizer_open(folder, &t, &err), DDP_ERR_DATA);
    assert_non_null(strstr(err.msg, folder));
    assert_non_null(strstr(err.msg, "SentencePiece"));
    free(model.data);
}

/* More ids than any memory holds: what the library throws is an error like others. */
static void no_exception_leaves(void **state)
{
    bytes model = {0}, text = {0};
    pieces p = {0};
    ddp_err err = {0};
    uint32_t id = 1;

    (void)state;
    put_first(&model, false);
    put_piece(&model, "a", -1, NORMAL);
    put_settings(&model, (settings){.kind = 2});
    assert_int_equal(pieces_open(&model, &p, &err), DDP_OK);
    assert_int_equal(spm_decode(p.library, &id, SIZE_MAX / 4, &text, &err), DDP_ERR_LIBRARY);
    assert_non_null(strstr(err.msg, "SentencePiece: "));
    pieces_close(&p);
    free(model.data);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_same_as_the_library),
        cmocka_unit_test(other_models_are_left_to_the_library),
        cmocka_unit_test(unknown_of_one_character),
        cmocka_unit_test(no_exception_leaves),
        cmocka_unit_test(a_map_is_followed),
        cmocka_unit_test(a_map_that_leads_out_is_refused),
        cmocka_unit_test_setup_teardown(a_tokenizer_of_pieces, set_up, tear_down),
        cmocka_unit_test_setup_teardown(a_damaged_file_is_named, set_up, tear_down),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
