#pragma once
/* control/rank0/waiting.h -- processes that cannot be in this generation and wait for the next one with their
 * connection open: spares, and ranks that were missing when it began. A rank that waits knocks: the ranks end the
 * generation at the next step, so that it can join. Control thread. */
#include "control/params.h"
#include "control/peer.h"

/* Its hello is right and in `p`, its agreement is to come. `home`: the rank that it will be, or DDP_RANK_OF_SPARE. */
void rank0_waiting_begin(ddp_peer *p, int32_t home);
/* Its agreement: it waits, is told to come again, or, with other settings, is refused, which concerns it alone. */
void rank0_waiting_agreement(ddp_group *g, ddp_peer *p, const ddp_frame *f);
/* A rank that is gone, or silent, before all have met: another process may come in its place. `how`: "gone". False: the
 * run does not wait for it. */
bool rank0_waiting_forget(ddp_group *g, const ddp_peer *p, const char *how);
/* The rendezvous is complete, or one that waited is gone: spares take the places of ranks that are missing. */
void rank0_waiting_met(ddp_group *g);
/* They are to come again, at once. */
void rank0_waiting_wake(ddp_group *g);
/* The ranks have left in good order, the generation or the run is over; or it has failed. */
void rank0_waiting_farewell(ddp_group *g);
void rank0_waiting_failed(ddp_group *g);
/* To a connection that may join, though not now. */
void rank0_waiting_tell_later(ddp_peer *p, const char *fmt, ...) DDP_PRINTF_(2, 3);

/* Where rank `home` of the config is in this generation, -1: it is not. */
int32_t rank0_waiting_find_home(const ddp_group *g, int32_t home);
/* The lowest rank of the config that is not there, -1: none. */
int32_t rank0_waiting_find_missing(const ddp_group *g);
