/* cli/import/convert.h -- an INI from a YAML of LLaMA-Factory. */
#pragma once

#include "cli/import/values.h"

/* DDP_ERR_CONFIG, with file and line: a value that is none, or a run of another kind. */
ddp_status convert(converter *c, ddp_err *err);
/* The whole INI. */
void convert_print(const converter *c, ddp_text *out);
void convert_free(converter *c);
