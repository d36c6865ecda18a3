/* cli/report/json.c -- see json.h. */
#include "cli/report/json.h"
#include "base/sys.h"
#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define WHOLE_MOST ((size_t)64 << 20)
#define LINE_MOST  ((size_t)16 << 20)

/* A pipe of that name is not waited for. */
static FILE *open_lines(const char *path, bool *there, ddp_err *err)
{
    int fd = open(path, O_RDONLY | O_NONBLOCK | O_CLOEXEC);
    struct stat facts;
    FILE *file;

    *there = fd >= 0 || errno != ENOENT;
    if (fd < 0) {
        if (*there) (void)ddp_fail_errno(err, "cannot read %s", path);
        return NULL;
    }
    if (fstat(fd, &facts) == 0 && !S_ISREG(facts.st_mode)) {
        (void)close(fd);
        (void)ddp_fail(err, DDP_ERR_SYSTEM, "cannot read %s: it is no file; remove what is there", path);
        return NULL;
    }
    file = fdopen(fd, "r");
    if (file != NULL) return file;
    (void)ddp_fail_errno(err, "cannot read %s", path);
    (void)close(fd);
    return NULL;
}

ddp_status report_read_lines(const char *path, report_take take, void *context, bool *there, ddp_err *err)
{
    FILE *file = open_lines(path, there, err);
    ddp_status st = DDP_OK;
    char *line = NULL;
    size_t capacity = 0;
    ssize_t length;

    if (file == NULL) return *there ? err->status : DDP_OK;
    while (st == DDP_OK && (length = ddp_read_line(file, LINE_MOST, &line, &capacity)) >= 0) {
        json_t *object = length > 0 ? json_loadb(line, (size_t)length, 0, NULL) : NULL;

        if (json_is_object(object)) st = take(context, object, err);
        json_decref(object);
    }
    if (st == DDP_OK && ferror(file)) st = ddp_fail_errno(err, "cannot read %s", path);
    if (st == DDP_OK && !feof(file)) st = ddp_fail(err, DDP_ERR_NOMEM, "%s: out of memory for a line", path);
    free(line);
    (void)fclose(file);
    return st;
}

json_t *report_load(const char *dir, const char *name)
{
    char path[4096], *data;
    ddp_err ignored = {0};
    size_t length;
    json_t *value;

    if ((size_t)snprintf(path, sizeof(path), "%s/%s", dir, name) >= sizeof(path)) return NULL;
    if (!ddp_file_is_regular(path)) return NULL;
    if (ddp_file_read(path, WHOLE_MOST, &data, &length, &ignored) != DDP_OK) return NULL;
    value = json_loadb(data, length, 0, NULL);
    free(data);
    return value;
}

double report_number_of(const json_t *object, const char *key)
{
    const json_t *v = json_object_get(object, key);

    return json_is_number(v) ? json_number_value(v) : NAN;
}

uint64_t report_count_of(const json_t *object, const char *key)
{
    const json_t *v = json_object_get(object, key);

    return json_is_integer(v) && json_integer_value(v) > 0 ? (uint64_t)json_integer_value(v) : 0;
}

json_t *report_number(double v)
{
    if (!isfinite(v)) return json_null();
    return fabs(v) < 1e15 && v == floor(v) ? json_integer((json_int_t)v) : json_real(v);
}

json_t *report_string(const char *s)
{
    ddp_err ignored = {0};
    json_t *v = s != NULL ? json_string(s) : json_null();
    char *clean;

    if (v != NULL || (clean = ddp_strdup(s, &ignored)) == NULL) return v;
    ddp_clean_text(clean);
    v = json_string(clean);
    free(clean);
    return v;
}

void report_put(json_t **to, const char *key, json_t *value)
{
    if (json_object_set_new(*to, key, value) == 0) return;
    json_decref(*to);
    *to = NULL;
}

void report_push(json_t **to, json_t *value)
{
    if (json_array_append_new(*to, value) == 0) return;
    json_decref(*to);
    *to = NULL;
}
