/* checkpoint/safetensors/write.c -- writes a safetensors file straight from the tensors' memory, hashing on the way.
 * Tensors are laid out by element size, largest first, as the format's own writer does: every tensor stays aligned.
 * Folders, renames and what a checkpoint is are checkpoint.c's affair. */
#include "checkpoint/safetensors/format.h"
#include "checkpoint/safetensors/sink.h"
#include <jansson.h>
#include <stdlib.h>
#include <string.h>

static const struct {
    uint32_t dtype;
    uint32_t size;
    const char *name;
} dtypes[] = {{DDP_F32, 4, "F32"},
              {DDP_BF16, 2, "BF16"},
              {DDP_F64, 8, "F64"},
              {DDP_I32, 4, "I32"},
              {DDP_I64, 8, "I64"},
              {DDP_U8, 1, "U8"},
              {DDP_FILE_F16, 2, "F16"},
              {DDP_FILE_BOOL, 1, "BOOL"},
              {DDP_FILE_I8, 1, "I8"},
              {DDP_FILE_I16, 2, "I16"},
              {DDP_FILE_U16, 2, "U16"},
              {DDP_FILE_U32, 4, "U32"},
              {DDP_FILE_U64, 8, "U64"},
              {DDP_FILE_F8_E4M3, 1, "F8_E4M3"},
              {DDP_FILE_F8_E5M2, 1, "F8_E5M2"}};

static const size_t element_sizes[] = {8, 4, 2, 1};

const char *ddp_safetensors_dtype_name(uint32_t dtype)
{
    for (size_t i = 0; i < DDP_COUNT(dtypes); i++)
        if (dtypes[i].dtype == dtype) return dtypes[i].name;
    return NULL;
}

size_t ddp_safetensors_dtype_size(uint32_t dtype)
{
    for (size_t i = 0; i < DDP_COUNT(dtypes); i++)
        if (dtypes[i].dtype == dtype) return dtypes[i].size;
    return 0;
}

uint32_t checkpoint_safetensors_dtype(const char *name)
{
    for (size_t i = 0; i < DDP_COUNT(dtypes); i++)
        if (strcmp(dtypes[i].name, name) == 0) return dtypes[i].dtype;
    return 0;
}

bool checkpoint_safetensors_bytes(const ddp_named_tensor *t, uint64_t *bytes)
{
    int64_t n = (int64_t)ddp_safetensors_dtype_size(t->dtype);

    if (n == 0 || t->rank > DDP_MAX_DIMS) return false;
    for (uint32_t i = 0; i < t->rank; i++)
        if (t->dims[i] < 0 || __builtin_mul_overflow(n, t->dims[i], &n)) return false;
    *bytes = (uint64_t)n;
    return true;
}

/* ---- header ------------------------------------------------------------------------------------------------------ */
static ddp_status add_metadata(json_t *header, const char *const *metadata, ddp_err *err)
{
    json_t *object = json_object();

    for (size_t i = 0; object != NULL && metadata[i] != NULL; i += 2)
        if (json_object_set_new(object, metadata[i], json_string(metadata[i + 1])) != 0) {
            json_decref(object);
            return ddp_fail(err, DDP_ERR_INVALID, "safetensors metadata \"%s\" is not UTF-8 text", metadata[i]);
        }
    if (json_object_set_new(header, DDP_SAFETENSORS_METADATA, object) != 0)
        return ddp_fail(err, DDP_ERR_NOMEM, "out of memory for a safetensors header");
    return DDP_OK;
}

/* Adds one tensor at *offset bytes from the start of the data and moves *offset past it. */
static ddp_status add_tensor(json_t *header, const ddp_named_tensor *t, uint64_t *offset, ddp_err *err)
{
    uint64_t bytes, end;
    json_t *shape, *entry;

    if (!checkpoint_safetensors_bytes(t, &bytes) || __builtin_add_overflow(*offset, bytes, &end) || end > INT64_MAX)
        return ddp_fail(err, DDP_ERR_INVALID, "tensor %s cannot be saved: its dtype or shape is out of range", t->name);
    if (json_object_get(header, t->name) != NULL || strcmp(t->name, DDP_SAFETENSORS_METADATA) == 0)
        return ddp_fail(err, DDP_ERR_INVALID, "tensor name \"%s\" is there twice or reserved: rename it in the model",
                        t->name);
    shape = json_array();
    for (uint32_t i = 0; i < t->rank; i++) json_array_append_new(shape, json_integer(t->dims[i]));
    entry = json_pack("{s:s, s:o, s:[I, I]}", "dtype", ddp_safetensors_dtype_name(t->dtype), "shape", shape,
                      "data_offsets", (json_int_t)*offset, (json_int_t)end);
    if (json_object_set_new(header, t->name, entry) != 0)
        return ddp_fail(err, DDP_ERR_INVALID, "tensor name \"%s\" is not UTF-8 text, or out of memory", t->name);
    *offset = end;
    return DDP_OK;
}

/* The 8 bytes of length and the JSON, padded with spaces so that the data start at a multiple of 8. */
static ddp_status frame_header(const json_t *header, char **out, size_t *length, ddp_err *err)
{
    size_t n = json_dumpb(header, NULL, 0, JSON_COMPACT), padded = (size_t)ddp_round_up(n, 8);
    char *framed;

    if (padded > DDP_SAFETENSORS_MAX_HEADER)
        return ddp_fail(err, DDP_ERR_INVALID, "a safetensors header of %zu bytes is over the format's limit of %u",
                        padded, DDP_SAFETENSORS_MAX_HEADER);
    if ((framed = ddp_alloc(8 + padded, err)) == NULL) return err->status;
    for (int i = 0; i < 8; i++) framed[i] = (char)(unsigned char)((uint64_t)padded >> (8 * i) & 0xff);
    memset(framed + 8, ' ', padded);
    if (n == 0 || json_dumpb(header, framed + 8, n, JSON_COMPACT) != n) {
        free(framed);
        return ddp_fail(err, DDP_ERR_NOMEM, "out of memory for a safetensors header");
    }
    *out = framed;
    *length = 8 + padded;
    return DDP_OK;
}

ddp_status checkpoint_safetensors_header(const ddp_named_tensor *tensors, size_t count, const char *const *metadata,
                                         char **out, size_t *length, ddp_err *err)
{
    json_t *header = json_object();
    uint64_t offset = 0;
    ddp_status st = header == NULL ? ddp_fail(err, DDP_ERR_NOMEM, "out of memory for a safetensors header") : DDP_OK;

    for (size_t i = 0; st == DDP_OK && i < count; i++)
        if (ddp_safetensors_dtype_name(tensors[i].dtype) == NULL)
            st = ddp_fail(err, DDP_ERR_INVALID, "tensor %s has dtype number %u, which safetensors lacks",
                          tensors[i].name, tensors[i].dtype);
    if (st == DDP_OK && metadata != NULL) st = add_metadata(header, metadata, err);
    for (size_t s = 0; s < DDP_COUNT(element_sizes); s++)
        for (size_t i = 0; st == DDP_OK && i < count; i++)
            if (ddp_safetensors_dtype_size(tensors[i].dtype) == element_sizes[s])
                st = add_tensor(header, &tensors[i], &offset, err);
    if (st == DDP_OK) st = frame_header(header, out, length, err);
    json_decref(header);
    return st;
}

/* ---- data -------------------------------------------------------------------------------------------------------- */
static ddp_status put_tensor(checkpoint_sink *s, const ddp_named_tensor *t, uint64_t bytes, ddp_err *err)
{
    const ddp_tensor_reader *r = &t->reader;

    if (r->read == NULL) return checkpoint_sink_put(s, t->data, bytes, err);
    for (uint64_t at = 0, n; at < bytes; at += n) {
        const void *piece;

        n = DDP_MIN_OF(bytes - at, r->bytes);
        DDP_TRY(r->read(r->ctx, (const char *)t->data + at, n, &piece, err));
        DDP_TRY(checkpoint_sink_put(s, piece, n, err));
    }
    return DDP_OK;
}

static ddp_status put_tensors(checkpoint_sink *s, const ddp_named_tensor *tensors, size_t count, ddp_err *err)
{
    uint64_t bytes = 0;

    for (size_t e = 0; e < DDP_COUNT(element_sizes); e++)
        for (size_t i = 0; i < count; i++) {
            if (ddp_safetensors_dtype_size(tensors[i].dtype) != element_sizes[e]) continue;
            (void)checkpoint_safetensors_bytes(&tensors[i], &bytes);
            DDP_TRY(put_tensor(s, &tensors[i], bytes, err));
        }
    return DDP_OK;
}

ddp_status checkpoint_safetensors_write(const char *path, const ddp_named_tensor *tensors, size_t count,
                                        const char *const *metadata, const atomic_bool *cancelled,
                                        char hash[DDP_XXH128_HEX], uint64_t *bytes, ddp_err *err)
{
    checkpoint_sink s;
    char *head = NULL;
    size_t head_length = 0;
    ddp_status st;

    DDP_TRY(checkpoint_safetensors_header(tensors, count, metadata, &head, &head_length, err));
    st = checkpoint_sink_open(&s, path, cancelled, err);
    if (st != DDP_OK) goto free_head;
    st = checkpoint_sink_put(&s, head, head_length, err);
    if (st == DDP_OK) st = put_tensors(&s, tensors, count, err);
    st = checkpoint_sink_close(&s, st, hash, err);
    if (st == DDP_OK) *bytes = s.bytes;
free_head:
    free(head);
    return st;
}
