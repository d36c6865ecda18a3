/* plugins/dataset/common/image/exif.c -- the orientation of a photograph, from its EXIF data: a TIFF header and the
 * entries of the first directory, of which this reads one (TIFF 6.0, section 2; tag 0x0112). */
#include "format.h"
#include <string.h>

enum { ORIENTATION = 0x0112, SHORT = 3, ENTRY = 12 };

static uint32_t number(const uint8_t *p, size_t bytes, bool big)
{
    uint32_t n = 0;

    for (size_t i = 0; i < bytes; i++) n = n << 8 | p[big ? i : bytes - 1 - i];
    return n;
}

int image_exif_orientation(const uint8_t *data, size_t size)
{
    bool big = size > 0 && data[0] == 'M';
    uint32_t at, count, value;

    if (size < 8 || (memcmp(data, "II*\0", 4) != 0 && memcmp(data, "MM\0*", 4) != 0)) return 1;
    at = number(data + 4, 4, big);
    if (at > size - 2) return 1;
    count = number(data + at, 2, big);
    at += 2;
    for (uint32_t i = 0; i < count && size - at >= ENTRY; i++, at += ENTRY) {
        if (number(data + at, 2, big) != ORIENTATION) continue;
        value = number(data + at + 8, 2, big);
        return number(data + at + 2, 2, big) == SHORT && value >= 1 && value <= 8 ? (int)value : 1;
    }
    return 1;
}
