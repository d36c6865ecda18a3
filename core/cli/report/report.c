/* cli/report/report.c -- `ddpengine report`: runs as one HTML file, or as curves on the terminal. */
#include "base/sys.h"
#include "cli/cli.h"
#include "cli/report/page.h"
#include "cli/report/text.h"
#include <errno.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

enum { RUNS_MOST = 64 };

typedef struct request {
    const char *file;
    bool follow, text;
    char *const *dirs; /* [count] */
    int count;
    ddp_log *log;
} request;

typedef struct report {
    report_folders folders;
    report_run *runs; /* [folders.count] */
    size_t read;
} report;

#define FIELD(name) .offset = offsetof(request, name)

static const ddp_cli_option options[] = {
    {"--output", "FILE", "the HTML file; without it report.html in the first RUN", DDP_TAKES_TEXT, .letter = 'o',
     FIELD(file)},
    {"--follow", NULL, "writes the file again every few seconds until all runs have ended, or Ctrl-C",
     DDP_TAKES_NOTHING, FIELD(follow)},
    {"--text", NULL, "draws the curves here instead, in the width of the terminal", DDP_TAKES_NOTHING, FIELD(text)},
    {"--help", NULL, NULL, DDP_TAKES_HELP, .letter = 'h'},
};

const ddp_command cli_report_usage = {
    .name = "report",
    .usage = "usage: ddpengine report RUN [RUN..] [-o FILE] [--follow]\n"
             "       ddpengine report RUN [RUN..] --text\n"
             "writes one HTML file about runs: curves, times of ranks, settings. RUN is an\n"
             "[output] dir, or a folder with several\n",
    .options = options,
    .option_count = DDP_COUNT(options),
    .footer = "",
    .example = "ddpengine report runs/a runs/b -o compare.html",
};

/* ---- reading ----------------------------------------------------------------------------------------------------- */
static ddp_status find(const request *q, report *r, ddp_err *err)
{
    for (int i = 0; i < q->count; i++) {
        size_t before = r->folders.count;
        struct stat facts;

        if (stat(q->dirs[i], &facts) == 0 && !S_ISDIR(facts.st_mode))
            return ddp_fail(err, DDP_ERR_CONFIG,
                            "%s is no folder; name the [output] dir of a run, which has its metrics.jsonl", q->dirs[i]);
        DDP_TRY(ddp_run_folder_is(q->dirs[i]) ? report_folders_add(&r->folders, q->dirs[i], err)
                                              : report_folders_look(&r->folders, q->dirs[i], err));
        report_folders_sort(&r->folders, before);
        if (r->folders.count == before && !ddp_run_folder_is(q->dirs[i]))
            return ddp_fail(err, DDP_ERR_CONFIG,
                            "no run in %s: neither it nor a folder below it has a metrics.jsonl that can be read; "
                            "name the [output] dir of a run, `ddpengine runs` lists them",
                            q->dirs[i]);
    }
    if (r->folders.count > RUNS_MOST)
        return ddp_fail(err, DDP_ERR_CONFIG, "%zu runs are more than the %d that a report has room for; name fewer",
                        r->folders.count, RUNS_MOST);
    return DDP_OK;
}

static ddp_status read_all(const request *q, report *r, ddp_err *err)
{
    *r = (report){.folders.log = q->log};
    DDP_TRY(find(q, r, err));
    r->runs = ddp_alloc((r->folders.count + 1) * sizeof(*r->runs), err);
    if (r->runs == NULL) return err->status;
    for (size_t i = 0; i < r->folders.count; i++) {
        report_run *run = &r->runs[r->read];

        if (report_run_read(&r->folders.runs[i], q->log, run, err) == DDP_OK) {
            r->read++;
            continue;
        }
        report_run_free(run);
        if (err->status == DDP_ERR_NOMEM) return err->status;
        ddp_log_line(q->log, DDP_LOG_WARN, "%s; this run is left out", err->msg);
    }
    if (r->read > 0) return DDP_OK;
    return ddp_fail(err, DDP_ERR_CONFIG, "no run can be read: the lines above say why; name another RUN");
}

static void close_all(report *r)
{
    for (size_t i = 0; i < r->read; i++) report_run_free(&r->runs[i]);
    free(r->runs);
    report_folders_free(&r->folders);
}

/* One that has written nothing lately may save, or wait for a lost rank. */
static bool any_has_no_end(const report *r)
{
    for (size_t i = 0; i < r->folders.count; i++)
        if (r->folders.runs[i].facts.state == DDP_RUN_GOES_ON || r->folders.runs[i].facts.state == DDP_RUN_CUT)
            return true;
    return false;
}

/* ---- writing ----------------------------------------------------------------------------------------------------- */
static ddp_status write_page(const request *q, const char *path, bool *more, ddp_err *err)
{
    report r;
    ddp_text page = {0};
    ddp_status st = read_all(q, &r, err);

    *more = st == DDP_OK && q->follow && any_has_no_end(&r);
    if (st == DDP_OK) st = report_page(r.runs, r.read, *more, &page, err);
    if (st == DDP_OK) {
        st = ddp_file_replace(path, page.data, page.length, err);
        if (st != DDP_OK) (void)ddp_fail_as(err, DDP_EXIT_INTERNAL);
    }
    ddp_text_free(&page);
    close_all(&r);
    return st;
}

/* Waits for `ns`; true: a signal asks to end. */
static bool wait_for_signal(const sigset_t *set, int64_t ns)
{
    struct timespec t = {.tv_sec = (time_t)(ns / 1000000000), .tv_nsec = (long)(ns % 1000000000)};

    while (sigtimedwait(set, NULL, &t) < 0)
        if (errno != EINTR) return false;
    return true;
}

static void block_signals(sigset_t *set)
{
    sigemptyset(set);
    sigaddset(set, SIGINT);
    sigaddset(set, SIGTERM);
    sigaddset(set, SIGHUP);
    (void)sigprocmask(SIG_BLOCK, set, NULL);
}

/* Reading a long run takes a while, and the run may need the processor: it rests twenty times as long. Once there is a
 * page, nothing but a signal or the end of the runs ends it: a disk may be full for a moment. */
static ddp_status follow(const request *q, const char *path, ddp_err *err)
{
    const int64_t shortest = INT64_C(2000000000);
    request later = *q; /* says no warning again */
    ddp_log quiet;
    sigset_t set;
    bool more = true, written = false, failed = false;

    base_log_init_sink(&quiet, NULL, NULL);
    later.log = &quiet;
    block_signals(&set);
    while (more) {
        int64_t began = ddp_now_ns();
        ddp_status st = write_page(written ? &later : q, path, &more, err);

        if (st != DDP_OK && !written) return st;
        if (st != DDP_OK && !failed) ddp_log_line(q->log, DDP_LOG_WARN, "%s; it is tried again", err->msg);
        if (st == DDP_OK && failed) ddp_log_line(q->log, DDP_LOG_INFO, "%s is written again", path);
        written = true;
        failed = st != DDP_OK;
        if (failed) more = true;
        *err = (ddp_err){0};
        if (more && wait_for_signal(&set, DDP_MAX_OF(shortest, 20 * (ddp_now_ns() - began)))) break;
    }
    later.follow = false;
    return more ? write_page(&later, path, &more, err) : DDP_OK;
}

/* What can be seen before the runs are read. */
static ddp_status check_file(const char *path, ddp_err *err)
{
    const char *slash = strrchr(path, '/');
    struct stat facts;
    char folder[4096];

    if (stat(path, &facts) == 0 && S_ISDIR(facts.st_mode))
        return ddp_fail(err, DDP_ERR_CONFIG, "%s is a folder; name a file with -o, such as %s%sreport.html", path, path,
                        slash != NULL && slash[1] == '\0' ? "" : "/");
    if (stat(path, &facts) == 0 && !S_ISREG(facts.st_mode))
        return ddp_fail(err, DDP_ERR_CONFIG, "%s is no regular file, so it is not replaced; name another file", path);
    if (slash == NULL || slash == path) return DDP_OK;
    ddp_copy_text(folder, sizeof(folder), path);
    folder[DDP_MIN_OF((size_t)(slash - path), sizeof(folder) - 1)] = '\0';
    if (stat(folder, &facts) == 0 ? S_ISDIR(facts.st_mode) : errno != ENOENT && errno != ENOTDIR) return DDP_OK;
    return ddp_fail(err, DDP_ERR_CONFIG, "there is no folder %s for %s; make it, or name another file with -o", folder,
                    path);
}

static int write_report(const request *q)
{
    char path[4096];
    ddp_err err = {0};
    bool more;
    ddp_status st;

    if ((size_t)snprintf(path, sizeof(path), "%s%s", q->file != NULL ? q->file : q->dirs[0],
                         q->file != NULL ? "" : "/report.html") >= sizeof(path))
        return cli_usage_error(&cli_report_usage, "the path is too long: ", q->file != NULL ? q->file : q->dirs[0]);
    if (q->file != NULL && check_file(path, &err) != DDP_OK) {
        (void)ddp_fail_as(&err, DDP_EXIT_CONFIG);
        return cli_print_error(&err, q->log);
    }
    if (q->follow) ddp_log_line(q->log, DDP_LOG_INFO, "%s is written every few seconds; Ctrl-C ends that", path);
    st = q->follow ? follow(q, path, &err) : write_page(q, path, &more, &err);
    if (st != DDP_OK) {
        (void)ddp_fail_as(&err, DDP_EXIT_CONFIG);
        return cli_print_error(&err, q->log);
    }
    ddp_log_line(q->log, DDP_LOG_INFO, "the report is %s; any browser shows it", path);
    return DDP_EXIT_OK;
}

/* ---- the terminal ------------------------------------------------------------------------------------------------ */
static report_style style_of_terminal(void)
{
    const char *no_colour = getenv("NO_COLOR");
    struct winsize w = {0};
    bool terminal = isatty(STDOUT_FILENO) == 1;

    return (report_style){
        .columns = ioctl(STDOUT_FILENO, TIOCGWINSZ, &w) == 0 && w.ws_col > 0 ? w.ws_col : 80,
        .unicode = ddp_locale_is_utf8(),
        .colour = terminal && (no_colour == NULL || no_colour[0] == '\0'),
    };
}

static int print_text(const request *q)
{
    report_style style = style_of_terminal();
    ddp_err err = {0};
    ddp_text out = {0};
    report r;
    int code;

    if (read_all(q, &r, &err) == DDP_OK) {
        report_text(r.runs, r.read, &style, &out);
        code = cli_print_text(&out, q->log);
    } else {
        (void)ddp_fail_as(&err, DDP_EXIT_CONFIG);
        code = cli_print_error(&err, q->log);
    }
    close_all(&r);
    return code;
}

int cli_command_report(int argc, char **argv, ddp_log *log)
{
    request q = {.log = log};
    int next, code = cli_parse_options(&cli_report_usage, argc, argv, &q, &next);

    if (code >= 0) return code;
    q.dirs = argv + next;
    q.count = argc - next;
    if (q.count == 0) return cli_usage_error(&cli_report_usage, "no RUN: name the [output] dir of a run", "");
    for (int i = 0; i < q.count; i++)
        if (q.dirs[i][0] == '\0')
            return cli_usage_error(&cli_report_usage, "a RUN is empty: name the [output] dir of a run", "");
    if (q.file != NULL && q.file[0] == '\0')
        return cli_usage_error(&cli_report_usage, "--output is empty: name the HTML file, or leave it out", "");
    if (q.text && (q.follow || q.file != NULL))
        return cli_usage_error(&cli_report_usage, "--text prints here; leave out ", q.follow ? "--follow" : "--output");
    return q.text ? print_text(&q) : write_report(&q);
}
