/* fuzz/targets/npy.c -- arrays of NumPy. Input: input_type, layout, from and to in parts of 8, a byte each; how, a
 * byte: 0: two .npy files, 1: an .npz file as it comes, 2: one with two stored arrays that is made here, right in all
 * its checksums; then for 0 and 2 the length of the first array, 16 bits, and both. */
#define ddp_plugin_desc ddp_plugin_desc_npy
#include "npy/npy.c"
#include "fuzz_dataset.h"

enum { NPZ_ROOM = 1 << 17 };

static uint32_t crc_of(const uint8_t *data, size_t length)
{
    uint32_t crc = UINT32_MAX;

    for (size_t i = 0; i < length; i++) {
        crc ^= data[i];
        for (int k = 0; k < 8; k++) crc = crc >> 1 ^ (UINT32_C(0xedb88320) & (0 - (crc & 1)));
    }
    return ~crc;
}

static size_t number(uint8_t *out, uint64_t value, size_t bytes)
{
    for (size_t i = 0; i < bytes; i++) out[i] = (uint8_t)(value >> 8 * i);
    return bytes;
}

/* From the version on, what a member's own header and the table at the end have in common; the name is one letter. */
static size_t entry(uint8_t *out, const uint8_t *data, size_t length)
{
    size_t at = number(out, 20, 2);

    at += number(out + at, 0, 8); /* flags, stored, time */
    at += number(out + at, crc_of(data, length), 4);
    at += number(out + at, length, 4);
    at += number(out + at, length, 4);
    return at + number(out + at, 1, 4); /* lengths of the name and of more */
}

static const char *make_npz(const uint8_t *const data[2], const size_t length[2])
{
    static uint8_t out[NPZ_ROOM];
    size_t at = 0, begins[2], table, table_bytes;

    for (size_t i = 0; i < 2; i++) {
        begins[i] = at;
        at += number(out + at, 0x04034b50, 4);
        at += entry(out + at, data[i], length[i]);
        out[at++] = (uint8_t)('x' + i);
        if (length[i] > 0) memcpy(out + at, data[i], length[i]);
        at += length[i];
    }
    table = at;
    for (size_t i = 0; i < 2; i++) {
        at += number(out + at, 0x02014b50, 4);
        at += number(out + at, 20, 2);
        at += entry(out + at, data[i], length[i]);
        at += number(out + at, 0, 8); /* comment, disk, attributes */
        at += number(out + at, 0, 2);
        at += number(out + at, begins[i], 4);
        out[at++] = (uint8_t)('x' + i);
    }
    table_bytes = at - table;
    at += number(out + at, 0x06054b50, 4);
    at += number(out + at, 0, 4);
    at += number(out + at, 2, 2);
    at += number(out + at, 2, 2);
    at += number(out + at, table_bytes, 4);
    at += number(out + at, table, 4);
    at += number(out + at, 0, 2);
    return fuzz_file(0, out, at, 0);
}

FUZZ_TARGET(npy)
{
    fuzz_input in = {data, size};
    npy_config c = {.path = "", .input = "x", .label = "y"};
    const uint8_t *arrays[2];
    size_t length[2];
    uint8_t how;

    c.input_type = fuzz_u8(&in) % 4;
    c.layout = fuzz_u8(&in) % 3;
    c.from = (double)(fuzz_u8(&in) % 9) / 8.0;
    c.to = (double)(fuzz_u8(&in) % 9) / 8.0;
    how = fuzz_u8(&in) % 3;
    if (how == 1) {
        c.path = fuzz_file(0, in.at, in.left, 0);
        fuzz_dataset(&c);
        return 0;
    }
    length[0] = fuzz_u16(&in) % (NPZ_ROOM / 4);
    arrays[0] = fuzz_some(&in, &length[0]);
    length[1] = DDP_MIN_OF(in.left, NPZ_ROOM / 4);
    arrays[1] = in.at;
    if (how == 2) c.path = make_npz(arrays, length);
    if (how == 0) c.input = fuzz_file(0, arrays[0], length[0], 0);
    if (how == 0) c.label = fuzz_file(1, arrays[1], length[1], 0);
    fuzz_dataset(&c);
    return 0;
}
