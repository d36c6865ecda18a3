/* session/open.h -- opens and closes a session, and opens parts of it again when the ranks know more of each other. */
#pragma once

#include "session/session.h"

/* `config` and `log` outlive the session. On failure the error has the exit code and everything opened is closed
 * again. */
ddp_status ddp_session_open(ddp_session *s, ddp_log *log, ddp_config *config, const ddp_launch *launch, ddp_err *err);
void ddp_session_close(ddp_session *s);
/* After the rendezvous: more of them may be on this host than could be known before, where each was started by hand.
 * The default of [train] threads is a rank's part, so the device is opened and the variants are planned again where
 * it changes. */
ddp_status ddp_session_divide_host(ddp_session *s, int32_t local_rank, int32_t local_size, ddp_err *err);
/* Other buckets than planned: the layout and the variants are planned again. */
ddp_status ddp_session_set_bucket_size(ddp_session *s, uint64_t bytes, ddp_err *err);
/* Of a run that goes on with other ranks than it had: its global batch, 0: as the config says, and whether each sample
 * is to come once an epoch where the config leaves that open. Programs are planned again. */
ddp_status ddp_session_keep_batch(ddp_session *s, uint64_t global_batch, bool uneven, ddp_err *err);
/* For another generation of ranks: the batches of the config, the device, its memory, buckets and programs as they were
 * after opening. */
ddp_status ddp_session_renew(ddp_session *s, ddp_err *err);
/* The device of devices.ordinals[devices.own], by the thread that will use it; the plugin does not count it as live. */
ddp_status ddp_session_open_device(ddp_session *s, ddp_err *err);
/* Frees the variants too. */
void ddp_session_close_device(ddp_session *s);
/* The plugins, and of what they do the dataset of [data] alone; `s` has log, host, config and launch. ddp_session_close
 * undoes it, after an error, too. */
ddp_status ddp_session_open_dataset(ddp_session *s, ddp_err *err);
