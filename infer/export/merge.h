/* infer/export/merge.h -- adapters that become part of the weights that they belong to. Private to export/. */
#pragma once

#include "session/session.h"

/* In place, in the arena of all parameters. */
void export_add_adapters(const ddp_session *s, float *params);
