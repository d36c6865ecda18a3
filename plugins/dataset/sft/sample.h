/* plugins/dataset/sft/sample.h -- a conversation as tokens with what each counts for, as LLaMA-Factory's processors
 * make them: truncated to a length, with the loss on the answers. */
#pragma once

#include "template.h"

/* A token is 24 bits of id and, above, what its label is; without LABEL_ID and LABEL_EOS it is -100. */
enum { SAMPLE_ID = (1 << 24) - 1 };
#define LABEL_ID      (UINT32_C(1) << 31) /* the id itself */
#define LABEL_EOS     (UINT32_C(1) << 30) /* the token of the end */
#define SEGMENT_BEGIN (UINT32_C(1) << 29) /* the first one of a conversation */

typedef struct sample_rules {
    uint64_t length; /* cutoff_len of LLaMA-Factory */
    bool train_on_prompt, mask_history;
} sample_rules;

typedef struct sample_scratch {
    numbers ids;     /* of all turns */
    numbers ends;    /* where each turn's end in ids */
    numbers lengths; /* of the turns, truncated */
} sample_scratch;

/* Adds the tokens of the conversation; *truncated: it had more. */
ddp_status sample_make(template *t, const conversation *c, const sample_rules *rules, sample_scratch *s, numbers *out,
                       bool *truncated, ddp_err *err);
void sample_scratch_free(sample_scratch *s);
