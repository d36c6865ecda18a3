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

void ddp_sha256_end(ddp_sha256 *h, char hex[DDP_SHA256_HEX])
{
    static const char digits[] = "0123456789abcdef";
    unsigned char digest[EVP_MAX_MD_SIZE];
    unsigned int bytes = 0;
    size_t size;

    size = h->ctx != NULL && EVP_DigestFinal_ex(h->ctx, digest, &bytes) == 1 && bytes == 32 ? bytes : 0;
    for (size_t i = 0; i < size; i++) {
        hex[2 * i] = digits[digest[i] >> 4];
        hex[2 * i + 1] = digits[digest[i] & 15];
    }
    hex[2 * size] = '\0';
    EVP_MD_CTX_free(h->ctx);
    h->ctx = NULL;
}

uint64_t ddp_hash64(const void *data, size_t length, uint64_t seed) { return XXH3_64bits_withSeed(data, length, seed); }
