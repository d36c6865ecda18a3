/* plugins/dataset/sft/builtin.h -- the templates of conf/templates, which the plugin has in itself. */
#pragma once

#include "base/embedded.h"

extern const ddp_embedded builtin_templates[]; /* "llama3.json" */
extern const size_t builtin_templates_count;
