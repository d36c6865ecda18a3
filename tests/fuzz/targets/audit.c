/* fuzz/targets/audit.c -- a file of an audit: its records one after the other, and the proof that reads them. */
#include "fuzz.h"
#include "observe/audit.h"

FUZZ_TARGET(audit)
{
    const char *path = fuzz_file(0, data, size, 0);
    ddp_audit_record r;
    ddp_text out = {0};
    ddp_err err = {0};
    ddp_status status = observe_audit_parse(data, size, &r, &err);

    if (status != DDP_IN_PROGRESS) fuzz_check_error(status, &err);
    for (uint32_t i = 0; status == DDP_OK && i < r.count; i++) FUZZ_CHECK(observe_audit_id(data, i) < r.length);
    err = (ddp_err){0};
    status = ddp_audit_check(&path, 1, &out, &err);
    fuzz_check_error(status, &err);
    ddp_text_free(&out);
    return 0;
}
