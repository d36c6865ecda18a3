/* cli/import/check.h -- whether a value is one of its key's type. */
#pragma once

#include "cli/import/mapping.h"
#include "cli/import/values.h"

/* DDP_ERR_CONFIG with file, line and key. Null is a value of every type. */
ddp_status convert_check(const converter *c, const import_entry *e, const import_mapping *m, ddp_err *err);
