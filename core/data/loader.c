/* data/loader.c -- makes batches ahead of the trainer; the interface and what a slot holds are in loader.h.
 *
 * Threads: the consumer (who calls ddp_loader_begin and _next) and `workers` threads "ddp-loader-N". Batch k of an
 * epoch is made by worker k % workers into slot k % slots, as soon as batch k - slots has been given back; so which
 * thread makes which batch is fixed, and the order is the sampler's whatever the timing. One mutex guards what the
 * threads share; it is taken once a batch, never while a sample is read. `indices` is written by the consumer while
 * every worker is idle.
 *
 * Left to others: what a sample is (the dataset), which samples (the sampler), where batches go (the trainer). */
#include "data/loader.h"
#include "base/sys.h"
#include "data/image.h"
#include <inttypes.h>
#include <stdlib.h>

typedef struct slot {
    void **buffers; /* by part, by field: batch_size / parts samples */
    uint64_t made;  /* 1 + the batch that is here in this epoch, 0: none */
    ddp_err err;    /* err.status: whether that batch is valid */
} slot;

typedef struct worker {
    struct ddp_loader *loader;
    pthread_t thread;
    pthread_cond_t wake;
    uint64_t number;
    void **targets;            /* by field: where the next sample goes */
    void *scratch;             /* of the transform, NULL without one */
    float *spare;              /* an image, where samples are mixed; else NULL */
    data_image_reader *reader; /* of images whose size differs, else NULL */
    bool idle;
} worker;

struct ddp_loader {
    const ddp_dataset_ops *dataset;
    const ddp_dataset *data;
    const ddp_transform *transform;
    const ddp_sampler_ops *sampler_ops;
    ddp_sampler *sampler;
    ddp_pool pool; /* owns the small arrays below */

    uint64_t batch_size, count, batches; /* count: samples of this rank in an epoch */
    uint64_t length;                     /* of the dataset */
    ddp_split split;                     /* total 0: none */
    uint64_t share;
    uint32_t field_count, parts;
    const ddp_field *fields;
    size_t *sample_bytes; /* by field */
    uint64_t *indices;    /* count entries, of the running epoch */
    uint64_t slot_count, worker_count, hold;
    slot *slots;
    worker *workers; /* one without a thread when worker_count is 0 */
    uint64_t threads_started;
    ddp_loader_allocator allocator;
    void *memory; /* the buffers of all slots */

    pthread_mutex_t lock;       /* guards everything below, slot.made and .err, and worker.idle */
    pthread_cond_t ready;       /* for the consumer: a batch is made, a worker became idle */
    uint64_t epoch, generation; /* generation: number of begun epochs */
    uint64_t next, held;        /* the batch that _next gives next; the oldest whose slot is in use */
    bool running;               /* an epoch has begun: indices are valid and batches are wanted */
    bool closing;
    atomic_bool cancel; /* = !running, for a look between samples without the lock */
};

/* ---- making a batch, on a worker or in ddp_loader_next ----------------------------------------------------------- */
/* Of this rank's samples. */
static uint64_t batch_range(const ddp_loader *l, uint64_t batch, uint64_t *first)
{
    uint64_t end;

    if (l->split.total > 0) {
        ddp_split_range(&l->split, l->share, batch, first, &end);
        return end - *first;
    }
    *first = batch * l->batch_size;
    return DDP_MIN_OF(l->batch_size, l->count - *first);
}

/* Sample `index` to w->targets. */
static ddp_status read_sample(ddp_loader *l, worker *w, uint64_t index, ddp_err *err)
{
    uint32_t field = l->transform != NULL ? data_transform_field(l->transform) : 0;
    void *target = w->targets[field];
    ddp_status status;

    if (l->transform == NULL) return l->dataset->read(l->data, index, l->epoch, w->targets, err);
    if (w->reader != NULL) return data_image_read(w->reader, l->dataset, l->data, index, l->epoch, w->targets, err);
    w->targets[field] = w->scratch;
    status = l->dataset->read(l->data, index, l->epoch, w->targets, err);
    w->targets[field] = target;
    if (status == DDP_OK) data_transform_apply(l->transform, index, l->epoch, w->scratch, target);
    return status;
}

/* Each part by itself, as each rank's batch is. */
static void mix_parts(const ddp_loader *l, const worker *w, uint64_t first, uint64_t count, const slot *s)
{
    for (uint64_t part = 0; part < l->parts; part++) {
        uint64_t begin = ddp_part_begin(count, l->parts, part), end = ddp_part_begin(count, l->parts, part + 1);

        if (end > begin)
            data_transform_mix(l->transform, l->indices[first + begin], l->epoch, (int64_t)(end - begin),
                               s->buffers + part * l->field_count, w->spare);
    }
}

/* Abandoned half-way when the epoch is stopped: nobody looks at it then. */
static void make_batch(ddp_loader *l, worker *w, uint64_t batch, slot *s, ddp_err *err)
{
    uint64_t first, count = batch_range(l, batch, &first), part = 0;

    err->status = DDP_OK;
    for (uint64_t i = 0; i < count && !atomic_load_explicit(&l->cancel, memory_order_relaxed); i++) {
        uint64_t index = l->indices[first + i];
        ddp_status status;

        for (; part < l->parts && i == ddp_part_begin(count, l->parts, part);
             part++) /* empty parts come after the others */
            for (uint32_t f = 0; f < l->field_count; f++) w->targets[f] = s->buffers[part * l->field_count + f];
        status = read_sample(l, w, index, err);
        if (status != DDP_OK) {
            (void)ddp_fail_context(
                err, "sample %" PRIu64 " of the dataset cannot be read (batch %" PRIu64 " of epoch %" PRIu64 ")", index,
                batch, l->epoch);
            err->status = DDP_ERR_DATA;
            return;
        }
        for (uint32_t f = 0; f < l->field_count; f++) w->targets[f] = (char *)w->targets[f] + l->sample_bytes[f];
    }
    if (w->spare != NULL) mix_parts(l, w, first, count, s);
}

/* The first batch from `from` on that is this worker's. */
static uint64_t own_batch(const worker *w, uint64_t from)
{
    uint64_t n = w->loader->worker_count;

    return from + (w->number + n - from % n) % n;
}

/* Makes this worker's batches of the epoch that is running; called and left with the lock held. */
static void work_epoch(ddp_loader *l, worker *w)
{
    uint64_t batch = own_batch(w, l->next);
    ddp_err err = {0};

    for (; batch < l->batches; batch += l->worker_count) {
        slot *s = &l->slots[batch % l->slot_count];

        while (l->running && batch >= l->held + l->slot_count) pthread_cond_wait(&w->wake, &l->lock);
        if (!l->running) return;
        pthread_mutex_unlock(&l->lock);
        make_batch(l, w, batch, s, &err);
        pthread_mutex_lock(&l->lock);
        s->err = err;
        s->made = batch + 1;
        pthread_cond_signal(&l->ready);
        if (err.status != DDP_OK) return;
    }
}

static void *worker_main(void *arg)
{
    worker *w = arg;
    ddp_loader *l = w->loader;
    uint64_t done = 0; /* generation */

    pthread_mutex_lock(&l->lock);
    while (!l->closing) {
        if (l->running && l->generation != done) {
            done = l->generation;
            w->idle = false;
            work_epoch(l, w);
            w->idle = true;
            pthread_cond_signal(&l->ready);
        } else {
            pthread_cond_wait(&w->wake, &l->lock);
        }
    }
    pthread_mutex_unlock(&l->lock);
    return NULL;
}

/* ---- epochs, on the consumer's thread ---------------------------------------------------------------------------- */
/* Stops the running epoch and waits until no worker touches its slots or indices; with the lock held. */
static void stop_epoch(ddp_loader *l)
{
    l->running = false;
    atomic_store(&l->cancel, true);
    for (uint64_t i = 0; i < l->worker_count; i++) pthread_cond_signal(&l->workers[i].wake);
    for (uint64_t i = 0; i < l->worker_count; i++)
        while (!l->workers[i].idle) pthread_cond_wait(&l->ready, &l->lock);
}

static ddp_status draw_indices(ddp_loader *l, uint64_t epoch, ddp_err *err)
{
    ddp_status status = l->sampler_ops->indices(l->sampler, epoch, l->indices, err);

    if (status != DDP_OK) return ddp_fail_context(err, "sampler, epoch %" PRIu64, epoch);
    for (uint64_t i = 0; i < l->count; i++)
        if (l->indices[i] >= l->length)
            return ddp_fail(err, DDP_ERR_INTERNAL,
                            "loader: the sampler gave index %" PRIu64 " at position %" PRIu64 " of epoch %" PRIu64
                            ", the dataset has %" PRIu64 " samples; the sampler plugin is at fault",
                            l->indices[i], i, epoch, l->length);
    return DDP_OK;
}

ddp_status ddp_loader_begin(ddp_loader *l, uint64_t epoch, uint64_t first, ddp_err *err)
{
    ddp_status status;

    if (first > l->batches)
        return ddp_fail(err, DDP_ERR_INVALID, "loader: an epoch cannot begin at batch %" PRIu64 ", it has %" PRIu64,
                        first, l->batches);
    pthread_mutex_lock(&l->lock);
    stop_epoch(l);
    status = draw_indices(l, epoch, err);
    if (status == DDP_OK) {
        for (uint64_t i = 0; i < l->slot_count; i++) l->slots[i].made = 0;
        l->epoch = epoch;
        l->generation++;
        l->next = l->held = first;
        l->running = true;
        atomic_store(&l->cancel, false);
        for (uint64_t i = 0; i < l->worker_count; i++) pthread_cond_signal(&l->workers[i].wake);
    }
    pthread_mutex_unlock(&l->lock);
    return status;
}

/* Gives back the slot of the batch that the caller has finished with, which is about to take one more; with the lock
 * held. */
static void release_held(ddp_loader *l)
{
    if (l->next - l->held < l->hold) return;
    l->held++;
    if (l->worker_count > 0) /* whose batch may now be made */
        pthread_cond_signal(&l->workers[(l->held + l->slot_count - 1) % l->worker_count].wake);
}

ddp_status ddp_loader_next(ddp_loader *l, ddp_batch *out, ddp_err *err)
{
    ddp_status status = DDP_OK;
    uint64_t first, count;
    slot *s;

    pthread_mutex_lock(&l->lock);
    if (!l->running) {
        status = ddp_fail(err, DDP_ERR_INVALID, "loader: no epoch has begun");
        goto unlock;
    }
    release_held(l);
    if (l->next >= l->batches) {
        *out = (ddp_batch){.count = 0};
        status = DDP_IN_PROGRESS;
        goto unlock;
    }
    s = &l->slots[l->next % l->slot_count];
    if (l->worker_count == 0)
        make_batch(l, &l->workers[0], l->next, s, &s->err);
    else
        while (s->made != l->next + 1) pthread_cond_wait(&l->ready, &l->lock);
    if (s->err.status != DDP_OK) {
        *err = s->err;
        status = err->status;
        goto unlock;
    }
    count = batch_range(l, l->next, &first);
    *out = (ddp_batch){
        .count = (int64_t)count,
        .buffers = s->buffers,
        .indices = l->indices + first,
        .position = first,
    };
    l->next++;
unlock:
    pthread_mutex_unlock(&l->lock);
    return status;
}

ddp_batch ddp_batch_part(const ddp_loader *l, const ddp_batch *batch, uint32_t part)
{
    uint64_t count = (uint64_t)batch->count, first = ddp_part_begin(count, l->parts, part);

    return (ddp_batch){.count = (int64_t)(ddp_part_begin(count, l->parts, part + 1) - first),
                       .buffers = batch->buffers + (size_t)part * l->field_count,
                       .indices = batch->indices + first,
                       .position = batch->position + first};
}

/* ---- open, close ------------------------------------------------------------------------------------------------- */
static ddp_status check_split(const ddp_loader *l, ddp_err *err)
{
    uint64_t wanted = l->split.total > 0 ? ddp_split_before(&l->split, l->split.total, l->share) : 0;

    if (wanted <= l->count && (l->split.total == 0 || l->split.batch <= l->batch_size)) return DDP_OK;
    return ddp_fail(err, DDP_ERR_INTERNAL, "loader: share %" PRIu64 " has %" PRIu64 " samples, and %" PRIu64 " are due",
                    l->share, l->count, wanted);
}

static ddp_status make_indices(ddp_loader *l, ddp_err *err)
{
    size_t bytes;

    if (__builtin_mul_overflow(DDP_MAX_OF(l->count, 1), sizeof(*l->indices), &bytes))
        return ddp_fail(err, DDP_ERR_NOMEM, "loader: %" PRIu64 " indices are beyond any memory", l->count);
    l->indices = ddp_alloc(bytes, err);
    return l->indices != NULL ? DDP_OK : err->status;
}

/* Bytes of one sample of a field, 0 when it has none or too many. */
static size_t field_bytes(const ddp_field *f)
{
    size_t bytes = ddp_dtype_size(f->dtype);

    for (uint32_t i = 0; i < f->rank && i < DDP_MAX_DIMS; i++)
        if (f->dims[i] < 1 || __builtin_mul_overflow(bytes, (size_t)f->dims[i], &bytes)) return 0;
    return bytes;
}

ddp_status ddp_dataset_fields(const ddp_dataset_ops *ops, const ddp_dataset *d, ddp_pool *pool, const ddp_field **out,
                              uint32_t *count, ddp_err *err)
{
    const ddp_field *theirs;
    uint32_t n = ops->fields(d, &theirs);
    ddp_field *own = ddp_pool_alloc(pool, (n + 1) * sizeof(*own), err);

    if (own == NULL) return err->status;
    for (uint32_t i = 0; i < n; i++)
        memcpy(&own[i], ddp_field_at(ops, theirs, i), DDP_MIN_OF(ops->field_size, sizeof(*own)));
    *out = own;
    *count = n;
    return DDP_OK;
}

static ddp_status measure_fields(ddp_loader *l, ddp_err *err)
{
    DDP_TRY(ddp_dataset_fields(l->dataset, l->data, &l->pool, &l->fields, &l->field_count, err));
    if (l->transform != NULL) {
        l->fields = ddp_transform_fields(l->transform);
        l->field_count = ddp_transform_field_count(l->transform);
    }
    l->sample_bytes = ddp_pool_alloc(&l->pool, (l->field_count + 1) * sizeof(*l->sample_bytes), err);
    if (l->sample_bytes == NULL) return err->status;
    for (uint32_t f = 0; f < l->field_count; f++) {
        l->sample_bytes[f] = field_bytes(&l->fields[f]);
        if (l->sample_bytes[f] == 0)
            return ddp_fail(err, DDP_ERR_INVALID, "loader: field %s of the dataset has an impossible shape or dtype",
                            l->fields[f].name);
    }
    return DDP_OK;
}

static ddp_status slot_memory(ddp_loader *l, size_t bytes, ddp_err *err)
{
    if (l->allocator.alloc != NULL) return l->allocator.alloc(l->allocator.ctx, bytes, &l->memory, err);
    l->memory = ddp_alloc_aligned(bytes, err);
    return l->memory == NULL ? err->status : DDP_OK;
}

/* All slots are in one block: part by part, field by field, each at a multiple of 64 bytes. */
static ddp_status make_slots(ddp_loader *l, ddp_err *err)
{
    uint64_t part_size = l->batch_size / l->parts;
    size_t slot_bytes = 0, total, bytes, arrays = (size_t)l->parts * l->field_count;
    char *at;

    for (uint32_t f = 0; f < l->field_count; f++)
        if (__builtin_mul_overflow(l->sample_bytes[f], part_size, &bytes) || bytes > SIZE_MAX - 64 ||
            __builtin_add_overflow(slot_bytes, ddp_round_up(bytes, 64), &slot_bytes))
            return ddp_fail(err, DDP_ERR_NOMEM, "loader: a batch of %" PRIu64 " samples is beyond any memory",
                            l->batch_size);
    if (__builtin_mul_overflow(slot_bytes, l->slot_count * l->parts, &total))
        return ddp_fail(err, DDP_ERR_NOMEM, "loader: %" PRIu64 " batches ahead are beyond any memory", l->slot_count);
    l->slots = ddp_pool_alloc(&l->pool, l->slot_count * sizeof(*l->slots), err);
    if (l->slots == NULL) return err->status;
    if (slot_memory(l, total, err) != DDP_OK)
        return ddp_fail_context(err, "loader: %" PRIu64 " batches ahead, [loader] prefetch", l->slot_count);
    at = l->memory;
    for (uint64_t i = 0; i < l->slot_count; i++) {
        l->slots[i].buffers = ddp_pool_alloc(&l->pool, (arrays + 1) * sizeof(void *), err);
        if (l->slots[i].buffers == NULL) return err->status;
        for (size_t k = 0; k < arrays; k++) {
            l->slots[i].buffers[k] = at;
            at += ddp_round_up(l->sample_bytes[k % l->field_count] * part_size, 64);
        }
    }
    return DDP_OK;
}

static ddp_status make_scratch(ddp_loader *l, worker *w, ddp_err *err)
{
    if (l->transform == NULL) return DDP_OK;
    if (ddp_transform_mixes(l->transform)) {
        w->spare = ddp_alloc_aligned(data_transform_image(l->transform), err);
        if (w->spare == NULL) return err->status;
    }
    if (!data_transform_fixed(l->transform)) return data_image_reader_open(l->transform, &w->reader, err);
    w->scratch = ddp_alloc_aligned(data_transform_scratch(l->transform), err);
    return w->scratch != NULL ? DDP_OK : err->status;
}

static ddp_status make_workers(ddp_loader *l, ddp_err *err)
{
    uint64_t count = DDP_MAX_OF(l->worker_count, 1);
    worker *workers = ddp_pool_alloc(&l->pool, count * sizeof(*workers), err);

    if (workers == NULL) return err->status;
    for (uint64_t i = 0; i < count; i++) {
        workers[i] = (worker){.loader = l, .number = i, .idle = true};
        workers[i].targets = ddp_pool_alloc(&l->pool, (l->field_count + 1) * sizeof(void *), err);
        if (workers[i].targets == NULL) return err->status;
    }
    l->workers = workers;
    for (uint64_t i = 0; i < count; i++)
        if (make_scratch(l, &workers[i], err) != DDP_OK) return ddp_fail_context(err, "loader: worker %" PRIu64, i);
    for (uint64_t i = 0; i < l->worker_count; i++) {
        char name[16];

        ddp_cond_init(&workers[i].wake);
        (void)snprintf(name, sizeof(name), "ddp-loader-%u", (unsigned)i % 1000);
        if (ddp_thread_start(&workers[i].thread, name, worker_main, &workers[i], err) != DDP_OK) {
            pthread_cond_destroy(&workers[i].wake);
            return ddp_fail_context(err, "loader: worker %" PRIu64 " of %" PRIu64, i, l->worker_count);
        }
        l->threads_started++;
    }
    return DDP_OK;
}

ddp_status ddp_loader_open(const ddp_loader_params *p, ddp_loader **out, ddp_err *err)
{
    ddp_loader *l;
    ddp_status status;

    if (p->batch_size < 1 || p->workers < 0 || p->prefetch < 0 || (p->parts > 1 && p->batch_size % p->parts != 0))
        return ddp_fail(err, DDP_ERR_INVALID,
                        "loader: batch_size %" PRId64 " in %u parts, workers %" PRId64 ", prefetch %" PRId64
                        " make no loader",
                        p->batch_size, p->parts, p->workers, p->prefetch);
    l = ddp_alloc(sizeof(*l), err);
    if (l == NULL) return err->status;
    pthread_mutex_init(&l->lock, NULL);
    ddp_cond_init(&l->ready);
    l->dataset = p->dataset_ops;
    l->data = p->dataset;
    l->transform = p->transform;
    l->sampler_ops = p->sampler_ops;
    l->sampler = p->sampler;
    l->allocator = p->allocator;
    l->batch_size = (uint64_t)p->batch_size;
    l->parts = DDP_MAX_OF(p->parts, 1);
    l->length = l->dataset->length(l->data);
    l->count = l->sampler_ops->count(l->sampler);
    l->batches = l->count / l->batch_size + (l->count % l->batch_size != 0);
    if (p->split.total > 0) {
        l->split = p->split;
        l->share = p->share;
        l->batches = ddp_split_batches(&l->split);
    }
    l->worker_count = (uint64_t)p->workers;
    l->hold = (uint64_t)DDP_MAX_OF(p->hold, 1);
    l->slot_count = (l->worker_count == 0 ? 1 : (uint64_t)DDP_MAX_OF(p->prefetch, 2)) + l->hold - 1;
    atomic_init(&l->cancel, true);

    status = check_split(l, err);
    if (status != DDP_OK) goto close_loader;
    status = make_indices(l, err);
    if (status != DDP_OK) goto close_loader;
    status = measure_fields(l, err);
    if (status != DDP_OK) goto close_loader;
    status = make_slots(l, err);
    if (status != DDP_OK) goto close_loader;
    status = make_workers(l, err);
    if (status != DDP_OK) goto close_loader;
    *out = l;
    return DDP_OK;
close_loader:
    ddp_loader_close(l);
    return status;
}

void ddp_loader_close(ddp_loader *l)
{
    if (l == NULL) return;
    pthread_mutex_lock(&l->lock);
    l->closing = true;
    l->running = false;
    atomic_store(&l->cancel, true);
    for (uint64_t i = 0; i < l->threads_started; i++) pthread_cond_signal(&l->workers[i].wake);
    pthread_mutex_unlock(&l->lock);
    for (uint64_t i = 0; i < l->threads_started; i++) {
        pthread_join(l->workers[i].thread, NULL);
        pthread_cond_destroy(&l->workers[i].wake);
    }
    pthread_cond_destroy(&l->ready);
    pthread_mutex_destroy(&l->lock);
    for (uint64_t i = 0; l->workers != NULL && i < DDP_MAX_OF(l->worker_count, 1); i++) {
        data_image_reader_close(l->workers[i].reader);
        free(l->workers[i].scratch);
        free(l->workers[i].spare);
    }
    if (l->allocator.free != NULL)
        l->allocator.free(l->allocator.ctx, l->memory);
    else
        free(l->memory);
    free(l->indices);
    ddp_pool_free(&l->pool);
    free(l);
}
