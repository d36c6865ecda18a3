/* plugins/dataset/npy/npy.c -- arrays of NumPy: sample i is row i of `input` and of `label`.
 *
 * The input is "image" (C, H, W), u8 or f32, where a sample has the shape of an image, else "input"; integers that are
 * wider than a byte are i64, all others f32. The label is "label", i64 (), for one integer a sample, else "target". A
 * .npy file stays where it is and is read by pread; arrays of an .npz file are unpacked into memory. header.c knows the
 * format, array.c the elements, npz.c the zip file. */
#include "array.h"
#include "common/dataset.h"
#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { TYPE_AUTO = 0, TYPE_F32, TYPE_U8, TYPE_I64 };
enum { LAYOUT_AUTO = 0, LAYOUT_CHW, LAYOUT_HWC };

enum { FORMAT = 2 /* into the fingerprint: bump it when the same files and options give another one */ };

typedef struct npy_config {
    const char *path, *input, *label;
    int32_t input_type, layout;
    double from, to;
} npy_config;

struct ddp_dataset {
    data_base base;
    const npy_config *config;
    array arrays[2]; /* input, label; of open_file no label */
    array_form forms[2];
    uint64_t begin;         /* the first sample in use */
    char description[1024]; /* both arrays: a name of 100, eight dimensions and two bounds take 350 each */
};

static const ddp_option options[] = {
    {.key = "path",
     .dflt = "",
     .doc = "An .npz file, in which input and label are arrays; empty: they are .npy files.",
     .type = DDP_OPT_PATH,
     .offset = offsetof(npy_config, path)},
    {.key = "input",
     .dflt = "",
     .doc = ".npy file of the inputs, or their name in the .npz file; the first dimension counts the samples.",
     .type = DDP_OPT_PATH,
     .offset = offsetof(npy_config, input)},
    {.key = "label",
     .dflt = "",
     .doc = ".npy file of the labels or targets, or their name in the .npz file; as many as there are inputs.",
     .type = DDP_OPT_PATH,
     .offset = offsetof(npy_config, label)},
    {.key = "input_type",
     .dflt = "auto",
     .range = "auto|f32|u8|i64",
     .doc =
         "What the model sees. auto: floats and bools as f32, bytes of images as u8, other bytes as f32, wider integers as i64.",
     .type = DDP_OPT_ENUM,
     .offset = offsetof(npy_config, input_type)},
    {.key = "layout",
     .dflt = "auto",
     .range = "auto|chw|hwc",
     .doc = "Order of the dimensions of an image; the model sees C, H, W. "
            "auto: hwc where the last dimension is 1, 3 or 4 and the first is not.",
     .type = DDP_OPT_ENUM,
     .offset = offsetof(npy_config, layout)},
    {.key = "from",
     .dflt = "0",
     .range = "0..1",
     .doc = "Where the part to use begins, as a fraction of all samples.",
     .type = DDP_OPT_FLOAT,
     .offset = offsetof(npy_config, from)},
    {.key = "to",
     .dflt = "1",
     .range = "0..1",
     .doc = "Where the part to use ends; to = 0.9 for training and from = 0.9 for evaluation do not overlap.",
     .type = DDP_OPT_FLOAT,
     .offset = offsetof(npy_config, to)},
};

/* ---- open -------------------------------------------------------------------------------------------------------- */
static ddp_status choose_input_type(const npy_config *c, const array *a, array_form *form, ddp_err *err)
{
    const npy_header *h = &a->header;
    bool byte = h->kind == 'b' || (h->kind == 'u' && h->width == 1);
    bool image = h->rank == 4 || h->rank == 3;
    int32_t type = c->input_type;

    if (type == TYPE_AUTO && h->kind == 'u' && byte && image) type = TYPE_U8;
    if (type == TYPE_AUTO) type = h->kind == 'f' || byte ? TYPE_F32 : TYPE_I64;
    if (type == TYPE_I64 && h->kind == 'f')
        return ddp_fail(err, DDP_ERR_CONFIG,
                        "dataset npy: input_type = i64, but %s holds floats; convert it, or set input_type = f32",
                        a->name);
    if (type == TYPE_U8 && !byte)
        return ddp_fail(err, DDP_ERR_CONFIG,
                        "dataset npy: input_type = u8, but %s holds other numbers than bytes; set it to f32 or i64",
                        a->name);
    form->dtype = type == TYPE_F32 ? DDP_F32 : type == TYPE_U8 ? DDP_U8 : DDP_I64;
    return DDP_OK;
}

/* A sample without its channels is an image of bytes, as MNIST's. */
static bool is_image(const npy_header *h, uint32_t dtype)
{
    return (h->rank == 4 && dtype != DDP_I64) || (h->rank == 3 && dtype == DDP_U8);
}

static bool is_channels(int64_t dim) { return dim == 1 || dim == 3 || dim == 4; }

static void describe_image(const npy_config *c, const npy_header *h, array_form *form, ddp_field *f)
{
    const int64_t *dims = h->dims + 1;
    bool last = h->rank == 4 && (c->layout == LAYOUT_HWC ||
                                 (c->layout == LAYOUT_AUTO && is_channels(dims[2]) && !is_channels(dims[0])));

    f->name = "image";
    f->rank = 3;
    f->dims[0] = h->rank == 3 ? 1 : last ? dims[2] : dims[0];
    f->dims[1] = h->rank == 3 || last ? dims[0] : dims[1];
    f->dims[2] = h->rank == 3 || last ? dims[1] : dims[2];
    if (last) form->channels = (uint64_t)dims[2];
}

/* Shape of a sample as it is; (N) is one value a sample. */
static void copy_shape(const npy_header *h, ddp_field *f)
{
    f->rank = h->rank > 1 ? h->rank - 1 : 1;
    f->dims[0] = 1;
    for (uint32_t i = 1; i < h->rank; i++) f->dims[i - 1] = h->dims[i];
}

static void describe_label(ddp_dataset *d)
{
    const npy_header *h = &d->arrays[1].header;
    ddp_field *f = &d->base.fields[1];

    d->forms[1].dtype = h->kind == 'f' ? DDP_F32 : DDP_I64;
    *f = (ddp_field){.name = "target", .dtype = d->forms[1].dtype};
    if (h->kind != 'f' && d->arrays[1].per == 1)
        f->name = "label";
    else
        copy_shape(h, f);
}

static ddp_status describe_fields(const npy_config *c, ddp_dataset *d, ddp_err *err)
{
    const npy_header *h = &d->arrays[0].header;
    ddp_field *f = &d->base.fields[0];

    DDP_TRY(choose_input_type(c, &d->arrays[0], &d->forms[0], err));
    *f = (ddp_field){.name = "input", .dtype = d->forms[0].dtype};
    if (is_image(h, f->dtype))
        describe_image(c, h, &d->forms[0], f);
    else
        copy_shape(h, f);
    describe_label(d);
    return DDP_OK;
}

static ddp_status choose_part(const npy_config *c, ddp_dataset *d, ddp_err *err)
{
    int64_t count = d->arrays[0].header.dims[0], labels = d->arrays[1].header.dims[0];
    uint64_t end;

    if (count != labels)
        return ddp_fail(err, DDP_ERR_DATA,
                        "dataset npy: input %s has %" PRId64 " samples, label %s has %" PRId64
                        "; name two arrays of one dataset",
                        d->arrays[0].name, count, d->arrays[1].name, labels);
    d->begin = (uint64_t)floor(c->from * (double)count);
    end = c->to >= 1.0 ? (uint64_t)count : (uint64_t)floor(c->to * (double)count);
    if (d->begin >= end)
        return ddp_fail(err, DDP_ERR_CONFIG, "dataset npy: from = %g, to = %g leave none of %" PRId64 " samples",
                        c->from, c->to, count);
    d->base.length = end - d->begin;
    return DDP_OK;
}

/* The elements in use, or a part of very many; what they become is hashed with them. */
static ddp_status scan(ddp_dataset *d, ddp_err *err)
{
    XXH3_state_t hash;

    data_hash_begin(&hash, d->base.length + FORMAT);
    for (uint32_t i = 0; i < 2; i++) {
        array *a = &d->arrays[i];
        ddp_field *f = &d->base.fields[i];
        uint64_t head[] = {f->dtype,        f->rank,           (uint64_t)a->header.kind,
                           a->header.width, a->header.swapped, d->forms[i].channels};

        (void)XXH3_64bits_update(&hash, head, sizeof(head));
        (void)XXH3_64bits_update(&hash, f->dims, sizeof(f->dims));
        f->min = f->dtype == DDP_F32;
        f->max = f->dtype == DDP_U8 ? UINT8_MAX : 0;
        DDP_TRY(array_scan(a, d->begin, d->begin + d->base.length, &hash, f->dtype == DDP_I64 ? &f->min : NULL, &f->max,
                           err));
    }
    d->base.fingerprint = XXH3_64bits_digest(&hash);
    return DDP_OK;
}

/* One array: where it is, what it holds and what becomes of it. */
static size_t describe_array(const array *a, const array_form *form, const ddp_field *f, char *out, size_t size)
{
    const char *as = f->dtype == DDP_F32 ? "f32" : f->dtype == DDP_U8 ? "u8" : "i64";
    const npy_header *h = &a->header;
    size_t used = (size_t)snprintf(out, size, "%.100s, %c%u (%" PRId64, a->name, h->kind, h->width, h->dims[0]);

    for (uint32_t k = 1; k < h->rank; k++) used += (size_t)snprintf(out + used, size - used, ", %" PRId64, h->dims[k]);
    used += (size_t)snprintf(out + used, size - used, "): %s %s%s", f->name, as,
                             form->channels > 0 ? ", from (H, W, C)" : "");
    if (f->dtype == DDP_I64)
        used += (size_t)snprintf(out + used, size - used, " from %" PRId64 " to %" PRId64, f->min, f->max);
    for (size_t i = 0; i < used; i++)
        if ((unsigned char)out[i] < ' ' || out[i] == 127) out[i] = '?';
    return used + (size_t)snprintf(out + used, size - used, "\n");
}

static void dataset_close(ddp_dataset *d)
{
    array_close(&d->arrays[0]);
    array_close(&d->arrays[1]);
    free(d);
}

static ddp_status fill(ddp_dataset *d, const void *config, ddp_err *err)
{
    const npy_config *c = d->config = config;
    size_t used, size = sizeof(d->description);

    if (c->input[0] == '\0' || c->label[0] == '\0')
        return ddp_fail(err, DDP_ERR_CONFIG,
                        "dataset npy: %s is not set; name a .npy file, or with path = FILE.npz an array in it",
                        c->input[0] == '\0' ? "input" : "label");
    DDP_TRY(array_open(&d->arrays[0], "input", c->path, c->input, err));
    DDP_TRY(array_open(&d->arrays[1], "label", c->path, c->label, err));
    DDP_TRY(choose_part(c, d, err));
    DDP_TRY(describe_fields(c, d, err));
    DDP_TRY(scan(d, err));
    used = describe_array(&d->arrays[0], &d->forms[0], &d->base.fields[0], d->description, size);
    (void)describe_array(&d->arrays[1], &d->forms[1], &d->base.fields[1], d->description + used, size - used);
    return DDP_OK;
}

static ddp_status dataset_open(const ddp_host *host, const void *config, ddp_dataset **out, ddp_err *err)
{
    (void)host;
    return data_open("npy", sizeof(struct ddp_dataset), fill, dataset_close, config, out, err);
}

/* ---- use --------------------------------------------------------------------------------------------------------- */
static void no_label(const ddp_field *f, void *out)
{
    const int64_t none = DDP_NO_LABEL;
    int64_t elements = 1;

    for (uint32_t k = 0; k < f->rank; k++) elements *= f->dims[k];
    for (int64_t i = 0; i < elements; i++)
        if (f->dtype == DDP_I64)
            memcpy((char *)out + i * 8, &none, sizeof(none));
        else
            ((float *)out)[i] = NAN;
}

static ddp_status dataset_read(const ddp_dataset *d, uint64_t index, uint64_t epoch, void *const *buffers, ddp_err *err)
{
    (void)epoch;
    DDP_TRY(data_check_index(d, index, err));
    for (uint32_t i = 0; i < 2 && d->arrays[i].name != NULL; i++)
        DDP_TRY(array_read(&d->arrays[i], d->begin + index, &d->forms[i], buffers[i], err));
    if (d->arrays[1].name == NULL) no_label(&d->base.fields[1], buffers[1]);
    return DDP_OK;
}

/* ---- a file ------------------------------------------------------------------------------------------------------ */
static bool ends_with(const char *path, const char *end)
{
    size_t n = strlen(path), m = strlen(end);

    return n >= m && strcmp(path + n - m, end) == 0;
}

/* An array of one sample alone becomes one of many. */
static void add_dimension(array *a, const npy_header *like)
{
    npy_header *h = &a->header;

    if (h->rank + 1 != like->rank || memcmp(h->dims, like->dims + 1, h->rank * sizeof(h->dims[0])) != 0) return;
    memmove(h->dims + 1, h->dims, h->rank * sizeof(h->dims[0]));
    h->dims[0] = 1;
    h->rank++;
    a->per = h->bytes / h->width;
}

static ddp_status open_array(const ddp_dataset *d, ddp_dataset *f, const char *path, ddp_err *err)
{
    const npy_header *like = &d->arrays[0].header, *h = &f->arrays[0].header;
    bool zip = ends_with(path, ".npz");

    DDP_TRY(array_open(&f->arrays[0], "input", zip ? path : "", zip ? d->config->input : path, err));
    add_dimension(&f->arrays[0], like);
    if (h->kind != like->kind || h->rank != like->rank ||
        memcmp(h->dims + 1, like->dims + 1, (h->rank - 1) * sizeof(h->dims[0])) != 0)
        return ddp_fail(
            err, DDP_ERR_DATA,
            "dataset npy: %s does not hold what the model was trained on; its samples need the shape and type of %s",
            f->arrays[0].name, d->arrays[0].name);
    f->base.length = (uint64_t)h->dims[0];
    return DDP_OK;
}

static ddp_status dataset_open_file(const ddp_dataset *d, const char *path, ddp_dataset **out, ddp_err *err)
{
    ddp_dataset *f = calloc(1, sizeof(*f));

    if (f == NULL) return data_no_memory("npy", err);
    f->base = d->base;
    f->config = d->config;
    memcpy(f->forms, d->forms, sizeof(f->forms));
    f->arrays[0].file.fd = f->arrays[1].file.fd = -1;
    if (open_array(d, f, path, err) != DDP_OK) {
        dataset_close(f);
        return err->status;
    }
    *out = f;
    return DDP_OK;
}

static const char *dataset_describe(const ddp_dataset *d) { return d->description; }

static const ddp_dataset_ops ops = {DATA_OPS,
                                    .open = dataset_open,
                                    .close = dataset_close,
                                    .read = dataset_read,
                                    .describe = dataset_describe,
                                    .open_file = dataset_open_file};

DDP_PLUGIN_EXPORT const ddp_plugin ddp_plugin_desc = {
    DDP_PLUGIN_HEAD(DATASET, 0),
    .install = "Debian package libzip4",
    DDP_PLUGIN_TAIL("npy", "0.1.0", "arrays of NumPy: .npy files, or an .npz file", DDP_OPTIONS(options, npy_config),
                    ops),
};
