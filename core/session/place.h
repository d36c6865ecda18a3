/* session/place.h -- a rank's place in a generation of the run: its number, and its shares of the samples.
 *
 * A run has world_size shares, whoever is there. Rank r of the config has share r; shares of ranks that are missing go
 * to the others, one after the other. So the samples of an update, and their order, are the same with any number of
 * ranks. */
#pragma once

#include "control/group.h"
#include "session/session.h"

/* Before the rendezvous: the rank has its own share. */
void session_share_alone(ddp_session *s);
/* [run] min_world: whether ranks of this run can have several shares. */
ddp_status session_check_missing(const ddp_session *s, ddp_err *err);
/* After it: the numbers of this generation, samplers of all of the rank's shares, and buckets for as many
 * ranks as there are. */
ddp_status ddp_session_place(ddp_session *s, const ddp_group *g, ddp_err *err);

/* The buckets, for as many ranks as there are. */
ddp_status session_create_layout(ddp_session *s, ddp_err *err);
/* Buckets and programs once more, for another bucket size or number of ranks. */
ddp_status session_lay_out(ddp_session *s, ddp_err *err);
/* With parallel = pipeline: stage k begins at node first[k] from now on. */
ddp_status ddp_session_stages_set(ddp_session *s, const uint32_t *first, ddp_err *err);
/* A sampler for each of the rank's shares, in place of what was open before. */
ddp_status session_open_samplers(ddp_session *s, ddp_source *src, ddp_err *err);
void session_close_samplers(ddp_source *src);
/* Whether the sampler gives the samples of epoch `epoch` in one order, of which each rank has every world-th, with
 * `world` ranks as with those of this run; else DDP_ERR_CONFIG. Of each it looks at one rank. */
ddp_status session_check_order(const ddp_session *s, int32_t world, uint64_t epoch, ddp_err *err);
/* Of share `share`; the caller closes it. */
ddp_status session_open_sampler(const ddp_session *s, const ddp_source *src, int32_t share, ddp_sampler **out,
                                ddp_err *err);
