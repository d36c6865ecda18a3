/* base/embedded.h -- a file of the tree that a program or a plugin has in itself; embed.sh makes lists of them. */
#pragma once

#include <stddef.h>

typedef struct ddp_embedded {
    const char *name; /* "page.css", without folders */
    const unsigned char *data;
    size_t length; /* no NUL behind it */
} ddp_embedded;
