/* checkpoint/safetensors/format.h -- for the writer and the reader: dtype names, sizes, bounds. */
#pragma once

#include "checkpoint/safetensors.h"

/* The bound that the format's own implementations set, 100 MB. */
#define DDP_SAFETENSORS_MAX_HEADER 100000000u
/* Far above real files: a dense model has hundreds of tensors, a mixture of experts tens of thousands. */
#define DDP_SAFETENSORS_MAX_TENSORS (1u << 20)
#define DDP_SAFETENSORS_METADATA    "__metadata__"

uint32_t checkpoint_safetensors_dtype(const char *name); /* 0 when unknown */
/* dtype's size x product of dims; false for an unknown dtype, too many or negative dims, or an overflow of 2^63-1. */
bool checkpoint_safetensors_bytes(const ddp_named_tensor *t, uint64_t *bytes);
