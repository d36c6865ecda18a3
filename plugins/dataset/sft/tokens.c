/* plugins/dataset/sft/tokens.c -- see tokens.h. */
#include "tokens.h"
#include "build.h"
#include "common/entry.h"
#include <unistd.h>

enum { VERSION = 1, COUNTS = sizeof(tokens_counts) / 8, WHY_AT = 512 };
static const char magic[8] = "ddp sft";

typedef struct content {
    build b;
    uint64_t key;
    tokens_file *out;
} content;

static void put(uint8_t *out, uint64_t value)
{
    for (size_t k = 0; k < 8; k++) out[k] = (uint8_t)(value >> 8 * k);
}

static uint64_t get(const uint8_t *in)
{
    uint64_t value = 0;

    for (size_t k = 0; k < 8; k++) value |= (uint64_t)in[k] << 8 * k;
    return value;
}

/* ---- key --------------------------------------------------------------------------------------------------------- */
static void hash_text(XXH3_state_t *hash, const char *text) { (void)XXH3_64bits_update(hash, text, strlen(text) + 1); }

/* Whatever the samples depend on. */
static ddp_status make_key(const build *b, uint64_t *key, ddp_err *err)
{
    const sft_config *c = b->config;
    uint64_t words[] = {VERSION,
                        b->template->hash,
                        tokenizer_hash(b->template->tokenizer),
                        (uint64_t)c->format,
                        (uint64_t)c->packing,
                        (uint64_t)c->train_on_prompt,
                        (uint64_t)c->mask_history,
                        (uint64_t)c->skip_bad,
                        (uint64_t)c->split,
                        c->length,
                        c->pack_rows,
                        c->limit,
                        c->max_row,
                        0};
    XXH3_state_t hash;

    if (c->split != 0) memcpy(&words[sizeof(words) / 8 - 1], &c->validation, 8);
    data_hash_begin(&hash, 0);
    (void)XXH3_64bits_update(&hash, words, sizeof(words));
    hash_text(&hash, c->default_system);
    for (size_t i = 0; i < COLUMNS; i++) hash_text(&hash, b->format->columns[i]);
    for (size_t i = 0; i < TAGS; i++) hash_text(&hash, b->format->tags[i]);
    for (size_t i = 0; i < b->count; i++) {
        data_file f;
        ddp_status status = data_file_open(&f, "sft", b->paths[i], "; set files to .json or .jsonl files", err);

        if (status == DDP_OK) status = data_file_hash(&f, 0, f.size, &hash, err);
        (void)XXH3_64bits_update(&hash, &f.size, sizeof(f.size));
        data_file_close(&f);
        if (status != DDP_OK) return status;
    }
    *key = XXH3_64bits_digest(&hash);
    return DDP_OK;
}

/* ---- entry ------------------------------------------------------------------------------------------------------- */
static bool is_whole(void *ctx, int fd, uint64_t size)
{
    content *c = ctx;
    tokens_counts *n = &c->out->counts;
    uint8_t header[TOKENS_HEADER];

    if (size < TOKENS_HEADER || pread(fd, header, sizeof(header), 0) != TOKENS_HEADER) return false;
    if (memcmp(header, magic, sizeof(magic)) != 0) return false;
    for (size_t i = 0; i < COUNTS; i++) ((uint64_t *)n)[i] = get(header + 8 + 8 * i);
    memcpy(c->out->first_bad, header + WHY_AT, TOKENS_WHY - 1);
    if (n->version != VERSION || n->key != c->key || n->tokens > size / 4 || n->samples > size / 8) return false;
    return size == TOKENS_HEADER + 4 * n->tokens + 8 * (n->samples + 1);
}

static ddp_status make(void *ctx, cache_entry *to, ddp_err *err)
{
    content *c = ctx;
    uint8_t header[TOKENS_HEADER] = {0};
    tokens_counts *n = &c->b.counts;
    uint64_t key;

    DDP_TRY(entry_write(to, header, sizeof(header), err));
    DDP_TRY(build_run(&c->b, to, err));
    DDP_TRY(make_key(&c->b, &key, err));
    if (key != c->key)
        return ddp_fail(err, DDP_ERR_DATA,
                        "dataset sft: \"%s\" or another of the files was changed while it was tokenized; start again",
                        c->b.paths[0]);
    n->version = VERSION;
    n->key = c->key;
    memcpy(header, magic, sizeof(magic));
    for (size_t i = 0; i < COUNTS; i++) put(header + 8 + 8 * i, ((uint64_t *)n)[i]);
    memcpy(header + WHY_AT, c->b.first_bad, TOKENS_WHY);
    return entry_write_at(to, header, sizeof(header), 0, err);
}

static ddp_status open_entry(content *c, cache_entry *e, ddp_err *err)
{
    DDP_TRY(make_key(&c->b, &c->key, err));
    DDP_TRY(entry_set_name(e, c->b.config->cache, c->b.paths[0], c->key, "sft", err));
    return entry_open(e, &c->out->file, err);
}

ddp_status tokens_open(const sft_config *c, const row_format *format, template *t, const char *const *paths,
                       size_t count, tokens_file *out, ddp_err *err)
{
    content *all = calloc(1, sizeof(*all));
    cache_entry *e = calloc(1, sizeof(*e));
    ddp_status status;

    if (e == NULL || all == NULL) {
        status = ddp_fail(err, DDP_ERR_NOMEM, "dataset sft: out of memory");
    } else {
        all->b = (build){.config = c, .format = format, .template = t, .paths = paths, .count = count};
        all->out = out;
        *e = (cache_entry){.plugin = "sft", .ctx = all, .is_whole = is_whole, .make = make};
        status = open_entry(all, e, err);
    }
    free(e);
    free(all);
    return status;
}

ddp_status tokens_find(const tokens_file *f, uint64_t index, uint64_t *begin, uint64_t *count, ddp_err *err)
{
    uint8_t raw[16];
    uint64_t end;

    DDP_TRY(data_file_read(&f->file, raw, sizeof(raw), TOKENS_HEADER + 4 * f->counts.tokens + 8 * index, err));
    *begin = get(raw);
    end = get(raw + 8);
    if (*begin > end || end > f->counts.tokens)
        return ddp_fail(err, DDP_ERR_DATA, "dataset sft: \"%s\" is damaged; remove it, it is made again", f->file.path);
    *count = end - *begin;
    return DDP_OK;
}
