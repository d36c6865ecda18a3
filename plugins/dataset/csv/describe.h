/* plugins/dataset/csv/describe.h -- what `ddpengine --check` shows of a table: a line for each column. */
#pragma once

#include "columns.h"

/* Lines; free() them. NULL: out of memory. `kept` rows of the file are samples, `bad` were left out. */
char *columns_describe(const columns *c, const char *path, uint64_t kept, uint64_t bad);
