/* net/wire.c -- frames of the control plane over one non-blocking socket: buffers, bounds, and packing of payloads.
 * bytes_in and bytes_out are the only places where bytes cross the socket. */
#include "net/wire.h"
#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#define READ_ROOM     (16u << 10)  /* free bytes wanted before a read */
#define KEEP_CAPACITY (256u << 10) /* a larger buffer is given back once it is empty */

static ddp_status broken(ddp_err *err)
{
    int e = errno;

    (void)ddp_fail(err, DDP_ERR_PEER, "%s", strerror(e));
    err->sys_errno = e;
    return DDP_ERR_PEER;
}

/* Of bytes that the TLS below has given back: the other end speaks in clear. */
static void fall(ddp_wire *w)
{
    ddp_wire_give_up_tls(w);
    w->fallen = true;
    w->out_length = w->out_sent = 0; /* it was not meant for that */
}

/* DDP_OK: *count bytes; DDP_IN_PROGRESS: none now. */
static ddp_status bytes_in(ddp_wire *w, void *data, size_t length, size_t *count, ddp_err *err)
{
    ddp_status status;
    ssize_t n;

    if (w->link != NULL) {
        status = net_link_read(w->link, data, length, count, err);
        if (status == DDP_ERR_DATA && net_link_presented(w->link) != NULL) {
            w->presented = *net_link_presented(w->link);
            w->named = true;
        }
        if (status != DDP_ERR_UNSUPPORTED) return status;
        fall(w);
        return DDP_OK;
    }
    do n = recv(w->fd, data, length, 0);
    while (n < 0 && errno == EINTR);
    *count = n < 0 ? 0 : (size_t)n;
    if (n > 0) return DDP_OK;
    if (n < 0) return errno == EAGAIN || errno == EWOULDBLOCK ? DDP_IN_PROGRESS : broken(err);
    (void)ddp_fail(err, DDP_ERR_PEER, "the other end closed it");
    err->sys_errno = 0;
    return DDP_ERR_PEER;
}

static ddp_status bytes_out(ddp_wire *w, const void *data, size_t length, size_t *count, ddp_err *err)
{
    ssize_t n;

    if (w->link != NULL) return net_link_write(w->link, data, length, count, err);
    do n = send(w->fd, data, length, MSG_NOSIGNAL);
    while (n < 0 && errno == EINTR);
    *count = n < 0 ? 0 : (size_t)n;
    if (n < 0) return errno == EAGAIN || errno == EWOULDBLOCK ? DDP_IN_PROGRESS : broken(err);
    return DDP_OK;
}

void ddp_wire_init(ddp_wire *w, int fd, uint32_t limit)
{
    int one = 1;

    memset(w, 0, sizeof(*w));
    w->fd = fd;
    w->limit = limit;
    (void)fcntl(fd, F_SETFL, fcntl(fd, F_GETFL) | O_NONBLOCK);
    (void)setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof(one));
}

ddp_status ddp_wire_secure(ddp_wire *w, ddp_tls *tls, ddp_err *err) { return net_link_open(tls, w->fd, &w->link, err); }

void ddp_wire_give_up_tls(ddp_wire *w)
{
    net_link_close(w->link);
    w->link = NULL;
}

void ddp_wire_close(ddp_wire *w)
{
    net_link_close(w->link);
    if (w->fd >= 0) (void)close(w->fd);
    free(w->in);
    free(w->out);
    memset(w, 0, sizeof(*w));
    w->fd = -1;
}

static ddp_status grow(unsigned char **data, size_t *capacity, size_t wanted, ddp_err *err)
{
    size_t size = *capacity == 0 ? (size_t)2 * READ_ROOM : *capacity;
    unsigned char *p;

    while (size < wanted) size *= 2;
    if (size == *capacity) return DDP_OK;
    p = realloc(*data, size);
    if (p == NULL) return ddp_fail(err, DDP_ERR_NOMEM, "no memory for %zu bytes of a control connection", size);
    *data = p;
    *capacity = size;
    return DDP_OK;
}

static void shrink(unsigned char **data, size_t *capacity)
{
    if (*capacity <= KEEP_CAPACITY) return;
    free(*data);
    *data = NULL;
    *capacity = 0;
}

ddp_status ddp_wire_receive(ddp_wire *w, ddp_err *err)
{
    size_t n = 0;

    if (w->in_taken > 0) {
        w->in_length -= w->in_taken;
        if (w->in_length > 0) memmove(w->in, w->in + w->in_taken, w->in_length);
        w->in_taken = 0;
        if (w->in_length == 0) shrink(&w->in, &w->in_capacity);
    }
    /* memory follows the bytes that have come, not the length that a header claims */
    DDP_TRY(grow(&w->in, &w->in_capacity, w->in_length + READ_ROOM, err));
    /* a record of TLS has at most READ_ROOM bytes: all of it fits, and none stays behind where epoll does not see it */
    DDP_TRY(bytes_in(w, w->in + w->in_length, w->in_capacity - w->in_length, &n, err));
    w->in_length += n;
    return DDP_OK;
}

static uint32_t load_u32(const unsigned char *p)
{
    return (uint32_t)p[0] | (uint32_t)p[1] << 8 | (uint32_t)p[2] << 16 | (uint32_t)p[3] << 24;
}

static void store_u32(unsigned char *p, uint32_t v)
{
    for (int i = 0; i < 4; i++) p[i] = (unsigned char)(v >> (8 * i));
}

/* The end that connects by TLS to one that does without presents its identity in its first record. */
static ddp_status tls_hello(ddp_wire *w, const unsigned char *p, size_t have, ddp_err *err)
{
    size_t record = have < 5 ? 0 : 5 + ((size_t)p[3] << 8 | p[4]);

    if (record <= w->limit && have < DDP_MAX_OF(record, 5)) return DDP_IN_PROGRESS;
    w->named = record <= w->limit && net_identity_search(p, record, &w->presented);
    return ddp_fail(err, DDP_ERR_DATA, "it speaks TLS, and this run has no secret");
}

ddp_status ddp_wire_next(ddp_wire *w, ddp_frame *out, ddp_err *err)
{
    const unsigned char *p = w->in + w->in_taken;
    size_t have = w->in_length - w->in_taken;
    uint32_t version, type, length;

    if (have < 4) return DDP_IN_PROGRESS;
    if (p[0] == 22 && p[1] == 3 && w->link == NULL && !w->fallen) return tls_hello(w, p, have, err);
    if (load_u32(p) != DDP_WIRE_MAGIC) return ddp_fail(err, DDP_ERR_DATA, "these bytes are not ddpengine's protocol");
    if (have < DDP_WIRE_HEADER) return DDP_IN_PROGRESS;
    version = load_u32(p + 4) & 0xffffu;
    type = load_u32(p + 4) >> 16;
    length = load_u32(p + 8);
    if (version != DDP_WIRE_VERSION && type != DDP_FRAME_FAILURE) {
        out->type = type;
        (void)ddp_fail(err, DDP_ERR_UNSUPPORTED, "it speaks protocol %u, this ddpengine %s speaks %u", version,
                       DDP_VERSION, DDP_WIRE_VERSION);
        err->lib_code = (int32_t)version;
        return DDP_ERR_UNSUPPORTED;
    }
    if (length > w->limit)
        return ddp_fail(err, DDP_ERR_DATA, "a frame of %u bytes, at most %u are allowed here", length, w->limit);
    if (have - DDP_WIRE_HEADER < length) return DDP_IN_PROGRESS;
    *out = (ddp_frame){.type = type, .length = length, .data = p + DDP_WIRE_HEADER};
    w->in_taken += DDP_WIRE_HEADER + length;
    return DDP_OK;
}

ddp_status ddp_wire_put(ddp_wire *w, uint32_t type, const void *data, size_t length, ddp_err *err)
{
    unsigned char *p;

    if (length > UINT32_MAX) return ddp_fail(err, DDP_ERR_INVALID, "a frame of %zu bytes is too long", length);
    if (w->out_sent == w->out_length) w->out_sent = w->out_length = 0;
    DDP_TRY(grow(&w->out, &w->out_capacity, w->out_length + DDP_WIRE_HEADER + length, err));
    p = w->out + w->out_length;
    store_u32(p, DDP_WIRE_MAGIC);
    store_u32(p + 4, DDP_WIRE_VERSION | type << 16);
    store_u32(p + 8, (uint32_t)length);
    store_u32(p + 12, 0);
    if (length > 0) memcpy(p + DDP_WIRE_HEADER, data, length);
    w->out_length += DDP_WIRE_HEADER + length;
    return DDP_OK;
}

ddp_status ddp_wire_flush(ddp_wire *w, ddp_err *err)
{
    while (w->out_sent < w->out_length) {
        size_t n = 0;

        DDP_TRY(bytes_out(w, w->out + w->out_sent, w->out_length - w->out_sent, &n, err));
        w->out_sent += n;
    }
    w->out_sent = w->out_length = 0;
    shrink(&w->out, &w->out_capacity);
    return DDP_OK;
}

/* ---- payloads ---------------------------------------------------------------------------------------------------- */
void ddp_pack_u32(ddp_text *t, uint32_t value)
{
    unsigned char b[4];

    store_u32(b, value);
    ddp_text_append(t, b, sizeof(b));
}

void ddp_pack_u64(ddp_text *t, uint64_t value)
{
    ddp_pack_u32(t, (uint32_t)value);
    ddp_pack_u32(t, (uint32_t)(value >> 32));
}

void ddp_pack_bytes(ddp_text *t, const void *data, size_t length)
{
    ddp_pack_u32(t, (uint32_t)length);
    if (length > 0) ddp_text_append(t, data, length);
}

static const unsigned char *take(ddp_unpack *u, size_t length)
{
    const unsigned char *p = u->data;

    if (u->bad || u->left < length) {
        u->bad = true;
        return NULL;
    }
    u->data += length;
    u->left -= length;
    return p;
}

uint32_t ddp_unpack_u32(ddp_unpack *u)
{
    const unsigned char *p = take(u, 4);

    return p == NULL ? 0 : load_u32(p);
}

uint64_t ddp_unpack_u64(ddp_unpack *u)
{
    uint64_t low = ddp_unpack_u32(u);

    return low | (uint64_t)ddp_unpack_u32(u) << 32;
}

const unsigned char *ddp_unpack_bytes(ddp_unpack *u, size_t limit, size_t *length)
{
    size_t n = ddp_unpack_u32(u);
    const unsigned char *p;

    if (n > limit) u->bad = true;
    p = take(u, n);
    *length = p == NULL ? 0 : n;
    return p;
}

void ddp_copy_printable(char *dst, size_t capacity, const void *src, size_t length)
{
    const unsigned char *p = src;
    size_t n = DDP_MIN_OF(length, capacity - 1);

    for (size_t i = 0; i < n; i++) dst[i] = p[i] < 0x20 || p[i] == 0x7f ? '?' : (char)p[i];
    dst[n] = '\0';
}

void ddp_unpack_text(ddp_unpack *u, char *dst, size_t capacity)
{
    size_t length;
    const unsigned char *p = ddp_unpack_bytes(u, SIZE_MAX, &length);

    ddp_copy_printable(dst, capacity, p == NULL ? (const unsigned char *)"" : p, length);
}
