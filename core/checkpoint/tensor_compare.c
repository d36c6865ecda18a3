/* checkpoint/tensor_compare.c -- see tensor_compare.h. */
#include "checkpoint/tensor_compare.h"
#include <math.h>
#include <stdlib.h>
#include <string.h>

/* The number at `at`, which may be unaligned; NaN for a dtype that is not computed with. */
static double number_at(uint32_t dtype, const unsigned char *at)
{
    union {
        float f;
        double d;
        int32_t i;
        int64_t l;
        uint32_t bits;
    } v;

    switch (dtype) {
    case DDP_F32: memcpy(&v, at, sizeof(v.f)); return (double)v.f;
    case DDP_F64: memcpy(&v, at, sizeof(v.d)); return v.d;
    case DDP_BF16: v.bits = (uint32_t)at[0] << 16 | (uint32_t)at[1] << 24; return (double)v.f;
    case DDP_I32: memcpy(&v, at, sizeof(v.i)); return (double)v.i;
    case DDP_I64: memcpy(&v, at, sizeof(v.l)); return (double)v.l;
    case DDP_U8: return (double)at[0];
    default: return NAN;
    }
}

static bool has_numbers(uint32_t dtype)
{
    return dtype == DDP_F32 || dtype == DDP_F64 || dtype == DDP_BF16 || dtype == DDP_I32 || dtype == DDP_I64 ||
           dtype == DDP_U8;
}

static uint64_t elements_of(const ddp_named_tensor *t)
{
    uint64_t n = 1;

    for (uint32_t i = 0; i < t->rank; i++)
        n *= (uint64_t)t->dims[i]; /* the reader has seen that it does not overflow */
    return n;
}

static bool alike(const ddp_named_tensor *a, const ddp_named_tensor *b)
{
    return a->dtype == b->dtype && a->rank == b->rank && memcmp(a->dims, b->dims, a->rank * sizeof(a->dims[0])) == 0;
}

/* Counts what differs within two tensors of the same dtype and shape. */
static void compare_elements(ddp_tensor_difference *d)
{
    const unsigned char *a = d->a->data, *b = d->b->data;
    size_t size = ddp_safetensors_dtype_size(d->a->dtype);
    bool numbers = has_numbers(d->a->dtype);

    d->elements = elements_of(d->a);
    d->largest = numbers ? 0.0 : NAN;
    if (d->elements == 0 || memcmp(a, b, d->elements * size) == 0) return;
    for (uint64_t i = 0; i < d->elements; i++, a += size, b += size) {
        double distance;

        if (memcmp(a, b, size) == 0) continue;
        d->differing++;
        if (!numbers) continue;
        distance = fabs(number_at(d->a->dtype, a) - number_at(d->a->dtype, b));
        if (!isfinite(distance))
            d->not_finite++;
        else if (distance > d->largest)
            d->largest = distance;
    }
}

/* For sorting: what cannot be compared, then what is not finite, then by distance. */
static double weight(const ddp_tensor_difference *d)
{
    if (!d->comparable) return INFINITY;
    return d->not_finite > 0 || isnan(d->largest) ? 1e308 : d->largest;
}

static int compare_weights(const void *x, const void *y)
{
    const ddp_tensor_difference *a = x, *b = y;
    double p = weight(a), q = weight(b);

    if (p != q) return p > q ? -1 : 1;
    if (a->part != b->part) return a->part < b->part ? -1 : 1;
    return strcmp(a->a != NULL ? a->a->name : a->b->name, b->a != NULL ? b->a->name : b->b->name);
}

static size_t tensors_in(const ddp_safetensors *file) { return file == NULL ? 0 : ddp_safetensors_count(file); }

static const ddp_named_tensor *find_in(const ddp_safetensors *file, const char *name)
{
    return file == NULL ? NULL : ddp_safetensors_find(file, name);
}

/* What file a has: items in the order of the file. */
static void compare_with(ddp_tensor_differences *out, int part, const ddp_safetensors *a, const ddp_safetensors *b)
{
    for (size_t i = 0; i < tensors_in(a); i++) {
        ddp_tensor_difference d = {.part = part, .a = ddp_safetensors_at(a, i)};

        d.b = find_in(b, d.a->name);
        d.comparable = d.b != NULL && alike(d.a, d.b);
        if (d.comparable) compare_elements(&d);
        out->only_a += d.b == NULL;
        out->misfits += d.b != NULL && !d.comparable;
        out->common += d.comparable;
        out->differing += d.differing > 0;
        if (!d.comparable || d.differing > 0) out->items[out->count++] = d;
    }
    for (size_t i = 0; i < tensors_in(b); i++) {
        const ddp_named_tensor *t = ddp_safetensors_at(b, i);

        if (find_in(a, t->name) != NULL) continue;
        out->only_b++;
        out->items[out->count++] = (ddp_tensor_difference){.part = part, .b = t};
    }
}

ddp_status ddp_checkpoint_compare_tensors(const ddp_checkpoint *a, const ddp_checkpoint *b, ddp_tensor_differences *out,
                                          ddp_err *err)
{
    size_t most = 1;

    *out = (ddp_tensor_differences){0};
    for (int i = 0; i < DDP_PARTS; i++) most += tensors_in(a->parts[i]) + tensors_in(b->parts[i]);
    if ((out->items = ddp_alloc(most * sizeof(*out->items), err)) == NULL) return err->status;
    for (int i = 0; i < DDP_PARTS; i++) compare_with(out, i, a->parts[i], b->parts[i]);
    qsort(out->items, out->count, sizeof(*out->items), compare_weights);
    return DDP_OK;
}

void ddp_tensor_differences_free(ddp_tensor_differences *d)
{
    free(d->items);
    *d = (ddp_tensor_differences){0};
}
