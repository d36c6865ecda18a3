/* control/failure.c -- the first failure of a run: its words, and its frame. Any thread. */
#include "control/failure.h"
#include <string.h>

void ddp_failure_set(ddp_failure *f, int exit_code, int32_t rank, const char *fmt, ...)
{
    va_list ap;

    f->exit_code = exit_code;
    f->rank = rank;
    va_start(ap, fmt);
    (void)vsnprintf(f->msg, sizeof(f->msg), fmt, ap);
    va_end(ap);
}

ddp_status control_failure_as_error(const ddp_failure *f, ddp_status status, ddp_err *err)
{
    (void)ddp_fail(err, status, "%s", f->msg);
    err->rank = f->rank;
    err->exit_code = f->exit_code;
    return status;
}

void ddp_failure_pack(const ddp_failure *f, uint32_t type, ddp_text *out)
{
    ddp_pack_u32(out, (uint32_t)f->exit_code);
    if (type == DDP_FRAME_FAILURE) ddp_pack_u32(out, (uint32_t)f->rank);
    ddp_text_append(out, f->msg, strlen(f->msg));
}

bool ddp_failure_unpack(const ddp_frame *f, ddp_failure *out)
{
    ddp_unpack u = {.data = f->data, .left = f->length};

    memset(out, 0, sizeof(*out));
    out->exit_code = (int)ddp_unpack_u32(&u);
    out->rank = f->type == DDP_FRAME_FAILURE ? (int)ddp_unpack_u32(&u) : -1;
    ddp_copy_printable(out->msg, sizeof(out->msg), u.data, u.left);
    return !u.bad && out->exit_code > 0 && out->exit_code < 256;
}

void ddp_rank_list(char *buf, size_t capacity, const bool *missing, int32_t world)
{
    int32_t count = 0, listed = 0;
    size_t used;

    for (int32_t r = 0; r < world; r++) count += missing[r];
    used = (size_t)snprintf(buf, capacity, count == 1 ? "rank " : "ranks ");
    for (int32_t r = 0; r < world && listed < 16; r++) {
        if (!missing[r] || used >= capacity) continue;
        used += (size_t)snprintf(buf + used, capacity - used, "%s%d", listed == 0 ? "" : ", ", (int)r);
        listed++;
    }
    if (listed < count && used < capacity) (void)snprintf(buf + used, capacity - used, ", ... (%d in all)", (int)count);
}
