/* base/protobuf.h -- the fields of a message of protocol buffers, one after the other (protobuf.dev, Encoding). For
 * readers of a message that has few fields: nothing is copied, no schema is needed. Bytes may be anything. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { PROTOBUF_VARINT, PROTOBUF_FIXED64, PROTOBUF_BYTES, PROTOBUF_FIXED32 = 5 };

typedef struct protobuf {
    const uint8_t *at, *end;
    bool bad; /* set where it is damaged, or has a group */
} protobuf;

typedef struct protobuf_field {
    uint64_t number, value; /* the value where it is a number */
    unsigned kind;          /* PROTOBUF_.. */
    protobuf inner;         /* PROTOBUF_BYTES: a text or a message */
} protobuf_field;

static inline uint64_t protobuf_varint(protobuf *p)
{
    uint64_t value = 0;

    for (unsigned shift = 0; shift < 64; shift += 7) {
        if (p->at == p->end) break;
        value |= (uint64_t)(*p->at & 127) << shift;
        if (*p->at++ < 128) return value;
    }
    p->bad = true;
    return 0;
}

static inline uint64_t protobuf_fixed(protobuf *p, size_t size)
{
    uint64_t value = 0;

    if ((size_t)(p->end - p->at) < size) {
        p->bad = true;
        return 0;
    }
    for (size_t i = 0; i < size; i++) value |= (uint64_t)p->at[i] << 8 * i;
    p->at += size;
    return value;
}

static inline protobuf protobuf_bytes(protobuf *p)
{
    uint64_t size = protobuf_varint(p);
    protobuf inner = {p->at, p->at, false};

    if (size > (uint64_t)(p->end - p->at)) {
        p->bad = true;
        return inner;
    }
    p->at += size;
    inner.end = p->at;
    return inner;
}

/* false: no more, or it is damaged. */
static inline bool protobuf_next(protobuf *p, protobuf_field *out)
{
    uint32_t tag;

    if (p->bad || p->at == p->end) return false;
    tag = (uint32_t)protobuf_varint(p); /* as protobuf's own readers */
    *out = (protobuf_field){.number = tag >> 3, .kind = (unsigned)(tag & 7)};
    switch (out->kind) {
    case PROTOBUF_VARINT: out->value = protobuf_varint(p); break;
    case PROTOBUF_FIXED64: out->value = protobuf_fixed(p, 8); break;
    case PROTOBUF_BYTES: out->inner = protobuf_bytes(p); break;
    case PROTOBUF_FIXED32: out->value = protobuf_fixed(p, 4); break;
    default: p->bad = true;
    }
    return !p->bad;
}
