/* control/rank0/agree.c -- compares the lines that two ranks must have equal and words the first difference. */
#include "control/rank0/agree.h"
#include "control/params.h"
#include "net/wire.h"
#include <string.h>

typedef struct span {
    const char *at;
    size_t length;
} span;

typedef struct line {
    span key, value, where;
} line;

static span span_of(const char *begin, const char *end) { return (span){begin, (size_t)(end - begin)}; }

static bool same(span a, span b) { return a.length == b.length && memcmp(a.at, b.at, a.length) == 0; }

/* Takes the line at *cursor; false at the end. A line without " = " is a key with an empty value. */
static bool next_line(const char **cursor, line *out)
{
    const char *begin = *cursor, *end = begin + strcspn(begin, "\n"), *tab, *equals;

    if (*begin == '\0') return false;
    *cursor = *end == '\n' ? end + 1 : end;
    tab = memchr(begin, '\t', (size_t)(end - begin));
    out->where = tab == NULL ? span_of(end, end) : span_of(tab + 1, end);
    if (tab != NULL) end = tab;
    equals = memmem(begin, (size_t)(end - begin), " = ", 3);
    out->key = span_of(begin, equals == NULL ? end : equals);
    out->value = equals == NULL ? span_of(end, end) : span_of(equals + 3, end);
    return true;
}

/* Looks for `key` at *hint first, where it stands when both sides have the same keys, then everywhere. */
static bool find(const char *lines, const char **hint, span key, line *out)
{
    const char *cursor = *hint;

    if (next_line(&cursor, out) && same(out->key, key)) {
        *hint = cursor;
        return true;
    }
    for (cursor = lines; next_line(&cursor, out);) {
        if (!same(out->key, key)) continue;
        *hint = cursor;
        return true;
    }
    return false;
}

static void print_span(ddp_text *t, span s)
{
    char buf[100];

    ddp_copy_printable(buf, sizeof(buf), s.at, s.length);
    ddp_text_printf(t, "%s%s", buf, s.length >= sizeof(buf) ? "..." : "");
}

static void print_rank(ddp_text *t, int32_t rank)
{
    if (rank == DDP_RANK_OF_SPARE)
        ddp_text_printf(t, "a spare");
    else if (rank == DDP_RANK_OF_HELPER)
        ddp_text_printf(t, "an aggregator");
    else
        ddp_text_printf(t, "rank %d", (int)rank);
}

/* "0.01 (rank 0, node1.ini:14)", "not set (rank 1)" */
static void print_side(ddp_text *t, const line *l, int32_t rank)
{
    if (l == NULL)
        ddp_text_printf(t, "not set");
    else
        print_span(t, l->value);
    ddp_text_printf(t, " (");
    print_rank(t, rank);
    if (l != NULL && l->where.length > 0) {
        ddp_text_printf(t, ", ");
        print_span(t, l->where);
    }
    ddp_text_printf(t, ")");
}

static void print_difference(ddp_text *t, const line *a, int32_t rank_a, const line *b, int32_t rank_b)
{
    print_rank(t, rank_a);
    ddp_text_printf(t, " and ");
    print_rank(t, rank_b);
    ddp_text_printf(t, " differ in ");
    print_span(t, a != NULL ? a->key : b->key);
    ddp_text_printf(t, ": ");
    print_side(t, a, rank_a);
    ddp_text_printf(t, " against ");
    print_side(t, b, rank_b);
}

/* The words for all differences; frees `t`. */
static size_t finish(ddp_text *t, size_t count, char *text, size_t capacity)
{
    if (count > 1) ddp_text_printf(t, " (and %zu more difference%s)", count - 1, count == 2 ? "" : "s");
    ddp_text_printf(t, ". Make them equal.");
    if (count > 0) ddp_copy_text(text, capacity, t->failed ? "the ranks' settings differ" : t->data);
    ddp_text_free(t);
    return count;
}

size_t rank0_agree_compare(const char *a, int32_t rank_a, const char *b, int32_t rank_b, char *text, size_t capacity)
{
    const char *cursor, *hint;
    ddp_text t = {0};
    size_t count = 0;
    line la, lb;

    if (strcmp(a, b) == 0) return 0;
    for (cursor = a, hint = b; next_line(&cursor, &la);) {
        bool found = find(b, &hint, la.key, &lb);

        if (found && same(la.value, lb.value)) continue;
        if (count++ == 0) print_difference(&t, &la, rank_a, found ? &lb : NULL, rank_b);
    }
    for (cursor = b, hint = a; next_line(&cursor, &lb);) {
        if (find(a, &hint, lb.key, &la)) continue;
        if (count++ == 0) print_difference(&t, NULL, rank_a, &lb, rank_b);
    }
    return finish(&t, count, text, capacity);
}

size_t rank0_agree_compare_some(const char *a, int32_t rank_a, const char *b, int32_t rank_b, char *text,
                                size_t capacity)
{
    const char *cursor, *hint;
    ddp_text t = {0};
    size_t count = 0;
    line la, lb;

    for (cursor = b, hint = a; next_line(&cursor, &lb);) {
        bool found = find(a, &hint, lb.key, &la);

        if (found && same(la.value, lb.value)) continue;
        if (count++ == 0) print_difference(&t, found ? &la : NULL, rank_a, &lb, rank_b);
    }
    return finish(&t, count, text, capacity);
}
