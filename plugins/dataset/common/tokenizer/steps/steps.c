/* plugins/dataset/common/tokenizer/steps/steps.c -- see steps.h. */
#include "common/tokenizer/steps/steps.h"
#include <stdio.h>

enum { DEPTH = 4 };

typedef struct reading {
    const char *where, *list;
    const step_kind *kinds;
    size_t kind_count;
    steps *out;
} reading;

static ddp_status fail_type(const reading *r, const char *type, ddp_err *err)
{
    char known[256] = "";
    size_t used = 0;

    for (size_t i = 0; i < r->kind_count; i++) {
        int n = snprintf(known + used, sizeof(known) - used, "%s%s", i > 0 ? ", " : "", r->kinds[i].type);

        if (n > 0 && (size_t)n < sizeof(known) - used) used += (size_t)n;
    }
    return ddp_fail(err, DDP_ERR_DATA, "%s of type \"%.60s\" is not supported; these are: Sequence, %s", r->where, type,
                    known);
}

static ddp_status read_one(const reading *r, const json_t *j, const char *type, ddp_err *err)
{
    step *s = &r->out->all[r->out->count];

    for (size_t i = 0; i < r->kind_count; i++) {
        if (strcmp(r->kinds[i].type, type) != 0) continue;
        if (r->out->count == STEPS_MAX)
            return ddp_fail(err, DDP_ERR_DATA, "%s: a Sequence of more than %d is not supported", r->where, STEPS_MAX);
        r->out->count++;
        s->kind = r->kinds[i].kind;
        return r->kinds[i].read != NULL ? r->kinds[i].read(r->where, j, s, err) : DDP_OK;
    }
    return fail_type(r, type, err);
}

static ddp_status read_any(const reading *r, const json_t *j, int depth, ddp_err *err) /* NOLINT(misc-no-recursion) */
{
    const char *type;
    const json_t *list, *item;
    size_t size, i;

    DDP_TRY(member_text(r->where, j, "type", NULL, &type, &size, err));
    if (strcmp(type, "Sequence") != 0) return read_one(r, j, type, err);
    list = json_object_get(j, r->list);
    if (!json_is_array(list) || depth == DEPTH)
        return ddp_fail(err, DDP_ERR_DATA, "%s: a Sequence needs its list \"%s\", at most %d deep", r->where, r->list,
                        DEPTH);
    for (i = 0; (item = json_array_get(list, i)) != NULL; i++) DDP_TRY(read_any(r, item, depth + 1, err));
    return DDP_OK;
}

ddp_status steps_read(const char *where, const json_t *j, const char *list, const step_kind *kinds, size_t kind_count,
                      steps *out, ddp_err *err)
{
    const reading r = {where, list, kinds, kind_count, out};

    return j == NULL || json_is_null(j) ? DDP_OK : read_any(&r, j, 0, err);
}

void steps_free(steps *s)
{
    for (uint32_t i = 0; i < s->count; i++) {
        pattern_free(s->all[i].pattern);
        free(s->all[i].content.data);
    }
    s->count = 0;
}

/* ---- members ----------------------------------------------------------------------------------------------------- */
static ddp_status fail_member(const char *where, const char *key, const char *what, ddp_err *err)
{
    return ddp_fail(err, DDP_ERR_DATA, "%s: \"%s\" is missing or not %s", where, key, what);
}

ddp_status member_text(const char *where, const json_t *j, const char *key, const char *otherwise, const char **text,
                       size_t *size, ddp_err *err)
{
    const json_t *m = json_object_get(j, key);

    *text = otherwise;
    *size = otherwise != NULL ? strlen(otherwise) : 0;
    if ((m == NULL || json_is_null(m)) && otherwise != NULL) return DDP_OK;
    if (!json_is_string(m)) return fail_member(where, key, "a text", err);
    *text = json_string_value(m);
    *size = json_string_length(m);
    return DDP_OK;
}

ddp_status member_bool(const char *where, const json_t *j, const char *key, bool otherwise, int32_t *out, ddp_err *err)
{
    const json_t *m = json_object_get(j, key);

    *out = m == NULL || json_is_null(m) ? otherwise : json_is_true(m);
    return m == NULL || json_is_null(m) || json_is_boolean(m) ? DDP_OK : fail_member(where, key, "true or false", err);
}

ddp_status member_integer(const char *where, const json_t *j, const char *key, int64_t otherwise, int64_t *out,
                          ddp_err *err)
{
    const json_t *m = json_object_get(j, key);

    *out = m == NULL ? otherwise : json_integer_value(m);
    if ((m == NULL && otherwise >= 0) || (json_is_integer(m) && *out >= 0)) return DDP_OK;
    return fail_member(where, key, "a whole number from 0 on", err);
}

ddp_status member_content(const char *where, const json_t *j, const char *key, const char *otherwise, bytes *out,
                          ddp_err *err)
{
    const char *text;
    size_t size;

    DDP_TRY(member_text(where, j, key, otherwise, &text, &size, err));
    return bytes_add(out, text, size, err);
}

ddp_status member_pattern(const char *where, const json_t *j, pattern **out, ddp_err *err)
{
    const json_t *p = json_object_get(j, "pattern");
    bool regex = json_object_get(p, "Regex") != NULL;
    const char *text;
    size_t size;

    DDP_TRY(member_text(where, p, regex ? "Regex" : "String", NULL, &text, &size, err));
    return pattern_new(where, regex ? PATTERN_REGEX : PATTERN_TEXT, text, size, out, err);
}

ddp_status member_choice(const char *where, const json_t *j, const char *key, const char *otherwise, const char *names,
                         int32_t *out, ddp_err *err)
{
    const char *text, *name = names;
    size_t size;

    DDP_TRY(member_text(where, j, key, otherwise, &text, &size, err));
    for (*out = 0;; ++*out) {
        size_t length = strcspn(name, "|");

        if (length == size && memcmp(name, text, size) == 0) return DDP_OK;
        if (name[length] == '\0') break;
        name += length + 1;
    }
    return ddp_fail(err, DDP_ERR_DATA, "%s: \"%s\" is \"%.40s\", none of %s", where, key, text, names);
}
