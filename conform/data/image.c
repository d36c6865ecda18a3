/* conform/data/image.c -- see image.h. */
#include "conform/data/image.h"
#include <stdlib.h>
#include <string.h>

enum { GUARD = 64 };
#define BYTES_MOST ((int64_t)1 << 30)

static void *give_memory(void *ctx, uint32_t block, size_t bytes, ddp_err *err)
{
    image_buffer *b = ctx;

    if (block > 1) {
        (void)ddp_fail(err, DDP_ERR_INVALID, "there is no block %u", block);
        return NULL;
    }
    free(b->blocks[block]);
    b->blocks[block] = ddp_alloc_aligned(bytes + 1, err);
    return b->blocks[block];
}

static ddp_status place(void *ctx, ddp_image *image, ddp_err *err)
{
    image_buffer *b = ctx;

    b->placed++;
    if (image->height < 1 || image->width < 1 || image->height > BYTES_MOST / 3 / image->width)
        return ddp_fail(err, DDP_ERR_INVALID, "an image of %lld x %lld pixels", (long long)image->height,
                        (long long)image->width);
    b->bytes = (size_t)(3 * image->height * image->width);
    free(b->base);
    b->base = ddp_alloc_aligned(b->bytes + (size_t)2 * GUARD, err);
    if (b->base == NULL) return err->status;
    memset(b->base, 0x5a, b->bytes + (size_t)2 * GUARD);
    memset(b->base + GUARD, b->before, b->bytes);
    image->scale = 8;
    image->top = image->left = 0;
    image->rows = image->height;
    image->columns = image->width;
    image->pixels = b->base + GUARD;
    return DDP_OK;
}

static bool guards_hold(const image_buffer *b)
{
    for (size_t i = 0; i < GUARD; i++)
        if (b->base[i] != 0x5a || b->base[GUARD + b->bytes + i] != 0x5a) return false;
    return true;
}

bool image_read(image_buffer *b, const ddp_dataset_ops *ops, const ddp_dataset *d, uint64_t index, uint64_t epoch,
                int before, void *const *buffers, uint64_t *hash)
{
    const ddp_image_sink sink = {.struct_size = sizeof(sink), .ctx = b, .memory = give_memory, .place = place};
    ddp_err err = {0};
    ddp_status st;

    b->before = before;
    b->placed = 0;
    st = ops->read_image(d, index, epoch, &sink, buffers, &err);
    if (st != DDP_OK) return ddp_rank_process_fail_call(b->a, "read_image", st, &err);
    if (!DDP_EXPECT(b->a, b->placed == 1, "read_image of sample %llu has called place %d times, not once",
                    (unsigned long long)index, b->placed) ||
        !DDP_EXPECT(b->a, guards_hold(b), "read_image of sample %llu wrote outside the pixels",
                    (unsigned long long)index))
        return false;
    *hash = ddp_hash64(b->base + GUARD, b->bytes, b->bytes);
    return true;
}

void image_free(image_buffer *b)
{
    for (int i = 0; i < 2; i++) free(b->blocks[i]);
    free(b->base);
}
