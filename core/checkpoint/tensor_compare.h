/* checkpoint/tensor_compare.h -- what differs between the tensors of two checkpoints. */
#pragma once

#include "checkpoint/checkpoint.h"

typedef struct ddp_tensor_difference {
    int part;                      /* DDP_PART_* */
    const ddp_named_tensor *a, *b; /* NULL: that checkpoint lacks it; they may differ in dtype or shape */
    bool comparable;               /* both, alike; then: */
    uint64_t elements, differing;  /* differing: in their bits */
    uint64_t not_finite;           /* of those; `largest` leaves them out */
    double largest;                /* absolute difference; NaN for a dtype without numbers here */
} ddp_tensor_difference;

typedef struct ddp_tensor_differences {
    ddp_tensor_difference *items; /* those of one side or of another shape, then the others, the largest first */
    size_t count;
    size_t common, differing, misfits, only_a, only_b; /* common: comparable; misfits: not, though both have it */
} ddp_tensor_differences;

/* Both stay open while the result is used. */
ddp_status ddp_checkpoint_compare_tensors(const ddp_checkpoint *a, const ddp_checkpoint *b, ddp_tensor_differences *out,
                                          ddp_err *err);
void ddp_tensor_differences_free(ddp_tensor_differences *d);
