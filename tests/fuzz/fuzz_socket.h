/* tests/fuzz/fuzz_socket.h -- a connection whose far end the input speaks at. */
#pragma once

#include "fuzz.h"
#include "net/wire.h"
#include <sys/socket.h>
#include <unistd.h>

/* `w` is the near end; returns the far one, which never blocks. */
static inline int fuzz_connect(ddp_wire *w, uint32_t limit)
{
    int ends[2];

    FUZZ_CHECK(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, ends) == 0);
    ddp_wire_init(w, ends[0], limit);
    return ends[1];
}

static inline void fuzz_send(int far, const void *data, size_t length)
{
    ssize_t n = length == 0 ? 0 : send(far, data, length, MSG_NOSIGNAL);

    (void)n; /* it may be closed, or full: then nothing more gets through */
}

/* What comes at the far end is thrown away. */
static inline void fuzz_drain(int far)
{
    char bytes[4096];

    while (recv(far, bytes, sizeof(bytes), 0) > 0) continue;
}

/* A frame as a rank writes it, of any type. */
static inline void fuzz_send_frame(int far, uint16_t version, uint16_t type, const void *data, size_t length)
{
    ddp_text t = {0};

    ddp_pack_u32(&t, DDP_WIRE_MAGIC);
    ddp_pack_u32(&t, version | (uint32_t)type << 16);
    ddp_pack_u32(&t, (uint32_t)length);
    ddp_pack_u32(&t, 0);
    if (length > 0) ddp_text_append(&t, data, length);
    FUZZ_CHECK(!t.failed);
    fuzz_send(far, t.data, t.length);
    ddp_text_free(&t);
}
