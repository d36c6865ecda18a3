/* train/ranks/link.h -- what passes between two stages that are ranks: send and recv of the backend, over a
 * communicator of these two for each direction, whose queue thread sends and receives while the trainer's thread
 * computes.
 *
 * Both sides have memory for `slots` messages. A receiver has asked for as many as it has room for before they are
 * sent; a sender copies into a slot that has been sent, and goes on. Nothing allocates after the opening. */
#pragma once

#include "train/local/stage.h"

extern const ddp_link_ops ranks_link_ops;
/* Of the own stage; connects with the other one. */
ddp_status ranks_link_open(ddp_trainer *t, ddp_link *l, ddp_err *err);
/* False: its thread still stands in the backend, and uses the link's memory. */
bool ranks_link_close(ddp_link *l);
