/* observe/tensorboard/absent.c -- in place of tensorboard.c where its libraries were not there at build time. */
#include "observe/tensorboard/tensorboard.h"

ddp_status observe_tensorboard_open(const char *dir, uint64_t first_step, ddp_log *log, ddp_tensorboard **out,
                                    ddp_err *err)
{
    (void)dir;
    (void)first_step;
    (void)log;
    (void)out;
    return ddp_fail(err, DDP_ERR_UNSUPPORTED,
                    "[output] tensorboard = yes: this build has no protobuf-c or no ISA-L. "
                    "Build it again with protobuf-c-compiler, libprotobuf-c-dev and libisal-dev");
}

void observe_tensorboard_step(ddp_tensorboard *t, const ddp_step_record *r)
{
    (void)t;
    (void)r;
}
void observe_tensorboard_ranks(ddp_tensorboard *t, const ddp_ranks *r)
{
    (void)t;
    (void)r;
}
void observe_tensorboard_histograms(ddp_tensorboard *t, const ddp_histograms *h)
{
    (void)t;
    (void)h;
}
void observe_tensorboard_line(ddp_tensorboard *t, const char *line)
{
    (void)t;
    (void)line;
}
void observe_tensorboard_text(ddp_tensorboard *t, const char *tag, const char *text, uint64_t step)
{
    (void)t;
    (void)tag;
    (void)text;
    (void)step;
}
void observe_tensorboard_flush(ddp_tensorboard *t) { (void)t; }
void observe_tensorboard_close(ddp_tensorboard *t) { (void)t; }
