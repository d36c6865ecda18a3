/* cli/import/yaml.c -- see yaml.h. */
#include "cli/import/yaml.h"
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <yaml.h>

typedef struct reader {
    import_file *out;
    yaml_parser_t parser;
    yaml_event_t event;
    bool has_event;
} reader;

static uint64_t line_of(const reader *r) { return r->event.start_mark.line + 1; }

static ddp_status fail_at(const reader *r, uint64_t line, const char *what, ddp_err *err)
{
    return ddp_fail(err, DDP_ERR_CONFIG, "%s:%" PRIu64 ": %s; write it as in the examples of LLaMA-Factory",
                    r->out->path, line, what);
}

static ddp_status next(reader *r, ddp_err *err)
{
    if (r->has_event) yaml_event_delete(&r->event);
    r->has_event = false;
    if (yaml_parser_parse(&r->parser, &r->event) == 0)
        return fail_at(r, r->parser.problem_mark.line + 1, r->parser.problem != NULL ? r->parser.problem : "no YAML",
                       err);
    r->has_event = true;
    return DDP_OK;
}

static char *copy_scalar(const reader *r)
{
    size_t size = r->event.data.scalar.length;
    char *text = malloc(size + 1);

    if (text == NULL) return NULL;
    memcpy(text, r->event.data.scalar.value, size);
    text[size] = '\0';
    return text;
}

static bool is_null(const reader *r)
{
    const char *text = (const char *)r->event.data.scalar.value;

    return r->event.data.scalar.style == YAML_PLAIN_SCALAR_STYLE &&
           (strcmp(text, "") == 0 || strcmp(text, "~") == 0 || strcmp(text, "null") == 0 || strcmp(text, "Null") == 0 ||
            strcmp(text, "NULL") == 0);
}

static ddp_status add_value(reader *r, import_entry *e, ddp_err *err)
{
    void *more;

    if (strlen((const char *)r->event.data.scalar.value) != r->event.data.scalar.length)
        return fail_at(r, line_of(r), "a value with a 0 byte", err);
    if (e->count >= YAML_VALUES) return fail_at(r, line_of(r), "a list of too many values", err);
    more = realloc(e->values, (e->count + 1) * sizeof(*e->values));
    if (more == NULL) return ddp_fail(err, DDP_ERR_NOMEM, "out of memory");
    e->values = more;
    e->values[e->count] = copy_scalar(r);
    return e->values[e->count++] != NULL ? DDP_OK : ddp_fail(err, DDP_ERR_NOMEM, "out of memory");
}

/* Past what began with the event, whatever is in it. */
static ddp_status skip(reader *r, ddp_err *err)
{
    size_t depth = 1;

    while (depth > 0) {
        DDP_TRY(next(r, err));
        if (r->event.type == YAML_MAPPING_START_EVENT || r->event.type == YAML_SEQUENCE_START_EVENT) depth++;
        if (r->event.type == YAML_MAPPING_END_EVENT || r->event.type == YAML_SEQUENCE_END_EVENT) depth--;
    }
    return DDP_OK;
}

static ddp_status read_list(reader *r, import_entry *e, ddp_err *err)
{
    e->is_list = true;
    for (;;) {
        DDP_TRY(next(r, err));
        if (r->event.type == YAML_SEQUENCE_END_EVENT) return DDP_OK;
        if (r->event.type != YAML_SCALAR_EVENT)
            return fail_at(r, line_of(r), "a list of something other than plain values", err);
        if (!is_null(r)) DDP_TRY(add_value(r, e, err));
    }
}

static ddp_status read_value(reader *r, import_entry *e, ddp_err *err)
{
    DDP_TRY(next(r, err));
    switch (r->event.type) {
    case YAML_SCALAR_EVENT: return is_null(r) ? DDP_OK : add_value(r, e, err);
    case YAML_SEQUENCE_START_EVENT: return read_list(r, e, err);
    case YAML_MAPPING_START_EVENT: e->is_map = true; return skip(r, err);
    default: return fail_at(r, line_of(r), "an alias, which is not supported: write the value again", err);
    }
}

static bool is_word(const char *text)
{
    if (*text == '\0') return false;
    for (; *text != '\0'; text++)
        if ((unsigned char)*text <= ' ' || (unsigned char)*text >= 127) return false;
    return true;
}

static ddp_status read_entry(reader *r, ddp_err *err)
{
    import_file *f = r->out;
    import_entry *e;
    char *key;
    const import_entry *before;
    void *more;

    if (r->event.type != YAML_SCALAR_EVENT || !is_word((const char *)r->event.data.scalar.value))
        return fail_at(r, line_of(r), "a key that is no word", err);
    if (f->count >= YAML_ENTRIES) return fail_at(r, line_of(r), "too many keys", err);
    more = realloc(f->all, (f->count + 1) * sizeof(*f->all));
    if (more == NULL) return ddp_fail(err, DDP_ERR_NOMEM, "out of memory");
    f->all = more;
    key = copy_scalar(r);
    if (key == NULL) return ddp_fail(err, DDP_ERR_NOMEM, "out of memory");
    before = import_find(f, key);
    e = &f->all[f->count++];
    *e = (import_entry){.key = key, .line = line_of(r)};
    if (before != NULL)
        return ddp_fail(err, DDP_ERR_CONFIG, "%s:%" PRIu64 ": \"%.80s\" stands in line %" PRIu64 " already", f->path,
                        e->line, key, before->line);
    return read_value(r, e, err);
}

static ddp_status read_all(reader *r, ddp_err *err)
{
    DDP_TRY(next(r, err)); /* the stream */
    DDP_TRY(next(r, err)); /* the document */
    if (r->event.type != YAML_DOCUMENT_START_EVENT) return fail_at(r, 1, "the file is empty", err);
    DDP_TRY(next(r, err));
    if (r->event.type != YAML_MAPPING_START_EVENT) return fail_at(r, line_of(r), "no keys with values", err);
    for (;;) {
        DDP_TRY(next(r, err));
        if (r->event.type == YAML_MAPPING_END_EVENT) break;
        DDP_TRY(read_entry(r, err));
    }
    DDP_TRY(next(r, err)); /* the document's end */
    DDP_TRY(next(r, err));
    if (r->event.type != YAML_STREAM_END_EVENT) return fail_at(r, line_of(r), "a second document", err);
    return DDP_OK;
}

ddp_status import_read(const char *path, import_file *out, ddp_err *err)
{
    reader r = {.out = out};
    FILE *file = fopen(path, "rbe");
    unsigned char *text = malloc(YAML_BYTES);
    size_t size = 0;
    ddp_status status = DDP_OK;

    *out = (import_file){.path = path};
    if (text == NULL)
        status = ddp_fail(err, DDP_ERR_NOMEM, "out of memory");
    else if (file == NULL || ((size = fread(text, 1, YAML_BYTES, file)) == 0 && ferror(file)))
        status = ddp_fail(err, DDP_ERR_CONFIG, "cannot read \"%s\": %s; name the YAML file of a run of LLaMA-Factory",
                          path, strerror(errno));
    else if (size == YAML_BYTES)
        status = ddp_fail(
            err, DDP_ERR_CONFIG,
            "\"%s\" has 1 MiB or more, which no such file has; name the YAML file of a run of LLaMA-Factory", path);
    if (status == DDP_OK && yaml_parser_initialize(&r.parser) == 0)
        status = ddp_fail(err, DDP_ERR_NOMEM, "out of memory");
    else if (status == DDP_OK) {
        yaml_parser_set_input_string(&r.parser, text, size);
        status = read_all(&r, err);
        if (r.has_event) yaml_event_delete(&r.event);
        yaml_parser_delete(&r.parser);
    }
    free(text);
    if (file != NULL) (void)fclose(file);
    if (status != DDP_OK) import_free(out);
    return status;
}

const import_entry *import_find(const import_file *f, const char *key)
{
    for (size_t i = 0; i < f->count; i++)
        if (strcmp(f->all[i].key, key) == 0) return &f->all[i];
    return NULL;
}

void import_free(import_file *f)
{
    for (size_t i = 0; i < f->count; i++) {
        for (size_t k = 0; k < f->all[i].count; k++) free(f->all[i].values[k]);
        free(f->all[i].values);
        free(f->all[i].key);
    }
    free(f->all);
    *f = (import_file){.path = f->path};
}
