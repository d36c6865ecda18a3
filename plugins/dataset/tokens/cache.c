/* plugins/dataset/tokens/cache.c -- see cache.h. */
#include "cache.h"
#include "common/entry.h"
#include "encode.h"
#include <unistd.h>

enum { VERSION = 2 };
static const char magic[8] = {'d', 'd', 'p', 't', 'o', 'k', 'e', 'n'};

typedef struct content {
    const tokenizer *t;
    const data_file *text;
    uint64_t hash; /* of the text */
    uint64_t count;
} content;

static void make_header(const content *c, uint8_t out[CACHE_HEADER])
{
    const uint64_t words[5] = {VERSION, c->hash, tokenizer_hash(c->t), c->text->size, c->count};

    memset(out, 0, CACHE_HEADER);
    memcpy(out, magic, sizeof(magic));
    for (size_t i = 0; i < 5; i++)
        for (size_t k = 0; k < 8; k++) out[8 + 8 * i + k] = (uint8_t)(words[i] >> 8 * k);
}

static bool is_whole(void *ctx, int fd, uint64_t size)
{
    content *c = ctx;
    uint8_t header[CACHE_HEADER], wanted[CACHE_HEADER];

    if (size < CACHE_HEADER || pread(fd, header, CACHE_HEADER, 0) != CACHE_HEADER) return false;
    c->count = (size - CACHE_HEADER) / 4;
    make_header(c, wanted);
    return size % 4 == 0 && memcmp(header, wanted, CACHE_HEADER) == 0;
}

static ddp_status write_ids(void *to, const void *data, size_t size, ddp_err *err)
{
    return entry_write(to, data, size, err);
}

static ddp_status hash_text(content *c, uint64_t *out, ddp_err *err)
{
    XXH3_state_t hash;

    data_hash_begin(&hash, 0);
    DDP_TRY(data_file_hash(c->text, 0, c->text->size, &hash, err));
    *out = XXH3_64bits_digest(&hash);
    return DDP_OK;
}

static ddp_status make(void *ctx, cache_entry *to, ddp_err *err)
{
    content *c = ctx;
    uint8_t header[CACHE_HEADER] = {0};
    uint64_t hash;

    DDP_TRY(entry_write(to, header, sizeof(header), err));
    DDP_TRY(encode_file(c->t, c->text, write_ids, to, &c->count, err));
    DDP_TRY(hash_text(c, &hash, err));
    if (hash != c->hash)
        return ddp_fail(err, DDP_ERR_DATA, "dataset tokens: \"%s\" was changed while it was tokenized; start again",
                        c->text->path);
    make_header(c, header);
    return entry_write_at(to, header, sizeof(header), 0, err);
}

static ddp_status open_entry(cache_entry *e, content *c, const char *folder, data_file *out, ddp_err *err)
{
    uint64_t key[2];

    DDP_TRY(hash_text(c, &c->hash, err));
    key[0] = c->hash;
    key[1] = tokenizer_hash(c->t);
    DDP_TRY(entry_set_name(e, folder, c->text->path, XXH3_64bits(key, sizeof(key)), "tokens", err));
    return entry_open(e, out, err);
}

ddp_status cache_open(const tokenizer *t, const char *folder, const char *path, data_file *out, uint64_t *count,
                      ddp_err *err)
{
    data_file text;
    content c = {.t = t, .text = &text};
    cache_entry *e = calloc(1, sizeof(*e));
    ddp_status status;

    if (e == NULL) return ddp_fail(err, DDP_ERR_NOMEM, "dataset tokens: out of memory");
    *e = (cache_entry){.plugin = "tokens", .ctx = &c, .is_whole = is_whole, .make = make};
    status = data_file_open(&text, "tokens", path, "; set files to the text", err);
    if (status == DDP_OK) {
        status = open_entry(e, &c, folder, out, err);
        if (status == DDP_OK) *count = c.count;
        data_file_close(&text);
    }
    free(e);
    return status;
}

/* ---- without a name ---------------------------------------------------------------------------------------------- */
static ddp_status write_temp(void *to, const void *data, size_t size, ddp_err *err)
{
    return temp_write(to, data, size, "a text for a prediction may have", err);
}

ddp_status cache_open_once(const tokenizer *t, const char *path, data_file *out, uint64_t *count, ddp_err *err)
{
    const uint8_t header[CACHE_HEADER] = {0};
    data_file text;
    temp_file temp;
    ddp_status status;

    DDP_TRY(data_file_open(&text, "tokens", path, "", err));
    status = temp_open(&temp, "tokens", path, UINT64_C(1) << 32, err);
    if (status == DDP_OK) {
        status = write_temp(&temp, header, sizeof(header), err);
        if (status == DDP_OK) status = encode_file(t, &text, write_temp, &temp, count, err);
        if (status == DDP_OK)
            *out = temp.file;
        else
            temp_close(&temp);
    }
    data_file_close(&text);
    return status;
}
