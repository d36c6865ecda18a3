/* cli/report/json.h -- JSON of a run's files: read leniently, made with few words. */
#pragma once

#include "base/base.h"
#include <jansson.h>

/* Calls `take` for each line of a file that is a JSON object; what is none, such as the half line that a kill leaves
 * or more than 16 MiB, is passed over. *there: false where there is no such file. */
typedef ddp_status (*report_take)(void *context, json_t *line, ddp_err *err);
ddp_status report_read_lines(const char *path, report_take take, void *context, bool *there, ddp_err *err);
/* DIR/NAME; NULL: it is not there, larger than 64 MiB, or no JSON. */
json_t *report_load(const char *dir, const char *name);

double report_number_of(const json_t *object, const char *key); /* NaN: there is none */
/* A step or a count; 0 for what the engine would not write. */
uint64_t report_count_of(const json_t *object, const char *key);

json_t *report_number(double v);      /* null where it is not finite, an integer where it is one */
json_t *report_string(const char *s); /* what is no UTF-8 is taken out; null for NULL */
/* Set a member, or append: *to becomes NULL where there is no memory, and stays so. Both take `value`. */
void report_put(json_t **to, const char *key, json_t *value);
void report_push(json_t **to, json_t *value);
