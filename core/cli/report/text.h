/* cli/report/text.h -- the report for a terminal: curves of braille dots, or of plain characters. */
#pragma once

#include "cli/report/run.h"

typedef struct report_style {
    size_t columns; /* of the terminal */
    bool unicode, colour;
} report_style;

void report_text(const report_run *runs, size_t count, const report_style *style, ddp_text *out);
