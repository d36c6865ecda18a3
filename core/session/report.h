/* session/report.h -- what a session says of itself. */
#pragma once

#include "session/session.h"

/* The lines that all ranks must agree on, options first. */
void ddp_session_agreement(const ddp_session *s, ddp_text *out);
/* The settings among them, and length and content of the data, without where they were set: for a checkpoint. */
void ddp_session_settings(const ddp_session *s, ddp_text *out);
/* The plan, for people: parameters, buckets, memory, FLOPs and bytes of a step. */
void ddp_session_report(const ddp_session *s, ddp_text *out);
