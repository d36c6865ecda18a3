/* fuzz/targets/elf.c -- what the gate reads of a plugin's file before any of its code runs. */
#include "fuzz.h"
#include "plugin/internal.h"

FUZZ_TARGET(elf)
{
    ddp_gate_facts facts;
    ddp_err err = {0};
    ddp_status status;

    (void)fuzz_file(0, data, size, 0);
    status = plugin_elf_read_facts(fuzz_file_descriptor(0), "plugin.so", &facts, &err);
    fuzz_check_error(status, &err);
    if (status != DDP_OK) return 0;
    FUZZ_CHECK(facts.name == NULL);
    for (uint32_t kind = 0; kind < 16; kind++)
        if (plugin_kind_find(kind) != NULL) fuzz_check_error(plugin_kind_check(kind, &facts, "plugin.so", &err), &err);
    return 0;
}
