/* tests/fuzz/fuzz.h -- what the targets share. A target is one file targets/NAME.c with one FUZZ_TARGET(NAME): a
 * function of bytes that hands them to the real parsers and checks what has to hold whatever they say.
 *
 * libFuzzer wants it as LLVMFuzzerTestOneInput, one target a program (make fuzz); replay.c has all targets in one
 * program and runs the inputs in corpus/NAME/ (make check). Where a parser reads a file, it gets the path of one in
 * memory. Rules for targets: no thread, no network, no name service, nothing that depends on the input before. */
#pragma once

#include "base/log.h"
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#ifdef DDP_LIBFUZZER
#define FUZZ_TARGET(name)                                                                                              \
    int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);                                                      \
    int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
#else
#define FUZZ_TARGET(name)                                                                                              \
    int fuzz_##name(const uint8_t *data, size_t size);                                                                 \
    int fuzz_##name(const uint8_t *data, size_t size)
#endif

/* What must hold: a finding where it does not. */
#define FUZZ_CHECK(condition)                                                                                          \
    do {                                                                                                               \
        if (!(condition)) {                                                                                            \
            (void)fprintf(stderr, "%s:%d: does not hold: %s\n", __FILE__, __LINE__, #condition);                       \
            abort();                                                                                                   \
        }                                                                                                              \
    } while (0)

/* ---- the bytes of an input, taken from the front; 0 and nothing once there are no more ---- */
typedef struct fuzz_input {
    const uint8_t *at;
    size_t left;
} fuzz_input;

const uint8_t *fuzz_take(fuzz_input *in, size_t length); /* NULL: there are fewer */
uint8_t fuzz_u8(fuzz_input *in);
uint16_t fuzz_u16(fuzz_input *in); /* little-endian */
/* At most `length` bytes; *length is how many there are. */
const uint8_t *fuzz_some(fuzz_input *in, size_t *length);
/* Up to the next byte `stop`, which is taken too, or all; as text in memory of its own, free() it. */
char *fuzz_text(fuzz_input *in, uint8_t stop);

/* ---- files in memory ---- */
enum { FUZZ_FILES = 16 };
/* File `number` now holds these bytes; its path. `size` beyond `length` are zeros. */
const char *fuzz_file(unsigned number, const void *data, size_t length, size_t size);
int fuzz_file_descriptor(unsigned number); /* at its begin */
/* A folder in which names[i] is file first + i; it is there until the process ends. */
const char *fuzz_folder(unsigned first, const char *const *names, size_t count);

/* Formats every line and writes it nowhere. */
ddp_log *fuzz_log(void);
/* An error has the status that was returned, and says something. The log takes control characters out. */
void fuzz_check_error(ddp_status status, const ddp_err *err);
