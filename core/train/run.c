/* train/run.c -- what a rank does between a rendezvous and the end: communicator, arenas, parameters, summary. The
 * epochs are in loop.c. */
#include "train/run.h"
#include "train/loop.h"
#include "session/affinity.h"
#include "session/open.h"
#include "session/place.h"
#include "session/plugins.h"
#include "session/report/report.h"
#include "session/variants.h"
#include "train/ema.h"
#include "train/head/pieces.h"
#include "train/measure/evaluate.h"
#include "train/local/pipeline.h"
#include "train/local/pipelined_step.h"
#include "train/local/replicas.h"
#include "train/measure/advice/advice.h"
#include "train/measure/audit.h"
#include "train/measure/evaluated.h"
#include "train/measure/histograms.h"
#include "train/measure/noise.h"
#include "train/measure/profile.h"
#include "train/outer/outer.h"
#include "train/ranks/arenas.h"
#include "train/ranks/pipeline.h"
#include "train/ranks/place.h"
#include "train/reduce/bucket_size.h"
#include "train/reduce/clip.h"
#include "train/reduce/hook.h"
#include "train/reduce/shards.h"
#include "train/reduce/spans.h"
#include "train/reduce/wire_order.h"
#include "train/state/buffer_sync.h"
#include "train/state/local_states.h"
#include "train/state/memory.h"
#include "train/state/optim_state.h"
#include "train/state/resume.h"
#include "train/state/resume_settings.h"
#include "train/state/save.h"
#include "train/state/survivor.h"
#include "train/watch.h"
#include "train/ways.h"
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

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
                            .scans_early = ddp_wire_order_scans_early(t),
                            .own = t->local.head == NULL ? 0 : t->local.head->buckets};

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
    t->mem.of_backend = training && !arenas_are_mapped(t) && ddp_group_world(t->group) > 1 &&
                        (ddp_communicator_caps(t->comm) & DDP_CAP_MEM_ALLOC) != 0 &&
                        (!ddp_device_has_memory(&t->s->device) || ddp_communicator_takes_device(t->comm));
    DDP_TRY(state_base_map(t, err));
    if (arenas_are_mapped(t)) DDP_TRY(ranks_arenas_open(t, err));
    if (t->mem.params == NULL) DDP_TRY(shared_floats(t, t->s->model.layout->param_elements, &t->mem.params, err));
    if (training && t->mem.grads == NULL)
        DDP_TRY(shared_floats(t, ddp_session_grad_elements(t->s), &t->mem.grads, err));
    DDP_TRY(ddp_device_alloc(&t->s->device, t->s->programs.arena_bytes, &t->mem.activations, err));
    DDP_TRY(ddp_trainer_buffers_open(t, err));
    t->mem.bind = (ddp_bind){.struct_size = sizeof(t->mem.bind),
                             .arena = t->mem.activations,
                             .params = t->mem.params,
                             .grads = t->mem.grads,
                             .buffers = t->mem.buffers,
                             .frozen = state_base_half(t)};
    if (!training) return ddp_replicas_open(t, err);
    DDP_TRY(ddp_trace_open(t->s, &t->trace, err));
    DDP_TRY(ddp_clip_open(t, err));
    DDP_TRY(measure_noise_open(t, err));
    DDP_TRY(measure_histograms_open(t, err));
    DDP_TRY(ddp_spans_open(t, err));
    DDP_TRY(ddp_shards_open(t, err));
    if (!arenas_are_mapped(t)) DDP_TRY(ddp_states_open(t, err));
    DDP_TRY(ddp_split_head_open(t, err));
    DDP_TRY(train_ema_open(t, err));
    DDP_TRY(ddp_outer_open(t, err));
    DDP_TRY(open_reduction(t, err));
    DDP_TRY(ddp_pipeline_open(t, err));
    DDP_TRY(ddp_rank_pipeline_open(t, err));
    return ddp_replicas_open(t, err);
}

/* After a failure a collective may still be running on these arenas: the backend's memory goes back through the
 * queue, after it, and the rest when the queue thread has ended. False: it has not, and all stays until the process
 * ends. */
static bool release(ddp_trainer *t)
{
    bool mapped = arenas_are_mapped(t);
    float *own[] = {mapped ? NULL : t->mem.state1,
                    mapped ? NULL : t->mem.state2,
                    mapped || t->mem.of_backend || t->mem.mapped_bytes > 0 ? NULL : t->mem.params,
                    mapped || t->mem.of_backend ? NULL : t->mem.grads,
                    t->mem.buffers,
                    t->mem.kept_buffers,
                    t->mem.ema,
                    t->mem.exchange,
                    t->mem.outer.params,
                    t->mem.outer.momentum,
                    t->mem.probe};

    if (!ddp_replicas_close(t) || !ddp_pipeline_close(t) || !ddp_rank_pipeline_close(t))
        return false; /* which still uses all of this */
    ddp_variants_free(t->s);
    if (t->mem.of_backend && t->mem.grads != NULL) ddp_communicator_free(t->comm, t->mem.grads);
    if (t->mem.of_backend && t->mem.mapped_bytes == 0 && t->mem.params != NULL)
        ddp_communicator_free(t->comm, t->mem.params);
    if (!ddp_communicator_close(t->comm)) return false;
    ddp_split_head_close(t);
    measure_advice_close(t);
    ddp_shards_close(t);
    ddp_reducer_close(t->reduce.reducer);
    ddp_hooked_close(t->reduce.hooked);
    ddp_comm_stream_close(t->reduce.stream);
    ddp_pipelined_close(t);
    ddp_staging_close(t);
    ddp_trace_close(t->trace);
    ddp_wire_order_close(t);
    ddp_clip_close(t);
    measure_noise_close(t);
    measure_histograms_close(t);
    ddp_spans_close(t);
    ddp_states_free(t);
    state_local_drop(t);
    for (size_t i = 0; i < DDP_COUNT(own); i++) ddp_device_free(&t->s->device, own[i]);
    state_base_unmap(t);
    if (mapped) ranks_arenas_close(t);
    ddp_device_free(&t->s->device, t->mem.activations);
    free(t->mem.counts);
    return true;
}

/* Batches lie where the device can copy them from by itself. */
static ddp_status loader_memory(const void *device, size_t bytes, void **out, ddp_err *err)
{
    return ddp_device_host_alloc(device, bytes, out, err);
}

static void loader_free(const void *device, void *p) { ddp_device_host_free(device, p); }

static ddp_status open_loader(ddp_trainer *t, ddp_source *src, ddp_sampler *sampler, int32_t share, ddp_loader **out,
                              ddp_err *err)
{
    ddp_loader_params p = {
        .dataset_ops = src->ops,
        .dataset = src->dataset,
        .transform = src->transform,
        .sampler_ops = src->sampler_ops,
        .sampler = sampler,
        .batch_size = t->s->batches.batch_size * t->s->devices.replicas,
        .split = src->split,
        .share = (uint64_t)share,
        /* stage 0 has so many in flight; a pipelined step still copies one */
        .hold = DDP_MAX_OF(ddp_session_stages(t->s),
                           t->local.pipelined != NULL && src == &t->s->train ? DDP_PIPELINED_BATCHES : 1),
        .parts = t->s->devices.replicas,
        .workers = t->s->config->loader->workers,
        .prefetch = t->s->config->loader->prefetch};

    if (ddp_device_has_memory(&t->s->device))
        p.allocator = (ddp_loader_allocator){loader_memory, loader_free, &t->s->device};
    DDP_TRY_AS(DDP_EXIT_DATA, err, ddp_loader_open(&p, out, err));
    return DDP_OK;
}

/* One for each of the rank's shares. */
static ddp_status open_loaders(ddp_trainer *t, ddp_source *src, ddp_loader **out, ddp_err *err)
{
    if (ranks_are_stages(t) && ddp_session_rank_stage(t->s) > 0) return DDP_OK; /* stage 0 takes all batches */
    for (uint32_t i = 0; i < src->sampler_count; i++)
        DDP_TRY(open_loader(t, src, src->samplers[i], t->s->shares.list[i], &out[i], err));
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
    bool ranks = s->config->output->ranks != 0 && s->launch.world > 1;
    ddp_observe_params p = {.dir = s->config->output->dir,
                            .log_every = s->config->output->log_every,
                            .progress = s->config->output->progress,
                            .append = t->progress.step > 0,
                            .total_steps = t->progress.total_steps,
                            .first_step = t->progress.step,
                            .steps_per_epoch = s->steps_per_epoch,
                            .epochs = (uint64_t)s->config->train->epochs,
                            .loss_spike = s->config->train->loss_spike,
                            .tensorboard = s->config->output->tensorboard != 0,
                            .prometheus = s->config->output->prometheus,
                            .group = ranks ? t->group : NULL,
                            .log = s->log};
    char count[32], text[640];
    const char *part = s->devices.replicas > 1 ? "replica" : ddp_session_stages(s) > 1 ? "stage" : "rank";
    uint64_t parts = ddp_session_shards(s);
    ddp_text pinned = {0}, members = {0}, settings = {0};
    ddp_status st;

    if (ranks) ddp_group_times_begin(t->group, t->progress.step, t->progress.total_steps);
    if (s->launch.rank != 0) return DDP_OK;
    ddp_settings_print(&s->config->settings, &settings);
    p.settings = settings.data;
    st = ddp_observer_open(&p, &t->observer, err);
    ddp_text_free(&settings);
    DDP_TRY_AS(DDP_EXIT_CONFIG, err, st);
    ddp_session_write_run_file(s);
    ddp_session_pin_text(s, &pinned);
    ddp_text_printf(&members, "\"version\": \"%s\", \"world_size\": %d, \"backend\": \"%s\", \"device\": \"%s\", ",
                    DDP_VERSION, s->launch.world, ddp_session_backend_name(s), s->devices.text);
    ddp_text_printf(&members, "\"precision\": \"%s\", \"hook\": \"%s\", \"bucket_size\": %" PRIu64 ", ",
                    ddp_session_precision(s), s->hook != NULL ? s->hook->desc.name : "", s->model.bucket_size);
    ddp_text_printf(&members, "\"model\": \"%s\", \"parameters\": %" PRIu64 ", \"global_batch\": %" PRId64,
                    s->model.plugin->desc.name, s->model.param_elements, s->batches.global_batch);
    ddp_text_printf(&members, ", \"step\": %" PRIu64 ", \"planned_steps\": %" PRIu64, t->progress.step,
                    t->progress.total_steps);
    ddp_text_printf(&members, ", \"generation\": %" PRIu32, ddp_group_generation(t->group));
    (void)snprintf(text, sizeof(text),
                   "training %s (%s parameters) with %" PRIu64 " %s%s%s %" PRId64
                   " over %s on %s, %u thread%s a %s%s%s",
                   s->model.plugin->desc.name, ddp_format_count(s->model.param_elements, count, sizeof(count)), parts,
                   part, parts == 1 ? "" : "s", s->batches.uneven ? ", each step of" : " x batch",
                   s->batches.uneven ? s->batches.global_batch : s->batches.batch_size * s->batches.accumulate,
                   ddp_session_devices(s) > 1 ? s->devices.text : ddp_session_backend_name(s), s->device.info.name,
                   s->device.threads, s->device.threads == 1 ? "" : "s", part,
                   s->launch.world == 1 ? ", " : ", rank 0 ", pinned.data != NULL ? pinned.data : "");
    ddp_text_free(&pinned);
    ddp_observe_event(t->observer, "start", members.data != NULL ? members.data : "", text);
    ddp_text_free(&members);
    return DDP_OK;
}

/* The summary, of a run that is done (exit code 0) or has failed. */
ddp_status trainer_finish(ddp_trainer *t, int exit_code, ddp_err *err)
{
    bool saved = t->progress.saving && t->progress.saved_step != UINT64_MAX;
    char best[512], checkpoint[512], again[48] = "";
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
                       .exit_code = exit_code,
                       .best = train_watch_best(t, best, sizeof(best)),
                       .best_metric = t->s->watch.kept.name,
                       .best_value = t->progress.history.kept.value,
                       .best_step = t->progress.history.kept.step,
                       .stopped_early = ddp_trainer_stops_early(t),
                       .checkpoint = saved ? checkpoint : NULL,
                       .again = t->s->launch.introduced || t->s->launch.world == 1 ? again : NULL,
                       .evaluates = t->s->eval.sampler_count > 0};
    ddp_text metrics = {0};
    ddp_status st;

    if (t->observer == NULL) return DDP_OK;
    if (saved)
        (void)snprintf(checkpoint, sizeof(checkpoint), "%s/step-%08" PRIu64, t->s->config->checkpoint->dir,
                       t->progress.saved_step);
    if (t->s->launch.introduced) (void)snprintf(again, sizeof(again), " --nproc %d", (int)ddp_session_ranks(t->s));
    ddp_observer_stop(t->observer); /* before the hashes, in whose time other ranks leave */
    if (t->local.head != NULL)
        ddp_copy_text(sum.parameter_sha256, sizeof(sum.parameter_sha256), t->local.head->sha256);
    else if (!t->mem.partial)
        DDP_TRY(ddp_trainer_hash(t, sum.parameter_sha256, err));
    if (!t->mem.partial || sum.parameter_sha256[0] != '\0')
        DDP_TRY(ddp_trainer_hash_buffers(t, sum.buffer_sha256, err));
    ddp_evaluated_members(&t->evaluated, true, &metrics);
    sum.metrics = metrics.data != NULL ? metrics.data + strlen(", ") : "";
    st = ddp_observer_finish(t->observer, &sum, err);
    ddp_text_free(&metrics);
    return st;
}

void trainer_graceful(const ddp_session *s, bool on)
{
    if (s->launch.stop == NULL) return;
    if (on) atomic_store(&s->launch.stop->kept, 0); /* from now on a signal lets the ranks save it */
    atomic_store(&s->launch.stop->graceful, on);
}

/* A run that is complete already has evaluated and written its summary, unless it was killed after its last save: then
 * that is still to be done, by all ranks. */
static ddp_status check_reported(ddp_trainer *t, bool *done, ddp_err *err)
{
    const char *dir = t->s->config->output->dir;
    char sha256[DDP_SHA256_HEX];
    int32_t reported = 1;

    DDP_TRY(head_hash(t, err));
    if (t->s->launch.rank == 0 && dir[0] != '\0') {
        if (t->local.head != NULL)
            ddp_copy_text(sha256, sizeof(sha256), t->local.head->sha256);
        else
            DDP_TRY(ddp_trainer_hash(t, sha256, err));
        reported = ddp_summary_is_of(dir, t->progress.step, sha256);
        if (reported == 0)
            ddp_log_line(t->s->log, DDP_LOG_INFO, "its summary is not in %s: the run is %sreported now", dir,
                         t->s->eval.sampler_count > 0 ? "evaluated and " : "");
    }
    DDP_TRY(ddp_trainer_from_rank0(t, "whether the complete run is reported", &reported, sizeof(reported), err));
    *done = reported != 0;
    return DDP_OK;
}

/* Ranks that have been in the run keep the backend between hosts, though one host is left: with another one the state
 * that they have in memory would be laid out in another way. A process that was started again takes it over. */
static ddp_status choose_backend(ddp_trainer *t, ddp_err *err)
{
    ddp_session *s = t->s;
    uint64_t between_hosts = s->backend_count > 1 && s->backend == &s->backends[1];

    if (s->backend_count > 1 && ddp_trainer_rejoins(t)) DDP_TRY(ddp_trainer_largest(t, "backend", &between_hosts, err));
    ddp_session_choose_backend(s, ddp_group_local_size(t->group) == ddp_group_world(t->group) && between_hosts == 0);
    if (!ddp_trainer_rejoins(t)) ddp_session_simplify_backend(s, ddp_group_hosts(t->group), ddp_group_world(t->group));
    return DDP_OK;
}

static void log_missing(const ddp_trainer *t)
{
    const ddp_session *s = t->s;
    ddp_text own = {0};

    if (s->launch.rank == 0 && s->launch.world < ddp_session_ranks(s))
        ddp_log_line(
            s->log, DDP_LOG_WARN,
            "%d of %d ranks are there: the samples of an update and their order stay as they are, and ranks with more than one share of them take as many times as long",
            s->launch.world, s->shares.count);
    for (uint32_t i = 0; s->shares.own > 1 && i < s->shares.own; i++)
        ddp_text_printf(&own, "%s%d", i == 0 ? "" : ", ", s->shares.list[i]);
    if (s->shares.own > 1 && !own.failed)
        ddp_log_line(s->log, DDP_LOG_INFO, "this rank has the samples of ranks %s", own.data);
    ddp_text_free(&own);
}

ddp_status trainer_run(ddp_trainer *t, ddp_err *err)
{
    ddp_session *s = t->s;
    bool done;

    DDP_TRY(ddp_session_place(s, t->group, err));
    log_missing(t);
    DDP_TRY(ddp_session_divide_host(s, ddp_group_local_rank(t->group), ddp_group_local_size(t->group), err));
    DDP_TRY(ddp_session_pin(s, t->group, err)); /* before memory is touched, which lies near the processor that does */
    DDP_TRY(ranks_place(t, err));
    DDP_TRY(choose_backend(t, err));
    DDP_TRY_AS(DDP_EXIT_RENDEZVOUS, err,
               ddp_communicator_open(t->group, s->backend->plugin, &s->host, s->backend->config,
                                     ddp_session_device_ordinal(s, s->backend->plugin),
                                     s->config->group->step_timeout_ms, &t->comm, err));
    DDP_TRY(ddp_trainer_keep_batch(t, err));
    DDP_TRY(ddp_trainer_bucket_size(t, err));
    DDP_TRY(allocate(t, err));
    DDP_TRY(train_way_choose(t, err));
    DDP_TRY(open_loaders(t, &s->train, t->loaders, err));
    DDP_TRY(open_loaders(t, &s->eval, t->eval_loaders, err));
    DDP_TRY(ddp_split_head_count(t, err));
    trainer_optimizer(t);
    DDP_TRY(ddp_trainer_restore(t, &done, err));
    DDP_TRY(ddp_replicas_broadcast_all(t, err));
    if (s->launch.purpose == DDP_TO_EVALUATE) return trainer_only_evaluate(t, err);
    if (done) DDP_TRY(check_reported(t, &done, err));
    if (done) return DDP_OK;
    if (ranks_are_stages(t)) ranks_arenas_drop(t);
    plan_steps(t);
    DDP_TRY(open_observer(t, err));
    DDP_TRY(ddp_trainer_audit_open(t, err));
    DDP_TRY(ddp_profile_open(s, ddp_shards_direct(t), &t->profile, err));
    DDP_TRY(ddp_trainer_save_open(t, err));
    DDP_TRY(measure_advice_open(t, err));
    ddp_memory_trim(); /* of planning */
    trainer_graceful(s, true);
    DDP_TRY(train_loop(t, err));
    ddp_group_times_end(t->group);
    trainer_graceful(s, false);
    if (t->progress.stopping == DDP_STOP_TO_GROW) return DDP_OK;
    DDP_TRY(ddp_trainer_audit_end(t, err));
    ddp_trace_step(t->trace, UINT64_MAX);
    if (t->progress.stopping == 0) train_watch_report(t);
    if (ranks_are_stages(t)) DDP_TRY(ranks_arenas_collect(t, DDP_ARENA_PARAMS, err));
    if (ranks_are_stages(t)) DDP_TRY(ranks_buffers_collect(t, err));
    DDP_TRY(head_hash(t, err));
    DDP_TRY(trainer_finish(t, t->progress.stopping == 0 ? DDP_EXIT_OK : 128 + t->progress.stopping, err));
    DDP_TRY(measure_advice_report(t, err));
    return ddp_profile_report(t->profile, err);
}

/* ---- the end --------------------------------------------------------------------------------------------------- */
bool trainer_close(ddp_trainer *t)
{
    ddp_evaluated_close(&t->evaluated);
    ddp_trainer_audit_close(t);
    ddp_profile_close(t->profile);
    if (t->observer != NULL) ddp_observer_close(t->observer);
    for (uint32_t i = 0; i < DDP_MAX_SHARES; i++) {
        ddp_loader_close(t->eval_loaders[i]);
        ddp_loader_close(t->loaders[i]);
    }
    return t->comm == NULL || release(t);
}
