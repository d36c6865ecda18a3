/* plugins/dataset/npy/array.c -- see array.h. */
#include "array.h"
#include "common/dataset.h"
#include "npz.h"
#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

enum { PIECE = 4096 /* bytes converted at once, a multiple of each width */, SCAN = 65536, PIECES_MAX = 4096 };

/* ---- open -------------------------------------------------------------------------------------------------------- */
static ddp_status read_file_header(array *a, ddp_err *err)
{
    uint8_t start[NPY_START] = {0};
    size_t have = a->file.size < NPY_START ? (size_t)a->file.size : NPY_START, at, bytes;
    char *text;
    ddp_status status;

    DDP_TRY(data_file_read(&a->file, start, have, 0, err));
    DDP_TRY(npy_header_start(a->name, start, have, &at, &bytes, err));
    a->offset = at + bytes;
    if (a->offset > a->file.size)
        return ddp_fail(err, DDP_ERR_DATA,
                        "dataset npy: %s is truncated within its header; write it again by numpy.save", a->name);
    text = malloc(bytes + 1);
    if (text == NULL) return data_no_memory("npy", err);
    status = data_file_read(&a->file, text, bytes, at, err);
    if (status == DDP_OK) status = npy_header_parse(a->name, text, bytes, &a->header, err);
    free(text);
    return status;
}

static ddp_status open_file(array *a, const char *path, const char *option, ddp_err *err)
{
    char advice[80];

    (void)snprintf(advice, sizeof(advice), "; set %s to your .npy file, or path to an .npz file", option);
    DDP_TRY(data_file_open(&a->file, "npy", path, advice, err));
    DDP_TRY(read_file_header(a, err));
    if (a->file.size - a->offset == a->header.bytes) return DDP_OK;
    return ddp_fail(err, DDP_ERR_DATA,
                    "dataset npy: %s is %s: its header promises %" PRIu64 " bytes of elements, it has %" PRIu64
                    "; write it again by numpy.save",
                    a->name, a->file.size - a->offset < a->header.bytes ? "truncated" : "too long", a->header.bytes,
                    a->file.size - a->offset);
}

ddp_status array_open(array *a, const char *option, const char *npz, const char *path, ddp_err *err)
{
    size_t size = strlen(npz) + strlen(path) + 8;

    *a = (array){.file = {.fd = -1}, .name = malloc(size)};
    if (a->name == NULL) return data_no_memory("npy", err);
    if (npz[0] != '\0') {
        npz_array member = {0};

        (void)snprintf(a->name, size, "\"%s\": %s", npz, path);
        DDP_TRY(npz_read(npz, option, path, a->name, &member, err));
        a->header = member.header;
        a->map = member.map;
    } else {
        (void)snprintf(a->name, size, "\"%s\"", path);
        DDP_TRY(open_file(a, path, option, err));
    }
    a->per = a->header.bytes / a->header.width / (uint64_t)a->header.dims[0];
    return DDP_OK;
}

void array_close(array *a)
{
    if (a->map != NULL) munmap(a->map, a->header.bytes);
    data_file_close(&a->file);
    free(a->name);
    *a = (array){.file = {.fd = -1}};
}

/* ---- elements ---------------------------------------------------------------------------------------------------- */
/* IEEE 754 binary16. */
static double half_of(uint64_t bits)
{
    double sign = (bits & 0x8000) != 0 ? -1.0 : 1.0;
    int exponent = (int)(bits >> 10 & 31);
    double fraction = (double)(bits & 1023);

    if (exponent == 31) return fraction == 0.0 ? sign * INFINITY : NAN;
    return sign * (exponent == 0 ? ldexp(fraction, -24) : ldexp(fraction + 1024.0, exponent - 25));
}

static inline uint64_t word_of(const npy_header *h, const uint8_t *at)
{
    uint64_t word = 0;

    for (uint32_t i = 0; i < h->width; i++) word |= (uint64_t)at[i] << 8 * (h->swapped ? h->width - 1 - i : i);
    return word;
}

static inline int64_t integer_of(const npy_header *h, const uint8_t *at)
{
    uint64_t word = word_of(h, at);
    uint32_t unused = (64 - 8 * h->width) & 63; /* width: 1, 2, 4 or 8 */

    if (h->kind == 'i') return (int64_t)(word << unused) >> unused;
    return h->kind == 'b' ? word != 0 : (int64_t)word;
}

static inline float float_of(const npy_header *h, const uint8_t *at)
{
    uint64_t word;
    uint32_t narrow;
    double wide;
    float out;

    if (h->kind != 'f') return (float)integer_of(h, at);
    word = word_of(h, at);
    if (h->width == 2) return (float)half_of(word);
    memcpy(&wide, &word, sizeof(wide));
    if (h->width == 8) return (float)wide;
    narrow = (uint32_t)word;
    memcpy(&out, &narrow, sizeof(out));
    return out;
}

static ddp_status get(const array *a, void *out, size_t bytes, uint64_t at, ddp_err *err)
{
    if (a->map == NULL) return data_file_read(&a->file, out, bytes, a->offset + at, err);
    memcpy(out, (const char *)a->map + at, bytes);
    return DDP_OK;
}

static ddp_status check_floats(const array *a, const uint8_t *piece, size_t bytes, uint64_t from, ddp_err *err)
{
    const npy_header *h = &a->header;

    for (size_t i = 0; i < bytes; i += h->width) {
        if (isfinite(float_of(h, piece + i))) continue;
        return ddp_fail(err, DDP_ERR_DATA,
                        "dataset npy: %s: sample %" PRIu64
                        " has a value that is infinite, not a number, or beyond f32; "
                        "replace it (numpy.nan_to_num), or leave the sample out",
                        a->name, (from + i) / h->width / a->per);
    }
    return DDP_OK;
}

static void widen_range(const npy_header *h, const uint8_t *piece, size_t bytes, int64_t *least, int64_t *most)
{
    for (size_t i = 0; i < bytes; i += h->width) {
        int64_t value = integer_of(h, piece + i);

        if (value < *least) *least = value;
        if (value > *most) *most = value;
    }
}

/* ---- a sample ---------------------------------------------------------------------------------------------------- */
static bool is_as_wanted(const array *a, const array_form *form)
{
    const npy_header *h = &a->header;

    if (form->channels > 0 || h->swapped) return false;
    return (form->dtype == DDP_F32 && h->kind == 'f' && h->width == 4) || (form->dtype == DDP_U8 && h->kind == 'u') ||
           (form->dtype == DDP_I64 && h->kind == 'i' && h->width == 8);
}

static void store(const npy_header *h, uint32_t dtype, const uint8_t *from, void *out, uint64_t at)
{
    if (dtype == DDP_F32)
        ((float *)out)[at] = float_of(h, from);
    else if (dtype == DDP_I64)
        ((int64_t *)out)[at] = integer_of(h, from);
    else
        ((uint8_t *)out)[at] = (uint8_t)integer_of(h, from);
}

ddp_status array_read(const array *a, uint64_t index, const array_form *form, void *out, ddp_err *err)
{
    const npy_header *h = &a->header;
    uint64_t bytes = a->per * h->width, done = 0, plane = form->channels > 0 ? a->per / form->channels : 0;
    uint64_t channel = 0, at = 0;
    bool unseen = a->partly && h->kind == 'f';
    uint8_t piece[PIECE];

    if (is_as_wanted(a, form)) {
        DDP_TRY(get(a, out, (size_t)bytes, index * bytes, err));
        return unseen ? check_floats(a, out, (size_t)bytes, index * bytes, err) : DDP_OK;
    }
    while (done < bytes) {
        size_t here = bytes - done < PIECE ? (size_t)(bytes - done) : PIECE;

        DDP_TRY(get(a, piece, here, index * bytes + done, err));
        if (unseen) DDP_TRY(check_floats(a, piece, here, index * bytes + done, err));
        for (size_t i = 0; i < here; i += h->width) {
            store(h, form->dtype, piece + i, out, channel * plane + at);
            if (++channel >= form->channels) {
                channel = 0;
                at++;
            }
        }
        done += here;
    }
    return DDP_OK;
}

/* ---- all of them ------------------------------------------------------------------------------------------------- */
ddp_status array_scan(array *a, uint64_t first, uint64_t last, XXH3_state_t *hash, int64_t *least, int64_t *most,
                      ddp_err *err)
{
    uint64_t bytes = a->per * a->header.width, from = first * bytes, end = last * bytes;
    uint64_t pieces = (end - from + SCAN - 1) / SCAN, taken = pieces;
    uint8_t *piece = malloc(SCAN);
    ddp_status status = DDP_OK;

    if (piece == NULL) return data_no_memory("npy", err);
    if (least != NULL) *least = INT64_MAX;
    if (least != NULL) *most = INT64_MIN;
    a->partly = least == NULL && a->map == NULL && pieces > PIECES_MAX;
    if (a->partly) taken = PIECES_MAX;
    for (uint64_t i = 0; i < taken && status == DDP_OK; i++) {
        uint64_t at = from + (a->partly ? i * (pieces - 1) / (taken - 1) : i) * SCAN;
        size_t here = end - at < SCAN ? (size_t)(end - at) : SCAN;

        status = get(a, piece, here, at, err);
        if (status != DDP_OK) break;
        (void)XXH3_64bits_update(hash, piece, here);
        if (a->header.kind == 'f')
            status = check_floats(a, piece, here, at, err);
        else if (least != NULL)
            widen_range(&a->header, piece, here, least, most);
    }
    free(piece);
    return status;
}
