/* plugins/dataset/common/tokenizer/steps/split.c -- see split.h. */
#include "common/tokenizer/steps/split.h"

enum { SPLIT, BYTE_LEVEL, METASPACE };
enum { REMOVED, ISOLATED, MERGED_WITH_PREVIOUS, MERGED_WITH_NEXT, CONTIGUOUS };
#define BEHAVIORS "Removed|Isolated|MergedWithPrevious|MergedWithNext|Contiguous"
enum { ALWAYS, FIRST, NEVER };

/* GPT-2's encoder.py */
#define GPT2 "'s|'t|'re|'ve|'m|'ll|'d| ?\\p{L}+| ?\\p{N}+| ?[^\\s\\p{L}\\p{N}]+|\\s+(?!\\S)|\\s+"
/* \w of Rust's regex has the two joiners besides Oniguruma's */
#define WORDS       "[\\w\xe2\x80\x8c\xe2\x80\x8d]+|[^\\w\\s\xe2\x80\x8c\xe2\x80\x8d]+"
#define PUNCTUATION "[!-/:-@\\[-`{-~\\p{P}]"

/* ---- reading ----------------------------------------------------------------------------------------------------- */
/* a: behaviour; b: invert */
static ddp_status read_split(const char *where, const json_t *j, step *s, ddp_err *err)
{
    DDP_TRY(member_choice(where, j, "behavior", NULL, BEHAVIORS, &s->a, err));
    DDP_TRY(member_bool(where, j, "invert", false, &s->b, err));
    return member_pattern(where, j, &s->pattern, err);
}

static ddp_status fixed(const char *where, const char *regex, int32_t behavior, step *s, ddp_err *err)
{
    s->a = behavior;
    return pattern_new(where, PATTERN_REGEX, regex, strlen(regex), &s->pattern, err);
}

/* a: add a space in front; b: split by GPT-2's expression */
static ddp_status read_byte_level(const char *where, const json_t *j, step *s, ddp_err *err)
{
    DDP_TRY(fixed(where, GPT2, 0, s, err));
    DDP_TRY(member_bool(where, j, "add_prefix_space", true, &s->a, err));
    return member_bool(where, j, "use_regex", true, &s->b, err);
}

/* a: where to prepend; b: split */
static ddp_status read_metaspace(const char *where, const json_t *j, step *s, ddp_err *err)
{
    int32_t add;

    DDP_TRY(member_content(where, j, "replacement", NULL, &s->content, err));
    if (s->content.size == 0) return ddp_fail(err, DDP_ERR_DATA, "%s: \"replacement\" is empty", where);
    DDP_TRY(member_bool(where, j, "add_prefix_space", true, &add, err));
    DDP_TRY(member_choice(where, j, "prepend_scheme", add ? "always" : "never", "always|first|never", &s->a, err));
    DDP_TRY(member_bool(where, j, "split", true, &s->b, err));
    return pattern_new(where, PATTERN_TEXT, (const char *)s->content.data, s->content.size, &s->pattern, err);
}

static ddp_status read_digits(const char *where, const json_t *j, step *s, ddp_err *err)
{
    int32_t individual;

    DDP_TRY(member_bool(where, j, "individual_digits", false, &individual, err));
    return fixed(where, "\\p{N}", individual ? ISOLATED : CONTIGUOUS, s, err);
}

static ddp_status read_punctuation(const char *where, const json_t *j, step *s, ddp_err *err)
{
    int32_t behavior;

    DDP_TRY(member_choice(where, j, "behavior", "Isolated", BEHAVIORS, &behavior, err));
    return fixed(where, PUNCTUATION, behavior, s, err);
}

static ddp_status read_whitespace(const char *where, const json_t *j, step *s, ddp_err *err)
{
    (void)j;
    s->b = 1;
    return fixed(where, WORDS, REMOVED, s, err);
}

static ddp_status read_whitespace_split(const char *where, const json_t *j, step *s, ddp_err *err)
{
    (void)j;
    return fixed(where, "\\s", REMOVED, s, err);
}

static const step_kind kinds[] = {
    {"ByteLevel", BYTE_LEVEL, read_byte_level}, {"Split", SPLIT, read_split},
    {"Metaspace", METASPACE, read_metaspace},   {"Digits", SPLIT, read_digits},
    {"Whitespace", SPLIT, read_whitespace},     {"WhitespaceSplit", SPLIT, read_whitespace_split},
    {"Punctuation", SPLIT, read_punctuation},
};

ddp_status split_read(const char *where, const json_t *j, steps *out, bool *byte_level, ddp_err *err)
{
    DDP_TRY(steps_read(where, j, "pretokenizers", kinds, sizeof(kinds) / sizeof(*kinds), out, err));
    *byte_level = out->count > 0 && out->all[out->count - 1].kind == BYTE_LEVEL;
    for (uint32_t i = 0; i + 1 < out->count; i++)
        if (out->all[i].kind == BYTE_LEVEL)
            return ddp_fail(err, DDP_ERR_DATA, "%s: ByteLevel is supported as the last of a Sequence alone", where);
    return DDP_OK;
}

bool split_is_local(const steps *p)
{
    for (uint32_t i = 0; i < p->count; i++)
        if (p->all[i].kind == METASPACE || (p->all[i].kind == BYTE_LEVEL && p->all[i].a) ||
            (p->all[i].pattern != NULL && !pattern_is_fast(p->all[i].pattern)))
            return false;
    return p->count > 0 && p->all[p->count - 1].kind == BYTE_LEVEL;
}

/* ---- cutting ----------------------------------------------------------------------------------------------------- */
static ddp_status add_span(spans *l, span s, ddp_err *err)
{
    if (l->count == l->capacity)
        DDP_TRY(buffer_grow((void **)&l->all, &l->capacity, sizeof(*l->all), l->count + 1, err));
    l->all[l->count++] = s;
    return DDP_OK;
}

/* The parts of one word, that match and that do not, as they come. */
typedef struct cutting {
    spans *out;
    span whole;
    size_t first; /* of its spans in the list */
    int32_t behavior;
    bool any, last, waiting; /* the part before: was there one, did it match, does it wait for the next */
    uint32_t waits_from;
} cutting;

static ddp_status put(cutting *c, uint32_t begin, uint32_t end, ddp_err *err)
{
    if (begin == end) return DDP_OK;
    return add_span(
        c->out, (span){c->whole.begin + begin, end - begin, c->whole.first && begin == 0 && c->out->count == c->first},
        err);
}

static ddp_status add_part(cutting *c, uint32_t begin, uint32_t end, bool match, ddp_err *err)
{
    ddp_status status = DDP_OK;
    bool joins =
        c->out->count > c->first && c->any &&
        (c->behavior == CONTIGUOUS ? c->last == match : c->behavior == MERGED_WITH_PREVIOUS && match && !c->last);

    if (c->behavior == MERGED_WITH_NEXT) {
        if (c->waiting && match) status = put(c, c->waits_from, begin, err);
        if (!match) status = put(c, c->waiting ? c->waits_from : begin, end, err);
        c->waiting = match;
        c->waits_from = begin;
    } else if (joins) {
        c->out->all[c->out->count - 1].size += end - begin;
    } else if (c->behavior != REMOVED || !match) {
        status = put(c, begin, end, err);
    }
    c->any = true;
    c->last = match;
    return status;
}

static ddp_status cut(const pattern *p, int32_t behavior, bool invert, split_scratch *s, const uint8_t *text,
                      span whole, spans *out, ddp_err *err)
{
    cutting c = {.out = out, .whole = whole, .first = out->count, .behavior = behavior};
    uint32_t at = 0;
    bool found;

    pattern_begin(&s->search, text + whole.begin, whole.size);
    for (;;) {
        DDP_TRY(pattern_next(p, &s->search, &found, err));
        if (!found) break;
        if (s->search.begin > at) DDP_TRY(add_part(&c, at, (uint32_t)s->search.begin, invert, err));
        at = (uint32_t)s->search.end;
        DDP_TRY(add_part(&c, (uint32_t)s->search.begin, at, !invert, err));
    }
    if (at < whole.size) DDP_TRY(add_part(&c, at, whole.size, invert, err));
    return c.waiting ? put(&c, c.waits_from, whole.size, err) : DDP_OK;
}

/* ---- texts that change ------------------------------------------------------------------------------------------- */
/* A space in front of each word that has none. */
static ddp_status add_spaces(spans *l, const uint8_t *text, bytes *out, ddp_err *err)
{
    out->size = 0;
    for (size_t i = 0; i < l->count; i++) {
        span *one = &l->all[i];
        const uint8_t *word = text + one->begin;
        size_t begin = out->size;

        if (*word != ' ') DDP_TRY(bytes_add(out, " ", 1, err));
        DDP_TRY(bytes_add(out, word, one->size, err));
        one->begin = (uint32_t)begin;
        one->size = (uint32_t)(out->size - begin);
    }
    return DDP_OK;
}

static ddp_status add_marks(const step *m, spans *l, const uint8_t *text, bytes *out, ddp_err *err)
{
    const bytes *mark = &m->content;

    out->size = 0;
    for (size_t i = 0; i < l->count; i++) {
        span *one = &l->all[i];
        const uint8_t *word = text + one->begin;
        size_t begin = out->size, size = mark->size;

        DDP_TRY(bytes_reserve(out, (one->size + (size_t)1) * size, err));
        if (*word != ' ' && (one->size < size || memcmp(word, mark->data, size) != 0) &&
            (m->a == ALWAYS || (m->a == FIRST && one->first)))
            DDP_TRY(bytes_add(out, mark->data, size, err));
        for (uint32_t k = 0; k < one->size; k++) {
            if (word[k] == ' ')
                DDP_TRY(bytes_add(out, mark->data, size, err));
            else
                out->data[out->size++] = word[k];
        }
        one->begin = (uint32_t)begin;
        one->size = (uint32_t)(out->size - begin);
    }
    return DDP_OK;
}

/* ---- all steps --------------------------------------------------------------------------------------------------- */
static ddp_status run_step(const step *p, split_scratch *s, const uint8_t **text, spans **from, ddp_err *err)
{
    bytes *changed = &s->text[*text == s->text[0].data ? 1 : 0];
    spans *to = *from == &s->lists[0] ? &s->lists[1] : &s->lists[0];
    bool change = p->kind == METASPACE || (p->kind == BYTE_LEVEL && p->a);
    int32_t behavior = p->kind == SPLIT ? p->a : p->kind == METASPACE ? MERGED_WITH_NEXT : ISOLATED;

    if (change) {
        DDP_TRY(p->kind == METASPACE ? add_marks(p, *from, *text, changed, err)
                                     : add_spaces(*from, *text, changed, err));
        if (changed->size > UINT32_MAX / 4) return ddp_fail(err, DDP_ERR_DATA, "tokenizer: the text is too long");
        *text = changed->data;
    }
    if (p->kind != SPLIT && !p->b) return DDP_OK;
    to->count = 0;
    for (size_t i = 0; i < (*from)->count; i++)
        DDP_TRY(cut(p->pattern, behavior, p->kind == SPLIT && p->b, s, *text, (*from)->all[i], to, err));
    *from = to;
    return DDP_OK;
}

ddp_status split_run(const steps *p, split_scratch *s, const uint8_t **text, size_t size, bool first, const spans **out,
                     ddp_err *err)
{
    spans *list = &s->lists[0];

    list->count = 0;
    if (size > 0) DDP_TRY(add_span(list, (span){0, (uint32_t)size, first}, err));
    for (uint32_t i = 0; i < p->count && list->count > 0; i++) DDP_TRY(run_step(&p->all[i], s, text, &list, err));
    *out = list;
    return DDP_OK;
}

void split_scratch_free(split_scratch *s)
{
    for (int i = 0; i < 2; i++) {
        free(s->lists[i].all);
        free(s->text[i].data);
    }
    pattern_search_free(&s->search);
}
