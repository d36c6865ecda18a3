/* plugins/dataset/common/tokenizer/bpe.c -- see bpe.h. */
#include "common/tokenizer/bpe.h"
#include "common/tokenizer/bytelevel.h"
#include <stdio.h>
#define XXH_INLINE_ALL
#include <xxhash.h>

enum {
    SHORT = 40, /* symbols of a word that is merged by looking through all pairs */
    CACHE_BITS = 15,
    CACHE_BYTES = 31,
    CACHE_IDS = 6
};
static const uint8_t mark[3] = {0xe2, 0x96, 0x81}; /* "▁" */

/* A word and its tokens; 64 bytes, a line of a processor's cache. */
typedef struct cached {
    uint32_t ids[CACHE_IDS];
    uint32_t check;
    uint8_t count, size; /* size 0: free */
    uint8_t word[CACHE_BYTES + 3];
} cached;

typedef struct symbol {
    uint32_t id;
    int32_t before, after; /* -1: none */
    uint32_t gone;
} symbol;

typedef struct candidate {
    uint32_t rank, at, id;
} candidate;

struct bpe_scratch {
    cached *cache; /* (1 << CACHE_BITS) */
    symbol *symbols;
    candidate *heap;
    size_t symbol_capacity, heap_capacity, heap_size;
    numbers start; /* the ids that merging begins with */
};

/* ---- making ------------------------------------------------------------------------------------------------------ */
static uint32_t merge_slot(const bpe *b, uint64_t pair)
{
    uint64_t h = pair * UINT64_C(0x9e3779b97f4a7c15);

    return (uint32_t)(h >> (64 - b->merge_bits));
}

static inline const bpe_merge *find_merge(const bpe *b, uint32_t left, uint32_t right)
{
    uint64_t pair = (uint64_t)left << 32 | right;
    uint32_t mask = (UINT32_C(1) << b->merge_bits) - 1;

    for (uint32_t at = merge_slot(b, pair);; at = (at + 1) & mask) {
        const bpe_merge *m = &b->merges[at];

        if (m->rank == UINT32_MAX) return NULL;
        if (m->pair == pair) return m;
    }
}

ddp_status bpe_begin_merges(bpe *b, size_t count, ddp_err *err)
{
    b->merge_bits = 4;
    while (((size_t)1 << b->merge_bits) < 2 * count + 2) b->merge_bits++;
    b->merges = malloc(((size_t)1 << b->merge_bits) * sizeof(*b->merges));
    if (b->merges == NULL) return ddp_fail(err, DDP_ERR_NOMEM, "tokenizer: out of memory");
    memset(b->merges, 0xff, ((size_t)1 << b->merge_bits) * sizeof(*b->merges));
    b->cut_at_marks = true;
    return DDP_OK;
}

/* Does the merge join something that is no mark with a mark after it? */
static bool crosses_mark(const uint8_t *left, size_t left_size, const uint8_t *right, size_t right_size)
{
    bool marked = left_size >= sizeof(mark) && memcmp(left + left_size - sizeof(mark), mark, sizeof(mark)) == 0;

    return !marked && right_size >= sizeof(mark) && memcmp(right, mark, sizeof(mark)) == 0;
}

ddp_status bpe_add_merge(bpe *b, uint32_t left, uint32_t right, uint32_t rank, ddp_err *err)
{
    uint64_t pair = (uint64_t)left << 32 | right;
    uint32_t mask = (UINT32_C(1) << b->merge_bits) - 1, at = merge_slot(b, pair);
    size_t left_size, right_size;
    const uint8_t *l = vocabulary_text(&b->words, left, &left_size),
                  *r = vocabulary_text(&b->words, right, &right_size);
    bytes joined = {0};
    int64_t id = -1;

    if (l == NULL || r == NULL) return DDP_ERR_DATA;
    DDP_TRY(bytes_reserve(&joined, left_size + right_size + 1, err));
    if (joined.data == NULL) return DDP_ERR_NOMEM; /* cannot be: there is room */
    memcpy(joined.data, l, left_size);
    memcpy(joined.data + left_size, r, right_size);
    id = vocabulary_find(&b->words, joined.data, left_size + right_size);
    free(joined.data);
    if (id < 0) return DDP_ERR_DATA;
    if (crosses_mark(l, left_size, r, right_size)) b->cut_at_marks = false;
    while (b->merges[at].rank != UINT32_MAX && b->merges[at].pair != pair) at = (at + 1) & mask;
    b->merges[at] = (bpe_merge){pair, rank, (uint32_t)id};
    return DDP_OK;
}

ddp_status bpe_finish(bpe *b, ddp_err *err)
{
    uint8_t raw[1024];
    size_t size, raw_size;

    for (uint32_t id = 0; id < b->words.limit && b->byte_level; id++) {
        const uint8_t *text = vocabulary_text(&b->words, id, &size);

        if (text != NULL && size <= sizeof(raw) && byte_level_decode(text, size, raw, &raw_size))
            DDP_TRY(vocabulary_put(&b->raw, id, raw, raw_size, err));
    }
    for (unsigned i = 0; i < 256; i++) {
        char name[8];
        uint8_t byte = (uint8_t)i;

        (void)snprintf(name, sizeof(name), "<0x%02X>", i);
        b->bytes[i] = b->byte_level ? vocabulary_find(&b->raw, &byte, 1) : vocabulary_find(&b->words, name, 6);
    }
    if (b->byte_level || vocabulary_find(&b->words, mark, sizeof(mark)) < 0) b->cut_at_marks = false;
    return DDP_OK;
}

void bpe_free(bpe *b)
{
    vocabulary_free(&b->words);
    vocabulary_free(&b->raw);
    free(b->merges);
}

ddp_status bpe_scratch_new(bpe_scratch **out, ddp_err *err)
{
    bpe_scratch *s = calloc(1, sizeof(*s));

    if (s == NULL) return ddp_fail(err, DDP_ERR_NOMEM, "tokenizer: out of memory");
    s->cache = calloc((size_t)1 << CACHE_BITS, sizeof(*s->cache));
    if (s->cache == NULL) {
        free(s);
        return ddp_fail(err, DDP_ERR_NOMEM, "tokenizer: out of memory");
    }
    *out = s;
    return DDP_OK;
}

void bpe_scratch_free(bpe_scratch *s)
{
    if (s == NULL) return;
    free(s->cache);
    free(s->symbols);
    free(s->heap);
    free(s->start.data);
    free(s);
}

/* ---- what merging begins with ------------------------------------------------------------------------------------ */
static ddp_status start_bytes(const bpe *b, const uint8_t *word, size_t size, numbers *out, ddp_err *err)
{
    DDP_TRY(numbers_reserve(out, size, err));
    for (size_t i = 0; i < size; i++) {
        int64_t id = b->bytes[word[i]] >= 0 ? b->bytes[word[i]] : b->unknown;

        if (id >= 0 && (b->bytes[word[i]] >= 0 || !b->fuse_unknown || i == 0 || b->bytes[word[i - 1]] >= 0))
            out->data[out->size++] = (uint32_t)id;
    }
    return DDP_OK;
}

static bool fallback(const bpe *b, const uint8_t *c, size_t size, numbers *out)
{
    for (size_t i = 0; i < size; i++)
        if (b->bytes[c[i]] < 0) return false;
    for (size_t i = 0; i < size; i++) out->data[out->size++] = (uint32_t)b->bytes[c[i]];
    return true;
}

/* An unknown token waits until the next known character, so that those after it may join it. */
static ddp_status start_characters(const bpe *b, const uint8_t *word, size_t size, numbers *out, ddp_err *err)
{
    bool waiting = false;
    size_t length;

    DDP_TRY(numbers_reserve(out, size + 1, err));
    for (size_t at = 0; at < size; at += length) {
        int64_t id;

        length = utf8_size(word[at]);
        id = vocabulary_find(&b->words, word + at, length);
        if (id >= 0) {
            if (waiting) out->data[out->size++] = (uint32_t)b->unknown;
            waiting = false;
            out->data[out->size++] = (uint32_t)id;
        } else if (!(b->byte_fallback && fallback(b, word + at, length, out)) && b->unknown >= 0) {
            if (waiting && !b->fuse_unknown) out->data[out->size++] = (uint32_t)b->unknown;
            waiting = true;
        }
    }
    if (waiting) out->data[out->size++] = (uint32_t)b->unknown;
    return DDP_OK;
}

/* ---- merging ----------------------------------------------------------------------------------------------------- */
/* The best pair of all, again and again: for a word of few symbols. */
static size_t merge_short(const bpe *b, uint32_t *ids, size_t count)
{
    candidate pairs[SHORT];

    for (size_t i = 0; i + 1 < count; i++) {
        const bpe_merge *m = find_merge(b, ids[i], ids[i + 1]);

        pairs[i] = m != NULL ? (candidate){m->rank, 0, m->id} : (candidate){UINT32_MAX, 0, 0};
    }
    while (count > 1) {
        size_t best = 0;

        for (size_t i = 1; i + 1 < count; i++)
            if (pairs[i].rank < pairs[best].rank) best = i;
        if (pairs[best].rank == UINT32_MAX) break;
        ids[best] = pairs[best].id;
        memmove(ids + best + 1, ids + best + 2, (count - best - 2) * sizeof(*ids));
        memmove(pairs + best, pairs + best + 1, (count - best - 2) * sizeof(*pairs));
        count--;
        for (size_t i = best > 0 ? best - 1 : 0; i <= best && i + 1 < count; i++) {
            const bpe_merge *m = find_merge(b, ids[i], ids[i + 1]);

            pairs[i] = m != NULL ? (candidate){m->rank, 0, m->id} : (candidate){UINT32_MAX, 0, 0};
        }
    }
    return count;
}

static bool comes_before(candidate a, candidate b) { return a.rank != b.rank ? a.rank < b.rank : a.at < b.at; }

static void push(bpe_scratch *s, candidate c)
{
    size_t i = s->heap_size++;

    for (; i > 0 && comes_before(c, s->heap[(i - 1) / 2]); i = (i - 1) / 2) s->heap[i] = s->heap[(i - 1) / 2];
    s->heap[i] = c;
}

static candidate pop(bpe_scratch *s)
{
    candidate top = s->heap[0], last = s->heap[--s->heap_size];
    size_t i = 0, child;

    while ((child = 2 * i + 1) < s->heap_size) {
        if (child + 1 < s->heap_size && comes_before(s->heap[child + 1], s->heap[child])) child++;
        if (!comes_before(s->heap[child], last)) break;
        s->heap[i] = s->heap[child];
        i = child;
    }
    s->heap[i] = last;
    return top;
}

static void push_pair(const bpe *b, bpe_scratch *s, int32_t left)
{
    int32_t right = left < 0 ? -1 : s->symbols[left].after;
    const bpe_merge *m = right < 0 ? NULL : find_merge(b, s->symbols[left].id, s->symbols[right].id);

    if (m != NULL) push(s, (candidate){m->rank, (uint32_t)left, m->id});
}

static void merge_next(const bpe *b, bpe_scratch *s)
{
    candidate top = pop(s);
    symbol *left = &s->symbols[top.at], *right;
    const bpe_merge *m;

    if (left->gone || left->after < 0) return;
    right = &s->symbols[left->after];
    m = find_merge(b, left->id, right->id);
    if (m == NULL || m->id != top.id) return; /* the pair is another by now */
    left->id = top.id;
    left->after = right->after;
    right->gone = 1;
    if (right->after >= 0) s->symbols[right->after].before = (int32_t)top.at;
    push_pair(b, s, left->before);
    push_pair(b, s, (int32_t)top.at);
}

/* With a heap: a word of any length. Each merge takes one symbol away and adds at most two pairs. */
static ddp_status merge_long(const bpe *b, bpe_scratch *s, uint32_t *ids, size_t *count, ddp_err *err)
{
    size_t n = *count, out = 0;

    if (n > INT32_MAX) return ddp_fail(err, DDP_ERR_DATA, "tokenizer: a word of %zu symbols is too long", n);
    DDP_TRY(buffer_grow((void **)&s->symbols, &s->symbol_capacity, sizeof(*s->symbols), n, err));
    DDP_TRY(buffer_grow((void **)&s->heap, &s->heap_capacity, sizeof(*s->heap), 2 * n, err));
    for (size_t i = 0; i < n; i++) s->symbols[i] = (symbol){ids[i], (int32_t)i - 1, i + 1 < n ? (int32_t)i + 1 : -1, 0};
    s->heap_size = 0;
    for (size_t i = 0; i < n; i++) push_pair(b, s, (int32_t)i);
    while (s->heap_size > 0) merge_next(b, s);
    for (size_t i = 0; i < n; i++)
        if (!s->symbols[i].gone) ids[out++] = s->symbols[i].id;
    *count = out;
    return DDP_OK;
}

/* ---- one word ---------------------------------------------------------------------------------------------------- */
static ddp_status encode_word(const bpe *b, bpe_scratch *s, const uint8_t *word, size_t size, ddp_err *err)
{
    int64_t whole = -1;

    s->start.size = 0;
    if (b->ignore_merges) whole = vocabulary_find(b->byte_level ? &b->raw : &b->words, word, size);
    if (whole >= 0) return numbers_add(&s->start, (uint32_t)whole, err);
    DDP_TRY(b->byte_level ? start_bytes(b, word, size, &s->start, err)
                          : start_characters(b, word, size, &s->start, err));
    if (s->start.size > SHORT) return merge_long(b, s, s->start.data, &s->start.size, err);
    s->start.size = merge_short(b, s->start.data, s->start.size);
    return DDP_OK;
}

static ddp_status encode_cached(const bpe *b, bpe_scratch *s, const uint8_t *word, size_t size, numbers *out,
                                ddp_err *err)
{
    uint64_t hash;
    cached *c;

    DDP_TRY(numbers_reserve(out, CACHE_IDS, err));
    hash = XXH3_64bits(word, size);
    c = &s->cache[hash >> (64 - CACHE_BITS)];
    if (c->check == (uint32_t)hash && c->size == size && memcmp(c->word, word, size) == 0) {
        memcpy(out->data + out->size, c->ids, sizeof(c->ids));
        out->size += c->count;
        return DDP_OK;
    }
    DDP_TRY(encode_word(b, s, word, size, err));
    if (s->start.size <= CACHE_IDS) {
        c->check = (uint32_t)hash;
        c->size = (uint8_t)size;
        c->count = (uint8_t)s->start.size;
        memcpy(c->word, word, size);
        memcpy(c->ids, s->start.data, s->start.size * sizeof(*c->ids));
    }
    DDP_TRY(numbers_reserve(out, s->start.size, err));
    memcpy(out->data + out->size, s->start.data, s->start.size * sizeof(*out->data));
    out->size += s->start.size;
    return DDP_OK;
}

static ddp_status encode_one(const bpe *b, bpe_scratch *s, const uint8_t *word, size_t size, numbers *out, ddp_err *err)
{
    if (size > 0 && size <= CACHE_BYTES) return encode_cached(b, s, word, size, out, err);
    DDP_TRY(encode_word(b, s, word, size, err));
    DDP_TRY(numbers_reserve(out, s->start.size + 1, err));
    memcpy(out->data + out->size, s->start.data, s->start.size * sizeof(*out->data));
    out->size += s->start.size;
    return DDP_OK;
}

/* Where the next word after one that begins at `from` may be cut off: at a mark after something else. */
static size_t cut_after(const uint8_t *word, size_t size, size_t from)
{
    bool marked = true;

    for (size_t at = from; at < size;) {
        bool is_mark = size - at >= sizeof(mark) && memcmp(word + at, mark, sizeof(mark)) == 0;

        if (is_mark && !marked) return at;
        marked = is_mark;
        at += utf8_size(word[at]);
    }
    return size;
}

ddp_status bpe_encode(const bpe *b, bpe_scratch *s, const uint8_t *word, size_t size, numbers *out, ddp_err *err)
{
    if (!b->cut_at_marks || (b->ignore_merges && vocabulary_find(&b->words, word, size) >= 0))
        return encode_one(b, s, word, size, out, err);
    for (size_t at = 0, end; at < size; at = end) {
        end = cut_after(word, size, at);
        DDP_TRY(encode_one(b, s, word + at, end - at, out, err));
    }
    return DDP_OK;
}
