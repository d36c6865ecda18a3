/* fuzz/targets/regex.c -- regular expressions of a tokenizer: the own matcher finds what Oniguruma finds. Input: the
 * expression, a NUL, the text (at most 64 bytes: an expression may take exponential time); both valid UTF-8, or cut off
 * where they are not. */
#include "common/tokenizer/regex/pattern.h"
#include "common/tokenizer/utf8.h"
#include "fuzz.h"

enum { TEXT = 64 };

static void check_match(const pattern_search *s, size_t from)
{
    FUZZ_CHECK(s->begin >= from && s->begin <= s->end && s->end <= s->size);
}

static void compare(const pattern *fast, const pattern *slow, const uint8_t *text, size_t size)
{
    pattern_search a = {0}, b = {0};
    bool found = true, wanted = true;
    ddp_err err = {0};

    pattern_begin(&a, text, size);
    pattern_begin(&b, text, size);
    while (found && wanted) {
        size_t from = a.from;
        ddp_status status = pattern_next(slow, &b, &wanted, &err);

        fuzz_check_error(status, &err);
        if (status != DDP_OK) break; /* it gave up */
        FUZZ_CHECK(pattern_next(fast, &a, &found, &err) == DDP_OK);
        FUZZ_CHECK(found == wanted);
        if (!found) break;
        check_match(&a, from);
        FUZZ_CHECK(a.begin == b.begin && a.end == b.end);
    }
    pattern_search_free(&a);
    pattern_search_free(&b);
}

FUZZ_TARGET(regex)
{
    fuzz_input in = {data, size};
    char *text = fuzz_text(&in, 0);
    size_t length = utf8_valid((const uint8_t *)text, strlen(text));
    size_t most = utf8_valid(in.at, in.left < TEXT ? in.left : TEXT);
    pattern *fast = NULL, *slow = NULL;
    ddp_err err = {0};
    ddp_status a = pattern_new("fuzz", PATTERN_REGEX, text, length, &fast, &err), b;

    fuzz_check_error(a, &err);
    b = pattern_new("fuzz", PATTERN_REGEX_SLOW, text, length, &slow, &err);
    fuzz_check_error(b, &err);
    FUZZ_CHECK(a == b);
    if (a == DDP_OK) compare(fast, slow, in.at, most);
    pattern_free(fast);
    pattern_free(slow);
    free(text);
    return 0;
}
