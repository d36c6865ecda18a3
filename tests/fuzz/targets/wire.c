/* fuzz/targets/wire.c -- the bytes of a connection of the control plane before anything is known of its other end,
 * and frames and payloads. Input: a mode, a byte, then what the mode says.
 *
 * 0, 1  in clear: pieces of a length (a byte) and the bytes; 1: of a connection that was to be TLS
 * 2     to the end that listens with a secret; 3: to the end that connects with one: the same
 * 4     both ends by TLS, with the same secret; 5: with two; 6: only the one that connects has one; 7: only the other.
 *       Changes of what passes between them: at which byte (16 bits), and what it is XORed with, one byte; XOR 0 ends
 *       them. Then frames of a type (a byte), a length (a byte) and the bytes, from the end that connects.
 * 8     a payload: which reads, a byte each, of the bytes behind a 0 */
#include "fuzz_socket.h"
#include "net/tls.h"

enum { PASSES = 12, LIMIT = DDP_WIRE_HELLO_LIMIT, CHANGES = 16 };

static ddp_tls *tls_of(const char *secret, bool listens)
{
    ddp_identity self;
    ddp_tls *tls;
    ddp_err err;

    FUZZ_CHECK(ddp_identity_make(listens ? 0 : 1, 2, "a = 1\n", secret, strlen(secret), &self, &err) == DDP_OK);
    FUZZ_CHECK(ddp_tls_open(secret, strlen(secret), &self, listens, &tls, &err) == DDP_OK);
    return tls;
}

/* All that is there, until it waits or ends. False: it has ended. */
static bool read_frames(ddp_wire *w)
{
    ddp_err err = {0};
    ddp_frame f;
    ddp_status status;

    while ((status = ddp_wire_receive(w, &err)) == DDP_OK) {
        while ((status = ddp_wire_next(w, &f, &err)) == DDP_OK) {
            unsigned sum = f.type;

            for (uint32_t i = 0; i < f.length; i++) sum += f.data[i];
            FUZZ_CHECK(f.length <= w->limit && sum < UINT32_MAX);
        }
        FUZZ_CHECK(w->in_length <= w->in_capacity && w->in_taken <= w->in_length);
        if (status != DDP_IN_PROGRESS) break;
    }
    FUZZ_CHECK(!w->named || (w->presented.rank >= 0 && strlen(w->presented.lines) == sizeof(w->presented.lines) - 1));
    if (status != DDP_IN_PROGRESS) FUZZ_CHECK(err.msg[0] != '\0');
    return status == DDP_IN_PROGRESS;
}

static void pieces(fuzz_input *in, uint8_t mode)
{
    ddp_tls *tls = mode < 2 ? NULL : tls_of("a secret of a run", mode == 2);
    ddp_wire w;
    ddp_err err = {0};
    bool goes_on = true;
    int far = fuzz_connect(&w, LIMIT);

    w.fallen = mode == 1;
    if (tls != NULL) FUZZ_CHECK(ddp_wire_secure(&w, tls, &err) == DDP_OK);
    FUZZ_CHECK(ddp_wire_put(&w, DDP_FRAME_HELLO, "hello", 5, &err) == DDP_OK);
    while (goes_on && in->left > 0) {
        size_t length = fuzz_u8(in);
        const uint8_t *piece = fuzz_some(in, &length);

        (void)ddp_wire_flush(&w, &err);
        fuzz_drain(far);
        if (length == 0)
            (void)shutdown(far, SHUT_WR);
        else
            fuzz_send(far, piece, length);
        goes_on = read_frames(&w);
        (void)(ddp_wire_proven(&w) + ddp_wire_trusted(&w) + ddp_wire_wants_out(&w));
    }
    (void)close(far);
    (void)read_frames(&w);
    ddp_wire_close(&w);
    ddp_tls_close(tls);
}

/* ---- both ends --------------------------------------------------------------------------------------------------- */
typedef struct change {
    size_t at;
    uint8_t with;
} change;

/* Bytes from one far end to the other; *passed counts those of all calls. */
static void pass(int from, int to, const change *changes, size_t count, size_t *passed)
{
    uint8_t bytes[8192];
    ssize_t n = recv(from, bytes, sizeof(bytes), 0);

    if (n <= 0) return;
    for (size_t i = 0; i < count; i++)
        if (changes[i].at >= *passed && changes[i].at < *passed + (size_t)n)
            bytes[changes[i].at - *passed] ^= changes[i].with;
    *passed += (size_t)n;
    fuzz_send(to, bytes, (size_t)n);
}

static void put_frames(fuzz_input *in, ddp_wire *w)
{
    ddp_err err;

    while (in->left > 0) {
        uint8_t type = fuzz_u8(in);
        size_t length = fuzz_u8(in);
        const uint8_t *bytes = fuzz_some(in, &length);

        FUZZ_CHECK(ddp_wire_put(w, type, bytes, length, &err) == DDP_OK);
    }
}

static void both_ends(fuzz_input *in, uint8_t mode)
{
    ddp_tls *listens = mode == 6 ? NULL : tls_of("a secret of a run", true);
    ddp_tls *connects = mode == 7 ? NULL : tls_of(mode == 5 ? "another secret" : "a secret of a run", false);
    ddp_wire a, b;
    int far_a = fuzz_connect(&a, LIMIT), far_b = fuzz_connect(&b, LIMIT);
    change changes[CHANGES];
    size_t count = 0, passed = 0;
    bool goes_on = true;
    ddp_err err = {0};

    while (count < CHANGES) {
        changes[count].at = fuzz_u16(in);
        changes[count].with = fuzz_u8(in);
        if (changes[count].with == 0) break;
        count++;
    }
    if (listens != NULL) FUZZ_CHECK(ddp_wire_secure(&a, listens, &err) == DDP_OK);
    if (connects != NULL) FUZZ_CHECK(ddp_wire_secure(&b, connects, &err) == DDP_OK);
    put_frames(in, &b);
    for (int i = 0; i < PASSES && goes_on; i++) {
        (void)ddp_wire_flush(&b, &err);
        pass(far_b, far_a, changes, count, &passed);
        goes_on = read_frames(&a);
        if (mode == 5 || mode == 7) FUZZ_CHECK(!ddp_wire_trusted(&a)); /* who has not the key is not believed */
        if (!goes_on) { /* as rank 0 does: a last message in clear, with the reason */
            ddp_wire_give_up_tls(&a);
            FUZZ_CHECK(ddp_wire_put(&a, DDP_FRAME_FAILURE, "why", 3, &err) == DDP_OK);
        }
        (void)ddp_wire_flush(&a, &err);
        pass(far_a, far_b, changes, count, &passed);
        goes_on = read_frames(&b) && goes_on;
        if (mode == 4 && count == 0 && i > 3) FUZZ_CHECK(ddp_wire_trusted(&a) && ddp_wire_proven(&b));
    }
    ddp_wire_close(&a);
    ddp_wire_close(&b);
    (void)close(far_a);
    (void)close(far_b);
    ddp_tls_close(listens);
    ddp_tls_close(connects);
}

/* ---- payloads ---------------------------------------------------------------------------------------------------- */
static void payload(fuzz_input *in)
{
    char *reads = fuzz_text(in, 0), text[16];
    ddp_unpack u = {.data = in->at, .left = in->left};
    size_t length;

    for (const char *r = reads; *r != '\0'; r++) {
        const unsigned char *bytes;
        size_t left = u.left;

        switch (*r % 4) {
        case 0: (void)ddp_unpack_u32(&u); break;
        case 1: (void)ddp_unpack_u64(&u); break;
        case 2:
            bytes = ddp_unpack_bytes(&u, 64, &length);
            FUZZ_CHECK(length <= 64 && (bytes != NULL || length == 0));
            break;
        default:
            ddp_unpack_text(&u, text, sizeof(text));
            FUZZ_CHECK(memchr(text, '\0', sizeof(text)) != NULL);
            break;
        }
        FUZZ_CHECK(u.left <= left);
    }
    free(reads);
}

FUZZ_TARGET(wire)
{
    fuzz_input in = {data, size};
    uint8_t mode = fuzz_u8(&in);

    if (mode < 4)
        pieces(&in, mode);
    else if (mode < 8)
        both_ends(&in, mode);
    else
        payload(&in);
    return 0;
}
