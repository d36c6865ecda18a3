/* train/session.h -- everything of a run that is local to one rank: plugins, data, graph, layout, programs, memory.
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

/* Who this process is: from the command line and the supervisor. */
typedef struct ddp_launch {
    int32_t rank, world, local_rank, local_size;
    bool introduced;      /* a supervisor brings the ranks together, no init method is needed: */
    int listen_fd;        /* rank 0: already listening; else -1 */
    const char *endpoint; /* other ranks: where rank 0 listens; else NULL */
    int64_t began_ns;     /* start of the first process of the run on this host, ddp_now_ns() terms */
} ddp_launch;

/* A dataset with its sampler. */
typedef struct ddp_source {
    ddp_loaded *plugin, *sampler_plugin;
    const ddp_dataset_ops *ops;
    const ddp_sampler_ops *sampler_ops;
    ddp_dataset *dataset;
    ddp_sampler *sampler;
    const ddp_field *fields;
    uint32_t field_count;
    uint64_t length, count; /* samples in all, and of this rank in an epoch */
} ddp_source;

/* One program: a batch size, for training or evaluation. Planned at the start, compiled when first due. */
typedef struct ddp_variant {
    int64_t batch;
    bool training;
    ddp_program *program;
    ddp_lowered *lowered;
    ddp_planned *planned;
    ddp_exec *exec; /* NULL until compiled */
    ddp_instance *instance;
} ddp_variant;

#define DDP_MAX_VARIANTS 4 /* training and evaluation, each with its remainder */

typedef struct ddp_session {
    ddp_log *log;
    ddp_host host;
    ddp_config *config;
    ddp_launch launch;
    int phase; /* exit code of the run if what is being done now fails */
    ddp_registry *registry;
    ddp_batches batches;

    ddp_loaded *backend, *init, *model, *device_plugin;
    const void *backend_config, *init_config;
    char backend_name[64], url[DDP_ENDPOINT_MAX + 64], device_name[64];
    ddp_init *init_handle;
    const ddp_init_ops *init_ops;

    ddp_source train, eval; /* eval.plugin NULL: no evaluation */
    ddp_graph *graph;
    const ddp_param_info *params;
    uint32_t param_count;
    uint64_t param_elements; /* of all parameters, without padding */
    ddp_layout *layout;

    const ddp_device_ops *device_ops;
    ddp_device *device;
    ddp_device_info device_info;
    uint32_t threads;

    ddp_variant variants[DDP_MAX_VARIANTS];
    uint32_t variant_count;
    uint64_t arena_bytes; /* activations: the largest plan, shared by all variants */
    uint64_t steps_per_epoch, batches_per_epoch;
} ddp_session;

/* `config` and `log` outlive the session. On failure s->phase is the exit code and everything opened is closed again. */
ddp_status ddp_session_open(ddp_session *s, ddp_log *log, ddp_config *config, const ddp_launch *launch, ddp_err *err);
/* Plugins and their settings alone: what --print-config needs. */
ddp_status ddp_session_load_plugins(ddp_session *s, ddp_err *err);
void ddp_session_close(ddp_session *s);

uint32_t ddp_optimizer_states(const ddp_config *c); /* arenas that the optimiser keeps: 0, 1 or 2 */
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
