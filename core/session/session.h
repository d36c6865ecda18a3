/* session/session.h -- everything of a run that is local to one rank: plugins, data, graph, layout, programs, memory.
 *
 * Opening a session makes no connection and trains nothing: it is what `--check` does. The trainer then joins the
 * group and runs it. A session is used from one thread, the one that opened it. */
#pragma once

#include "base/log.h"
#include "config/config.h"
#include "data/loader.h"
#include "graph/graph.h"
#include "plugin/plugin.h"
#include "session/device.h"
#include <stdatomic.h>

/* How a signal asks a run to end: while `graceful`, the handler leaves its number and the ranks agree on a step, save
 * and leave; otherwise the process ends by it at once. Written by the handler and by the trainer. */
typedef struct ddp_stop {
    atomic_int signal; /* 0: none */
    atomic_bool graceful;
    atomic_ullong kept;  /* while the ranks join again: the step that is in memory alone, and lost with it; 0: none */
    atomic_ullong saved; /* then: the step of the newest checkpoint; 0: there is none */
} ddp_stop;

/* What the process is for. Evaluating loads no training data; generating and what stands after it connect to nobody.
 * Inferring needs no data where the checkpoint says what the model reads; predicting reads files as the evaluation
 * does. */
typedef enum ddp_purpose {
    DDP_TO_TRAIN = 0,
    DDP_TO_EVALUATE,
    DDP_TO_GENERATE,
    DDP_TO_INFER,
    DDP_TO_PREDICT
} ddp_purpose;
static inline bool ddp_purpose_is_alone(ddp_purpose p) { return p >= DDP_TO_GENERATE; }

/* Who this process is: from the command line and the supervisor. */
typedef struct ddp_launch {
    int32_t rank, world; /* of the generation: session/place.h */
    int32_t home;        /* its rank by the config, or DDP_RANK_OF_SPARE, which is what `rank` is until then */
    int32_t local_rank, local_size;
    ddp_purpose purpose;
    const char *weights;     /* --checkpoint; NULL: as the config says */
    const ddp_field *fields; /* to infer: those of the training data; NULL: as [data] has them */
    uint32_t field_count;
    bool planning;                        /* --check, --print-config: nothing is started */
    bool profile;                         /* --profile: rank 0 measures its kernels */
    int32_t nproc;                        /* ranks that this process starts and supervises; 1: it is one itself */
    char url[DDP_ENDPOINT_MAX + 64];      /* effective init_method; "": none is needed, or none is known */
    const char *rank_where, *world_where; /* "node1.ini:4", "--nproc", "PMI_SIZE", for messages */
    bool introduced;                      /* a supervisor brings the ranks together, no init method is needed: */
    int listen_fd;                        /* rank 0: already listening; else -1 */
    const char *endpoint;                 /* other ranks: where rank 0 listens; else NULL */
    unsigned char secret[64]; /* of the control plane's TLS: the supervisor's own, or from [group] secret_file */
    size_t secret_length;     /* 0: in clear */
    bool on_nodes;            /* `url` is that of the first of [group] nodes */
    bool spare;               /* it was started for the place of a rank that is lost, and may have it by now */
    bool restarted;           /* in place of a process that was lost: the run goes on from its newest checkpoint */
    ddp_stop *stop;           /* may be NULL: signals are not its affair */
    int64_t began_ns;         /* start of the first process of the run on this host, ddp_now_ns() terms */
} ddp_launch;

/* A sampler divides the samples into as many shares as the run has ranks by its config. Each rank has one, and those of
 * ranks that are missing go to the others. */
#define DDP_MAX_SHARES 16

typedef struct ddp_shares {
    int32_t count; /* in all: the world_size of the config */
    uint32_t own;  /* of this rank, the first so many of: */
    int32_t list[DDP_MAX_SHARES];
} ddp_shares_of_rank;

/* What a loss over several batches is a mean over: their means, or all labels that count. metrics.c */
typedef struct ddp_loss_mean {
    bool by_token;
    bool by_sample; /* as by_token, of a loss without such labels: gradients are weighted by samples / divisor */
    double divisor; /* by_token: that of the loss of every program of the source */
    ddp_loss_labels labels;
} ddp_loss_mean;

/* A dataset with its samplers. */
typedef struct ddp_source {
    ddp_loaded *plugin, *sampler_plugin;
    const ddp_dataset_ops *ops;
    const ddp_sampler_ops *sampler_ops;
    const void *sampler_config;
    ddp_dataset *dataset;
    ddp_sampler *samplers[DDP_MAX_SHARES]; /* of each of this rank's shares */
    uint32_t sampler_count;                /* 0: only its fields are wanted */
    ddp_transform *transform;              /* NULL: none */
    ddp_pool pool;                         /* of the fields */
    const ddp_field *fields;               /* as the model sees them */
    uint32_t field_count;
    uint64_t length, count; /* samples in all, and of a share in an epoch */
    ddp_split split;        /* to train, where batches.uneven; else its total is 0 */
    ddp_loss_mean mean;
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
    int64_t positions; /* to generate: tokens of a run that keeps keys and values; 0: it is whole samples */
    bool training;
    ddp_program *program;
    ddp_stages *stages; /* the program cut up, where the model is; else NULL */
    ddp_lowered *lowered;
    ddp_planned *planned;
    ddp_fold *folds; /* to infer: what the parameters have to be changed by before it runs */
    uint32_t fold_count;
    uint32_t recomputed, blocks; /* to train: of so many blocks; blocks 0: it was not asked for */
    uint64_t kept_bytes;         /* of the activations, were none recomputed */
    ddp_exec *exec;              /* NULL until compiled */
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

/* The init method. plugins.c */
typedef struct ddp_rendezvous {
    ddp_loaded *plugin;
    const void *config;
    ddp_init *handle;
    const ddp_init_ops *ops;
    char url[DDP_ENDPOINT_MAX + 64];
} ddp_rendezvous;

/* [train] device and parallel. devices.c */
typedef struct ddp_devices {
    ddp_loaded *plugin;
    char name[64];    /* of the plugin */
    const char *text; /* as the config has them, "cpu", "cpu:0, cpu:1"; or: */
    char found[80];   /* what auto, or a name without a number, stands for */
    uint32_t ordinals[DDP_MAX_DEVICES], count;
    uint32_t replicas;    /* of this process, among which a batch is divided: devices with parallel = dp, else 1 */
    uint32_t stages;      /* of this process, into which the model is cut: devices with parallel = model, else 1 */
    uint32_t rank_stages; /* ranks that the model is cut over, with parallel = pipeline; else 1. pipeline.c */
    bool placed;          /* of rank_stages: by [train] place, not by the model. stages/place.c */
    uint32_t own;         /* which of the devices this session has; 0 but in train/local/device_group.c */
} ddp_devices;

/* What an update of a parameter is made with. groups.c */
typedef struct ddp_param_group {
    double lr_factor, weight_decay; /* the learning rate is multiplied by the first */
} ddp_param_group;
bool ddp_same_group(const ddp_param_group *a, const ddp_param_group *b);

/* [lora]. lora.c */
typedef struct ddp_session_lora {
    bool on;     /* adapters are trained, or used */
    bool rounds; /* what lies below them is rounded to bf16, as the products of this run do */
    bool half;   /* and held so by this device, from layout->half_first on */
    ddp_adapter_spec spec;
    ddp_pool pool; /* of the names in it */
} ddp_session_lora;

/* [train] split_head: the classes of the output layer are divided among the ranks. stages/head.c */
typedef struct ddp_session_head {
    bool on;
    ddp_head of;
} ddp_session_head;

/* The model, its parameters and its buckets. open.c */
typedef struct ddp_session_model {
    ddp_loaded *plugin;
    ddp_graph *graph;
    const ddp_param_info *params;
    ddp_param_group *groups; /* by parameter; NULL: nothing is trained */
    uint32_t param_count;
    uint64_t param_elements; /* of all parameters, without padding */
    const ddp_buffer_info *buffers;
    uint32_t buffer_count;
    uint64_t buffer_elements; /* of the buffer arena */
    ddp_layout *layout;
    uint64_t bucket_size; /* bytes, effective */
    ddp_session_lora lora;
    ddp_session_head head;
} ddp_session_model;

/* One for each batch size that will occur. variants.c */
typedef struct ddp_programs {
    ddp_variant variants[DDP_MAX_VARIANTS];
    uint32_t count;
    uint64_t arena_bytes;    /* activations: the largest plan, shared by all variants */
    char keeps_nothing[256]; /* to generate: why keys and values cannot be kept; "": they are */
} ddp_programs;

/* A result of evaluations; name "": none. */
typedef struct ddp_watched {
    char name[DDP_NAME_MAX];
    bool rises; /* higher is better */
} ddp_watched;

/* What the run looks at after each evaluation. metrics.c */
typedef struct ddp_watch {
    ddp_watched plateau, kept, stopping; /* [optimizer] schedule, [checkpoint] keep_best, [train] early_stopping */
    uint64_t patience;                   /* of early_stopping: evaluations */
} ddp_watch;

typedef struct ddp_session {
    ddp_log *log;
    ddp_host host;
    ddp_config *config;
    ddp_launch launch;
    ddp_shares_of_rank shares;
    ddp_registry *registry;
    ddp_batches batches;

    /* `auto` across hosts: for one host, then for several; else the one there is. After a hierarchy its halves, which
     * are not counted: within a host, between hosts. */
    ddp_candidate backends[3];
    uint32_t backend_count;
    char backend_text[160];       /* "shm or gloo-tcp" while both may be used */
    const ddp_candidate *backend; /* the chosen one; with two of them NULL until the rendezvous */
    ddp_rendezvous init;
    ddp_loaded *hook; /* NULL: none */
    const void *hook_config;
    char address[64]; /* of [group] interface, "" where that is not given */
    ddp_devices devices;
    ddp_device_handle device; /* that of this session, devices.ordinals[devices.own] */
    ddp_affinity pin;         /* planned; effective after the rendezvous */

    ddp_source train, eval; /* eval.plugin NULL: no evaluation */
    ddp_session_model model;
    ddp_programs programs;
    ddp_watch watch;
    uint64_t steps_per_epoch, batches_per_epoch;
} ddp_session;

uint64_t ddp_session_steps(const ddp_session *s); /* updates of the whole run, wherever it goes on from */

/* Parts that a global batch is split into: shares, or replicas of the one there is. */
static inline uint64_t ddp_session_parts(const ddp_session *s)
{
    return (uint64_t)s->shares.count * s->devices.replicas;
}
/* Devices that this process trains on, which share out the update. */
static inline uint32_t ddp_session_devices(const ddp_session *s)
{
    return DDP_MAX_OF(s->devices.replicas, s->devices.stages);
}
/* Stages that the model is cut into, of this process or of ranks; 1: it is whole. */
static inline uint32_t ddp_session_stages(const ddp_session *s)
{
    return DDP_MAX_OF(s->devices.stages, s->devices.rank_stages);
}
/* With parallel = pipeline: ranks come stage by stage, in each the replicas in their order. */
static inline uint32_t ddp_session_stage_replicas(const ddp_session *s)
{
    return (uint32_t)s->launch.world / s->devices.rank_stages;
}
static inline uint32_t ddp_session_rank_stage(const ddp_session *s)
{
    return (uint32_t)s->launch.rank / ddp_session_stage_replicas(s);
}
/* Ranks of the run by its config, whoever is there. */
static inline int32_t ddp_session_ranks(const ddp_session *s)
{
    return s->shares.count * (int32_t)s->devices.rank_stages;
}
/* What the layout and the update are divided by. */
static inline uint64_t ddp_session_shards(const ddp_session *s)
{
    return (uint64_t)s->launch.world * ddp_session_devices(s);
}
const char *ddp_session_precision(const ddp_session *s); /* "f32", "bf16": of the products */
uint32_t ddp_optimizer_states(const ddp_config *c);      /* arenas that the optimiser keeps: 0, 1 or 2 */
/* Puts in front of an error where the key that led to it stands, when somebody wrote it. */
ddp_status session_at_key(const ddp_session *s, const char *section, const char *key, ddp_err *err);
/* DDP_ERR_CONFIG where [train] noise_scale has nothing to compare. */
ddp_status session_noise_check(const ddp_session *s, ddp_err *err);
/* DDP_ERR_CONFIG where the warm-up leaves nothing to a schedule that ends; `total` updates in the run. */
ddp_status session_schedule_check(const struct ddp_optimizer_config *o, uint64_t total, ddp_err *err);
