/* session/variants.h -- the programs of a session, one for each batch size that will occur. */
#pragma once

#include "session/session.h"

#define DDP_PREFILL 64 /* positions of a prompt that are computed at once */

/* The variant for a batch of this size; NULL when none was planned. */
ddp_variant *ddp_session_variant(ddp_session *s, int64_t batch, bool training);
/* Plans the variants that will occur (s->variants), sets arena_bytes. */
ddp_status ddp_variants_plan(ddp_session *s, ddp_err *err);
/* One of the caller's, that is not among them: its program for v->batch, and what the device makes of it. Whatever
 * comes of it, session_variant_free. */
ddp_status session_variant_plan(ddp_session *s, ddp_variant *v, ddp_err *err);
void session_variant_free(ddp_session *s, ddp_variant *v);
/* Compiles and binds a variant; ok when it already is. */
ddp_status ddp_variant_ready(ddp_session *s, ddp_variant *v, const ddp_bind *bind, ddp_err *err);
void ddp_variants_free(ddp_session *s);

/* Elements of the gradient arena. */
uint64_t ddp_session_grad_elements(const ddp_session *s);
