/* fuzz/targets/adapter.c -- adapter_config.json of PEFT. */
#include "fuzz.h"
#include "checkpoint/peft/adapter_config.h"

FUZZ_TARGET(adapter)
{
    ddp_adapter_config c = {0};
    ddp_err err = {0};
    ddp_status status = ddp_adapter_config_parse("adapter_config.json", (const char *)data, size, &c, &err);

    fuzz_check_error(status, &err);
    FUZZ_CHECK(status == DDP_OK ? c.rank > 0.0 && c.alpha > 0.0 : c.rank == 0.0 && !c.rslora);
    return 0;
}
