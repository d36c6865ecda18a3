/* session/session.h -- everything of a run that is local to one rank: plugins, data, graph, layout, programs, memory.
 *
 * Opening a session meets nobody and trains nothing: it is what `--check` does. The trainer then joins the group and runs
 * it. A session is used from one thread, the one that opened it. */
#ifndef DDP_SESSION_H
#define DDP_SESSION_H

#include "base/log.h"
#include "config/config.h"
#include "data/loader.h"
#include "graph/graph.h"
#include "plugin/plugin.h"
#include <stdatomic.h>

/* How a signal asks a run to end: while `graceful`, the handler leaves its number and the ranks agree on a step, save and
 * leave; otherwise the process ends by it at once. Written by the handler and by the trainer. */
typedef struct ddp_stop {
    atomic_int signal; /* 0: none */
    atomic_bool graceful;
} ddp_stop;

/* What the process is for. Evaluating loads no training data, generating meets nobody. */
typedef enum ddp_purpose { DDP_TO_TRAIN = 0, DDP_TO_EVALUATE, DDP_TO_GENERATE } ddp_purpose;

/* Who this process is: from the command line and the supervisor. */
typedef struct ddp_launch {
    int32_t rank, world, local_rank, local_size;
    ddp_purpose purpose;
    const char *weights;                  /* --checkpoint; NULL: as the config says */
    bool planning;                        /* --check, --print-config: nothing is started */
    bool profile;                         /* --profile: rank 0 measures its kernels */
    int32_t nproc;                        /* ranks that this process starts and supervises; 1: it is one itself */
    char url[DDP_ENDPOINT_MAX + 64];      /* init_method in force; "": none is needed, or none is known */
    const char *rank_where, *world_where; /* "node1.ini:4", "--nproc", "PMI_SIZE", for messages */
    bool introduced;                      /* a supervisor brings the ranks together, no init method is needed: */
    int listen_fd;                        /* rank 0: already listening; else -1 */
    const char *endpoint;                 /* other ranks: where rank 0 listens; else NULL */
    unsigned char secret[64]; /* of the control plane's TLS: the supervisor's own, or from [group] secret_file */
    size_t secret_length;     /* 0: in clear */
    ddp_stop *stop;           /* may be NULL: signals are not its affair */
    int64_t began_ns;         /* start of the first process of the run on this host, ddp_now_ns() terms */
} ddp_launch;

/* A dataset with its sampler. */
typedef struct ddp_source {
    ddp_loaded *plugin, *sampler_plugin;
    const ddp_dataset_ops *ops;
    const ddp_sampler_ops *sampler_ops;
    ddp_dataset *dataset;
    ddp_sampler *sampler;
    ddp_transform *transform; /* NULL: none */
    const ddp_field *fields;  /* as the model sees them */
    uint32_t field_count;
    uint64_t length, count; /* samples in all, and of this rank in an epoch */
} ddp_source;

/* A backend that the run may use. */
typedef struct ddp_candidate {
    ddp_loaded *plugin;
    const void *config;
    const char *name; /* its own, for the INI may give a path */
} ddp_candidate;

/* One program: a batch size, for training or evaluation. Planned at the start, compiled when first due. */
typedef struct ddp_variant {
    int64_t batch;
    bool training;
    ddp_program *program;
    ddp_stages *stages; /* the program cut up, where it trains with parallel = model; else NULL */
    ddp_lowered *lowered;
    ddp_planned *planned;
    ddp_exec *exec; /* NULL until compiled */
    ddp_instance *instance;
} ddp_variant;

/* Where the compute threads are bound; session/affinity.h */
typedef struct ddp_affinity {
    bool pinned;
    uint32_t first;  /* thread i to processor number first + i of ddp_processors */
    bool left_alone; /* though it should be: the processors are not this rank's to share out */
} ddp_affinity;

/* Training and evaluation, each with its remainder, whose parts of replicas may have two sizes. */
#define DDP_MAX_VARIANTS 6
#define DDP_MAX_DEVICES  64

typedef struct ddp_session {
    ddp_log *log;
    ddp_host host;
    ddp_config *config;
    ddp_launch launch;
    ddp_registry *registry;
    ddp_batches batches;

    ddp_candidate backends[2]; /* `auto` across hosts: shm, then gloo-tcp; else the one there is */
    uint32_t backend_count;
    const ddp_candidate *backend; /* the chosen one; with two of them NULL until the ranks have met */
    ddp_loaded *init, *model, *device_plugin;
    ddp_loaded *hook; /* NULL: none */
    const void *init_config, *hook_config;
    char address[64];                                 /* of [group] interface, "" where that is not given */
    char url[DDP_ENDPOINT_MAX + 64], device_name[64]; /* of the device plugin */
    const char *device_text;                          /* as the config has them, "cpu", "cpu:0, cpu:1"; or: */
    char device_found[80];                            /* what device = auto or cuda stands for, "cuda:1" */
    uint32_t ordinals[DDP_MAX_DEVICES], device_count;
    uint32_t replicas; /* of this process, which share a batch out: devices with parallel = dp, else 1 */
    uint32_t stages;   /* of this process, which divide the model up: devices with parallel = model, else 1 */
    uint32_t member;   /* which of the devices this session has; 0 but in train/local/device_group.c */
    ddp_init *init_handle;
    const ddp_init_ops *init_ops;

    ddp_source train, eval; /* eval.plugin NULL: no evaluation */
    ddp_graph *graph;
    const ddp_param_info *params;
    uint32_t param_count;
    uint64_t param_elements; /* of all parameters, without padding */
    const ddp_buffer_info *buffers;
    uint32_t buffer_count;
    uint64_t buffer_elements; /* of the buffer arena */
    ddp_layout *layout;
    uint64_t bucket_size; /* bytes, in force */

    const ddp_device_ops *device_ops;
    const void *device_config;
    ddp_device *device;
    ddp_device_info device_info;
    uint32_t threads; /* of a device */
    ddp_affinity pin; /* planned; in force once the ranks have met */

    ddp_variant variants[DDP_MAX_VARIANTS];
    uint32_t variant_count;
    uint64_t arena_bytes; /* activations: the largest plan, shared by all variants */
    uint64_t steps_per_epoch, batches_per_epoch;
} ddp_session;

uint64_t ddp_session_steps(const ddp_session *s); /* updates of the whole run, wherever it goes on from */

/* `config` and `log` outlive the session. On failure the error has the exit code and everything opened is closed again. */
ddp_status ddp_session_open(ddp_session *s, ddp_log *log, ddp_config *config, const ddp_launch *launch, ddp_err *err);
/* Plugins and their settings alone: what --print-config needs. */
ddp_status ddp_session_load_plugins(ddp_session *s, ddp_err *err);
/* Loads the plugins whose sections this run does not use and checks their options. Every fault is a line of the log; the exit
 * code of the first. What is in order goes to `out`. */
int ddp_session_check_unused(ddp_session *s, ddp_text *out);
void ddp_session_close(ddp_session *s);
/* Once the ranks have met: more of them may be on this host than could be known before, where each was started by hand. The
 * default of [train] threads is a rank's share, so the device is opened and the variants are planned anew where it changes. */
ddp_status ddp_session_divide_host(ddp_session *s, int32_t local_rank, int32_t local_size, ddp_err *err);
/* Other buckets than planned: the layout and the variants are planned anew. */
ddp_status ddp_session_set_bucket_size(ddp_session *s, uint64_t bytes, ddp_err *err);
/* Parts that a global batch is split into: ranks, or replicas of the one there is. */
static inline uint64_t ddp_session_parts(const ddp_session *s) { return (uint64_t)s->launch.world * s->replicas; }
/* Devices that this process trains on, which share out the update. */
static inline uint32_t ddp_session_devices(const ddp_session *s) { return DDP_MAX_OF(s->replicas, s->stages); }
/* The same shares where ranks have them: what the layout and the update are divided by. */
static inline uint64_t ddp_session_shards(const ddp_session *s)
{
    return (uint64_t)s->launch.world * ddp_session_devices(s);
}
/* Elements of the gradient arena. */
uint64_t ddp_session_grad_elements(const ddp_session *s);
/* The device of ordinals[member], by the thread that will use it; the plugin does not count it as live. */
ddp_status ddp_session_open_device(ddp_session *s, ddp_err *err);
/* Frees the variants too. */
void ddp_session_close_device(ddp_session *s);
/* Once it is known whether all ranks share this host: sets s->backend. */
void ddp_session_choose_backend(ddp_session *s, bool one_host);
/* "shm", or "shm or gloo-tcp" */
const char *ddp_session_backend_name(const ddp_session *s);

const char *ddp_session_precision(const ddp_session *s); /* "f32", "bf16": of the products */
uint32_t ddp_optimizer_states(const ddp_config *c);      /* arenas that the optimiser keeps: 0, 1 or 2 */
/* The lines that all ranks must agree on, options first. */
void ddp_session_agreement(const ddp_session *s, ddp_text *out);
/* The plan, for people: parameters, buckets, memory, FLOPs and bytes of a step. */
void ddp_session_report(const ddp_session *s, ddp_text *out);

/* The variant for a batch of this size; NULL when none was planned. */
ddp_variant *ddp_session_variant(ddp_session *s, int64_t batch, bool training);
/* Plans the variants that will occur (s->variants), sets arena_bytes. */
ddp_status ddp_variants_plan(ddp_session *s, ddp_err *err);
/* Compiles and binds a variant; ok when it already is. */
ddp_status ddp_variant_ready(ddp_session *s, ddp_variant *v, const ddp_bind *bind, ddp_err *err);
void ddp_variants_free(ddp_session *s);

#endif
