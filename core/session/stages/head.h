/* session/stages/head.h -- [train] split_head: the classes of the model's output layer are divided among the ranks,
 * while the layers before it are on every rank. What it does not go together with, and which classes a rank has. */
#pragma once

#include "session/session.h"

/* DDP_ERR_CONFIG with the position of the key; before anything is loaded. Nothing where it is not set. */
ddp_status session_head_check(const ddp_session *s, ddp_err *err);
/* Once the graph is built: s->model.head, and the layer and what follows it are stage 1 of two. Nothing where there is
 * one rank, or where it does not train: that has the whole model. */
ddp_status session_head_place(ddp_session *s, ddp_err *err);
/* The first class of a rank; that of the rank after it is its end. */
static inline int64_t ddp_session_head_first(const ddp_session *s, int32_t rank)
{
    return s->model.head.of.classes * (int64_t)rank / (int64_t)s->launch.world;
}
