/* plugins/dataset/common/tokenizer/charsmap.h -- the map of characters of a SentencePiece model (precompiled_charsmap
 * of its NormalizerSpec), which may come from a stranger. */
#pragma once

#include "common/tokenizer/buffer.h"

/* Whether every way through the map stays in it: the library itself looks at no bound. DDP_ERR_DATA, without the path,
 * else. An empty map is none. */
ddp_status charsmap_check(const uint8_t *map, size_t size, ddp_err *err);
