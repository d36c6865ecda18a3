/* infer/export/folder.h -- files of a folder that is exported: each is there whole or not at all. */
#pragma once

#include "checkpoint/safetensors.h"

struct json_t;

ddp_status export_make_folder(const char *path, ddp_err *err);
/* Takes the object over; NULL: it could not be made, for lack of memory or of UTF-8. */
ddp_status export_write_json(const char *folder, const char *name, struct json_t *object, ddp_err *err);
ddp_status export_write_tensors(const char *folder, const char *name, const ddp_named_tensor *tensors, size_t count,
                                ddp_err *err);
