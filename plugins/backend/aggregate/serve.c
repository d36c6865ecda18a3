/* plugins/backend/aggregate/serve.c -- an aggregator: it leaves its place in the store, lets in whoever has read it
 * there, and serves the communicators of the run side by side until it is told to end. One thread.
 *
 * A communicator that breaks is closed, so that all its workers notice; what that means for the run they say
 * themselves. */
#include "serve.h"
#include "workers.h"
#include "shares.h"
#include <errno.h>
#include <stdlib.h>
#include <unistd.h>

typedef struct server {
    const ddp_host *host;
    const ddp_helper_params *p;
    const aggregate_config *config;
    aggregate_listener listener;
    workers *communicators;
    struct pollfd *fds;
    uint32_t room, used;
    uint64_t sums, bytes; /* of communicators that have ended */
} server;

/* ---- communicators ----------------------------------------------------------------------------------------------- */
static void log_line(const server *s, int level, const workers *c, const char *text)
{
    s->host->log(s->host->ctx, level, __FILE__, __LINE__, "aggregator %u: %s: %s", s->p->index, c->name, text);
}

static workers *find_workers(const server *s, const char *name)
{
    workers *c = s->communicators;

    while (c != NULL && strcmp(c->name, name) != 0) c = c->next;
    return c;
}

static void end_workers(server *s, workers *c)
{
    workers **link = &s->communicators;

    while (*link != NULL && *link != c) link = &(*link)->next;
    if (*link == c) *link = c->next;
    s->sums += c->done;
    s->bytes += c->bytes;
    workers_close(c);
}

static void let_in(server *s, const aggregate_hello *h, int fd)
{
    workers *c = find_workers(s, h->name);
    ddp_err err = {0};

    aggregate_socket_prepare(fd, AGGREGATE_WITH_AGGREGATOR);
    if (c == NULL && workers_open(h, aggregate_mesh_chunk(s->config, h->world), &c, &err) == DDP_OK) {
        c->next = s->communicators;
        s->communicators = c;
    }
    if (c == NULL) {
        (void)close(fd);
        return;
    }
    if (workers_join(c, h, fd, s->listener.place.proof, &err) == DDP_OK) return;
    log_line(s, DDP_LOG_WARN, c, err.msg);
    if (err.status != DDP_ERR_DATA) end_workers(s, c);
}

/* ---- the loop ---------------------------------------------------------------------------------------------------- */
/* The listener, then the communicators in their order, then what tells it to end. */
static ddp_status list_fds(server *s, ddp_err *err)
{
    uint32_t wanted = AGGREGATE_LISTENER_FDS + 1;
    struct pollfd *more;

    for (const workers *c = s->communicators; c != NULL; c = c->next) wanted += c->world;
    if (wanted > s->room) {
        more = realloc(s->fds, wanted * sizeof(*more));
        if (more == NULL) return ddp_fail(err, DDP_ERR_NOMEM, "aggregator: out of memory");
        s->fds = more;
        s->room = wanted;
    }
    s->fds[0] = (struct pollfd){.fd = s->p->stop_fd, .events = POLLIN};
    s->used = 1;
    for (const workers *c = s->communicators; c != NULL; c = c->next) {
        workers_fds(c, s->fds + s->used);
        s->used += c->world;
    }
    s->used += aggregate_listener_fds(&s->listener, s->fds + s->used);
    return DDP_OK;
}

static void turn(server *s)
{
    const struct pollfd *at = s->fds + 1;
    aggregate_hello hello;
    int fd;

    for (workers *c = s->communicators, *next; c != NULL; c = next) {
        ddp_err err = {0};
        ddp_status st = workers_turn(c, at, &err);

        next = c->next;
        at += c->world;
        if (st != DDP_OK && st != DDP_IN_PROGRESS) log_line(s, DDP_LOG_WARN, c, err.msg);
        if (st != DDP_OK) end_workers(s, c);
    }
    while (aggregate_listener_next(&s->listener, &hello, &fd)) let_in(s, &hello, fd);
}

static ddp_status publish(server *s, ddp_err *err)
{
    unsigned char bytes[AGGREGATE_PLACE_BYTES];
    char key[48];

    DDP_TRY(aggregate_listener_open(&s->listener, s->p->address, err));
    aggregate_place_pack(&s->listener.place, bytes);
    (void)snprintf(key, sizeof(key), AGGREGATE_KEY, s->p->index);
    return s->p->store->set(s->p->store->ctx, key, bytes, sizeof(bytes), err);
}

static ddp_status run(server *s, ddp_err *err)
{
    DDP_TRY(publish(s, err));
    for (;;) {
        DDP_TRY(list_fds(s, err));
        if (poll(s->fds, s->used, aggregate_listener_wait_ms(&s->listener)) < 0) {
            if (errno == EINTR) continue;
            return ddp_fail(err, DDP_ERR_SYSTEM, "aggregator %u: cannot wait for its sockets: %s", s->p->index,
                            strerror(errno));
        }
        if (s->fds[0].revents != 0) return DDP_OK;
        turn(s);
    }
}

static ddp_status serve(const ddp_host *host, const void *config, const ddp_helper_params *p, ddp_err *err)
{
    server *s = calloc(1, sizeof(*s));
    ddp_status st;

    if (s == NULL) return ddp_fail(err, DDP_ERR_NOMEM, "aggregator: out of memory");
    s->host = host;
    s->p = p;
    s->config = config;
    s->listener.fd = -1;
    st = run(s, err);
    while (s->communicators != NULL) end_workers(s, s->communicators);
    host->log(host->ctx, DDP_LOG_INFO, __FILE__, __LINE__, "aggregator %u: %llu all-reduces, %.4g MB of sums", p->index,
              (unsigned long long)s->sums, (double)s->bytes * 1e-6);
    aggregate_listener_close(&s->listener);
    free(s->fds);
    free(s);
    return st;
}

static uint32_t count(const void *config) { return (uint32_t)((const aggregate_config *)config)->aggregators; }

static double gain(const void *config, uint32_t world) { return aggregate_gain(world, count(config)); }

const ddp_helper_ops aggregate_helper = {
    .struct_size = sizeof(aggregate_helper), .count = count, .gain = gain, .serve = serve};
