/* cli/embedded.h -- the files that the program has in itself. */
#pragma once

#include "base/embedded.h"

extern const ddp_embedded new_templates[]; /* core/cli/new/templates */
extern const size_t new_templates_count;
extern const ddp_embedded report_files[]; /* core/cli/report/page */
extern const size_t report_files_count;
