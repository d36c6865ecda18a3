/* cli/report/page.c -- see page.h. */
#include "cli/report/page.h"
#include "cli/embedded.h"
#include <stdlib.h>
#include <string.h>
#include <time.h>

/* ---- the runs as JSON -------------------------------------------------------------------------------------------- */
static const char *last_part(const char *dir)
{
    const char *slash = strrchr(dir, '/');

    return slash != NULL && slash[1] != '\0' ? slash + 1 : dir;
}

const char *report_label(const report_run *runs, size_t count, size_t i)
{
    const char *own = last_part(runs[i].folder->dir);

    for (size_t k = 0; k < count; k++)
        if (k != i && strcmp(own, last_part(runs[k].folder->dir)) == 0) return runs[i].folder->dir;
    return own;
}

/* About 1.5 MB at most for any number of runs: a series has two points and a mean for each part, each some 15 bytes. */
static report_bounds bounds_of(size_t runs)
{
    enum { PARTS = 6000, PARTS_LEAST = 20, PARTS_MOST = 1000, CELLS = 12000, SPANS = 12000 };
    size_t parts = PARTS / runs;

    return (report_bounds){.parts = DDP_MAX_OF((size_t)PARTS_LEAST, DDP_MIN_OF((size_t)PARTS_MOST, parts)),
                           .cells = CELLS / runs,
                           .spans = SPANS / runs};
}

static json_t *page_json(const report_run *runs, size_t count, bool follow)
{
    report_bounds bounds = bounds_of(count);
    json_t *o = json_object(), *all = json_array();

    for (size_t i = 0; i < count; i++)
        report_push(&all, report_run_json(&runs[i], report_label(runs, count, i), &bounds));
    report_put(&o, "version", json_string(DDP_VERSION));
    report_put(&o, "written", json_integer((json_int_t)time(NULL)));
    report_put(&o, "follow", json_boolean(follow));
    report_put(&o, "runs", all);
    return o;
}

/* What would end a script element or begin a comment is written as an escape, which JSON has for any character of a
 * string; elsewhere JSON has none of them. */
static void append_escaped(ddp_text *out, const char *json)
{
    for (const char *p = json; *p != '\0';) {
        size_t plain = strcspn(p, "<>&");

        ddp_text_append(out, p, plain);
        p += plain;
        if (*p != '\0') ddp_text_printf(out, "\\u%04x", (unsigned)(unsigned char)*p++);
    }
}

static void append_data(ddp_text *out, const report_run *runs, size_t count, bool follow)
{
    json_t *o = page_json(runs, count, follow);
    char *text = o != NULL ? json_dumps(o, JSON_COMPACT | JSON_ENSURE_ASCII | JSON_REAL_PRECISION(9)) : NULL;

    json_decref(o);
    if (text != NULL)
        append_escaped(out, text);
    else
        out->failed = true;
    free(text);
}

/* ---- the page ---------------------------------------------------------------------------------------------------- */
static const ddp_embedded *find(const char *name, size_t length)
{
    for (size_t i = 0; i < report_files_count; i++)
        if (strlen(report_files[i].name) == length && memcmp(report_files[i].name, name, length) == 0)
            return &report_files[i];
    return NULL;
}

ddp_status report_page(const report_run *runs, size_t count, bool follow, ddp_text *out, ddp_err *err)
{
    static const char data[] = "data";
    const ddp_embedded *page = find("page.html", strlen("page.html"));
    const char *p = (const char *)page->data, *end = p + page->length;

    while (p < end) { /* "{{page.css}}" is the file, "{{data}}" the runs */
        const char *open = memmem(p, (size_t)(end - p), "{{", 2);
        const char *close = open == NULL ? NULL : memmem(open, (size_t)(end - open), "}}", 2);
        const ddp_embedded *file = close == NULL ? NULL : find(open + 2, (size_t)(close - open) - 2);

        ddp_text_append(out, p, (size_t)((close == NULL ? end : open) - p));
        if (close == NULL) break;
        if (file != NULL)
            ddp_text_append(out, file->data, file->length);
        else if ((size_t)(close - open) - 2 == sizeof(data) - 1 && memcmp(open + 2, data, sizeof(data) - 1) == 0)
            append_data(out, runs, count, follow);
        p = close + 2;
    }
    return out->failed ? ddp_fail(err, DDP_ERR_NOMEM, "out of memory for the report") : DDP_OK;
}
