/* session/stages/pipeline.h -- [train] parallel = pipeline: the stages of a model are ranks. Which ranks, and what does
 * not go together with it. */
#pragma once

#include "session/session.h"

/* Ranks that one model is cut over; 1 where it is not, or where the settings do not fit each other. */
uint32_t session_pipeline_stages(const ddp_session *s);
/* DDP_ERR_CONFIG with the position of the key; before anything is loaded. */
ddp_status session_pipeline_check(const ddp_session *s, ddp_err *err);
/* Once the graph is built: every stage has layers of the model, and no parameter is of two. */
ddp_status session_pipeline_places(ddp_session *s, ddp_err *err);
