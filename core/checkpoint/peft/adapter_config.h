/* checkpoint/peft/adapter_config.h -- what adapter_config.json of PEFT says of the adapters beside it. */
#pragma once

#include "base/base.h"

typedef struct ddp_adapter_config {
    double rank, alpha;
    bool rslora;
} ddp_adapter_config;

/* `path` is for messages. DDP_ERR_DATA: no such object; DDP_ERR_UNSUPPORTED: it asks for what is not LoRA as it is
 * known here, by the name of its key. */
ddp_status ddp_adapter_config_parse(const char *path, const char *data, size_t length, ddp_adapter_config *out,
                                    ddp_err *err);
ddp_status ddp_adapter_config_read(const char *path, ddp_adapter_config *out, ddp_err *err);
