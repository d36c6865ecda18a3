/* plugins/dataset/common/tokenizer/steps/steps.h -- the rows of steps of a tokenizer.json: normalizers,
 * pre-tokenizers and decoders are each one step, or a "Sequence" of them, with a "type" and the members that it
 * takes. */
#pragma once

#include "common/tokenizer/regex/pattern.h"
#include <jansson.h>

enum { STEPS_MAX = 24 };

typedef struct step {
    int kind;
    pattern *pattern;
    bytes content;
    int32_t a, b, c; /* what they mean depends on the kind */
} step;

typedef struct steps {
    step all[STEPS_MAX];
    uint32_t count;
} steps;

typedef struct step_kind {
    const char *type;
    int kind;
    ddp_status (*read)(const char *where, const json_t *j, step *s, ddp_err *err); /* NULL: no members */
} step_kind;

/* `list`: the member of a Sequence that has its steps. `j` may be null. */
ddp_status steps_read(const char *where, const json_t *j, const char *list, const step_kind *kinds, size_t kind_count,
                      steps *out, ddp_err *err);
void steps_free(steps *s);

/* Members of an object; a missing one is the default, NULL: it is an error. Texts live as long as the object. */
ddp_status member_text(const char *where, const json_t *j, const char *key, const char *otherwise, const char **text,
                       size_t *size, ddp_err *err);
ddp_status member_bool(const char *where, const json_t *j, const char *key, bool otherwise, int32_t *out, ddp_err *err);
ddp_status member_integer(const char *where, const json_t *j, const char *key, int64_t otherwise, int64_t *out,
                          ddp_err *err);
ddp_status member_content(const char *where, const json_t *j, const char *key, const char *otherwise, bytes *out,
                          ddp_err *err);
/* {"String": ..} or {"Regex": ..} */
ddp_status member_pattern(const char *where, const json_t *j, pattern **out, ddp_err *err);
/* One of `names`, separated by | */
ddp_status member_choice(const char *where, const json_t *j, const char *key, const char *otherwise, const char *names,
                         int32_t *out, ddp_err *err);
