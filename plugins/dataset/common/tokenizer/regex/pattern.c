/* plugins/dataset/common/tokenizer/regex/pattern.c -- see pattern.h. */
#include "common/tokenizer/regex/pattern.h"
#include "common/tokenizer/regex/newer.h"
#include "common/tokenizer/regex/program.h"
#include <oniguruma.h>

struct pattern {
    bool fast;
    program simple;  /* where fast */
    OnigRegex regex; /* else, or NULL: `text` */
    uint8_t *text;
    size_t size;
};

static ddp_status fail_regex(const char *where, const char *text, size_t size, int code, OnigErrorInfo *info,
                             ddp_err *err)
{
    OnigUChar reason[ONIG_MAX_ERROR_MESSAGE_LEN];

    if (onig_error_code_to_str(reason, code, info) < 0) reason[0] = '\0';
    return ddp_fail(err, DDP_ERR_DATA, "%s: the regular expression \"%.*s\" cannot be used (%s)", where,
                    (int)(size < 80 ? size : 80), text, (const char *)reason);
}

static ddp_status compile(const char *where, const char *text, size_t size, pattern *p, ddp_err *err)
{
    bytes newer = {0};
    OnigErrorInfo info;
    int code = ONIG_NORMAL;
    ddp_status status = newer_regex(text, size, &newer, err);

    if (status == DDP_OK) {
        const OnigUChar *begin = newer.data != NULL ? newer.data : (const OnigUChar *)"";

        code = onig_new(&p->regex, begin, begin + newer.size, ONIG_OPTION_NONE, ONIG_ENCODING_UTF8, ONIG_SYNTAX_DEFAULT,
                        &info);
    }
    if (code != ONIG_NORMAL) {
        p->regex = NULL;
        status = fail_regex(where, text, size, code, &info, err);
    }
    free(newer.data);
    return status;
}

ddp_status pattern_new(const char *where, int kind, const char *text, size_t size, pattern **out, ddp_err *err)
{
    OnigEncoding utf8 = ONIG_ENCODING_UTF8;
    pattern *p = calloc(1, sizeof(*p));
    ddp_status status = DDP_OK;

    if (p == NULL) return ddp_fail(err, DDP_ERR_NOMEM, "%s: out of memory", where);
    (void)onig_initialize(&utf8, 1);
    p->text = malloc(size + 1);
    if (p->text == NULL)
        status = ddp_fail(err, DDP_ERR_NOMEM, "%s: out of memory", where);
    else
        memcpy(p->text, text, size);
    p->size = size;
    if (status == DDP_OK && kind == PATTERN_REGEX) status = program_new(text, size, &p->simple, &p->fast, err);
    if (status == DDP_OK && kind != PATTERN_TEXT && !p->fast) status = compile(where, text, size, p, err);
    if (status == DDP_OK && kind == PATTERN_TEXT && size == 0)
        status = ddp_fail(err, DDP_ERR_DATA, "%s: looks for an empty text", where);
    if (status != DDP_OK)
        pattern_free(p);
    else
        *out = p;
    return status;
}

void pattern_free(pattern *p)
{
    if (p == NULL) return;
    program_free(&p->simple);
    if (p->regex != NULL) onig_free(p->regex);
    free(p->text);
    free(p);
}

bool pattern_is_fast(const pattern *p) { return p->fast; }

void pattern_begin(pattern_search *s, const void *text, size_t size)
{
    s->text = text;
    s->size = size;
    s->from = 0;
    s->last_end = SIZE_MAX;
}

/* An empty match right after the last one does not count. */
static ddp_status next_of_onig(const pattern *p, pattern_search *s, bool *found, ddp_err *err)
{
    OnigRegion *region = s->region;

    *found = false;
    while (s->from <= s->size) {
        int at = onig_search(p->regex, s->text, s->text + s->size, s->text + s->from, s->text + s->size, region,
                             ONIG_OPTION_NONE);

        if (at == ONIG_MISMATCH) break;
        if (at < 0) return fail_regex("tokenizer", (const char *)p->text, p->size, at, NULL, err);
        s->begin = (size_t)region->beg[0];
        s->end = (size_t)region->end[0];
        if (s->begin == s->end && s->end == s->last_end) {
            s->from += s->from < s->size ? utf8_size(s->text[s->from]) : 1;
            continue;
        }
        s->from = s->last_end = s->end;
        *found = true;
        break;
    }
    return DDP_OK;
}

ddp_status pattern_next(const pattern *p, pattern_search *s, bool *found, ddp_err *err)
{
    if (p->regex != NULL) {
        if (s->region == NULL) s->region = onig_region_new();
        if (s->region == NULL) return ddp_fail(err, DDP_ERR_NOMEM, "tokenizer: out of memory");
        return next_of_onig(p, s, found, err);
    }
    if (p->fast) {
        *found = program_find(&p->simple, s->text, s->size, s->from, &s->begin, &s->end);
    } else {
        const uint8_t *at = memmem(s->text + s->from, s->size - s->from, p->text, p->size);

        *found = at != NULL;
        if (at != NULL) s->begin = (size_t)(at - s->text), s->end = s->begin + p->size;
    }
    if (*found) s->from = s->end;
    return DDP_OK;
}

void pattern_search_free(pattern_search *s)
{
    if (s->region != NULL) onig_region_free(s->region, 1);
    s->region = NULL;
}
