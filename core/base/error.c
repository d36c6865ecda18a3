/* base/error.c -- errors in context, and the names of the ABI's numbers. Writing the first message is ddp_fail()'s, in
 * the public header. */
#include "base/base.h"
#include <errno.h>
#include <string.h>

/* ": WHAT" after the `length` bytes that vsnprintf has written or would have written; what does not fit is cut off. */
static void append(ddp_err *err, int length, const char *what)
{
    size_t at = length > 0 ? (size_t)length : 0;

    if (at + 2 >= sizeof(err->msg)) return;
    memcpy(err->msg + at, ": ", 3);
    ddp_copy_text(err->msg + at + 2, sizeof(err->msg) - at - 2, what);
}

ddp_status ddp_fail_context(ddp_err *err, const char *fmt, ...)
{
    char inner[sizeof(err->msg)];
    int length;
    va_list ap;

    memcpy(inner, err->msg, sizeof(inner));
    inner[sizeof(inner) - 1] = '\0';
    va_start(ap, fmt);
    length = vsnprintf(err->msg, sizeof(err->msg), fmt, ap);
    va_end(ap);
    if (err->status == DDP_OK) { /* a plugin has failed without ddp_fail(): it stays a failure */
        err->status = DDP_ERR_INTERNAL;
        if (inner[0] == '\0') ddp_copy_text(inner, sizeof(inner), "failed without giving a reason");
    }
    append(err, length, inner);
    return err->status;
}

ddp_status ddp_fail_errno(ddp_err *err, const char *fmt, ...)
{
    static const char too_many[] = "Too many open files; raise the limit that ulimit -n shows";
    int number = errno;
    char reason[128];
    int length;
    va_list ap;

    va_start(ap, fmt);
    length = vsnprintf(err->msg, sizeof(err->msg), fmt, ap);
    va_end(ap);
    append(err, length, number == EMFILE ? too_many : strerror_r(number, reason, sizeof(reason)));
    err->sys_errno = number;
    err->lib_code = 0;
    err->rank = -1;
    err->exit_code = DDP_EXIT_OK;
    return err->status = DDP_ERR_SYSTEM;
}

const char *ddp_status_text(ddp_status status)
{
    switch (status) {
#define STATUS_CASE(name, value, text)                                                                                 \
    case name: return text;
        DDP_STATUS_MAP(STATUS_CASE)
#undef STATUS_CASE
    default: return "unknown status";
    }
}

const char *ddp_kind_name(uint32_t kind)
{
    switch (kind) {
#define KIND_CASE(NAME, name, number)                                                                                  \
    case number: return #name;
        DDP_KIND_MAP(KIND_CASE)
#undef KIND_CASE
    default: return NULL;
    }
}

const char *ddp_dtype_name(uint32_t dtype)
{
    switch (dtype) {
    case DDP_F32: return "f32";
    case DDP_BF16: return "bf16";
    case DDP_F64: return "f64";
    case DDP_I32: return "i32";
    case DDP_I64: return "i64";
    case DDP_U8: return "u8";
    case DDP_F16: return "f16";
    case DDP_F8_E4M3: return "f8_e4m3";
    case DDP_F8_E5M2: return "f8_e5m2";
    default: return "?";
    }
}
