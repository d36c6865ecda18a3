/* plugins/dataset/common/tokenizer/regex/program.c -- see program.h. */
#include "common/tokenizer/regex/program.h"

#define NO_MATCH SIZE_MAX

/* ---- reading an expression --------------------------------------------------------------------------------------- */
typedef struct reader {
    const uint8_t *at, *end;
    program *p;
    sets_draft draft;
    struct {
        const uint8_t *text;
        size_t size;
        bool fold;
    } sources[SETS_MAX]; /* of the sets, so that the same text is the same set */
    unsigned count;
    bool fold; /* inside (?i: ) */
} reader;

static bool peek(const reader *r, const char *text)
{
    return (size_t)(r->end - r->at) >= strlen(text) && memcmp(r->at, text, strlen(text)) == 0;
}

static bool take(reader *r, const char *text)
{
    if (!peek(r, text)) return false;
    r->at += strlen(text);
    return true;
}

static void add_character(reader *r, unsigned set, uint32_t c)
{
    sets_add(&r->draft, set, c, c);
    if (!r->fold) return;
    if (c >= 'A' && c <= 'Z') c += 'a' - 'A';
    if (c < 'a' || c > 'z') return;
    sets_add(&r->draft, set, c, c);
    sets_add(&r->draft, set, c - ('a' - 'A'), c - ('a' - 'A'));
    if (c == 's') sets_add(&r->draft, set, 0x17f, 0x17f); /* long s and the sign of kelvin, by case folding */
    if (c == 'k') sets_add(&r->draft, set, 0x212a, 0x212a);
}

/* \p{L}, \P{L}, after \p */
static bool read_property(reader *r, unsigned set, bool inverse)
{
    const uint8_t *name, *close;

    if (!take(r, "{")) return false;
    name = r->at;
    close = memchr(name, '}', (size_t)(r->end - name));
    if (close == NULL || *name == '^') return false;
    r->at = close + 1;
    return sets_add_property(&r->draft, set, (const char *)name, (size_t)(close - name), inverse);
}

/* After a backslash, inside of a class or not: outside, Oniguruma's \w has more of Latin-1. *c is the character
 * where it stands for one, else -1. */
static bool read_escape(reader *r, unsigned set, bool in_class, int64_t *c)
{
    uint8_t letter = r->at < r->end ? *r->at++ : 0;

    *c = -1;
    switch (letter) {
    case 's':
    case 'S': return sets_add_property(&r->draft, set, "space", 5, letter == 'S');
    case 'd':
    case 'D': return sets_add_property(&r->draft, set, "digit", 5, letter == 'D');
    case 'w':
    case 'W': return in_class && sets_add_property(&r->draft, set, "word", 4, letter == 'W');
    case 'p':
    case 'P': return read_property(r, set, letter == 'P');
    case 'r': *c = '\r'; break;
    case 'n': *c = '\n'; break;
    case 't': *c = '\t'; break;
    default:
        if (letter < 0x21 || letter > 0x7e || (letter >= '0' && letter <= '9') || (letter >= 'A' && letter <= 'Z') ||
            (letter >= 'a' && letter <= 'z'))
            return false;
        *c = letter;
    }
    return true;
}

/* One character of a class or its begin; letters of a class under (?i: ) are ASCII. */
static bool read_class_item(reader *r, unsigned set, int64_t *c)
{
    size_t size;

    if (r->at >= r->end || *r->at == '[' || peek(r, "&&")) return false;
    if (take(r, "\\")) return read_escape(r, set, true, c);
    *c = utf8_decode(r->at, &size);
    r->at += size;
    return !r->fold || *c < 0x80;
}

/* After "[". */
static bool read_class(reader *r, unsigned set)
{
    bool inverse = take(r, "^");

    if (peek(r, "]")) return false;
    while (!take(r, "]")) {
        int64_t first, last;

        if (!read_class_item(r, set, &first)) return false;
        if (first < 0) continue;
        last = first;
        if (peek(r, "-") && r->at + 1 < r->end && r->at[1] != ']') {
            r->at++;
            if (!read_class_item(r, set, &last) || last < first || r->fold) return false;
            sets_add(&r->draft, set, (uint32_t)first, (uint32_t)last);
        } else {
            add_character(r, set, (uint32_t)first);
        }
    }
    if (inverse && r->fold) return false;
    if (inverse) sets_invert(&r->draft, set);
    return true;
}

static bool read_set_text(reader *r, unsigned set)
{
    int64_t c;
    size_t size;

    if (take(r, "[")) return read_class(r, set);
    if (take(r, "\\")) {
        if (!read_escape(r, set, false, &c)) return false;
    } else {
        if (r->at >= r->end || strchr("|()?*+{}.^$&", *r->at) != NULL) return false;
        c = utf8_decode(r->at, &size);
        r->at += size;
        if (r->fold && c >= 0x80) return false;
    }
    if (c >= 0) add_character(r, set, (uint32_t)c);
    return true;
}

/* One set; *bit is its mask. */
static bool read_set(reader *r, uint32_t *bit)
{
    const uint8_t *text = r->at;
    size_t size;

    if (r->count == SETS_MAX || !read_set_text(r, r->count)) return false;
    size = (size_t)(r->at - text);
    r->sources[r->count].text = text;
    r->sources[r->count].size = size;
    r->sources[r->count].fold = r->fold;
    *bit = UINT32_C(1) << r->count;
    for (unsigned i = 0; i < r->count; i++)
        if (r->sources[i].size == size && r->sources[i].fold == r->fold &&
            memcmp(r->sources[i].text, text, size) == 0) {
            *bit = UINT32_C(1) << i;
            sets_clear(&r->draft, r->count);
            return true;
        }
    r->count++;
    return true;
}

static bool read_number(reader *r, uint32_t *out)
{
    const uint8_t *begin = r->at;

    for (*out = 0; r->at < r->end && *r->at >= '0' && *r->at <= '9' && r->at - begin < 5; r->at++)
        *out = *out * 10 + (uint32_t)(*r->at - '0');
    return r->at > begin;
}

static bool read_times(reader *r, program_item *item)
{
    item->min = item->max = 1;
    if (take(r, "?"))
        item->min = 0;
    else if (take(r, "*"))
        item->min = 0, item->max = PROGRAM_MANY;
    else if (take(r, "+"))
        item->max = PROGRAM_MANY;
    else if (take(r, "{")) {
        if (!read_number(r, &item->min)) return false;
        item->max = item->min;
        if (take(r, ",") && !peek(r, "}")) {
            if (!read_number(r, &item->max)) return false;
        } else if (r->at[-1] == ',') {
            item->max = PROGRAM_MANY;
        }
        if (!take(r, "}") || item->max < item->min) return false;
    }
    return !peek(r, "?") && !peek(r, "*") && !peek(r, "+") && !peek(r, "{"); /* lazy, possessive, nested */
}

static bool add_item(reader *r, program_item item)
{
    if (r->p->item_count == PROGRAM_ITEMS) return false;
    r->p->items[r->p->item_count++] = item;
    return true;
}

static bool read_item(reader *r)
{
    program_item item = {.min = 1, .max = 1};

    if (take(r, "(?!")) {
        item.not_ahead = true;
        return read_set(r, &item.set) && take(r, ")") && !peek(r, "?") && !peek(r, "*") && !peek(r, "+") &&
               !peek(r, "{") && add_item(r, item);
    }
    return read_set(r, &item.set) && read_times(r, &item) && add_item(r, item);
}

/* Closes the alternative of items first .. end - 1: it must not be empty. */
static bool add_alternative(reader *r, uint32_t first, uint32_t end)
{
    program *p = r->p;
    program_alternative a = {.first = first, .end = end};
    bool certain = false;

    for (uint32_t i = first; i < a.end && !certain; i++) {
        if (p->items[i].not_ahead) continue;
        a.begins |= p->items[i].set;
        certain = p->items[i].min > 0;
    }
    if (!certain || p->count == PROGRAM_ALTERNATIVES) return false;
    p->begins |= a.begins;
    p->alternatives[p->count++] = a;
    return true;
}

/* Two letters that case folding also makes of one: they would match ligatures. */
static bool has_ligature(const uint8_t *text, const uint8_t *end)
{
    static const char pairs[][3] = {"ss", "st", "ff", "fi", "fl"};

    for (; text + 1 < end; text++)
        for (size_t i = 0; i < sizeof(pairs) / sizeof(*pairs); i++)
            if ((text[0] | 32) == pairs[i][0] && (text[1] | 32) == pairs[i][1]) return true;
    return false;
}

/* A|B)? after "(?i:", as the end of an alternative: what ended without it stays matched where neither does. */
static bool read_tails(reader *r, uint32_t first)
{
    program *p = r->p;
    uint32_t end = p->item_count, tail = p->tail_count;

    do {
        uint32_t begin = p->item_count;

        while (!peek(r, "|") && !peek(r, ")"))
            if (peek(r, "(") || !read_item(r)) return false;
        if (p->item_count == begin || p->tail_count == PROGRAM_TAILS) return false;
        p->tails[p->tail_count++] = (program_tail){begin, p->item_count};
    } while (take(r, "|"));
    r->fold = false;
    if (!take(r, ")?") || peek(r, "?") || peek(r, "*") || peek(r, "+") || peek(r, "{")) return false;
    if ((r->at < r->end && !peek(r, "|")) || !add_alternative(r, first, end)) return false;
    p->alternatives[p->count - 1].tail = tail;
    p->alternatives[p->count - 1].tail_end = p->tail_count;
    return true;
}

/* Whether what stands in front of (?i:A|B) may match several lengths: each would have to be tried with A and B. */
static bool has_lengths(const program *p, uint32_t first)
{
    for (uint32_t i = first; i < p->item_count; i++)
        if (p->items[i].min != p->items[i].max) return true;
    return false;
}

/* (?i:A|B) as the end of an alternative whose items so far begin at `first`: one alternative each. */
static bool read_folded(reader *r, uint32_t first)
{
    uint32_t prefix = r->p->item_count - first;
    const uint8_t *close = memchr(r->at, ')', (size_t)(r->end - r->at));

    if (close == NULL || has_ligature(r->at, close)) return false;
    r->fold = true;
    if (close + 1 < r->end && close[1] == '?') return read_tails(r, first);
    if (has_lengths(r->p, first) && memchr(r->at, '|', (size_t)(close - r->at)) != NULL) return false;
    for (;;) {
        while (!peek(r, "|") && !peek(r, ")"))
            if (peek(r, "(") || !read_item(r)) return false;
        if (!add_alternative(r, first, r->p->item_count)) return false;
        if (take(r, ")")) break;
        r->at++;
        for (uint32_t i = 0, from = first; i < prefix; i++)
            if (!add_item(r, r->p->items[from + i])) return false;
        first = r->p->item_count - prefix;
    }
    r->fold = false;
    return r->at == r->end || peek(r, "|");
}

static bool read_alternative(reader *r)
{
    uint32_t first = r->p->item_count;

    while (r->at < r->end && !peek(r, "|")) {
        if (take(r, "(?i:")) return read_folded(r, first);
        if (!read_item(r)) return false;
    }
    return add_alternative(r, first, r->p->item_count);
}

ddp_status program_new(const char *text, size_t size, program *p, bool *simple, ddp_err *err)
{
    reader r = {.at = (const uint8_t *)text, .end = (const uint8_t *)text + size, .p = p};
    bool more = true;

    *simple = false;
    memset(p, 0, sizeof(*p));
    if (size == 0) return DDP_OK;
    while (more) {
        if (!read_alternative(&r)) {
            sets_draft_free(&r.draft);
            return DDP_OK;
        }
        more = take(&r, "|");
    }
    DDP_TRY(sets_finish(&r.draft, &p->sets, err));
    *simple = true;
    return DDP_OK;
}

void program_free(program *p) { free(p->sets.masks); }

/* ---- matching ---------------------------------------------------------------------------------------------------- */
typedef struct matcher {
    const program *p;
    const uint8_t *text;
    size_t size;
} matcher;

static bool is_in(const matcher *m, size_t at, uint32_t set, size_t *length)
{
    return at < m->size && (sets_of(&m->p->sets, m->text + at, length) & set) != 0;
}

/* Items i .. end - 1 at `at`: where the match ends, or NO_MATCH. The depth is that of the items. */
static size_t match_items(const matcher *m, uint32_t i, uint32_t end, size_t at) /* NOLINT(misc-no-recursion) */
{
    for (; i < end; i++) {
        const program_item *item = &m->p->items[i];
        size_t length = 0, to = at;
        uint32_t n = 0;

        if (item->not_ahead) {
            if (is_in(m, at, item->set, &length)) return NO_MATCH;
            continue;
        }
        for (; n < item->max && is_in(m, to, item->set, &length); n++) to += length;
        if (n < item->min) return NO_MATCH;
        if (n > item->min && i + 1 < end)
            for (; n > item->min; n--) {
                size_t found = match_items(m, i + 1, end, to);

                if (found != NO_MATCH) return found;
                to = utf8_before(m->text, to);
            }
        at = to;
    }
    return at;
}

static size_t match_tail(const matcher *m, const program_alternative *a, size_t at)
{
    for (uint32_t i = a->tail; i < a->tail_end; i++) {
        size_t end = match_items(m, m->p->tails[i].first, m->p->tails[i].end, at);

        if (end != NO_MATCH) return end;
    }
    return at;
}

bool program_find(const program *p, const uint8_t *text, size_t size, size_t from, size_t *begin, size_t *end)
{
    const matcher m = {p, text, size};
    size_t length;

    for (size_t at = from; at < size; at += length) {
        uint32_t mask = sets_of(&p->sets, text + at, &length);

        if ((mask & p->begins) == 0) continue;
        for (uint32_t i = 0; i < p->count; i++) {
            const program_alternative *a = &p->alternatives[i];

            if ((mask & a->begins) == 0) continue;
            *end = match_items(&m, a->first, a->end, at);
            *begin = at;
            if (*end == NO_MATCH) continue;
            *end = match_tail(&m, a, *end);
            return true;
        }
    }
    return false;
}
