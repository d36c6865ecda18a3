/* net/identity.c -- the identity of a rank as text, and what is derived from its secret. */
#include "net/identity.h"
#include "base/sys.h"
#include <openssl/evp.h>
#include <openssl/hmac.h>
#include <openssl/rand.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#define PREFIX "ddpengine-1 "

/* HMAC-SHA256(secret, label): what is derived under one label tells nothing of another. */
static ddp_status derive(const void *secret, size_t length, const char *label, unsigned char out[32], ddp_err *err)
{
    unsigned size = 0;

    if (length > INT32_MAX ||
        HMAC(EVP_sha256(), secret, (int)length, (const unsigned char *)label, strlen(label), out, &size) == NULL)
        return ddp_fail(err, DDP_ERR_LIBRARY, "OpenSSL cannot derive a key from the secret");
    return DDP_OK;
}

ddp_status ddp_secret_random(void *secret, size_t length, ddp_err *err)
{
    if (RAND_bytes(secret, (int)length) == 1) return DDP_OK;
    return ddp_fail(err, DDP_ERR_LIBRARY, "OpenSSL has no random numbers for a secret");
}

ddp_status net_secret_key(const void *secret, size_t length, unsigned char key[32], ddp_err *err)
{
    return derive(secret, length, "ddpengine-1 control plane key", key, err);
}

/* The lines without where they were set, which differs between nodes. */
static ddp_status hash_lines(const char *lines, char out[33], ddp_err *err)
{
    char hex[DDP_SHA256_HEX];
    ddp_sha256 h;

    DDP_TRY(ddp_sha256_begin(&h, err));
    while (*lines != '\0') {
        size_t length = strcspn(lines, "\n");

        ddp_sha256_add(&h, lines, strcspn(lines, "\t\n"));
        ddp_sha256_add(&h, "\n", 1);
        lines += length + (lines[length] == '\n');
    }
    ddp_sha256_end(&h, hex);
    ddp_copy_text(out, 33, hex);
    return DDP_OK;
}

ddp_status ddp_identity_make(int32_t rank, int32_t world, const char *lines, const void *secret, size_t length,
                             ddp_identity *out, ddp_err *err)
{
    unsigned char mac[32];

    *out = (ddp_identity){.rank = rank, .world = world, .fingerprint = DDP_FINGERPRINT_NONE};
    DDP_TRY(hash_lines(lines, out->lines, err));
    if (length == 0) return DDP_OK;
    DDP_TRY(derive(secret, length, "ddpengine-1 fingerprint", mac, err));
    for (size_t i = 0; i < 8; i++) (void)snprintf(out->fingerprint + 2 * i, 3, "%02x", mac[i]);
    return DDP_OK;
}

size_t ddp_identity_text(const ddp_identity *id, char buf[DDP_IDENTITY_MAX])
{
    int n = snprintf(buf, DDP_IDENTITY_MAX, PREFIX "%d %d %s %s", (int)id->rank, (int)id->world, id->lines,
                     id->fingerprint);

    return n < 0 ? 0 : DDP_MIN_OF((size_t)n, DDP_IDENTITY_MAX - 1);
}

/* A decimal number below 1e9 and the space after it; false when there is none. */
static bool take_number(const char **at, int32_t *out)
{
    const char *p = *at;
    int32_t n = 0;

    while (*p >= '0' && *p <= '9' && p - *at < 9) n = n * 10 + (*p++ - '0');
    if (p == *at || *p != ' ') return false;
    *out = n;
    *at = p + 1;
    return true;
}

bool ddp_identity_parse(const void *text, size_t length, ddp_identity *out)
{
    char buf[DDP_IDENTITY_MAX];
    const char *at = buf + sizeof(PREFIX) - 1;
    size_t n;

    memset(out, 0, sizeof(*out));
    if (length >= sizeof(buf) || length < sizeof(PREFIX) || memcmp(text, PREFIX, sizeof(PREFIX) - 1) != 0) return false;
    memcpy(buf, text, length);
    buf[length] = '\0';
    if (!take_number(&at, &out->rank) || !take_number(&at, &out->world)) return false;
    n = strspn(at, "0123456789abcdef");
    if (n != sizeof(out->lines) - 1 || at[n] != ' ') return false;
    memcpy(out->lines, at, n);
    at += n + 1;
    n = strspn(at, "0123456789abcdef");
    if (strcmp(at, DDP_FINGERPRINT_NONE) != 0 && (n != sizeof(out->fingerprint) - 1 || at[n] != '\0')) return false;
    ddp_copy_text(out->fingerprint, sizeof(out->fingerprint), at);
    return true;
}

bool net_identity_search(const void *data, size_t length, ddp_identity *out)
{
    const char *at = memmem(data, length, PREFIX, sizeof(PREFIX) - 1);
    size_t left = at == NULL ? 0 : length - (size_t)(at - (const char *)data), n = 0;

    /* the text ends with the first byte that it cannot have */
    while (n < left && at[n] >= ' ' && at[n] < 0x7f) n++;
    for (; at != NULL && n >= sizeof(PREFIX); n--) /* what follows it may be printable too */
        if (n < DDP_IDENTITY_MAX && ddp_identity_parse(at, n, out)) return true;
    return false;
}

void ddp_host_id(char *buf, size_t capacity)
{
    const char *given = getenv("DDPENGINE_HOST_ID");
    char *boot = NULL;
    size_t length;
    struct stat net = {0}, pid = {0};
    ddp_err err;

    if (given != NULL && given[0] != '\0') {
        ddp_copy_text(buf, capacity, given);
        return;
    }
    if (ddp_file_read("/proc/sys/kernel/random/boot_id", 256, &boot, &length, &err) == DDP_OK)
        boot[strcspn(boot, "\n")] = '\0';
    (void)stat("/proc/self/ns/net", &net);
    (void)stat("/proc/self/ns/pid", &pid);
    (void)snprintf(buf, capacity, "%s/%llu/%llu", boot == NULL ? "unknown" : boot, (unsigned long long)net.st_ino,
                   (unsigned long long)pid.st_ino);
    free(boot);
}
