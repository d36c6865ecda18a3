/* session/fields.h -- what a model reads, as settings of a checkpoint: whoever uses the weights needs no data. */
#pragma once

#include "session/session.h"

/* "data.field.0 = f32 (1,28,28) any image", "data.field.1 = i64 () 0..9 label": dtype, dimensions of a sample, values
 * of an integer field, name. A line for each of the source's fields, as the model sees them. */
void session_fields_text(const ddp_source *src, const char *section, ddp_text *out);
/* From the settings of a checkpoint, which others may have written; `pool` owns *out. *count 0: there are none, an
 * earlier version wrote it. What is no field is DDP_ERR_DATA. */
ddp_status session_fields_parse(const char *settings, const char *section, ddp_pool *pool, const ddp_field **out,
                                uint32_t *count, ddp_err *err);
