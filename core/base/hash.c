/* base/hash.c -- SHA-256 (OpenSSL) for what must not be forged or lost, XXH3 (xxHash) for fast comparison. */
#include "base/sys.h"
#include <openssl/evp.h>
#include <xxhash.h>

ddp_status ddp_sha256_begin(ddp_sha256 *h, ddp_err *err)
{
    EVP_MD_CTX *ctx = EVP_MD_CTX_new();

    if (ctx == NULL || EVP_DigestInit_ex(ctx, EVP_sha256(), NULL) != 1) {
        EVP_MD_CTX_free(ctx);
        return ddp_fail(err, DDP_ERR_LIBRARY,
                        "OpenSSL gives no SHA-256; check its configuration (openssl dgst -sha256)");
    }
    h->ctx = ctx;
    return DDP_OK;
}

/* A digest that fails half-way ends as the empty text, which equals no digest. */
void ddp_sha256_add(ddp_sha256 *h, const void *data, size_t length)
{
    if (h->ctx == NULL || length == 0) return;
    if (EVP_DigestUpdate(h->ctx, data, length) != 1) {
        EVP_MD_CTX_free(h->ctx);
        h->ctx = NULL;
    }
}

static void print_hex(const unsigned char *digest, size_t size, char *hex)
{
    static const char digits[] = "0123456789abcdef";

    for (size_t i = 0; i < size; i++) {
        hex[2 * i] = digits[digest[i] >> 4];
        hex[2 * i + 1] = digits[digest[i] & 15];
    }
    hex[2 * size] = '\0';
}

void ddp_sha256_end(ddp_sha256 *h, char hex[DDP_SHA256_HEX])
{
    unsigned char digest[EVP_MAX_MD_SIZE];
    unsigned int bytes = 0;
    size_t size;

    size = h->ctx != NULL && EVP_DigestFinal_ex(h->ctx, digest, &bytes) == 1 && bytes == 32 ? bytes : 0;
    print_hex(digest, size, hex);
    EVP_MD_CTX_free(h->ctx);
    h->ctx = NULL;
}

ddp_status ddp_xxh128_begin(ddp_xxh128 *h, ddp_err *err)
{
    h->state = XXH3_createState();
    if (h->state == NULL || XXH3_128bits_reset(h->state) != XXH_OK)
        return ddp_fail(err, DDP_ERR_NOMEM, "out of memory for a hash");
    return DDP_OK;
}

void ddp_xxh128_add(ddp_xxh128 *h, const void *data, size_t length)
{
    if (length > 0) (void)XXH3_128bits_update(h->state, data, length);
}

void ddp_xxh128_end(ddp_xxh128 *h, char hex[DDP_XXH128_HEX])
{
    XXH128_canonical_t canonical;

    XXH128_canonicalFromHash(&canonical, XXH3_128bits_digest(h->state));
    print_hex(canonical.digest, sizeof(canonical.digest), hex);
    (void)XXH3_freeState(h->state);
    h->state = NULL;
}

uint64_t ddp_hash64(const void *data, size_t length, uint64_t seed) { return XXH3_64bits_withSeed(data, length, seed); }
