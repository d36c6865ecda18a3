/* plugins/dataset/common/image/verify.h -- of a catalog: decoding an image, leaving broken ones out, and the
 * description for --check. */
#pragma once

#include "catalog.h"

/* Reads the image's bytes and decodes them. A file that cannot be one by its size is broken. */
ddp_status catalog_decode(const catalog *c, const catalog_entry *e, const ddp_image_sink *sink, ddp_err *err);
/* Decodes all images, on several threads, and removes those that cannot be decoded: what is left does not depend on
 * the threads. */
ddp_status catalog_leave_out_bad(catalog *c, ddp_err *err);
char *catalog_description(const catalog *c, const char *what); /* NULL: out of memory; free() it */
