/* ddpengine/plugin.h -- the descriptor of every plugin, and the services that the core gives it.
 *
 * A plugin is one shared object that exports one constant data symbol, `ddp_plugin_desc`. Each kind of plugin, a row
 * of DDP_KIND_MAP, has one header with the function table of that kind. The headers compile as C99, C11 and C++ and
 * need nothing but the C library.
 *
 * History and policy
 *   DDP_ABI        descriptor and host services; the engine and the plugin must have equal numbers.
 *   DDP_*_ABI      one number for each kind; must be equal too.
 *   struct_size    first word of every function table; tables only grow at their end, and a shorter one is accepted:
 *                  its missing slots answer DDP_ERR_UNSUPPORTED. A slot that moves bumps the kind's number.
 *   services       the summed size of all structs that the engine gives to plugins of the kind. They too only grow: a
 *                  plugin built for a newer engine has a larger number, and is refused before any of its code runs.
 *   strides        an array of structs comes with the size of its elements, as its maker has them: index it with the
 *                  accessors, ddp_node_at and so on.
 *   Optional       a slot may be NULL where its comment begins with this word, or where its capability is not set.
 *   1              2026-11: first release. Until it is out, everything may still move without a new number.
 *
 * Errors: a function that can fail returns a ddp_status and fills the caller's ddp_err (never NULL) through
 * ddp_fail(). Outputs are written only on success. A plugin never prints, exits, or installs a signal handler; its
 * output goes through ddp_host.log. Threads that a plugin starts block all signals and are joined in its `close`. */
#ifndef DDPENGINE_PLUGIN_H
#define DDPENGINE_PLUGIN_H

#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#ifdef __cplusplus
extern "C" {
#endif

#define DDP_MAGIC 0x45504444u /* "DDPE", little-endian */
#define DDP_ABI   1u

/* The one list of kinds. Kind X(BACKEND, backend, 1) has the header <ddpengine/backend.h>, which defines
 * DDP_BACKEND_ABI, DDP_BACKEND_SERVICES and ddp_backend_ops; its files are called "backend_NAME.so". */
#define DDP_KIND_MAP(X)                                                                                                \
    X(BACKEND, backend, 1)                                                                                             \
    X(INIT, init, 2)                                                                                                   \
    X(DEVICE, device, 3)                                                                                               \
    X(MODEL, model, 4)                                                                                                 \
    X(SAMPLER, sampler, 5)                                                                                             \
    X(DATASET, dataset, 6)                                                                                             \
    X(HOOK, hook, 7)
#define DDP_X_(NAME, name, number) DDP_KIND_##NAME = number,
enum { DDP_KIND_MAP(DDP_X_) DDP_KIND_END_ };
#undef DDP_X_

/* ---- status and error -------------------------------------------------------------------------------------------- */
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

/* Its layout never changes: 512 bytes, owned by the caller, never NULL. Where known, set after ddp_fail: `rank`, the
 * rank at fault (-1: unknown); `sys_errno`; `lib_code`, the wrapped library's own number. */
typedef struct ddp_err {
    int32_t status, sys_errno, lib_code, rank;
    int32_t exit_code; /* set by the core: exit code of a run that this error ends; 0: not known yet */
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

/* Ends the calling function with the status of `call` unless that is DDP_OK. */
#define DDP_TRY(call)                                                                                                  \
    do {                                                                                                               \
        ddp_status try_status_ = (call);                                                                               \
        if (try_status_ != DDP_OK) return try_status_;                                                                 \
    } while (0)

/* ---- dtypes ------------------------------------------------------------------------------------------------------ */
enum {
    DDP_F32 = 1,
    DDP_BF16,
    DDP_F64,
    DDP_I32,
    DDP_I64,
    DDP_U8,
    DDP_DTYPE_END_, /* the end of the dtypes in use; the numbers below are reserved */
    DDP_F16 = 16,   /* IEEE 754 binary16 */
    DDP_F8_E4M3,    /* 8-bit floats of the OCP specification: no infinity, largest 448 */
    DDP_F8_E5M2
};

/* Bytes of one element, 0 for an unknown dtype. */
static inline size_t ddp_dtype_size(uint32_t dtype)
{
    switch (dtype) {
    case DDP_F32:
    case DDP_I32: return 4;
    case DDP_BF16:
    case DDP_F16: return 2;
    case DDP_F64:
    case DDP_I64: return 8;
    case DDP_U8:
    case DDP_F8_E4M3:
    case DDP_F8_E5M2: return 1;
    default: return 0;
    }
}

#define DDP_MAX_DIMS 8

/* Element i of an array whose elements are `size` bytes apart. */
static inline const void *ddp_at_(const void *array, uint32_t size, uint32_t i)
{
    return (const char *)array + (size_t)i * size;
}

/* ---- options: the plugin's section of the INI file, self-documenting ---------------------------------------------- *
 * Field types in the plugin's config struct, by option type:
 *   INT int64_t   UINT uint64_t   FLOAT double   BOOL int32_t (0 or 1)
 *   STRING, PATH, HOSTPORT const char * (never NULL)
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

/* ---- what the core gives a plugin -------------------------------------------------------------------------------- */
enum { DDP_LOG_DEBUG = 0, DDP_LOG_INFO, DDP_LOG_WARN, DDP_LOG_ERROR };

typedef struct ddp_host {
    uint32_t struct_size, reserved0;
    void *ctx;
    /* any thread; one line without its newline */
    void (*log)(void *ctx, int level, const char *file, int line, const char *fmt, ...) DDP_PRINTF_(5, 6);
} ddp_host;

/* A key-value store shared by all ranks, kept by rank 0; keys are private to one communicator, but those that begin
 * with '/' are the run's, and its helpers' (backend.h). Any thread. When the run is aborted, pending and later calls
 * end with DDP_ERR_ABORTED. A key may have 900 bytes, a value 1 MiB, the store in all 64 MiB. */
typedef struct ddp_store {
    uint32_t struct_size, reserved0;
    void *ctx;
    ddp_status (*set)(void *ctx, const char *key, const void *value, size_t len, ddp_err *err);
    /* Waits until the key exists, at most timeout_ms: then DDP_ERR_TIMEOUT; 0 does not wait. A value longer than
     * `capacity` is DDP_ERR_INVALID; *len is written on success. */
    ddp_status (*get)(void *ctx, const char *key, void *buf, size_t capacity, size_t *len, int64_t timeout_ms,
                      ddp_err *err);
    /* Adds to an atomic counter, 0 when absent; *value is the sum. */
    ddp_status (*add)(void *ctx, const char *key, int64_t delta, int64_t *value, ddp_err *err);
    ddp_status (*remove)(void *ctx, const char *key, ddp_err *err); /* absent: ok */
} ddp_store;

/* ---- preflight: what `ddpengine --check` asks a plugin to look at before a run ----------------------------------- */
enum { DDP_FINDING_OK = 0, DDP_FINDING_WARNING, DDP_FINDING_PROBLEM };

typedef struct ddp_preflight {
    uint32_t struct_size, rank, world_size, local_rank;
    uint32_t local_size, reserved0;
    uint64_t shared_bytes; /* that each rank will ask its backend for (mem_alloc) */
    void *ctx;
    /* One line. `what`: what was looked at, in a word or two. The text: what is so; of a warning or a problem also what
     * to do. A problem is what would end the run. */
    void (*report)(void *ctx, int finding, const char *what, const char *fmt, ...) DDP_PRINTF_(4, 5);
} ddp_preflight;

/* ---- descriptor: the one exported symbol ------------------------------------------------------------------------- */
#define DDP_PLUGIN_F_NO_UNLOAD (1u << 0) /* never dlclose (libraries whose threads or handlers outlive it) */
#define DDP_PLUGIN_F_LAUNCHER  (1u << 1) /* a backend whose table has a `launcher`: --nproc starts the ranks by it */

/* How far a backend's ranks may be from each other. */
enum { DDP_REACH_PROCESS = 1, DDP_REACH_HOST, DDP_REACH_NETWORK };

/* The members before `name` are read from the file's bytes: the engine compares and chooses plugins without running any
 * of their code. */
typedef struct ddp_plugin {
    uint32_t magic, abi, struct_size, kind; /* these four never move */
    uint32_t kind_abi, flags;
    uint32_t services; /* DDP_*_SERVICES at its build: a plugin newer than the engine is refused */
    uint32_t priority; /* of a backend or device: `auto` takes the highest it can; 0: never taken */
    uint32_t reach;    /* of a backend: DDP_REACH_* */
    uint32_t reserved0;
    /* A device: the name of its kind of memory, "host" where that is the host's. A backend: the kinds that it reduces,
     * separated by a space; it must know what addresses and, except of "host", what streams a device of that kind
     * has. */
    char memory[32];
    char install[56];    /* "Debian package NAME": has the libraries that it links; "": none needed */
    const char *name;    /* equals the INI value */
    const char *version; /* for humans */
    const char *summary; /* one line, for `ddpengine plugins` */
    const ddp_option *options;
    uint32_t option_count, option_size; /* option_size = sizeof(ddp_option) */
    size_t config_size;
    const void *ops; /* first field is always uint32_t struct_size */
} ddp_plugin;

#define DDP_MEMORY_HOST "host"
/* Whether `kinds`, the `memory` of a backend, names `kind`, that of a device. */
static inline int ddp_memory_has(const char *kinds, const char *kind)
{
    size_t length = strlen(kind);
    const char *at = kinds;

    for (; length > 0 && (at = strstr(at, kind)) != NULL; at++)
        if ((at == kinds || at[-1] == ' ') && (at[length] == ' ' || at[length] == '\0')) return 1;
    return 0;
}

#define DDP_PLUGIN_SYMBOL "ddp_plugin_desc"

#if defined(__cplusplus)
#define DDP_PLUGIN_EXPORT extern "C" __attribute__((visibility("default")))
#else
#define DDP_PLUGIN_EXPORT __attribute__((visibility("default")))
#endif

/* The whole descriptor:
 *
 *     DDP_PLUGIN_EXPORT const ddp_plugin ddp_plugin_desc = {
 *         DDP_PLUGIN_HEAD(BACKEND, 0),
 *         .priority = 10, .reach = DDP_REACH_NETWORK, .memory = "host",     // a backend; a device has no reach
 *         DDP_PLUGIN_TAIL("mine", "1.0", "one line about it", DDP_OPTIONS(options, struct config), ops),
 *     };
 * */
#define DDP_PLUGIN_HEAD(KIND, flags_)                                                                                  \
    .magic = DDP_MAGIC, .abi = DDP_ABI, .struct_size = (uint32_t)sizeof(ddp_plugin), .kind = DDP_KIND_##KIND,          \
    .kind_abi = DDP_##KIND##_ABI, .flags = (flags_), .services = (uint32_t)(DDP_##KIND##_SERVICES)
#define DDP_PLUGIN_TAIL(name_, version_, summary_, options_, ops_)                                                     \
    .name = (name_), .version = (version_), .summary = (summary_), options_, .ops = &(ops_)
/* The plugin's option table and the type of its config struct; DDP_NO_OPTIONS for a plugin without options. */
#define DDP_OPTIONS(table, config_type)                                                                                \
    .options = (table), .option_count = (uint32_t)(sizeof(table) / sizeof((table)[0])),                                \
    .option_size = (uint32_t)sizeof((table)[0]), .config_size = sizeof(config_type)
#define DDP_NO_OPTIONS .options = NULL, .option_count = 0, .option_size = (uint32_t)sizeof(ddp_option), .config_size = 0

#ifdef __cplusplus
}
#endif
#endif
