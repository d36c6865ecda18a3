/* plugins/dataset/sft/pack.h -- which conversations share a sample: LLaMA-Factory's greedy_knapsack, over as many rows
 * as it takes at once. */
#pragma once

#include "common/tokenizer/buffer.h"

typedef struct pack_entry {
    uint32_t length, index;
} pack_entry;

/* Sorts the entries, by length and then index, and takes those of the next sample of `room` tokens out of them;
 * `taken` gets their indices in the order in which they lie in it. */
void pack_sort(pack_entry *entries, size_t count);
ddp_status pack_next(pack_entry *entries, size_t *count, uint64_t room, numbers *taken, ddp_err *err);
