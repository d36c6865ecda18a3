/* lint/analyzer.h -- for clang-tidy alone, put in front of each file: what these functions promise and its analyser,
 * which sees one file at a time, cannot know. Without it every caller of a function that fails seems to go on with
 * nothing. */
#include "base/base.h"

#define ddp_fail(err, st, ...)                                                                                         \
    ({                                                                                                                 \
        (void)ddp_fail(err, st, __VA_ARGS__);                                                                          \
        (err)->status = (st);                                                                                          \
    })
#define ddp_fail_errno(err, ...)                                                                                       \
    ({                                                                                                                 \
        (void)ddp_fail_errno(err, __VA_ARGS__);                                                                        \
        (err)->status = DDP_ERR_SYSTEM;                                                                                \
    })
#define ddp_fail_context(err, ...)                                                                                     \
    ({                                                                                                                 \
        ddp_status status_ = ddp_fail_context(err, __VA_ARGS__);                                                       \
        if (status_ == DDP_OK) __builtin_unreachable();                                                                \
        status_;                                                                                                       \
    })
#define ddp_allocated_(p, err)                                                                                         \
    ({                                                                                                                 \
        void *p_ = (p);                                                                                                \
        if (p_ == NULL) (err)->status = DDP_ERR_NOMEM;                                                                 \
        p_;                                                                                                            \
    })
#define ddp_alloc(bytes, err)            ddp_allocated_(ddp_alloc(bytes, err), err)
#define ddp_alloc_aligned(bytes, err)    ddp_allocated_(ddp_alloc_aligned(bytes, err), err)
#define ddp_strdup(text, err)            ddp_allocated_(ddp_strdup(text, err), err)
#define ddp_pool_alloc(pool, bytes, err) ddp_allocated_(ddp_pool_alloc(pool, bytes, err), err)
