/* session/fields.c -- see fields.h. */
#include "session/fields.h"
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

enum { MOST_FIELDS = 64 };

/* ---- writing ----------------------------------------------------------------------------------------------------- */
void session_fields_text(const ddp_source *src, const char *section, ddp_text *out)
{
    for (uint32_t i = 0; i < src->field_count; i++) {
        const ddp_field *f = &src->fields[i];

        ddp_text_printf(out, "%s.field.%u = %s (", section, i, ddp_dtype_name(f->dtype));
        for (uint32_t k = 0; k < f->rank; k++) ddp_text_printf(out, "%s%" PRId64, k == 0 ? "" : ",", f->dims[k]);
        if (f->min > f->max)
            ddp_text_printf(out, ") any %s\n", f->name);
        else
            ddp_text_printf(out, ") %" PRId64 "..%" PRId64 " %s\n", f->min, f->max, f->name);
    }
}

/* ---- reading ----------------------------------------------------------------------------------------------------- */
static bool take_text(const char **at, const char *text)
{
    size_t length = strlen(text);

    if (strncmp(*at, text, length) != 0) return false;
    *at += length;
    return true;
}

static bool take_number(const char **at, int64_t *out)
{
    char *end;

    *out = strtoll(*at, &end, 10);
    if (end == *at) return false;
    *at = end;
    return true;
}

static bool take_dtype(const char **at, uint32_t *out)
{
    static const uint32_t dtypes[] = {DDP_F32, DDP_I64, DDP_U8, DDP_I32, DDP_F64};

    for (size_t i = 0; i < DDP_COUNT(dtypes); i++)
        if (take_text(at, ddp_dtype_name(dtypes[i])) && take_text(at, " (")) {
            *out = dtypes[i];
            return true;
        }
    return false;
}

/* "1,28,28) " */
static bool take_dims(const char **at, ddp_field *f)
{
    int64_t elements = 1;

    while (!take_text(at, ") ")) {
        if (f->rank == DDP_MAX_DIMS || (f->rank > 0 && !take_text(at, ",")) || !take_number(at, &f->dims[f->rank]))
            return false;
        if (f->dims[f->rank] < 1 || __builtin_mul_overflow(elements, f->dims[f->rank], &elements) ||
            elements > INT32_MAX)
            return false;
        f->rank++;
    }
    return true;
}

static bool take_range(const char **at, ddp_field *f)
{
    f->min = 1;
    f->max = 0;
    if (take_text(at, "any ")) return true;
    return take_number(at, &f->min) && take_text(at, "..") && take_number(at, &f->max) && take_text(at, " ");
}

static ddp_status take_field(const char *value, size_t length, ddp_pool *pool, ddp_field *f, ddp_err *err)
{
    char *line = ddp_pool_printf(pool, err, "%.*s", (int)length, value);
    const char *at = line;

    if (line == NULL) return err->status;
    if (!take_dtype(&at, &f->dtype) || !take_dims(&at, f) || !take_range(&at, f) || *at == '\0')
        return ddp_fail(err, DDP_ERR_DATA, "the checkpoint describes a field of its data by \"%.100s\", which is none",
                        line);
    f->name = at;
    return DDP_OK;
}

/* The value of a setting; NULL: it is not there. */
static const char *find(const char *settings, const char *key, size_t *length)
{
    for (const char *line = settings; line != NULL && *line != '\0';) {
        const char *end = strchrnul(line, '\n'), *at = line;

        if (take_text(&at, key) && take_text(&at, " = ") && at <= end) {
            *length = (size_t)(end - at);
            return at;
        }
        line = *end == '\n' ? end + 1 : end;
    }
    return NULL;
}

ddp_status session_fields_parse(const char *settings, const char *section, ddp_pool *pool, const ddp_field **out,
                                uint32_t *count, ddp_err *err)
{
    ddp_field *fields = ddp_pool_alloc(pool, MOST_FIELDS * sizeof(*fields), err);
    const char *value;
    uint32_t n = 0;

    if (fields == NULL) return err->status;
    for (size_t length; n < MOST_FIELDS; n++) {
        char key[64];

        (void)snprintf(key, sizeof(key), "%.32s.field.%u", section, n);
        value = find(settings, key, &length);
        if (value == NULL) break;
        DDP_TRY(take_field(value, length, pool, &fields[n], err));
    }
    *out = fields;
    *count = n;
    return DDP_OK;
}
