/* plugins/dataset/sft/pack.c -- see pack.h. */
#include "pack.h"

static int by_length(const void *x, const void *y)
{
    const pack_entry *a = x, *b = y;

    if (a->length != b->length) return a->length < b->length ? -1 : 1;
    return a->index < b->index ? -1 : 1;
}

void pack_sort(pack_entry *entries, size_t count)
{
    if (count > 1) qsort(entries, count, sizeof(*entries), by_length);
}

/* How many entries are not longer than that. */
static size_t fitting(const pack_entry *entries, size_t count, uint64_t room)
{
    size_t low = 0, high = count;

    while (low < high) {
        size_t middle = low + (high - low) / 2;

        if (entries[middle].length <= room)
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

ddp_status pack_next(pack_entry *entries, size_t *count, uint64_t room, numbers *taken, ddp_err *err)
{
    size_t n;

    taken->size = 0;
    while ((n = fitting(entries, *count, room)) > 0) {
        room -= entries[n - 1].length;
        DDP_TRY(numbers_add(taken, entries[n - 1].index, err));
        memmove(entries + n - 1, entries + n, (*count - n) * sizeof(*entries));
        (*count)--;
    }
    return DDP_OK;
}
