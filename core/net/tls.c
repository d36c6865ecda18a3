/* net/tls.c -- TLS 1.3 with a pre-shared key, over OpenSSL. The bytes of a socket pass through a BIO of ours: it
 * never raises SIGPIPE, keeps errno, and lets the first bytes be looked at before OpenSSL allocates anything for a
 * stranger. */
#include "net/tls.h"
#include "base/sys.h"
#include <errno.h>
#include <openssl/err.h>
#include <openssl/ssl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>

/* Of a rank's ClientHello, which has a few hundred bytes; OpenSSL would take, and hold, 128 KiB. */
#define CLIENT_HELLO_LIMIT 2048u
#define RECORD_HEAD        9u /* header of a record (5 bytes) and of the handshake message in it (4) */
#define FRAME_HEAD         4u /* the magic of a frame in clear */

static const unsigned char cipher_suite[] = {0x13, 0x01}; /* TLS_AES_128_GCM_SHA256: another one ignores the key */

struct ddp_tls {
    SSL_CTX *ctx;
    BIO_METHOD *method;
    unsigned char key[32];
    ddp_identity self;
    char text[DDP_IDENTITY_MAX]; /* of self */
    size_t text_length;
    bool listens;
};

struct ddp_link {
    ddp_tls *tls;
    int fd;
    SSL *ssl; /* NULL until the first bytes look right */
    bool looked, open, wants_out;
    bool refused;     /* the handshake has failed; a message in clear may follow */
    bool ended;       /* the other end has closed */
    int sys_errno;    /* of the last call on the socket, 0: none */
    bool named;       /* `presented` is set, and is not accepted */
    char reason[128]; /* of `refused` */
    ddp_identity presented;
    unsigned char head[RECORD_HEAD];
    size_t head_length, head_taken;
};

/* ---- the socket -------------------------------------------------------------------------------------------------- */
static int socket_write(BIO *b, const char *data, int length)
{
    ddp_link *l = BIO_get_data(b);
    ssize_t n;

    do n = send(l->fd, data, (size_t)length, MSG_NOSIGNAL);
    while (n < 0 && errno == EINTR);
    BIO_clear_retry_flags(b);
    if (n < 0 && (errno == EAGAIN || errno == EWOULDBLOCK))
        BIO_set_retry_write(b);
    else if (n < 0)
        l->sys_errno = errno;
    return (int)n;
}

static int socket_read(BIO *b, char *data, int length)
{
    ddp_link *l = BIO_get_data(b);
    size_t left = l->head_length - l->head_taken;
    ssize_t n;

    BIO_clear_retry_flags(b);
    if (left > 0) {
        n = (ssize_t)DDP_MIN_OF(left, (size_t)length);
        memcpy(data, l->head + l->head_taken, (size_t)n);
        l->head_taken += (size_t)n;
        return (int)n;
    }
    if (!l->looked) { /* OpenSSL must not take for TLS what may be in clear */
        BIO_set_retry_read(b);
        return -1;
    }
    do n = recv(l->fd, data, (size_t)length, 0);
    while (n < 0 && errno == EINTR);
    if (n < 0 && (errno == EAGAIN || errno == EWOULDBLOCK))
        BIO_set_retry_read(b);
    else if (n < 0)
        l->sys_errno = errno;
    l->ended = l->ended || n == 0;
    return (int)n;
}

static long socket_ctrl(BIO *b, int cmd, long num, void *ptr)
{
    (void)b, (void)num, (void)ptr;
    return cmd == BIO_CTRL_FLUSH ? 1 : 0;
}

static ddp_status make_method(ddp_tls *t, ddp_err *err)
{
    t->method = BIO_meth_new(BIO_TYPE_SOURCE_SINK, "ddpengine socket");
    if (t->method != NULL && BIO_meth_set_write(t->method, socket_write) == 1 &&
        BIO_meth_set_read(t->method, socket_read) == 1 && BIO_meth_set_ctrl(t->method, socket_ctrl) == 1)
        return DDP_OK;
    return ddp_fail(err, DDP_ERR_NOMEM, "no memory for TLS");
}

/* ---- the key ----------------------------------------------------------------------------------------------------- */
static SSL_SESSION *make_session(SSL *ssl, const ddp_tls *t)
{
    SSL_SESSION *s = SSL_SESSION_new();
    const SSL_CIPHER *cipher = SSL_CIPHER_find(ssl, cipher_suite);

    if (s != NULL && cipher != NULL && SSL_SESSION_set1_master_key(s, t->key, sizeof(t->key)) == 1 &&
        SSL_SESSION_set_cipher(s, cipher) == 1 && SSL_SESSION_set_protocol_version(s, TLS1_3_VERSION) == 1)
        return s;
    SSL_SESSION_free(s);
    return NULL;
}

/* The end that connects. */
static int use_session(SSL *ssl, const EVP_MD *md, const unsigned char **id, size_t *id_length, SSL_SESSION **out)
{
    const ddp_link *l = SSL_get_app_data(ssl);

    (void)md;
    *out = make_session(ssl, l->tls);
    *id = (const unsigned char *)l->tls->text;
    *id_length = l->tls->text_length;
    return *out != NULL;
}

/* The end that listens. No session: OpenSSL goes on without the key, and finds no other proof to offer. */
static int find_session(SSL *ssl, const unsigned char *id, size_t id_length, SSL_SESSION **out)
{
    ddp_link *l = SSL_get_app_data(ssl);
    ddp_identity who;

    *out = NULL;
    if (!ddp_identity_parse(id, id_length, &who)) return 1;
    if (strcmp(who.fingerprint, l->tls->self.fingerprint) == 0) {
        *out = make_session(ssl, l->tls);
        return *out != NULL;
    }
    l->presented = who;
    l->named = true;
    return 1;
}

/* ---- the context ------------------------------------------------------------------------------------------------- */
static ddp_status configure(ddp_tls *t, ddp_err *err)
{
    SSL_CTX *c = t->ctx;

    (void)SSL_CTX_set_options(c, SSL_OP_NO_TICKET | SSL_OP_NO_RENEGOTIATION | SSL_OP_NO_COMPRESSION);
    (void)SSL_CTX_clear_options(c, SSL_OP_ENABLE_MIDDLEBOX_COMPAT | SSL_OP_ALLOW_NO_DHE_KEX);
    (void)SSL_CTX_set_mode(c, SSL_MODE_ENABLE_PARTIAL_WRITE | SSL_MODE_ACCEPT_MOVING_WRITE_BUFFER |
                                  SSL_MODE_RELEASE_BUFFERS);
    (void)SSL_CTX_set_session_cache_mode(c, SSL_SESS_CACHE_OFF);
    SSL_CTX_set_read_ahead(c, 0); /* so that nothing but a part of a record is ever hidden from epoll */
    if (SSL_CTX_set_min_proto_version(c, TLS1_3_VERSION) != 1 ||
        SSL_CTX_set_max_proto_version(c, TLS1_3_VERSION) != 1 ||
        SSL_CTX_set_ciphersuites(c, "TLS_AES_128_GCM_SHA256") != 1 || SSL_CTX_set_num_tickets(c, 0) != 1 ||
        SSL_CTX_set_max_early_data(c, 0) != 1 || SSL_CTX_set1_groups_list(c, "X25519:P-256") != 1)
        return ddp_fail(err, DDP_ERR_LIBRARY, "this OpenSSL (%s) cannot do TLS 1.3 with TLS_AES_128_GCM_SHA256",
                        OpenSSL_version(OPENSSL_VERSION));
    if (t->listens) {
        SSL_CTX_set_psk_find_session_callback(c, find_session);
        return DDP_OK;
    }
    SSL_CTX_set_psk_use_session_callback(c, use_session);
    SSL_CTX_set_verify(c, SSL_VERIFY_PEER, NULL); /* no authority is known: a certificate never counts */
    return DDP_OK;
}

/* Without a key yet. */
static ddp_status open_context(const ddp_identity *self, bool listens, ddp_tls **out, ddp_err *err)
{
    ddp_tls *t = ddp_alloc(sizeof(*t), err);
    ddp_status status;

    if (t == NULL) return err->status;
    t->self = *self;
    t->text_length = ddp_identity_text(self, t->text);
    t->listens = listens;
    t->ctx = SSL_CTX_new(listens ? TLS_server_method() : TLS_client_method());
    status = t->ctx == NULL ? ddp_fail(err, DDP_ERR_NOMEM, "no memory for TLS") : make_method(t, err);
    if (status == DDP_OK) status = configure(t, err);
    if (status == DDP_OK)
        *out = t;
    else
        ddp_tls_close(t);
    return status;
}

ddp_status ddp_tls_open(const void *secret, size_t length, const ddp_identity *self, bool listens, ddp_tls **out,
                        ddp_err *err)
{
    ddp_tls *t;

    DDP_TRY(open_context(self, listens, &t, err));
    if (net_secret_key(secret, length, t->key, err) != DDP_OK) {
        ddp_tls_close(t);
        return err->status;
    }
    *out = t;
    return DDP_OK;
}

ddp_status ddp_tls_open_listener(const ddp_tls *of, ddp_tls **out, ddp_err *err)
{
    DDP_TRY(open_context(&of->self, true, out, err));
    memcpy((*out)->key, of->key, sizeof(of->key));
    return DDP_OK;
}

void ddp_tls_close(ddp_tls *t)
{
    if (t == NULL) return;
    SSL_CTX_free(t->ctx);
    BIO_meth_free(t->method);
    OPENSSL_cleanse(t->key, sizeof(t->key));
    free(t);
}

/* ---- a connection ------------------------------------------------------------------------------------------------ */
ddp_status net_link_open(ddp_tls *t, int fd, ddp_link **out, ddp_err *err)
{
    ddp_link *l = ddp_alloc(sizeof(*l), err);

    if (l == NULL) return err->status;
    l->tls = t;
    l->fd = fd;
    *out = l;
    return DDP_OK;
}

void net_link_close(ddp_link *l)
{
    if (l == NULL) return;
    SSL_free(l->ssl);
    free(l);
}

bool net_link_wants_out(const ddp_link *l) { return l->wants_out; }
bool net_link_is_open(const ddp_link *l) { return l->open; }
bool net_link_is_proven(const ddp_link *l) { return l->open || (l->ssl != NULL && SSL_session_reused(l->ssl) == 1); }
const ddp_identity *net_link_presented(const ddp_link *l) { return l->named ? &l->presented : NULL; }

static ddp_status closed(const ddp_link *l, ddp_err *err)
{
    (void)ddp_fail(err, DDP_ERR_PEER, "%s", l->sys_errno == 0 ? "the other end closed it" : strerror(l->sys_errno));
    err->sys_errno = l->sys_errno;
    return DDP_ERR_PEER;
}

static ddp_status start(ddp_link *l, ddp_err *err)
{
    BIO *bio = BIO_new(l->tls->method);

    l->ssl = SSL_new(l->tls->ctx);
    if (bio == NULL || l->ssl == NULL) {
        BIO_free(bio);
        return ddp_fail(err, DDP_ERR_NOMEM, "no memory for TLS");
    }
    BIO_set_data(bio, l);
    BIO_set_init(bio, 1);
    SSL_set_bio(l->ssl, bio, bio);
    SSL_set_app_data(l->ssl, l);
    if (l->tls->listens)
        SSL_set_accept_state(l->ssl);
    else
        SSL_set_connect_state(l->ssl);
    return DDP_OK;
}

/* What the call that has just returned `rc` waits for, or why it failed. */
static ddp_status check_handshake(ddp_link *l, int rc, ddp_err *err)
{
    unsigned long code = ERR_peek_error();
    const char *why = ERR_reason_error_string(code);

    switch (SSL_get_error(l->ssl, rc)) {
    case SSL_ERROR_WANT_READ: l->wants_out = false; return DDP_IN_PROGRESS;
    case SSL_ERROR_WANT_WRITE: l->wants_out = true; return DDP_IN_PROGRESS;
    case SSL_ERROR_ZERO_RETURN: return closed(l, err);
    default: break;
    }
    l->wants_out = false;
    if (code == 0 || l->ended || l->sys_errno != 0) return closed(l, err);
    return ddp_fail(err, DDP_ERR_DATA, "TLS: %s", why == NULL ? "unknown error" : why);
}

/* ---- the first bytes --------------------------------------------------------------------------------------------- */
/* DDP_OK: TLS. Bytes are taken from the socket, not only peeked at: epoll would report those left there for ever. */
static ddp_status look(ddp_link *l, ddp_err *err)
{
    size_t wanted = l->tls->listens ? RECORD_HEAD : FRAME_HEAD;
    const unsigned char *h = l->head;
    uint32_t magic, record, message;

    while (l->head_length < wanted) {
        ssize_t n = recv(l->fd, l->head + l->head_length, wanted - l->head_length, 0);

        if (n > 0) {
            l->head_length += (size_t)n;
            continue;
        }
        if (n < 0 && errno == EINTR) continue;
        if (n < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) break;
        l->ended = n == 0;
        l->sys_errno = n == 0 ? 0 : errno;
        return closed(l, err);
    }
    magic = (uint32_t)h[0] | (uint32_t)h[1] << 8 | (uint32_t)h[2] << 16 | (uint32_t)h[3] << 24;
    if (l->head_length < FRAME_HEAD) return DDP_IN_PROGRESS;
    if (magic == DDP_WIRE_MAGIC) return ddp_fail(err, DDP_ERR_UNSUPPORTED, "it speaks in clear");
    if (h[0] < 20 || h[0] > 23 || h[1] != 3)
        return ddp_fail(err, DDP_ERR_DATA, "these bytes are neither TLS nor ddpengine's protocol");
    if (l->head_length < wanted) return DDP_IN_PROGRESS;
    record = (uint32_t)h[3] << 8 | h[4];
    message = (uint32_t)h[6] << 16 | (uint32_t)h[7] << 8 | h[8];
    if (l->tls->listens && (h[0] != 22 || h[5] != 1 || record > CLIENT_HELLO_LIMIT || message + 4 != record))
        return ddp_fail(err, DDP_ERR_DATA, "its TLS hello is not that of a rank");
    l->looked = true;
    return DDP_OK;
}

/* ---- the handshake ----------------------------------------------------------------------------------------------- */
/* From here on only a message in clear is waited for, with the reason. */
static ddp_status refused(ddp_link *l, const ddp_err *why)
{
    l->refused = true;
    l->looked = l->tls->listens;
    l->head_length = l->head_taken = 0;
    ddp_copy_text(l->reason, sizeof(l->reason), why->msg);
    return DDP_IN_PROGRESS;
}

static ddp_status shake(ddp_link *l, ddp_err *err)
{
    ddp_status status;
    int rc;

    if (l->ssl == NULL) DDP_TRY(start(l, err));
    ERR_clear_error();
    rc = SSL_do_handshake(l->ssl);
    if (rc == 1 && SSL_session_reused(l->ssl) == 1 && SSL_version(l->ssl) == TLS1_3_VERSION) {
        l->open = true;
        l->wants_out = false;
        return DDP_OK;
    }
    status =
        rc == 1 ? ddp_fail(err, DDP_ERR_DATA, "TLS: the other end did without the key") : check_handshake(l, rc, err);
    if (status != DDP_ERR_DATA) return status;
    if (l->tls->listens) return status;
    return refused(l, err);
}

/* Without bytes from the other end: those come by reading alone, which finds out what they are. */
static ddp_status shake_to_write(ddp_link *l, ddp_err *err)
{
    if (l->refused || (l->tls->listens && !l->looked)) return DDP_IN_PROGRESS;
    if (l->ssl != NULL && !l->looked) return DDP_IN_PROGRESS;
    return shake(l, err);
}

ddp_status net_link_read(ddp_link *l, void *data, size_t length, size_t *count, ddp_err *err)
{
    while (!l->open) {
        ddp_status status = DDP_OK;

        if (!l->looked && (l->tls->listens || l->ssl != NULL)) status = look(l, err);
        if (status == DDP_ERR_UNSUPPORTED) {
            memcpy(data, l->head, l->head_length);
            *count = l->head_length;
        }
        if (l->refused && status != DDP_IN_PROGRESS && status != DDP_ERR_UNSUPPORTED)
            return ddp_fail(err, DDP_ERR_DATA, "%s", l->reason);
        DDP_TRY(status);
        DDP_TRY(shake(l, err));
    }
    ERR_clear_error();
    if (SSL_read_ex(l->ssl, data, length, count) == 1) {
        l->wants_out = false;
        return DDP_OK;
    }
    return check_handshake(l, 0, err);
}

ddp_status net_link_write(ddp_link *l, const void *data, size_t length, size_t *count, ddp_err *err)
{
    if (!l->open) DDP_TRY(shake_to_write(l, err));
    ERR_clear_error();
    if (SSL_write_ex(l->ssl, data, length, count) == 1) {
        l->wants_out = false;
        return DDP_OK;
    }
    return check_handshake(l, 0, err);
}
