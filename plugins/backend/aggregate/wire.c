/* plugins/backend/aggregate/wire.c -- see wire.h. */
#include "wire.h"

enum { MAGIC_HELLO = 0x41504444, MAGIC_READY = 0x52504444, MAGIC_ORDER = 0x4f504444 }; /* "DDPA", "DDPR", "DDPO" */

/* ---- bytes ------------------------------------------------------------------------------------------------------- */
static unsigned char *put(unsigned char *at, uint64_t value, size_t bytes)
{
    for (size_t i = 0; i < bytes; i++) at[i] = (unsigned char)(value >> (8 * i));
    return at + bytes;
}

static unsigned char *put_bytes(unsigned char *at, const void *data, size_t bytes)
{
    memcpy(at, data, bytes);
    return at + bytes;
}

/* Zeros behind the text. */
static unsigned char *put_text(unsigned char *at, const char *text, size_t capacity)
{
    size_t n = strnlen(text, capacity - 1);

    memset(at, 0, capacity);
    memcpy(at, text, n);
    return at + capacity;
}

static uint64_t take(const unsigned char **at, size_t bytes)
{
    uint64_t value = 0;

    for (size_t i = 0; i < bytes; i++) value |= (uint64_t)(*at)[i] << (8 * i);
    *at += bytes;
    return value;
}

/* Printable, not empty, and ended within `capacity`. */
static bool take_text(const unsigned char **at, char *out, size_t capacity)
{
    memcpy(out, *at, capacity);
    *at += capacity;
    if (memchr(out, '\0', capacity) == NULL || out[0] == '\0') return false;
    for (const char *c = out; *c != '\0'; c++)
        if (*c < ' ' || *c == 0x7f) return false;
    return true;
}

bool aggregate_same_token(const unsigned char *a, const unsigned char *b)
{
    unsigned differ = 0;

    for (size_t i = 0; i < AGGREGATE_TOKEN; i++) differ |= (unsigned)(a[i] ^ b[i]);
    return differ == 0;
}

/* ---- places ------------------------------------------------------------------------------------------------------ */
void aggregate_place_pack(const aggregate_place *p, unsigned char out[AGGREGATE_PLACE_BYTES])
{
    out = put_bytes(out, p->token, AGGREGATE_TOKEN);
    out = put_bytes(out, p->proof, AGGREGATE_TOKEN);
    out = put(out, p->port, 4);
    out = put_text(out, p->address, AGGREGATE_ADDRESS_MAX);
    (void)put_text(out, p->host, AGGREGATE_NAME_MAX);
}

bool aggregate_place_parse(const unsigned char *data, size_t length, aggregate_place *out)
{
    const unsigned char *at = data + (size_t)2 * AGGREGATE_TOKEN;
    bool good;

    if (length != AGGREGATE_PLACE_BYTES) return false;
    memcpy(out->token, data, AGGREGATE_TOKEN);
    memcpy(out->proof, data + AGGREGATE_TOKEN, AGGREGATE_TOKEN);
    out->port = (uint32_t)take(&at, 4);
    good = take_text(&at, out->address, AGGREGATE_ADDRESS_MAX);
    return take_text(&at, out->host, AGGREGATE_NAME_MAX) && good && out->port > 0 && out->port <= 65535;
}

/* ---- hello and ready --------------------------------------------------------------------------------------------- */
void aggregate_hello_pack(const aggregate_hello *h, unsigned char out[AGGREGATE_HELLO_BYTES])
{
    out = put(out, MAGIC_HELLO, 4);
    out = put_bytes(out, h->token, AGGREGATE_TOKEN);
    out = put(out, h->world, 4);
    out = put(out, h->rank, 4);
    (void)put_text(out, h->name, AGGREGATE_NAME_MAX);
}

bool aggregate_hello_parse(const unsigned char data[AGGREGATE_HELLO_BYTES], aggregate_hello *out)
{
    const unsigned char *at = data;

    if (take(&at, 4) != MAGIC_HELLO) return false;
    memcpy(out->token, at, AGGREGATE_TOKEN);
    at += AGGREGATE_TOKEN;
    out->world = (uint32_t)take(&at, 4);
    out->rank = (uint32_t)take(&at, 4);
    return take_text(&at, out->name, AGGREGATE_NAME_MAX) && out->world >= 2 && out->world <= AGGREGATE_WORLD_MAX &&
           out->rank < out->world;
}

void aggregate_ready_pack(const unsigned char proof[AGGREGATE_TOKEN], unsigned char out[AGGREGATE_READY_BYTES])
{
    (void)put_bytes(put(out, MAGIC_READY, 4), proof, AGGREGATE_TOKEN);
}

bool aggregate_ready_check(const unsigned char data[AGGREGATE_READY_BYTES], const unsigned char proof[AGGREGATE_TOKEN])
{
    const unsigned char *at = data;

    return take(&at, 4) == MAGIC_READY && aggregate_same_token(at, proof);
}

/* ---- orders ------------------------------------------------------------------------------------------------------ */
void aggregate_order_pack(const aggregate_order *o, unsigned char out[AGGREGATE_ORDER_BYTES])
{
    out = put(out, MAGIC_ORDER, 4);
    out = put(out, o->kind, 4);
    out = put(out, o->dtype, 4);
    out = put(out, o->op, 4);
    out = put(out, o->count, 8);
    (void)put(out, o->piece, 8);
}

bool aggregate_order_parse(const unsigned char data[AGGREGATE_ORDER_BYTES], size_t chunk, aggregate_order *out)
{
    const unsigned char *at = data;
    size_t size;

    if (take(&at, 4) != MAGIC_ORDER) return false;
    out->kind = (uint32_t)take(&at, 4);
    out->dtype = (uint32_t)take(&at, 4);
    out->op = (uint32_t)take(&at, 4);
    out->count = take(&at, 8);
    out->piece = take(&at, 8);
    if (out->kind == AGGREGATE_BYE) return true;
    size = out->dtype < DDP_DTYPE_END_ ? ddp_dtype_size(out->dtype) : 0;
    return out->kind == AGGREGATE_SUM && size > 0 && out->op >= DDP_SUM && out->op < DDP_REDUCE_OP_END_ &&
           out->count > 0 && out->count <= (uint64_t)PTRDIFF_MAX / size && out->piece > 0 && out->piece <= chunk / size;
}
