/* infer/text.h -- a language model continues a text or a row of tokens, on standard output. */
#pragma once

#include "infer/generate.h"

typedef struct ddp_text_request {
    const char *weights; /* a checkpoint, a folder of such or a safetensors file; NULL: as the config says */
    const char *prompt, *prompt_tokens; /* at most one of them; NULL: not given */
    int32_t tokens;                     /* new ones */
    ddp_sampling how;
} ddp_text_request;

/* Returns the exit code, after a line where it is not 0. */
int ddp_generate_text(const ddp_text_request *q, ddp_config *config, ddp_log *log);
