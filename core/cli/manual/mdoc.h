/* cli/manual/mdoc.h -- text as mdoc(7), the language of manual pages, which man and mandoc read. */
#pragma once

#include "cli/options.h"

/* ".Dd": the date of SOURCE_DATE_EPOCH, else today's. */
void mdoc_date(ddp_text *out);
/* ".Dd", ".Dt" and NAME. */
void mdoc_head(const char *name, int section, const char *summary, ddp_text *out);
/* Prose: words in short lines, a sentence on lines of its own, nothing that would be taken for a request. */
void mdoc_prose(const char *text, ddp_text *out);
/* " text" as one argument of a macro. */
void mdoc_argument(const char *text, size_t length, ddp_text *out);
/* ".Bd -literal" with these lines, up to `end` or the NUL. */
void mdoc_literal(const char *lines, const char *end, ddp_text *out);
/* A list of the keys of an INI section. */
void mdoc_keys(const ddp_option *options, size_t count, ddp_text *out);
