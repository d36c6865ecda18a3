/* observe/tensorboard/tensorboard.h -- a run's scalars as TensorBoard reads them: an event file in [output] dir, of
 * records with checksums (TensorFlow's record_writer.h) that hold the messages of event.proto.
 *
 * Belongs to the thread "ddp-observe", as metrics.jsonl does, and is written before it: what metrics.jsonl has is here
 * too, whenever the run is killed. */
#pragma once

#include "observe/ranks/ranks.h"

typedef struct ddp_tensorboard ddp_tensorboard;

/* A new file DIR/events.out.tfevents.SECONDS.HOST.PID, the seconds with six decimals. In files of before, steps from
 * first_step + 1 on are void.
 * DDP_ERR_UNSUPPORTED: the libraries for it were not there at build time. */
ddp_status observe_tensorboard_open(const char *dir, uint64_t first_step, ddp_log *log, ddp_tensorboard **out,
                                    ddp_err *err);
/* NULL is no file, here and below. Allocates nothing. */
void observe_tensorboard_step(ddp_tensorboard *t, const ddp_step_record *r);
void observe_tensorboard_ranks(ddp_tensorboard *t, const ddp_ranks *r); /* of the newest interval */
void observe_tensorboard_histograms(ddp_tensorboard *t, const ddp_histograms *h);
/* A line of metrics.jsonl that is no step. */
void observe_tensorboard_line(ddp_tensorboard *t, const char *line);
void observe_tensorboard_text(ddp_tensorboard *t, const char *tag, const char *text, uint64_t step);
/* Writes what is pending. A failure is one warning for the run, and what could not be written is lost. */
void observe_tensorboard_flush(ddp_tensorboard *t);
void observe_tensorboard_close(ddp_tensorboard *t);
