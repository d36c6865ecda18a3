/* ddpengine/plugin.h -- the envelope of every plugin, and the services that the core gives it.
 *
 * A plugin is one shared object that exports one constant data symbol, `ddp_plugin_desc`. Each kind of plugin adds one
 * header (backend.h, init.h, device.h, model.h, sampler.h, dataset.h) with the function table of that kind.
 * The headers compile as C99, C11 and C++ and need nothing but the C library.
 *
 * History and policy
 *   DDP_ABI        envelope and host services; the engine and the plugin must have equal numbers.
 *   DDP_*_ABI      one number for each kind; must be equal too.
 *   struct_size    first word of every function table; tables only grow at their end, and a shorter one is accepted:
 *                  its missing slots answer DDP_ERR_UNSUPPORTED. A slot that moves bumps the kind's number.
 *   1              2026-11: first release.
 *
 * Errors: a function that can fail returns a ddp_status and fills the caller's ddp_err (never NULL) through ddp_fail().
 * Outputs are written only on success. A plugin never prints, exits, or installs a signal handler; it speaks through
 * ddp_host.log. Threads that a plugin starts block all signals and are joined in its `close`.
 */
#ifndef DDPENGINE_PLUGIN_H
#define DDPENGINE_PLUGIN_H

#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

#ifdef __cplusplus
extern "C" {
#endif

#define DDP_MAGIC 0x45504444u /* "DDPE", little-endian */
#define DDP_ABI   1u

enum {
    DDP_KIND_BACKEND = 1,
    DDP_KIND_INIT,
    DDP_KIND_DEVICE,
    DDP_KIND_MODEL,
    DDP_KIND_SAMPLER,
    DDP_KIND_DATASET,
    DDP_KIND_HOOK,
    DDP_KIND_END_
};

/* ---- status and error ------------------------------------------------------------------------------------------- */
#define DDP_STATUS_MAP(X)                                                                                              \
    X(DDP_OK, 0, "ok")                                                                                                 \
    X(DDP_IN_PROGRESS, 1, "not finished yet")                                                                          \
    X(DDP_ERR_INTERNAL, -1, "bug in ddpengine or the plugin")                                                          \
    X(DDP_ERR_INVALID, -2, "bad argument")                                                                             \
    X(DDP_ERR_CONFIG, -3, "configuration value cannot be used")                                                        \
    X(DDP_ERR_NOMEM, -4, "out of memory")                                                                              \
    X(DDP_ERR_SYSTEM, -5, "system call failed")                                                                        \
    X(DDP_ERR_LIBRARY, -6, "wrapped library failed")                                                                   \
    X(DDP_ERR_TIMEOUT, -7, "deadline passed")                                                                          \
    X(DDP_ERR_PEER, -8, "a peer rank failed or left")                                                                  \
    X(DDP_ERR_ABORTED, -9, "communicator was aborted")                                                                 \
    X(DDP_ERR_UNSUPPORTED, -10, "this plugin cannot do that")                                                          \
    X(DDP_ERR_DATA, -11, "data are damaged or out of range")
#define DDP_X_(name, value, text) name = value,
enum { DDP_STATUS_MAP(DDP_X_) DDP_STATUS_END_ = -1000 };
#undef DDP_X_
typedef int32_t ddp_status;

/* Frozen for ever: 512 bytes, owned by the caller, never NULL. `rank` is -1 when unknown. */
typedef struct ddp_err {
    int32_t status, sys_errno, lib_code, rank;
    int32_t exit_code; /* the core's: what the run ends with because of this error; 0: not known yet */
    char msg[492];
} ddp_err;

#if defined(__GNUC__)
#define DDP_PRINTF_(fmt, args) __attribute__((format(printf, fmt, args)))
#else
#define DDP_PRINTF_(fmt, args)
#endif

/* Writes the message and the status; returns the status, so that `return ddp_fail(err, ...)` reads as one step. */
static inline ddp_status ddp_fail(ddp_err *err, ddp_status status, const char *fmt, ...) DDP_PRINTF_(3, 4);
static inline ddp_status ddp_fail(ddp_err *err, ddp_status status, const char *fmt, ...)
{
    va_list ap;

    va_start(ap, fmt);
    (void)vsnprintf(err->msg, sizeof(err->msg), fmt, ap);
    va_end(ap);
    err->rank = -1;
    err->exit_code = 0;
    return err->status = status;
}

/* ---- dtypes ------------------------------------------------------------------------------------------------------ */
enum { DDP_F32 = 1, DDP_BF16, DDP_F64, DDP_I32, DDP_I64, DDP_U8, DDP_DTYPE_END_ };

/* Bytes of one element, 0 for an unknown dtype. */
static inline size_t ddp_dtype_size(uint32_t dtype)
{
    switch (dtype) {
    case DDP_F32:
    case DDP_I32: return 4;
    case DDP_BF16: return 2;
    case DDP_F64:
    case DDP_I64: return 8;
    case DDP_U8: return 1;
    default: return 0;
    }
}

#define DDP_MAX_DIMS 8

/* ---- options: the plugin's section of the INI file, self-documenting ---------------------------------------------- *
 * Field types in the plugin's config struct, by option type:
 *   INT int64_t   UINT uint64_t   FLOAT double   BOOL int32_t (0 or 1)   STRING, PATH, HOSTPORT const char * (never NULL)
 *   ENUM int32_t (index into `range`, "a|b|c")   SIZE uint64_t (bytes)   DURATION int64_t (milliseconds)
 * With DDP_OPT_F_LIST the field is a ddp_list, `items` an array of the type above; the empty text is the empty list. */
enum {
    DDP_OPT_INT = 1,
    DDP_OPT_UINT,
    DDP_OPT_FLOAT,
    DDP_OPT_BOOL,
    DDP_OPT_STRING,
    DDP_OPT_PATH,
    DDP_OPT_ENUM,
    DDP_OPT_SIZE,
    DDP_OPT_DURATION,
    DDP_OPT_HOSTPORT,
    DDP_OPT_END_
};
#define DDP_OPT_F_PER_RANK   (1u << 0) /* may differ between ranks; all others are compared. PATH and SECRET imply it */
#define DDP_OPT_F_SECRET     (1u << 1) /* never printed */
#define DDP_OPT_F_DEPRECATED (1u << 2) /* accepted with a warning */
#define DDP_OPT_F_LIST       (1u << 3) /* comma-separated; stored as ddp_list */
#define DDP_OPT_F_AUTO       (1u << 4) /* of a number, size or duration: "auto" is accepted too, and stored as 0 */

typedef struct ddp_list {
    size_t count;
    const void *items; /* owned by the core, valid from open to the return of close */
} ddp_list;

typedef struct ddp_option {
    const char *key;   /* as written in the INI */
    const char *dflt;  /* text, parsed like the user's; NULL = required */
    const char *range; /* "1..65535", "0..", "ring|tree"; NULL = any. For a list: of each item */
    const char *doc;   /* mandatory: one sentence, with unit */
    uint32_t type;     /* DDP_OPT_* */
    uint32_t flags;    /* DDP_OPT_F_* */
    size_t offset;     /* into the plugin's config struct */
} ddp_option;

/* ---- what the core gives a plugin --------------------------------------------------------------------------------- */
enum { DDP_LOG_DEBUG = 0, DDP_LOG_INFO, DDP_LOG_WARN, DDP_LOG_ERROR };

typedef struct ddp_host {
    uint32_t struct_size, reserved0;
    void *ctx;
    /* any thread; one line without its newline */
    void (*log)(void *ctx, int level, const char *file, int line, const char *fmt, ...) DDP_PRINTF_(5, 6);
} ddp_host;

/* A key-value store shared by all ranks over the control plane; keys are private to one communicator.
 * Any thread; a pending get ends with DDP_ERR_ABORTED at once when the run is aborted. */
typedef struct ddp_store {
    uint32_t struct_size, reserved0;
    void *ctx;
    ddp_status (*set)(void *ctx, const char *key, const void *value, size_t len, ddp_err *err);
    /* Waits until the key exists. A value longer than `capacity` is DDP_ERR_INVALID; *len is written on success. */
    ddp_status (*get)(void *ctx, const char *key, void *buf, size_t capacity, size_t *len, int64_t timeout_ms,
                      ddp_err *err);
    /* Atomic counter, 0 when absent; *value is the sum. */
    ddp_status (*add)(void *ctx, const char *key, int64_t delta, int64_t *value, ddp_err *err);
    ddp_status (*remove)(void *ctx, const char *key, ddp_err *err); /* absent: ok */
} ddp_store;

/* ---- envelope: the one exported symbol ---------------------------------------------------------------------------- */
#define DDP_PLUGIN_F_NO_UNLOAD (1u << 0) /* never dlclose (libraries whose threads or handlers outlive it) */
#define DDP_PLUGIN_F_LAUNCHER  (1u << 1) /* a backend whose table has a `launcher`: --nproc starts the ranks by it */

typedef struct ddp_plugin {
    uint32_t magic, abi, struct_size, kind; /* these four never move */
    uint32_t kind_abi, flags;
    uint32_t host_size, reserved0; /* sizeof(ddp_host) at its build: a plugin newer than the engine is refused */
    const char *name;              /* equals the INI value */
    const char *version;           /* for humans */
    const char *summary;           /* one line, for `ddpengine plugins` */
    const ddp_option *options;
    uint32_t option_count, option_size; /* option_size = sizeof(ddp_option) */
    size_t config_size;
    const void *ops; /* first field is always uint32_t struct_size */
} ddp_plugin;

#define DDP_PLUGIN_SYMBOL "ddp_plugin_desc"

#if defined(__cplusplus)
#define DDP_PLUGIN_EXPORT extern "C" __attribute__((visibility("default")))
#else
#define DDP_PLUGIN_EXPORT __attribute__((visibility("default")))
#endif

/* The fixed words of the descriptor, in order; the plugin adds name, version, summary and its tables. */
#define DDP_PLUGIN_HEAD(kind_, kind_abi_, flags_)                                                                      \
    .magic = DDP_MAGIC, .abi = DDP_ABI, .struct_size = (uint32_t)sizeof(ddp_plugin), .kind = (kind_),                  \
    .kind_abi = (kind_abi_), .flags = (flags_), .host_size = (uint32_t)sizeof(ddp_host), .reserved0 = 0

#ifdef __cplusplus
}
#endif
#endif
