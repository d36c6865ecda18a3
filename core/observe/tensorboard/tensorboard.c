/* observe/tensorboard/tensorboard.c -- the event file: scalars of steps and evaluations, texts. */
#include "observe/tensorboard/tensorboard.h"
#include "observe/histograms/histograms.h"
#include "control/group.h"
#include <event.pb-c.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <isa-l/crc.h>
#include <jansson.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

enum {
    BUFFER = 65536,
    HEAD = 12,
    FOOT = 4,
    VALUES_MAX = 64,
    RANKS_MAX = 32,
    TAG_MAX = 96,
    DT_STRING = 7,
    HEAD_EVENT_MAX = 64
};
#define FILE_VERSION "brain.Event:2"

typedef Tensorboard__Event event;
typedef Tensorboard__Summary__Value value;

struct ddp_tensorboard {
    int fd;
    ddp_log *log;
    int64_t size; /* up to the last record that is whole */
    size_t used;
    uint64_t pending, lost; /* records in the buffer; that could not be written */
    char path[4096];
    uint8_t buffer[BUFFER];
};

/* ---- records ----------------------------------------------------------------------------------------------------- */
/* CRC-32C (Castagnoli), rotated and shifted as TensorFlow's crc32c.h masks it. */
static uint32_t masked_crc(uint8_t *data, size_t size)
{
    uint32_t crc = ~crc32_iscsi(data, (int)size, ~0u);

    return (crc >> 15 | crc << 17) + 0xa282ead8u;
}

static void put_little_endian(uint8_t *at, uint64_t v, size_t bytes)
{
    for (size_t i = 0; i < bytes; i++) at[i] = (uint8_t)(v >> 8 * i);
}

/* length (8), its checksum (4), the message, its checksum (4): at `at`, which has room. */
static void put_event(uint8_t *at, const event *e, size_t length)
{
    put_little_endian(at, length, 8);
    put_little_endian(at + 8, masked_crc(at, 8), 4);
    (void)tensorboard__event__pack(e, at + HEAD);
    put_little_endian(at + HEAD + length, masked_crc(at + HEAD, length), 4);
}

static event event_now(uint64_t step, Tensorboard__Event__WhatCase what)
{
    event e = TENSORBOARD__EVENT__INIT;
    struct timespec now = {0};

    (void)clock_gettime(CLOCK_REALTIME, &now);
    e.wall_time = (double)now.tv_sec + (double)now.tv_nsec * 1e-9;
    e.step = (int64_t)step;
    e.what_case = what;
    return e;
}

/* The file is gone from its folder, and what is written into it would be read by nobody. */
static bool was_removed(const ddp_tensorboard *t)
{
    struct stat now;

    return fstat(t->fd, &now) == 0 ? S_ISREG(now.st_mode) && now.st_nlink == 0 : errno == ESTALE;
}

/* A new file of that name, which begins as each does. */
static ddp_status begin_again(ddp_tensorboard *t, ddp_err *err)
{
    event e = event_now(0, TENSORBOARD__EVENT__WHAT_FILE_VERSION);
    char folder[sizeof(t->path)], version[] = FILE_VERSION;
    uint8_t head[HEAD + HEAD_EVENT_MAX + FOOT];
    size_t length;
    int fd;

    ddp_copy_text(folder, sizeof(folder), t->path);
    *strrchr(folder, '/') = '\0';
    if (folder[0] != '\0') DDP_TRY(ddp_make_folders(folder, err));
    e.file_version = version;
    length = tensorboard__event__get_packed_size(&e);
    put_event(head, &e, length);
    fd = open(t->path, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0666);
    if (fd < 0) return ddp_fail_errno(err, "cannot make %s again", t->path);
    (void)close(t->fd);
    t->fd = fd;
    t->size = 0;
    DDP_TRY(ddp_write_all(fd, head, HEAD + length + FOOT, t->path, err));
    t->size = (int64_t)(HEAD + length + FOOT);
    return DDP_OK;
}

static ddp_status write_buffer(ddp_tensorboard *t, ddp_err *err)
{
    if (was_removed(t)) {
        DDP_TRY(begin_again(t, err));
        ddp_log_line(t->log, DDP_LOG_WARN,
                     "%s was removed during the run: what was in it is lost, what follows goes to a new file", t->path);
    }
    return ddp_write_all(t->fd, t->buffer, t->used, t->path, err);
}

void observe_tensorboard_flush(ddp_tensorboard *t)
{
    ddp_err err;

    if (t == NULL || t->used == 0) return;
    if (write_buffer(t, &err) == DDP_OK) {
        t->size += (int64_t)t->used;
    } else {
        if (t->lost == 0)
            ddp_log_line(t->log, DDP_LOG_WARN,
                         "%s; the run continues, and TensorBoard lacks values until there is room", err.msg);
        t->lost += t->pending;
        while (ftruncate(t->fd, t->size) != 0 && errno == EINTR) continue; /* no half record stays */
    }
    t->used = 0;
    t->pending = 0;
}

static void write_event(ddp_tensorboard *t, event *e)
{
    size_t length = tensorboard__event__get_packed_size(e), whole = HEAD + length + FOOT;

    if (whole > BUFFER) {
        if (t->lost++ == 0)
            ddp_log_line(t->log, DDP_LOG_WARN, "%s: a record of %zu bytes is too long, left out", t->path, whole);
        return;
    }
    if (t->used + whole > BUFFER) observe_tensorboard_flush(t);
    put_event(t->buffer + t->used, e, length);
    t->used += whole;
    t->pending++;
}

/* ---- events ------------------------------------------------------------------------------------------------------ */
static void void_from(ddp_tensorboard *t, uint64_t step)
{
    Tensorboard__SessionLog start = TENSORBOARD__SESSION_LOG__INIT;
    event e = event_now(step, TENSORBOARD__EVENT__WHAT_SESSION_LOG);

    start.status = TENSORBOARD__SESSION_LOG__STATUS__START;
    e.session_log = &start;
    write_event(t, &e);
}

/* Scalars of one step, as they are collected. */
struct scalars {
    size_t count;
    value values[VALUES_MAX], *list[VALUES_MAX];
    char tags[VALUES_MAX][TAG_MAX];
};

static void add_scalar(struct scalars *s, const char *group, const char *name, double number)
{
    static const value initial = TENSORBOARD__SUMMARY__VALUE__INIT;
    value *v = &s->values[s->count];

    if (s->count == VALUES_MAX) return;
    (void)snprintf(s->tags[s->count], TAG_MAX, "%s/%s", group, name);
    *v = initial;
    v->tag = s->tags[s->count];
    v->value_case = TENSORBOARD__SUMMARY__VALUE__VALUE_SIMPLE_VALUE;
    v->simple_value = (float)number;
    s->list[s->count++] = v;
}

static void write_scalars(ddp_tensorboard *t, struct scalars *s, uint64_t step)
{
    Tensorboard__Summary summary = TENSORBOARD__SUMMARY__INIT;
    event e = event_now(step, TENSORBOARD__EVENT__WHAT_SUMMARY);

    if (s->count == 0) return;
    summary.n_value = s->count;
    summary.value = s->list;
    e.summary = &summary;
    write_event(t, &e);
}

void observe_tensorboard_step(ddp_tensorboard *t, const ddp_step_record *r)
{
    struct scalars s;

    if (t == NULL) return;
    s.count = 0;
    add_scalar(&s, "train", "loss", r->loss);
    add_scalar(&s, "train", "lr", r->lr);
    add_scalar(&s, "train", "epoch", (double)r->epoch);
    if (!isnan(r->grad_norm)) add_scalar(&s, "train", "grad_norm", r->grad_norm);
    if (r->noise_scale != 0.0) add_scalar(&s, "train", "noise_scale", r->noise_scale);
    add_scalar(&s, "speed", "step_ms", r->step_ms);
    add_scalar(&s, "speed", "data_ms", r->data_ms);
    add_scalar(&s, "speed", "wait_ms", r->wait_ms);
    add_scalar(&s, "speed", "samples_per_s", r->samples_per_s);
    write_scalars(t, &s, r->step);
}

void observe_tensorboard_ranks(ddp_tensorboard *t, const ddp_ranks *r)
{
    struct scalars s;
    char name[32];

    if (t == NULL || r->slowest.rank < 0) return;
    s.count = 0;
    add_scalar(&s, "ranks", "slowest", (double)r->slowest.rank);
    add_scalar(&s, "ranks", "slowest_excess", r->slowest.excess);
    for (int32_t i = 0; i < DDP_MIN_OF(r->world, (int32_t)RANKS_MAX); i++) {
        double busy = observe_ranks_busy_ms(r, i);

        (void)snprintf(name, sizeof(name), "busy_ms_%d", (int)ddp_group_home(r->group, i));
        if (!isnan(busy)) add_scalar(&s, "ranks", name, busy);
    }
    write_scalars(t, &s, r->times.step);
}

static void write_histogram(ddp_tensorboard *t, const ddp_histograms *h, const ddp_histogram *one)
{
    Tensorboard__HistogramProto histo = TENSORBOARD__HISTOGRAM_PROTO__INIT;
    value v = TENSORBOARD__SUMMARY__VALUE__INIT, *values[] = {&v};
    Tensorboard__Summary summary = TENSORBOARD__SUMMARY__INIT;
    event e = event_now(h->step, TENSORBOARD__EVENT__WHAT_SUMMARY);
    double limits[DDP_HISTOGRAM_EDGES], buckets[DDP_HISTOGRAM_EDGES];
    char tag[DDP_HISTOGRAM_TAG];

    histo.n_bucket = histo.n_bucket_limit = observe_histogram_buckets(h, one, limits, buckets);
    if (histo.n_bucket == 0) return;
    histo.min = one->min;
    histo.max = one->max;
    histo.num = (double)one->number;
    histo.sum = one->sum;
    histo.sum_squares = one->sum_squares;
    histo.bucket_limit = limits;
    histo.bucket = buckets;
    ddp_copy_text(tag, sizeof(tag), one->tag); /* protobuf-c takes no const */
    v.tag = tag;
    v.value_case = TENSORBOARD__SUMMARY__VALUE__VALUE_HISTO;
    v.histo = &histo;
    summary.n_value = 1;
    summary.value = values;
    e.summary = &summary;
    write_event(t, &e);
}

void observe_tensorboard_histograms(ddp_tensorboard *t, const ddp_histograms *h)
{
    for (uint32_t i = 0; t != NULL && i < h->count; i++) write_histogram(t, h, &h->items[i]);
}

void observe_tensorboard_text(ddp_tensorboard *t, const char *tag, const char *text, uint64_t step)
{
    Tensorboard__Summary__Metadata__PluginData plugin = TENSORBOARD__SUMMARY__METADATA__PLUGIN_DATA__INIT;
    Tensorboard__Summary__Metadata metadata = TENSORBOARD__SUMMARY__METADATA__INIT;
    Tensorboard__Shape__Dim one = TENSORBOARD__SHAPE__DIM__INIT, *dims[] = {&one};
    Tensorboard__Shape shape = TENSORBOARD__SHAPE__INIT;
    Tensorboard__Tensor tensor = TENSORBOARD__TENSOR__INIT;
    value v = TENSORBOARD__SUMMARY__VALUE__INIT, *values[] = {&v};
    Tensorboard__Summary summary = TENSORBOARD__SUMMARY__INIT;
    event e = event_now(step, TENSORBOARD__EVENT__WHAT_SUMMARY);
    char name[TAG_MAX], kind[] = "text";
    char *copy = t != NULL ? strdup(text) : NULL; /* protobuf-c takes no const */
    ProtobufCBinaryData data;

    if (copy == NULL) return;
    (void)snprintf(name, sizeof(name), "%s", tag);
    data.len = strlen(copy);
    data.data = (uint8_t *)copy;
    one.size = 1;
    shape.n_dim = 1;
    shape.dim = dims;
    tensor.dtype = DT_STRING;
    tensor.shape = &shape;
    tensor.n_string_val = 1;
    tensor.string_val = &data;
    plugin.plugin_name = kind;
    metadata.plugin_data = &plugin;
    v.tag = name;
    v.metadata = &metadata;
    v.value_case = TENSORBOARD__SUMMARY__VALUE__VALUE_TENSOR;
    v.tensor = &tensor;
    summary.n_value = 1;
    summary.value = values;
    e.summary = &summary;
    write_event(t, &e);
    free(copy);
}

/* The fields of an event that are numbers: EVENT/FIELD, and eval/loss for the eval_loss of an "eval". */
static void line_scalars(const char *kind, json_t *line, struct scalars *s)
{
    size_t prefix = strlen(kind);
    const char *key;
    json_t *field;

    s->count = 0;
    json_object_foreach(line, key, field)
    {
        bool own = strncmp(key, kind, prefix) == 0 && key[prefix] == '_';

        if (!json_is_number(field) || strcmp(key, "time") == 0 || strcmp(key, "step") == 0) continue;
        add_scalar(s, kind, own ? key + prefix + 1 : key, json_number_value(field));
    }
}

void observe_tensorboard_line(ddp_tensorboard *t, const char *line)
{
    json_t *object = t != NULL ? json_loads(line, 0, NULL) : NULL;
    const char *kind = json_string_value(json_object_get(object, "event"));
    const char *text = json_string_value(json_object_get(object, "text"));
    uint64_t step = (uint64_t)json_integer_value(json_object_get(object, "step"));
    struct scalars s;

    if (t != NULL && kind != NULL && strcmp(kind, "start") != 0 && strcmp(kind, "end") != 0) {
        line_scalars(kind, object, &s);
        write_scalars(t, &s, step);
        if (text != NULL) observe_tensorboard_text(t, kind, text, step);
        if (strcmp(kind, "rollback") == 0) void_from(t, step + 1);
    }
    json_decref(object);
}

/* ---- life -------------------------------------------------------------------------------------------------------- */
ddp_status observe_tensorboard_open(const char *dir, uint64_t first_step, ddp_log *log, ddp_tensorboard **out,
                                    ddp_err *err)
{
    ddp_tensorboard *t = ddp_alloc(sizeof(*t), err);
    char version[] = FILE_VERSION, host[128] = "host";
    event e = event_now(0, TENSORBOARD__EVENT__WHAT_FILE_VERSION);

    if (t == NULL) return err->status;
    (void)gethostname(host, sizeof(host) - 1);
    t->log = log;
    /* read in the order of their names: two files may be of one second */
    (void)snprintf(t->path, sizeof(t->path), "%s/events.out.tfevents.%017.6f.%s.%d", dir, e.wall_time, host,
                   (int)getpid());
    t->fd = open(t->path, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0666);
    if (t->fd < 0) {
        (void)ddp_fail_errno(err, "cannot open %s ([output] tensorboard)", t->path);
        free(t);
        return err->status;
    }
    e.file_version = version;
    write_event(t, &e);
    if (first_step > 0) void_from(t, first_step + 1);
    *out = t;
    return DDP_OK;
}

void observe_tensorboard_close(ddp_tensorboard *t)
{
    if (t == NULL) return;
    observe_tensorboard_flush(t);
    if (t->lost > 0)
        ddp_log_line(t->log, DDP_LOG_WARN, "%s lacks %" PRIu64 " records that could not be written", t->path, t->lost);
    (void)close(t->fd);
    free(t);
}
