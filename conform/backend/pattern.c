/* conform/backend/pattern.c -- inputs that every rank can compute for every rank, and the reference that results are
 * held against.
 *
 * Bytes are hashes of seed, rank and position (a counter-based generator), so that data of another position, another
 * rank or an earlier collective is recognized; numbers are made of such bytes. Reductions are checked in double:
 * integers and the small integers given to floats exactly, random floats within n times the rounding error of the
 * sum of magnitudes. All of it goes by chunks, in loops over one type: the whole contract of a backend is many
 * gigabytes of it. */
#include "conform/backend/pattern.h"
#include <math.h>
#include <string.h>

enum { CHUNK = 1024 }; /* elements */

/* ---- bytes ------------------------------------------------------------------------------------------------------- */
static inline uint64_t mix(uint64_t x) /* splitmix64 */
{
    x += 0x9e3779b97f4a7c15u;
    x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
    x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
    return x ^ (x >> 31);
}

/* What a chunk's elements are made of. */
typedef struct material {
    uint64_t words[CHUNK + 1]; /* elements of 8 bytes; smaller ones may begin within a word */
} material;

static const unsigned char *draw(const ddp_pattern *p, uint32_t rank, size_t first, size_t count, material *m)
{
    size_t element = ddp_dtype_size(p->dtype), begin = first * element, word = begin / 8;
    size_t words = (begin + count * element + 7) / 8 - word;
    uint64_t start = p->seed + (uint64_t)(rank + 1) * 0xd1b54a32d192ed03u;

    for (size_t i = 0; i < words; i++) m->words[i] = mix(start + (word + i) * 0x2545f4914f6cdd1du);
    return (const unsigned char *)m->words + begin % 8;
}

/* ---- numbers ----------------------------------------------------------------------------------------------------- */
/* Values lie in low .. low + span - 1, times `times`: sums over all ranks stay exact, averages are whole. */
typedef struct span {
    double low, times, span;
} span;

static span span_of(const ddp_pattern *p)
{
    static const uint64_t exact[DDP_DTYPE_END_] = {
        [DDP_F32] = 1u << 24,   [DDP_BF16] = 1u << 8,   [DDP_F64] = 1ull << 50,
        [DDP_I32] = 1ull << 31, [DDP_I64] = 1ull << 50, [DDP_U8] = 1u << 8};
    bool sums = p->op == DDP_SUM || p->op == DDP_AVG, whole = p->op == DDP_AVG;
    uint64_t all = p->dtype < DDP_DTYPE_END_ ? exact[p->dtype] : 0;
    uint64_t range = DDP_MAX_OF(all / (sums ? p->world : 1) / (whole ? p->world : 1), (uint64_t)2);
    uint64_t half = range / 2;

    return (span){.low = p->dtype == DDP_U8 ? 0 : -(double)half, .times = whole ? p->world : 1, .span = (double)range};
}

/* One case of a switch: elements e of one type, read from `from` to doubles v[i], or written from them to `to`. */
#define GET_EACH(type, value)                                                                                          \
    for (size_t i = 0; i < count; i++) {                                                                               \
        type e;                                                                                                        \
        memcpy(&e, from + sizeof(e) * i, sizeof(e));                                                                   \
        v[i] = (value);                                                                                                \
    }                                                                                                                  \
    break
#define PUT_EACH(type, value)                                                                                          \
    for (size_t i = 0; i < count; i++) {                                                                               \
        type e = (type)(value);                                                                                        \
        memcpy(to + sizeof(e) * i, &e, sizeof(e));                                                                     \
    }                                                                                                                  \
    break

/* In 0 .. 1, without 1; of 8 bytes so many bits that the product with a span rounds to less than the span. */
static void to_unit(size_t element, const unsigned char *from, size_t count, double *v)
{
    switch (element) {
    case 1: GET_EACH(unsigned char, e * 0x1p-8);
    case 2: GET_EACH(uint16_t, e * 0x1p-16);
    case 4: GET_EACH(uint32_t, e * 0x1p-32);
    default: GET_EACH(uint64_t, (double)(e >> 12) * 0x1p-52);
    }
}

static void values(const ddp_pattern *p, const span *s, uint32_t rank, size_t first, size_t count, double *out)
{
    material m;

    to_unit(ddp_dtype_size(p->dtype), draw(p, rank, first, count, &m), count, out);
    if (p->random)
        for (size_t i = 0; i < count; i++) out[i] = out[i] * 2 - 1;
    else if (s->span <= 0x1p31) /* the same by the faster conversion */
        for (size_t i = 0; i < count; i++) out[i] = (s->low + (int32_t)(out[i] * s->span)) * s->times;
    else
        for (size_t i = 0; i < count; i++) out[i] = (s->low + (double)(int64_t)(out[i] * s->span)) * s->times;
}

/* ---- elements ---------------------------------------------------------------------------------------------------- */
static uint16_t to_bf16(float f) /* nearest, ties to even; no NaN comes here */
{
    uint32_t bits;

    memcpy(&bits, &f, sizeof(bits));
    return (uint16_t)((bits + 0x7fffu + (bits >> 16 & 1u)) >> 16);
}

static double from_bf16(uint16_t h)
{
    uint32_t bits = (uint32_t)h << 16;
    float f;

    memcpy(&f, &bits, sizeof(f));
    return (double)f;
}

void ddp_pattern_put(uint32_t dtype, const double *v, size_t count, void *out)
{
    unsigned char *to = out;

    switch (dtype) {
    case DDP_F32: PUT_EACH(float, v[i]);
    case DDP_BF16: PUT_EACH(uint16_t, to_bf16((float)v[i]));
    case DDP_F64: PUT_EACH(double, v[i]);
    case DDP_I32: PUT_EACH(int32_t, v[i]);
    case DDP_I64: PUT_EACH(int64_t, v[i]);
    case DDP_U8: PUT_EACH(unsigned char, v[i]);
    default: break;
    }
}

void ddp_pattern_get(uint32_t dtype, const void *in, size_t count, double *v)
{
    const unsigned char *from = in;

    switch (dtype) {
    case DDP_F32: GET_EACH(float, (double)e);
    case DDP_BF16: GET_EACH(uint16_t, from_bf16(e));
    case DDP_F64: GET_EACH(double, e);
    case DDP_I32: GET_EACH(int32_t, e);
    case DDP_I64: GET_EACH(int64_t, (double)e);
    case DDP_U8: GET_EACH(unsigned char, e);
    default: break;
    }
}

/* ---- filling and checking ---------------------------------------------------------------------------------------- */
void ddp_pattern_fill(const ddp_pattern *p, uint32_t rank, size_t first, size_t count, void *out)
{
    size_t element = ddp_dtype_size(p->dtype), n;
    unsigned char *to = out;
    span s = span_of(p);
    double v[CHUNK];
    material m;

    for (size_t i = 0; i < count; i += n, to += n * element) {
        n = DDP_MIN_OF(count - i, (size_t)CHUNK);
        if (p->op == 0) {
            memcpy(to, draw(p, rank, first + i, n, &m), n * element);
        } else {
            values(p, &s, rank, first + i, n, v);
            ddp_pattern_put(p->dtype, v, n, to);
        }
    }
}

bool backend_pattern_copied(const ddp_pattern *p, uint32_t rank, size_t first, size_t count, const void *got,
                            char *text, size_t capacity)
{
    size_t element = ddp_dtype_size(p->dtype), n, at = 0;
    const unsigned char *from = got;
    unsigned char want[CHUNK * sizeof(uint64_t)];

    for (size_t i = 0; i < count; i += n, from += n * element) {
        n = DDP_MIN_OF(count - i, (size_t)CHUNK);
        ddp_pattern_fill(p, rank, first + i, n, want);
        if (memcmp(from, want, n * element) == 0) continue;
        while (memcmp(from + at * element, want + at * element, element) == 0) at++;
        (void)snprintf(text, capacity, "element %zu is not what element %zu of rank %u was", i + at, first + i + at,
                       rank);
        return false;
    }
    return true;
}

/* A chunk as it should be, and what a correct reduction may differ by. */
typedef struct reference {
    double want[CHUNK], tolerance[CHUNK];
} reference;

static void combine(uint32_t op, const double *v, size_t count, double *into)
{
    if (op == DDP_MIN)
        for (size_t i = 0; i < count; i++) into[i] = v[i] < into[i] ? v[i] : into[i];
    else if (op == DDP_MAX)
        for (size_t i = 0; i < count; i++) into[i] = v[i] > into[i] ? v[i] : into[i];
    else
        for (size_t i = 0; i < count; i++) into[i] += v[i];
}

static void reduce(const ddp_pattern *p, const span *s, size_t first, size_t count, reference *ref)
{
    static const double epsilon[DDP_DTYPE_END_] = {[DDP_F32] = 0x1p-23, [DDP_BF16] = 0x1p-7, [DDP_F64] = 0x1p-52};
    unsigned char rounded[CHUNK * sizeof(double)];
    bool rounds = p->random && p->op != DDP_MIN && p->op != DDP_MAX;
    double v[CHUNK];

    memset(ref->tolerance, 0, count * sizeof(double));
    for (uint32_t r = 0; r < p->world; r++) {
        values(p, s, r, first, count, v);
        if (p->random) { /* as the rank has it */
            ddp_pattern_put(p->dtype, v, count, rounded);
            ddp_pattern_get(p->dtype, rounded, count, v);
        }
        if (r == 0)
            memcpy(ref->want, v, count * sizeof(double));
        else
            combine(p->op, v, count, ref->want);
        for (size_t i = 0; i < count && rounds; i++) ref->tolerance[i] += p->world * epsilon[p->dtype] * fabs(v[i]);
    }
    for (size_t i = 0; i < count && p->op == DDP_AVG; i++) ref->want[i] /= p->world;
}

/* How many elements of a chunk are wrong, and the first of them. */
static size_t wrong_in(const reference *ref, const double *is, size_t count, size_t *first)
{
    size_t wrong = 0;

    for (size_t i = 0; i < count; i++) {
        if (fabs(is[i] - ref->want[i]) <= ref->tolerance[i]) continue; /* false for a NaN */
        if (wrong++ == 0) *first = i;
    }
    return wrong;
}

/* Up to the first chunk with a wrong element, which is described in `text`, or through all of them. */
static uint64_t compare(const ddp_pattern *p, size_t first, size_t count, const void *got, char *text, size_t capacity)
{
    size_t element = ddp_dtype_size(p->dtype), n, at = 0;
    const unsigned char *from = got;
    span s = span_of(p);
    uint64_t wrong = 0;
    reference ref = {0};
    double is[CHUNK] = {0};

    for (size_t i = 0; i < count; i += n, from += n * element) {
        n = DDP_MIN_OF(count - i, (size_t)CHUNK);
        reduce(p, &s, first + i, n, &ref);
        ddp_pattern_get(p->dtype, from, n, is);
        wrong += wrong_in(&ref, is, n, &at);
        if (wrong == 0 || text == NULL) continue;
        (void)snprintf(text, capacity, "element %zu is %.17g, not %.17g", i + at, is[at], ref.want[at]);
        break;
    }
    return wrong;
}

bool backend_pattern_reduced(const ddp_pattern *p, size_t first, size_t count, const void *got, char *text,
                             size_t capacity)
{
    return compare(p, first, count, got, text, capacity) == 0;
}

uint64_t ddp_pattern_wrong(const ddp_pattern *p, size_t count, const void *got)
{
    return compare(p, 0, count, got, NULL, 0);
}
