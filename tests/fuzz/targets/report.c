/* fuzz/targets/report.c -- the files of a run as `ddpengine report` reads them. Input: metrics.jsonl, a byte 0,
 * ranks.jsonl, a byte 0, trace-rank0.json, a byte 0, settings.ini. */
#include "cli/embedded.h"
#include "cli/report/page.h"
#include "cli/report/text.h"
#include "fuzz.h"

/* Of a page the scripts do not matter here. */
static const unsigned char page[] = "{{data}}{{page.css}}{{";
const ddp_embedded report_files[] = {{"page.html", page, sizeof(page) - 1}};
const size_t report_files_count = 1;

/* All of it is one JSON text of ASCII in which nothing could end a script element. */
static void check_page(const report_run *run)
{
    static const char tail[] = "{{";
    ddp_text out = {0};
    ddp_err err = {0};
    json_t *o;

    FUZZ_CHECK(report_page(run, 1, false, &out, &err) == DDP_OK);
    FUZZ_CHECK(out.length > sizeof(tail) && memcmp(out.data + out.length - 2, tail, 2) == 0);
    FUZZ_CHECK(strpbrk(out.data, "<>&") == NULL);
    o = json_loadb(out.data, out.length - 2, 0, NULL);
    FUZZ_CHECK(json_array_size(json_object_get(o, "runs")) == 1);
    json_decref(o);
    ddp_text_free(&out);
}

static void check_series(const report_fields *f)
{
    for (size_t i = 0; i < f->count; i++)
        for (size_t k = 1; k < f->series[i].count; k++) FUZZ_CHECK(f->series[i].steps[k - 1] < f->series[i].steps[k]);
}

static void look(const report_folders *l)
{
    static const report_style styles[] = {{.columns = 80, .unicode = true}, {.columns = 3, .colour = true}};
    report_run run;
    ddp_log quiet;
    ddp_err err = {0};

    ddp_log_init(&quiet);
    quiet.level = DDP_LOG_ERROR + 1;
    if (l->count == 1 && report_run_read(&l->runs[0], &quiet, &run, &err) == DDP_OK) {
        check_series(&run.history.steps);
        check_series(&run.history.evals);
        check_page(&run);
        for (size_t i = 0; i < DDP_COUNT(styles); i++) {
            ddp_text out = {0};

            report_text(&run, 1, &styles[i], &out);
            FUZZ_CHECK(!out.failed && out.length > 0);
            ddp_text_free(&out);
        }
    }
    if (l->count == 1) report_run_free(&run);
}

FUZZ_TARGET(report)
{
    static const char *const names[] = {"metrics.jsonl", "ranks.jsonl", "trace-rank0.json", "settings.ini"};
    static const char *dir;
    report_folders l = {.log = fuzz_log()};
    fuzz_input in = {data, size};
    ddp_err err = {0};

    for (unsigned i = 0; i < DDP_COUNT(names); i++) {
        char *text = fuzz_text(&in, 0);

        (void)fuzz_file(i, text, strlen(text), 0);
        free(text);
    }
    if (dir == NULL) dir = fuzz_folder(0, names, DDP_COUNT(names));
    if (report_folders_add(&l, dir, &err) == DDP_OK && report_folders_compare(&l, &err) == DDP_OK) look(&l);
    report_folders_free(&l);
    return 0;
}
