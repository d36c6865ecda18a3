/* plugins/dataset/common/temp.h -- what a dataset unpacks at the start: a file without a name in TMPDIR, of bounded
 * size, which is gone when the process ends, however it ends. */
#pragma once

#include "file.h"

typedef struct temp_file {
    data_file file; /* path: for messages, of what was unpacked; size: bytes so far */
    uint64_t limit;
} temp_file;

/* `source` is what is unpacked, for messages. */
ddp_status temp_open(temp_file *t, const char *plugin, const char *source, uint64_t limit, ddp_err *err);
/* DDP_ERR_DATA where the limit does not let it in; `advice` says what to do then. So is a full disk. */
ddp_status temp_write(temp_file *t, const void *data, size_t size, const char *advice, ddp_err *err);
void temp_close(temp_file *t);
