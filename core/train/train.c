/* train/train.c -- the order of one rank's run: rendezvous and agreement, communicator, arenas, parameters, epochs,
 * summary. An error carries its exit code; the first failure of any rank is everyone's. */
#include "train/train.h"
#include "session/variants.h"
#include "session/affinity.h"
#include "session/open.h"
#include "session/plugins.h"
#include "session/report.h"
#include "train/evaluate.h"
#include "train/local/pipelined_step.h"
#include "train/local/pipeline.h"
#include "train/local/replicas.h"
#include "train/measure/profile.h"
#include "train/reduce/bucket_size.h"
#include "train/reduce/clip.h"
#include "train/reduce/hook.h"
#include "train/reduce/shards.h"
#include "train/state/buffer_sync.h"
#include "train/state/memory.h"
#include "train/state/optim_state.h"
#include "train/state/resume.h"
#include "train/state/save.h"
#include "train/step.h"
#include "train/ways.h"
#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

/* ---- rendezvous ------------------------------------------------------------------------------------------------ */
static void expire(void *ctx, const ddp_failure *cause);

static ddp_status join(ddp_trainer *t, ddp_failure *failure, ddp_err *err)
{
    ddp_session *s = t->s;
    ddp_text lines = {0};
    ddp_group_params p = {.rank = s->launch.rank,
                          .world = s->launch.world,
                          .world_where = s->launch.world_where,
                          .url = s->init.url,
                          .init_ops = s->init.ops,
                          .init = s->init.handle,
                          .listen_fd = s->launch.listen_fd,
                          .endpoint = s->launch.endpoint,
                          .timeout_ms = s->config->group->rendezvous_timeout_ms,
                          .peer_timeout_ms = s->config->group->peer_timeout_ms,
                          .secret = s->launch.secret_length > 0 ? s->launch.secret : NULL,
                          .secret_length = s->launch.secret_length,
                          .secret_where = s->launch.introduced ? "--nproc" : s->config->group->secret_file,
                          .auth_none = s->config->group->auth == 1,
                          .interface = s->config->group->interface,
                          .stop_signal = s->launch.stop == NULL ? NULL : &s->launch.stop->signal,
                          .log = s->log,
                          .expired = expire,
                          .expired_ctx = t};
    ddp_status st;

    s->launch.listen_fd = -1; /* the group's from here */
    ddp_session_agreement(s, &lines);
    p.agreement = lines.data;
    st = lines.failed ? ddp_fail(err, DDP_ERR_NOMEM, "out of memory") : ddp_group_join(&p, &t->group, failure, err);
    ddp_text_free(&lines);
    return st;
}

/* ---- memory ---------------------------------------------------------------------------------------------------- */
/* Parameters and gradients are allocated in the backend's memory where it offers some, so that it can reduce in
 * place. */
static ddp_status shared_floats(ddp_trainer *t, uint64_t elements, float **out, ddp_err *err)
{
    void *p;

    if (!t->mem.of_backend) return ddp_device_alloc(&t->s->device, elements * sizeof(float), out, err);
    DDP_TRY(ddp_communicator_alloc(t->comm, elements * sizeof(float), &p, err));
    *out = p;
    return DDP_OK;
}

/* Between the gradients and the wire. */
static ddp_status open_reduction(ddp_trainer *t, ddp_err *err)
{
    ddp_session *s = t->s;
    bool buckets = !ddp_shards_direct(t) && ddp_session_devices(s) == 1;
    ddp_comm_stream_params stream = {.device = &s->device,
                                     .comm = t->comm,
                                     .arena = t->mem.grads,
                                     .elements = buckets ? s->model.layout->elements : 0,
                                     .count = s->model.layout->bucket_count + 1};
    ddp_reducer_params p = {.session = s,
                            .comm = t->comm,
                            .grads = t->mem.grads,
                            .trace = t->trace,
                            .scatters = t->reduce.shards != NULL,
                            .buckets = buckets,
                            .between_hosts = ddp_group_local_size(t->group) < ddp_group_world(t->group)};

    if (ddp_device_has_memory(&s->device)) DDP_TRY(ddp_comm_stream_open(&stream, &t->reduce.stream, err));
    if (s->hook != NULL)
        DDP_TRY(ddp_hooked_open(s, t->comm,
                                t->reduce.stream != NULL ? ddp_comm_stream_staging(t->reduce.stream) : t->mem.grads,
                                t->trace, &t->reduce.hooked, err));
    p.stream = t->reduce.stream;
    p.hooked = t->reduce.hooked;
    return ddp_reducer_open(&p, &t->reduce.reducer, err);
}

static ddp_status allocate(ddp_trainer *t, ddp_err *err)
{
    bool training = t->s->launch.purpose == DDP_TO_TRAIN;

    /* alone there is nobody to share with, and the host's own memory may have larger pages */
    t->mem.of_backend = training && ddp_group_world(t->group) > 1 &&
                        (ddp_communicator_caps(t->comm) & DDP_CAP_MEM_ALLOC) != 0 &&
                        (!ddp_device_has_memory(&t->s->device) || ddp_communicator_takes_device(t->comm));
    DDP_TRY(shared_floats(t, t->s->model.layout->param_elements, &t->mem.params, err));
    if (training) DDP_TRY(shared_floats(t, ddp_session_grad_elements(t->s), &t->mem.grads, err));
    DDP_TRY(ddp_device_alloc(&t->s->device, t->s->programs.arena_bytes, &t->mem.activations, err));
    DDP_TRY(ddp_trainer_buffers_open(t, err));
    t->mem.bind = (ddp_bind){.struct_size = sizeof(t->mem.bind),
                             .arena = t->mem.activations,
                             .params = t->mem.params,
                             .grads = t->mem.grads,
                             .buffers = t->mem.buffers};
    if (!training) return ddp_replicas_open(t, err);
    DDP_TRY(ddp_trace_open(t->s, &t->trace, err));
    DDP_TRY(ddp_clip_open(t, err));
    DDP_TRY(ddp_shards_open(t, err));
    DDP_TRY(ddp_states_open(t, err));
    DDP_TRY(open_reduction(t, err));
    DDP_TRY(ddp_pipeline_open(t, err));
    return ddp_replicas_open(t, err);
}

/* After a failure a collective may still be running on these arenas: the backend's memory goes back through the
 * queue, after it, and the rest when the queue thread has ended. */
static void release(ddp_trainer *t)
{
    float *own[] = {t->mem.state1,
                    t->mem.state2,
                    t->mem.of_backend ? NULL : t->mem.params,
                    t->mem.of_backend ? NULL : t->mem.grads,
                    t->mem.buffers,
                    t->mem.probe};

    if (!ddp_replicas_close(t) || !ddp_pipeline_close(t)) return; /* which still uses all of this */
    ddp_variants_free(t->s);
    if (t->mem.of_backend && t->mem.grads != NULL) ddp_communicator_free(t->comm, t->mem.grads);
    if (t->mem.of_backend && t->mem.params != NULL) ddp_communicator_free(t->comm, t->mem.params);
    if (!ddp_communicator_close(t->comm)) return;
    ddp_shards_close(t);
    ddp_reducer_close(t->reduce.reducer);
    ddp_hooked_close(t->reduce.hooked);
    ddp_comm_stream_close(t->reduce.stream);
    ddp_pipelined_close(t);
    ddp_staging_close(t);
    ddp_trace_close(t->trace);
    ddp_clip_close(t);
    ddp_states_free(t);
    for (size_t i = 0; i < DDP_COUNT(own); i++) ddp_device_free(&t->s->device, own[i]);
    ddp_device_free(&t->s->device, t->mem.activations);
    free(t->mem.counts);
}

/* Batches lie where the device can copy them from by itself. */
static ddp_status loader_memory(const void *device, size_t bytes, void **out, ddp_err *err)
{
    return ddp_device_host_alloc(device, bytes, out, err);
}

static void loader_free(const void *device, void *p) { ddp_device_host_free(device, p); }

static ddp_status open_loader(ddp_trainer *t, ddp_source *src, ddp_loader **out, ddp_err *err)
{
    ddp_loader_params p = {.dataset_ops = src->ops,
                           .dataset = src->dataset,
                           .transform = src->transform,
                           .sampler_ops = src->sampler_ops,
                           .sampler = src->sampler,
                           .batch_size = t->s->batches.batch_size * t->s->devices.replicas,
                           /* stage 0 has so many in flight; a pipelined step still copies one */
                           .hold = DDP_MAX_OF(t->s->devices.stages, t->local.pipelined != NULL && src == &t->s->train
                                                                        ? DDP_PIPELINED_BATCHES
                                                                        : 1),
                           .parts = t->s->devices.replicas,
                           .workers = t->s->config->loader->workers,
                           .prefetch = t->s->config->loader->prefetch};

    if (ddp_device_has_memory(&t->s->device))
        p.allocator = (ddp_loader_allocator){loader_memory, loader_free, &t->s->device};
    DDP_TRY_AS(DDP_EXIT_DATA, err, ddp_loader_open(&p, out, err));
    return DDP_OK;
}

/* ---- observing ------------------------------------------------------------------------------------------------- */
static void plan_steps(ddp_trainer *t)
{
    const struct ddp_train_config *c = t->s->config->train;
    uint64_t accumulate = (uint64_t)t->s->batches.accumulate;
    uint64_t epochs = (uint64_t)c->epochs > t->progress.epoch ? (uint64_t)c->epochs - t->progress.epoch : 0;
    uint64_t left = epochs * t->s->steps_per_epoch, begun = (t->progress.cursor + accumulate - 1) / accumulate;

    t->progress.total_steps = t->progress.step + (left > begun ? left - begun : 0);
    if (c->max_steps > 0) t->progress.total_steps = DDP_MIN_OF(t->progress.total_steps, (uint64_t)c->max_steps);
}

static ddp_status open_observer(ddp_trainer *t, ddp_err *err)
{
    const ddp_session *s = t->s;
    ddp_observe_params p = {.dir = s->config->output->dir,
                            .log_every = s->config->output->log_every,
                            .progress = s->config->output->progress,
                            .append = t->progress.step > 0,
                            .total_steps = t->progress.total_steps,
                            .first_step = t->progress.step,
                            .steps_per_epoch = s->steps_per_epoch,
                            .epochs = (uint64_t)s->config->train->epochs,
                            .log = s->log};
    char count[32], text[640];
    const char *part = s->devices.replicas > 1 ? "replica" : s->devices.stages > 1 ? "stage" : "rank";
    uint64_t parts = ddp_session_shards(s);
    ddp_text pinned = {0}, members = {0};

    if (s->launch.rank != 0) return DDP_OK;
    DDP_TRY_AS(DDP_EXIT_CONFIG, err, ddp_observer_open(&p, &t->observer, err));
    ddp_session_pin_text(s, &pinned);
    ddp_text_printf(&members, "\"version\": \"%s\", \"world_size\": %d, \"backend\": \"%s\", \"device\": \"%s\", ",
                    DDP_VERSION, s->launch.world, ddp_session_backend_name(s), s->devices.text);
    ddp_text_printf(&members, "\"precision\": \"%s\", \"hook\": \"%s\", \"bucket_size\": %" PRIu64 ", ",
                    ddp_session_precision(s), s->hook != NULL ? s->hook->desc.name : "", s->model.bucket_size);
    ddp_text_printf(&members, "\"model\": \"%s\", \"parameters\": %" PRIu64 ", \"global_batch\": %" PRId64,
                    s->model.plugin->desc.name, s->model.param_elements, s->batches.global_batch);
    ddp_text_printf(&members, ", \"step\": %" PRIu64 ", \"planned_steps\": %" PRIu64, t->progress.step,
                    t->progress.total_steps);
    (void)snprintf(text, sizeof(text),
                   "training %s (%s parameters) with %" PRIu64 " %s%s x batch %" PRId64
                   " over %s on %s, %u thread%s a %s%s%s",
                   s->model.plugin->desc.name, ddp_format_count(s->model.param_elements, count, sizeof(count)), parts,
                   part, parts == 1 ? "" : "s", s->batches.batch_size * s->batches.accumulate,
                   ddp_session_devices(s) > 1 ? s->devices.text : ddp_session_backend_name(s), s->device.info.name,
                   s->device.threads, s->device.threads == 1 ? "" : "s", part,
                   s->launch.world == 1 ? ", " : ", rank 0 ", pinned.data != NULL ? pinned.data : "");
    ddp_text_free(&pinned);
    ddp_observe_event(t->observer, "start", members.data != NULL ? members.data : "", text);
    ddp_text_free(&members);
    return DDP_OK;
}

/* The summary, of a run that is done (exit code 0) or has failed. */
static ddp_status finish(ddp_trainer *t, int exit_code, ddp_err *err)
{
    ddp_summary sum = {.steps = t->progress.step,
                       .epochs = t->progress.epoch,
                       .parameters = t->s->model.param_elements,
                       .world_size = (uint64_t)t->s->launch.world,
                       .final_loss = t->result.loss,
                       .eval_loss = t->result.eval_loss,
                       .eval_accuracy = t->result.eval_accuracy,
                       .first_step_s = t->result.first_step_s,
                       .backend = ddp_session_backend_name(t->s),
                       .device = t->s->devices.text,
                       .precision = ddp_session_precision(t->s),
                       .exit_code = exit_code};

    if (t->observer == NULL) return DDP_OK;
    ddp_observer_stop(t->observer); /* before the hashes, in whose time other ranks leave */
    DDP_TRY(ddp_trainer_hash(t, sum.parameter_sha256, err));
    DDP_TRY(ddp_trainer_hash_buffers(t, sum.buffer_sha256, err));
    return ddp_observer_finish(t->observer, &sum, err);
}

/* ---- the epochs ------------------------------------------------------------------------------------------------ */
static bool step_limit(const ddp_trainer *t)
{
    return t->s->config->train->max_steps > 0 && t->progress.step >= (uint64_t)t->s->config->train->max_steps;
}

static ddp_status run_epoch(ddp_trainer *t, ddp_err *err)
{
    uint64_t every = (uint64_t)t->s->config->checkpoint->every,
             check = (uint64_t)t->s->config->train->check_replicas_every;
    ddp_status st = DDP_OK;

    DDP_TRY_AS(DDP_EXIT_DATA, err, ddp_loader_begin(t->loader, t->progress.epoch, t->progress.cursor, err));
    while (!step_limit(t) && t->progress.stopping == 0 && (st = trainer_step(t, err)) == DDP_OK) {
        bool checks = check > 0 && t->progress.step % check == 0,
             saves = every > 0 && t->progress.step % every == 0 && t->progress.cursor < t->s->batches_per_epoch;

        if (checks || saves) DDP_TRY(t->way.finish(t, err));
        if (checks) DDP_TRY(t->way.check_replicas(t, err));
        if (saves) DDP_TRY(ddp_trainer_save(t, err));
    }
    if (st != DDP_OK && st != DDP_IN_PROGRESS) return st;
    DDP_TRY(t->way.finish(t, err));
    if (t->progress.cursor < t->s->batches_per_epoch) return DDP_OK; /* the step limit came first */
    t->progress.epoch++;
    t->progress.cursor = 0;
    if (every > 0 && t->progress.step % every == 0) DDP_TRY(ddp_trainer_save(t, err));
    return DDP_OK;
}

static ddp_status run_epochs(ddp_trainer *t, ddp_err *err)
{
    const struct ddp_train_config *c = t->s->config->train;
    uint64_t evaluated = UINT64_MAX; /* step of the newest evaluation */

    while (t->progress.epoch < (uint64_t)c->epochs && !step_limit(t) && t->progress.stopping == 0) {
        uint64_t epoch = t->progress.epoch;

        DDP_TRY(run_epoch(t, err));
        if (t->eval_loader == NULL || t->progress.stopping != 0 || t->progress.epoch == epoch || c->eval_every == 0 ||
            t->progress.epoch % (uint64_t)c->eval_every != 0)
            continue;
        DDP_TRY(trainer_evaluate(t, err));
        evaluated = t->progress.step;
    }
    if (t->eval_loader != NULL && t->progress.stopping == 0 && evaluated != t->progress.step)
        DDP_TRY(trainer_evaluate(t, err));
    return ddp_trainer_save(t, err);
}

static void set_graceful(const ddp_session *s, bool on)
{
    if (s->launch.stop != NULL) atomic_store(&s->launch.stop->graceful, on);
}

/* A run that is complete already has evaluated and written its summary, unless it was killed after its last save: then
 * that is still to be done, by all ranks. */
static ddp_status check_reported(ddp_trainer *t, bool *done, ddp_err *err)
{
    const char *dir = t->s->config->output->dir;
    char sha256[DDP_SHA256_HEX];
    int32_t reported = 1;

    if (t->s->launch.rank == 0 && dir[0] != '\0') {
        DDP_TRY(ddp_trainer_hash(t, sha256, err));
        reported = ddp_summary_is_of(dir, t->progress.step, sha256);
        if (reported == 0)
            ddp_log_line(t->s->log, DDP_LOG_INFO, "its summary is not in %s: the run is %sreported now", dir,
                         t->eval_loader != NULL ? "evaluated and " : "");
    }
    DDP_TRY(ddp_trainer_from_rank0(t, "whether the complete run is reported", &reported, sizeof(reported), err));
    *done = reported != 0;
    return DDP_OK;
}

/* Everything after the rendezvous. */
static ddp_status run(ddp_trainer *t, ddp_err *err)
{
    ddp_session *s = t->s;
    bool done;

    DDP_TRY(ddp_session_divide_host(s, ddp_group_local_rank(t->group), ddp_group_local_size(t->group), err));
    DDP_TRY(ddp_session_pin(s, t->group, err)); /* before memory is touched, which lies near the processor that does */
    ddp_session_choose_backend(s, ddp_group_local_size(t->group) == ddp_group_world(t->group));
    DDP_TRY_AS(DDP_EXIT_RENDEZVOUS, err,
               ddp_communicator_open(t->group, s->backend->plugin, &s->host, s->backend->config,
                                     ddp_session_device_ordinal(s, s->backend->plugin),
                                     s->config->group->step_timeout_ms, &t->comm, err));
    DDP_TRY(ddp_trainer_bucket_size(t, err));
    DDP_TRY(allocate(t, err));
    DDP_TRY(train_way_choose(t, err));
    if (s->train.plugin != NULL) DDP_TRY(open_loader(t, &s->train, &t->loader, err));
    if (s->eval.plugin != NULL) DDP_TRY(open_loader(t, &s->eval, &t->eval_loader, err));
    trainer_optimizer(t);
    DDP_TRY(ddp_trainer_restore(t, &done, err));
    DDP_TRY(ddp_replicas_broadcast_all(t, err));
    if (s->launch.purpose == DDP_TO_EVALUATE) return trainer_only_evaluate(t, err);
    if (done) DDP_TRY(check_reported(t, &done, err));
    if (done) return DDP_OK;
    plan_steps(t);
    DDP_TRY(open_observer(t, err));
    DDP_TRY(ddp_profile_open(s, ddp_shards_direct(t), &t->profile, err));
    set_graceful(s, true);
    DDP_TRY(run_epochs(t, err));
    set_graceful(s, false);
    ddp_trace_step(t->trace, UINT64_MAX);
    DDP_TRY(finish(t, t->progress.stopping == 0 ? DDP_EXIT_OK : 128 + t->progress.stopping, err));
    return ddp_profile_report(t->profile, err);
}

/* ---- the end --------------------------------------------------------------------------------------------------- */
/* The run's first failure, which is not always this rank's own error. */
static int failed(ddp_trainer *t, const ddp_err *err, char *message, size_t capacity)
{
    ddp_failure f = {0};
    char own[sizeof(f.msg)];
    int code = ddp_err_exit_code(err);

    if (code == DDP_EXIT_PEER && err->status == DDP_ERR_TIMEOUT) code = DDP_EXIT_TIMEOUT;
    (void)snprintf(own, sizeof(own), "rank %d: %s", t->s->launch.rank,
                   err->msg[0] != '\0' ? err->msg : "a plugin failed without giving a reason");
    ddp_group_abort(t->group, code, own); /* does nothing when the run has already failed */
    if (!ddp_group_failed(t->group, &f)) {
        f.exit_code = code;
        ddp_copy_text(f.msg, sizeof(f.msg), own);
    }
    ddp_copy_text(message, capacity, f.msg);
    return f.exit_code;
}

/* The words for a run that a signal has ended in good order. */
static int stopped(const ddp_trainer *t, char *message, size_t capacity)
{
    int n = snprintf(message, capacity, "ended by signal %d (%s) after step %" PRIu64, t->progress.stopping,
                     strsignal(t->progress.stopping), t->progress.step);

    if (n > 0 && (size_t)n < capacity)
        (void)snprintf(message + n, capacity - (size_t)n, "%s",
                       t->progress.saving ? ", which is saved: the same command goes on from there"
                                          : "; nothing is saved, for [checkpoint] dir is not set");
    return 128 + t->progress.stopping;
}

static void expire(void *ctx, const ddp_failure *cause) /* maybe during the rendezvous */
{
    ddp_trainer *t = ctx;

    t->ending->expired(t->ending->ctx, cause->exit_code, cause->msg);
}

int ddp_train(ddp_session *s, ddp_ending *ending)
{
    ddp_trainer t = {
        .s = s,
        .ending = ending,
        .result = {.loss = NAN, .first_step_s = NAN, .eval_loss = NAN, .eval_accuracy = NAN, .grad_norm = NAN}};
    ddp_failure failure = {0};
    ddp_err err = {0};
    int code = DDP_EXIT_OK;

    if (join(&t, &failure, &err) != DDP_OK) {
        ddp_copy_text(ending->message, sizeof(ending->message), failure.exit_code != 0 ? failure.msg : err.msg);
        return failure.exit_code != 0 ? failure.exit_code : DDP_EXIT_RENDEZVOUS;
    }
    if (run(&t, &err) != DDP_OK) {
        code = failed(&t, &err, ending->message, sizeof(ending->message));
        if (s->launch.purpose == DDP_TO_TRAIN) (void)finish(&t, code, &err);
    } else if (t.progress.stopping != 0) {
        code = stopped(&t, ending->message, sizeof(ending->message));
    }
    ddp_profile_close(t.profile);
    if (t.observer != NULL) ddp_observer_close(t.observer);
    if (t.eval_loader != NULL) ddp_loader_close(t.eval_loader);
    if (t.loader != NULL) ddp_loader_close(t.loader);
    if (t.comm != NULL) release(&t);
    if (code == DDP_EXIT_OK && ddp_group_failed(t.group, &failure)) { /* closing, here or on another rank */
        ddp_copy_text(ending->message, sizeof(ending->message), failure.msg);
        code = failure.exit_code;
    }
    ddp_group_leave(t.group);
    return code;
}
