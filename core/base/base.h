/* base/base.h -- the few things that every other folder of the core uses: errors in context, exit codes, text, memory.
 * Depends on the C library only. */
#pragma once

#include <ddpengine/plugin.h>
#include <stdbool.h>

/* Exit codes of the program. An error carries its own (ddp_err.exit_code) from where it is known why it ends the run: a
 * status alone does not tell, since a peer that is lost during the rendezvous is another cause than one that is lost in
 * a step. */
enum {
    DDP_EXIT_OK = 0,
    DDP_EXIT_INTERNAL = 1,
    DDP_EXIT_CONFIG = 2, /* or usage */
    DDP_EXIT_PLUGIN = 3,
    DDP_EXIT_RENDEZVOUS = 4, /* rendezvous or agreement */
    DDP_EXIT_PEER = 5,
    DDP_EXIT_TIMEOUT = 6,
    DDP_EXIT_NONFINITE = 7,
    DDP_EXIT_CHECKPOINT = 8,
    DDP_EXIT_DIVERGED = 9,
    DDP_EXIT_DATA = 10
};
/* A rank was lost or is silent: what a new process in its place can mend. */
static inline bool ddp_exit_is_loss(int code) { return code == DDP_EXIT_PEER || code == DDP_EXIT_TIMEOUT; }

/* DDP_TRY, and where the error does not know yet how it ends the run: with this exit code. */
#define DDP_TRY_AS(exit_code_, err, call)                                                                              \
    do {                                                                                                               \
        ddp_status try_status_ = (call);                                                                               \
        if (try_status_ != DDP_OK) {                                                                                   \
            (void)ddp_fail_as((err), (exit_code_));                                                                    \
            return try_status_;                                                                                        \
        }                                                                                                              \
    } while (0)

#define DDP_COUNT(array) (sizeof(array) / sizeof((array)[0]))
#define DDP_MIN_OF(a, b) ((a) < (b) ? (a) : (b))
#define DDP_MAX_OF(a, b) ((a) > (b) ? (a) : (b))

/* The exit code that an error ends the run with; the first who knows it decides, so the innermost. A lack of memory is
 * nobody's mistake, whoever finds it. Returns the status. */
static inline ddp_status ddp_fail_as(ddp_err *err, int exit_code)
{
    if (err->exit_code == DDP_EXIT_OK)
        err->exit_code = err->status == DDP_ERR_NOMEM ? (int32_t)DDP_EXIT_INTERNAL : exit_code;
    return err->status;
}
/* What the run ends with because of this error. */
static inline int ddp_err_exit_code(const ddp_err *err)
{
    return err->exit_code != DDP_EXIT_OK ? err->exit_code : DDP_EXIT_INTERNAL;
}
/* Puts "CONTEXT: " in front of err's message; keeps its status and returns it. */
ddp_status ddp_fail_context(ddp_err *err, const char *fmt, ...) DDP_PRINTF_(2, 3);
/* DDP_ERR_SYSTEM with ": strerror" appended and sys_errno kept; call before errno changes. */
ddp_status ddp_fail_errno(ddp_err *err, const char *fmt, ...) DDP_PRINTF_(2, 3);
const char *ddp_status_text(ddp_status status);
const char *ddp_kind_name(uint32_t kind);   /* "backend", NULL for an unknown kind */
const char *ddp_dtype_name(uint32_t dtype); /* "f32", "?" for an unknown dtype */

/* ---- memory ------------------------------------------------------------------------------------------------------ */
void *ddp_alloc(size_t bytes, ddp_err *err);         /* zero-filled; free() */
void *ddp_alloc_aligned(size_t bytes, ddp_err *err); /* 64-byte aligned, zero-filled; free() */
char *ddp_strdup(const char *s, ddp_err *err);
/* Once, where much that was allocated is freed and no such need comes again: the system gets its pages back. */
void ddp_memory_trim(void);
static inline uint64_t ddp_round_up(uint64_t n, uint64_t to) { return (n + to - 1) / to * to; }

/* A bump allocator: many small things of one lifetime, freed together. NULL err->msg context on failure. */
typedef struct ddp_pool {
    struct ddp_pool_block *head;
} ddp_pool;
void *ddp_pool_alloc(ddp_pool *p, size_t bytes, ddp_err *err); /* zero-filled, 16-byte aligned */
char *ddp_pool_strdup(ddp_pool *p, const char *s, ddp_err *err);
char *ddp_pool_printf(ddp_pool *p, ddp_err *err, const char *fmt, ...) DDP_PRINTF_(3, 4);
void ddp_pool_free(ddp_pool *p);

/* ---- text -------------------------------------------------------------------------------------------------------- */
/* A growing text; after a failed allocation `failed` is set and appends do nothing. Zero-initialise; ddp_text_free. */
typedef struct ddp_text {
    char *data; /* NUL-terminated, NULL while empty */
    size_t length, capacity;
    bool failed;
} ddp_text;
void ddp_text_printf(ddp_text *t, const char *fmt, ...) DDP_PRINTF_(2, 3);
void ddp_text_append(ddp_text *t, const void *data, size_t length);
/* A path as a shell takes it for one word, and no command for one of its options. */
void ddp_text_shell_path(ddp_text *t, const char *path);
void ddp_text_free(ddp_text *t);
/* Names from files and from other hosts reach the terminal: control characters are taken out, and what is no UTF-8. As
 * long as before. The log does it for its lines; who prints to standard output calls it. */
void ddp_clean_text(char *text);

bool ddp_locale_is_utf8(void); /* by LC_ALL, LC_CTYPE, LANG: a terminal shows more than ASCII */

/* The candidate nearest to `word` (Levenshtein distance at most 3 and less than its length), or NULL. */
const char *ddp_nearest(const char *word, const char *const *candidates, size_t count);
/* "25 MiB", "1.2 GiB", "640 B" / "3.4 ms", "2 min 5 s" / "1,234,567"; each returns buf */
const char *ddp_format_bytes(uint64_t bytes, char *buf, size_t capacity);
const char *ddp_format_seconds(double seconds, char *buf, size_t capacity);
const char *ddp_format_count(uint64_t n, char *buf, size_t capacity);
/* Copies with truncation, always NUL-terminated. */
void ddp_copy_text(char *dst, size_t capacity, const char *src);
