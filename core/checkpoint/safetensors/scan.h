/* checkpoint/safetensors/scan.h -- reads the JSON of a safetensors header in place, one token after the other. A
 * general parser builds the whole text in memory first, some eighty bytes for each byte of it; here memory follows what
 * the caller keeps, and the first thing that is wrong ends the reading. Private to checkpoint/. */
#pragma once

#include "base/base.h"

typedef struct safetensors_scan {
    const char *path; /* for messages */
    const unsigned char *begin, *at, *end;
} safetensors_scan;

/* A string where it lies, between its quotes: valid UTF-8 with valid escapes. */
typedef struct safetensors_string {
    const unsigned char *at;
    size_t bytes, decoded; /* there; once its escapes are decoded, without a NUL at the end */
} safetensors_string;

/* The next byte that is no white space, without taking it; 0 at the end. */
int checkpoint_scan_peek(safetensors_scan *s);
/* Takes `c` where it is the next byte. */
bool checkpoint_scan_take(safetensors_scan *s, char c);
/* Takes `c`, or DDP_ERR_DATA with what is `missing` there. */
ddp_status checkpoint_scan_expect(safetensors_scan *s, char c, const char *missing, ddp_err *err);
/* After an item of a list: a comma, and *more, or `close`. */
ddp_status checkpoint_scan_more(safetensors_scan *s, char close, bool *more, ddp_err *err);
ddp_status checkpoint_scan_string(safetensors_scan *s, safetensors_string *out, ddp_err *err);
/* A whole number of 63 bits and a sign; false where the next thing is none, and nothing of it is taken. */
bool checkpoint_scan_integer(safetensors_scan *s, int64_t *out);
/* DDP_ERR_DATA: not JSON, and at which byte. */
ddp_status checkpoint_scan_fail(const safetensors_scan *s, const char *why, ddp_err *err);

/* Writes `decoded` bytes and a NUL. */
void checkpoint_string_decode(const safetensors_string *s, char *out);
/* Decoded, it is `word`, which has no escapes. */
bool checkpoint_string_is(const safetensors_string *s, const char *word);
