/* plugins/init/common/hex.h -- a secret as text in a file: two hex digits a byte. */
#pragma once

#include <ddpengine/init.h>

#define HEX_MAX (2u * DDP_SECRET_MAX + 1u)

/* `text` holds HEX_MAX bytes; length is at most DDP_SECRET_MAX. */
static inline void hex_write(const void *secret, size_t length, char *text)
{
    text[0] = '\0';
    for (size_t i = 0; i < length; i++)
        (void)snprintf(text + 2 * i, 3, "%02x", (unsigned)((const unsigned char *)secret)[i]);
}

/* At most DDP_SECRET_MAX bytes, "" is none of them; 0 when it is something else. */
static inline int hex_read(const char *text, unsigned char *secret, size_t *length)
{
    static const char digits[] = "0123456789abcdef";
    size_t n = strspn(text, digits);

    if (text[n] != '\0' || n % 2 != 0 || n / 2 > DDP_SECRET_MAX) return 0;
    for (size_t i = 0; i < n; i += 2)
        secret[i / 2] =
            (unsigned char)((strchr(digits, text[i]) - digits) << 4 | (strchr(digits, text[i + 1]) - digits));
    *length = n / 2;
    return 1;
}
