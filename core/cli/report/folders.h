/* cli/report/folders.h -- the runs below a folder, and the settings in which they differ. */
#pragma once

#include "base/log.h"
#include "config/config.h"
#include "observe/run_folder.h"

enum { REPORT_DEPTH = 6, REPORT_RUNS_MOST = 10000, REPORT_DIFFERING_MOST = 1000 };

typedef struct report_folder {
    char *dir;
    ddp_run_folder facts;
    ddp_ini *settings; /* NULL: the folder has none */
} report_folder;

typedef struct report_folders {
    report_folder *runs;
    size_t count, capacity;
    const ddp_ini_entry *differing[REPORT_DIFFERING_MOST]; /* settings; of one of the runs */
    size_t differing_count;
    ddp_log *log; /* a run that cannot be read is a warning */
} report_folders;

/* Adds the run in a folder. */
ddp_status report_folders_add(report_folders *l, const char *dir, ddp_err *err);
/* Adds all runs in a folder and in those below it, to REPORT_DEPTH levels. */
ddp_status report_folders_look(report_folders *l, const char *dir, ddp_err *err);
void report_folders_sort(report_folders *l, size_t first); /* those from `first` on, by their start */
ddp_status report_folders_compare(report_folders *l, ddp_err *err);
void report_folders_free(report_folders *l);

/* "done", "exit 7" */
const char *report_state_text(const ddp_run_folder *r, char *buf, size_t capacity);
