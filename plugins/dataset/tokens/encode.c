/* plugins/dataset/tokens/encode.c -- see encode.h.
 *
 * A part ends after a line's end between two letters or digits. That the tokens around it are those of the text as a
 * whole is checked at each cut. */
#include "encode.h"
#include <ctype.h>
#include <inttypes.h>

enum { PART = 1 << 20, AROUND = 128, TRIES = 64 };

typedef struct encoding {
    const tokenizer *t;
    tokenizer_scratch *s;
    bytes text;        /* read, not encoded yet */
    numbers ids, left; /* left: of the check */
} encoding;

static bool alone(uint8_t before, uint8_t after)
{
    return before < 0x80 && after < 0x80 && isalnum(before) && isalnum(after);
}

/* Does the cut leave the tokens of what is around it as they are? */
static ddp_status check_cut(encoding *e, size_t at, bool *good, ddp_err *err)
{
    size_t before = at < AROUND ? at : AROUND, after = e->text.size - at < AROUND ? e->text.size - at : AROUND;
    const char *text = (const char *)e->text.data + at;

    e->ids.size = e->left.size = 0;
    DDP_TRY(tokenizer_encode(e->t, e->s, text - before, before + after, 0, &e->ids, err));
    DDP_TRY(tokenizer_encode(e->t, e->s, text - before, before, 0, &e->left, err));
    DDP_TRY(tokenizer_encode(e->t, e->s, text, after, 0, &e->left, err));
    *good = e->ids.size == e->left.size &&
            (e->ids.size == 0 || memcmp(e->ids.data, e->left.data, e->ids.size * sizeof(*e->ids.data)) == 0);
    return DDP_OK;
}

/* The last place where the text may be cut, or 0. */
static ddp_status find_cut(encoding *e, size_t *cut, ddp_err *err)
{
    int tries = 0;

    *cut = 0;
    for (size_t at = e->text.size - 1; at > 1 && tries < TRIES; at--) {
        bool good;

        if (e->text.data[at - 1] != '\n' || !alone(e->text.data[at - 2], e->text.data[at])) continue;
        DDP_TRY(check_cut(e, at, &good, err));
        if (good) return *cut = at, DDP_OK;
        tries++;
    }
    return DDP_OK;
}

static ddp_status encode_part(encoding *e, size_t size, ddp_err *err)
{
    e->ids.size = 0;
    DDP_TRY(tokenizer_encode(e->t, e->s, (const char *)e->text.data, size, 0, &e->ids, err));
    memmove(e->text.data, e->text.data + size, e->text.size - size);
    e->text.size -= size;
    return DDP_OK;
}

/* One more part, or all of the text, into e->ids. */
static ddp_status next_part(encoding *e, const data_file *f, uint64_t *at, ddp_err *err)
{
    size_t cut = 0;

    e->ids.size = 0;
    do {
        uint64_t left = f->size - *at, more = tokenizer_is_local(e->t) && left > PART ? PART : left;

        if (e->text.size + more > TOKENIZER_TEXT_MAX)
            return ddp_fail(
                err, DDP_ERR_DATA,
                "dataset tokens: \"%s\" has more than %d MiB that the tokenizer takes as one text; split the file",
                f->path, TOKENIZER_TEXT_MAX >> 20);
        DDP_TRY(bytes_reserve(&e->text, (size_t)more + 1, err));
        DDP_TRY(data_file_read(f, e->text.data + e->text.size, (size_t)more, *at, err));
        e->text.size += (size_t)more;
        *at += more;
        if (*at == f->size) return encode_part(e, e->text.size, err);
        DDP_TRY(find_cut(e, &cut, err));
    } while (cut == 0);
    return encode_part(e, cut, err);
}

/* In place. */
static void to_little_endian(numbers *ids)
{
    uint8_t *out = (uint8_t *)ids->data;

    for (size_t i = 0; i < ids->size; i++) {
        uint32_t id = ids->data[i];

        for (size_t k = 0; k < 4; k++) out[4 * i + k] = (uint8_t)(id >> 8 * k);
    }
}

ddp_status encode_file(const tokenizer *t, const data_file *text,
                       ddp_status (*write)(void *to, const void *data, size_t size, ddp_err *err), void *to,
                       uint64_t *count, ddp_err *err)
{
    encoding e = {.t = t};
    ddp_status status = tokenizer_scratch_new(&e.s, err);
    uint64_t at = 0;

    *count = 0;
    while (status == DDP_OK && at < text->size) {
        status = next_part(&e, text, &at, err);
        if (status != DDP_OK) break;
        to_little_endian(&e.ids);
        status = write(to, e.ids.data, e.ids.size * sizeof(*e.ids.data), err);
        *count += e.ids.size;
    }
    tokenizer_scratch_free(e.s);
    free(e.text.data);
    free(e.ids.data);
    free(e.left.data);
    return status;
}
