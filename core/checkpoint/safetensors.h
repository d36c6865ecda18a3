/* checkpoint/safetensors.h -- the safetensors format: 8 bytes little-endian header length, JSON header, raw tensors.
 * Written and read here so that the file opens in PyTorch, and in anything with JSON and struct. */
#pragma once

#include "base/base.h"
#include "base/sys.h"
#include <stdatomic.h>

/* What others' files may hold beside DDP_F32 and its like: named, sized, and computed with nowhere. */
enum {
    DDP_FILE_F16 = 256,
    DDP_FILE_BOOL,
    DDP_FILE_I8,
    DDP_FILE_I16,
    DDP_FILE_U16,
    DDP_FILE_U32,
    DDP_FILE_U64,
    DDP_FILE_F8_E4M3,
    DDP_FILE_F8_E5M2
};

/* Where a tensor that is to be written is not all in this process's memory: gives the bytes that would lie at `at`, of
 * which it takes at most `bytes` at a time. *out is valid until the next call. */
typedef struct ddp_tensor_reader {
    ddp_status (*read)(void *ctx, const void *at, uint64_t bytes, const void **out, ddp_err *err);
    void *ctx;
    uint64_t bytes;
} ddp_tensor_reader;

typedef struct ddp_named_tensor {
    const char *name;
    uint32_t dtype, rank; /* DDP_F32 .., DDP_FILE_F16 .. */
    int64_t dims[DDP_MAX_DIMS];
    const void *data;         /* row-major, dtype's size x product of dims */
    ddp_tensor_reader reader; /* read NULL: all of it is there */
} ddp_named_tensor;

/* Writes path (O_EXCL), fsyncs it; on failure removes it. `metadata`: pairs key, value, ..., NULL; may be NULL.
 * `cancelled`: another thread sets it to end the call between two pieces, with DDP_ERR_ABORTED; may be NULL. */
ddp_status checkpoint_safetensors_write(const char *path, const ddp_named_tensor *tensors, size_t count,
                                        const char *const *metadata, const atomic_bool *cancelled,
                                        char hash[DDP_XXH128_HEX], uint64_t *bytes, ddp_err *err);

/* The file's header for these tensors, free(): "8 bytes of length" and JSON, after which the tensors follow by the size
 * of their elements, the largest first, in this order. */
ddp_status checkpoint_safetensors_header(const ddp_named_tensor *tensors, size_t count, const char *const *metadata,
                                         char **out, size_t *length, ddp_err *err);

const char *ddp_safetensors_dtype_name(uint32_t dtype); /* "F32"; NULL for what the format or ddpengine lacks */
size_t ddp_safetensors_dtype_size(uint32_t dtype);      /* 0 for the same */

typedef struct ddp_safetensors ddp_safetensors;
/* Tensors point into the mapping. In a file that others wrote they may be unaligned: memcpy, do not cast. */
/* Maps the file and checks it: header bounds, JSON, dtypes, shapes against byte ranges, no overlap, no gap past the
 * end. */
ddp_status ddp_safetensors_open(const char *path, ddp_safetensors **out, ddp_err *err);
/* The same of a file that lies in memory, an anonymous mapping, which is taken over, also on failure. `path`: for
 * messages. */
ddp_status checkpoint_safetensors_adopt(const char *path, void *map, size_t bytes, ddp_safetensors **out, ddp_err *err);
/* The same of a model that Hugging Face has split: `path` is its model.safetensors.index.json, and the files that this
 * names lie beside it. Each tensor must be in the file that the index says. Else it is one file, as above. */
ddp_status checkpoint_safetensors_open_model(const char *path, ddp_safetensors **out, ddp_err *err);
void ddp_safetensors_close(ddp_safetensors *s);
/* The file that the tensor is of. */
const char *checkpoint_safetensors_path(const ddp_safetensors *s, const ddp_named_tensor *t);
/* Who has read a tensor of a large file and does not want it again: its pages no longer count as this process's memory.
 * They come from the file when it is read all the same. */
void checkpoint_safetensors_release(const ddp_safetensors *s, const ddp_named_tensor *t);
/* The tensor's bytes in pieces of at most `most`, the first one at `first`, of which none stays in memory. */
typedef ddp_status (*checkpoint_take_piece)(void *ctx, uint64_t at, const void *data, uint64_t bytes, ddp_err *err);
ddp_status checkpoint_safetensors_pieces(const ddp_safetensors *s, const ddp_named_tensor *t, uint64_t first,
                                         uint64_t most, checkpoint_take_piece take, void *ctx, ddp_err *err);
size_t ddp_safetensors_count(const ddp_safetensors *s);
const ddp_named_tensor *ddp_safetensors_at(const ddp_safetensors *s, size_t i); /* in file order */
const ddp_named_tensor *ddp_safetensors_find(const ddp_safetensors *s, const char *name);
