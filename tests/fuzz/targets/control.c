/* fuzz/targets/control.c -- the control plane: what rank 0 makes of connections, hellos, agreements, requests and
 * goodbyes, and what another rank makes of rank 0's frames and replies. One thread plays the control thread.
 *
 * Input: a byte: 0 rank 0 in clear, 1 rank 0 with a secret (connections then never prove it), 2 another rank,
 * 3 rank 0 of a run whose ranks may come again. Then actions: a byte whose low four bits say which, and the others at
 * which of the connections:
 *
 *   0  bytes: a length (a byte) and the bytes       5  a request: operation, time-out (16 bits), length of the name,
 *   1  a frame: type, length, bytes                    length of the data, a byte each, name, data
 *   2  a frame of another version: the same         6  rank 0's own request: the same
 *   3  a right hello: of rank, of world             7  time passes: tenths of seconds, a byte
 *   4  right agreement lines                        8  so many strangers connect, a byte
 *   9  the far end closes                          10  a new connection
 *  11  (another rank) asks: which, a byte; then the reply: status, length, a byte each, bytes
 *  12  rank 0 or this rank fails, leaves, is asked to stop or takes the times: which, a byte */
#include "fuzz_socket.h"
#include "control/control.c"
#include "control/group.c"
#include <math.h>
static ddp_status answered(ddp_group *g, uint32_t type, ddp_text *payload, ddp_err *err);
#define control_run_post answered
#include "control/request.c"
#undef control_run_post

enum { WORLD = 4, ENDS = 6, STRANGERS = 80, AGREED = 32 };
#define AGREEMENT "a = 1\tnode.ini:1\nb = two\tnode.ini:2\n"

typedef struct end {
    ddp_peer *peer; /* NULL: gone */
    int far;        /* -1: closed */
} end;

typedef struct play {
    ddp_group *g;
    fuzz_input in;
    end ends[ENDS + STRANGERS];
    size_t count;
    int64_t now;
} play;

/* ---- connections ------------------------------------------------------------------------------------------------- */
static bool is_there(const ddp_group *g, const ddp_peer *p)
{
    for (const ddp_peer *q = g->peers.first; q != NULL; q = q->next)
        if (q == p) return true;
    return false;
}

static void new_end(play *x)
{
    end *e = &x->ends[x->count];
    ddp_wire wire;
    ddp_err err;

    if (x->count == DDP_COUNT(x->ends)) return;
    e->far = fuzz_connect(&wire, DDP_WIRE_HELLO_LIMIT);
    if (x->g->self.tls != NULL) FUZZ_CHECK(ddp_wire_secure(&wire, x->g->self.tls, &err) == DDP_OK);
    FUZZ_CHECK(ddp_peers_add(&x->g->peers, &wire, x->g->heartbeat.lived_ns, &e->peer, &err) == DDP_OK);
    e->peer->since_ns = x->now;
    x->count++;
}

/* A round of the control thread, as control_main has it, with the time of the play. */
static void turn(play *x)
{
    ddp_group *g = x->g;

    for (size_t i = 0; i < x->count; i++)
        if (x->ends[i].peer != NULL) read_peer(g, x->ends[i].peer);
    take_posts(g);
    (void)control_heartbeat_tick(g, x->now);
    if (g->server != NULL) {
        ddp_listener_make_room(g);
        (void)ddp_listener_tick(g, x->now);
        (void)ddp_server_tick(g, x->now);
    }
    control_peers_flush(&g->peers);
    control_peers_free_dead(&g->peers);
    for (size_t i = 0; i < x->count; i++) {
        if (x->ends[i].peer != NULL && !is_there(g, x->ends[i].peer)) x->ends[i].peer = NULL;
        if (x->ends[i].far >= 0) fuzz_drain(x->ends[i].far);
    }
}

/* What holds after every round on rank 0. */
static void check_server(const ddp_group *g)
{
    const ddp_server *s = g->server;
    int32_t joined = 1;

    for (int32_t r = 0; r < g->world; r++) {
        const ddp_peer *p = s->ranks[r].peer;

        FUZZ_CHECK(p == NULL || (is_there(g, p) && p->rank == r));
        joined += p != NULL && p->state == DDP_PEER_JOINED;
        FUZZ_CHECK(!g->run.met || g->ranks[r].pid != 0);
    }
    FUZZ_CHECK(joined <= s->joined && s->joined <= g->world); /* those that were lost stay counted */
    FUZZ_CHECK(s->goodbyes <= g->world);
    FUZZ_CHECK(!s->announced.failed || s->announced.failure.exit_code > 0);
}

/* ---- actions ----------------------------------------------------------------------------------------------------- */
static void send_hello(play *x, int far)
{
    ddp_identity id;
    char text[DDP_IDENTITY_MAX];
    uint32_t rank = fuzz_u8(&x->in), world = fuzz_u8(&x->in);
    ddp_text t = {0};
    ddp_err err;

    FUZZ_CHECK(ddp_identity_make((int32_t)rank, (int32_t)world, AGREEMENT, NULL, 0, &id, &err) == DDP_OK);
    ddp_pack_u32(&t, rank);
    ddp_pack_u32(&t, world);
    ddp_pack_u32(&t, DDP_ABI);
    ddp_pack_u32(&t, DDP_BACKEND_ABI);
    ddp_pack_u32(&t, 100 + rank);
    ddp_pack_u64(&t, rank & 2);  /* start of the run */
    ddp_pack_u32(&t, rank % 2);  /* generation */
    ddp_pack_u32(&t, rank ^ 1);  /* ranks that are enough */
    ddp_pack_u32(&t, rank == 3); /* displaced */
    ddp_pack_bytes(&t, DDP_VERSION, strlen(DDP_VERSION));
    ddp_pack_bytes(&t, "id", 2);
    ddp_pack_bytes(&t, "host", 4);
    ddp_pack_bytes(&t, "", 0);
    ddp_pack_bytes(&t, text, ddp_identity_text(&id, text));
    fuzz_send_frame(far, DDP_WIRE_VERSION, DDP_FRAME_HELLO, t.data, t.length);
    ddp_text_free(&t);
}

static void pack_request(play *x, ddp_text *t)
{
    uint8_t op = fuzz_u8(&x->in);
    uint16_t timeout = fuzz_u16(&x->in);
    size_t name_length = fuzz_u8(&x->in), length = fuzz_u8(&x->in);
    const uint8_t *name = fuzz_some(&x->in, &name_length), *bytes = fuzz_some(&x->in, &length);

    ddp_pack_u64(t, 1);
    ddp_pack_u32(t, op);
    ddp_pack_u64(t, timeout);
    ddp_pack_bytes(t, name, name_length);
    if (length > 0) ddp_text_append(t, bytes, length);
}

static void own_request(play *x)
{
    ddp_text t = {0};
    ddp_frame f = {.type = DDP_FRAME_REQUEST};

    pack_request(x, &t);
    f.length = (uint32_t)t.length;
    f.data = (const unsigned char *)t.data;
    if (x->g->server != NULL) (void)ddp_server_frame(x->g, NULL, &f);
    ddp_text_free(&t);
}

static void send_some(play *x, int far, uint16_t version)
{
    uint8_t type = fuzz_u8(&x->in);
    size_t length = fuzz_u8(&x->in);
    const uint8_t *bytes = fuzz_some(&x->in, &length);

    fuzz_send_frame(far, version, type, bytes, length);
}

/* Rank 0's own marks, and what comes of them and of those that ranks have sent. */
static void take_times(const play *x)
{
    static const double own[DDP_TIMES] = {0.0, 1.0, 2.0, 3.0, 4.0, 5.0};
    double ms[DDP_TIMES * WORLD];
    ddp_rank_times times = {.ms = ms};

    if (x->g->server == NULL) return;
    ddp_group_times_begin(x->g, 10, 13); /* of which the last step would wait for the others */
    ddp_group_times_step(x->g, 11, own);
    ddp_group_times_step(x->g, 12, own);
    while (ddp_group_times_take(x->g, true, &times)) {
        FUZZ_CHECK(times.steps > 0 && times.steps <= times.step);
        for (size_t i = 0; i < DDP_COUNT(ms); i++) FUZZ_CHECK(isnan(ms[i]) || ms[i] >= 0.0);
    }
}

static void this_rank(play *x)
{
    ddp_failure f = {.exit_code = DDP_EXIT_TIMEOUT, .rank = 0, .msg = "a collective did not end"};
    char text[512];
    ddp_text t = {0};
    ddp_err err;

    switch (fuzz_u8(&x->in) % 8) {
    case 0:
        ddp_failure_pack(&f, DDP_FRAME_ABORT, &t);
        (void)control_run_post(x->g, DDP_FRAME_ABORT, &t, &err);
        break;
    case 1: (void)control_run_post(x->g, DDP_FRAME_GOODBYE, &t, &err); break;
    case 2: control_run_asked_to_stop(x->g, 15); break;
    case 3: (void)ddp_group_take_warning(x->g, text, sizeof(text)); break;
    case 4: ddp_group_report_step(x->g, 100, 1.0, 2.0, 3.0); break;
    case 6: ddp_group_grow(x->g); break;
    case 7: take_times(x); break;
    default:
        if (x->g->server != NULL) ddp_server_missing_goodbyes(x->g, text, sizeof(text));
        if (x->g->server != NULL) ddp_server_farewell(x->g);
        break;
    }
}

/* ---- another rank: what it asks is answered at once, with bytes of the input ---- */
static play *asking; /* the play whose rank asks, for answered() */

static ddp_status answered(ddp_group *g, uint32_t type, ddp_text *payload, ddp_err *err)
{
    ddp_unpack asked = {.data = (const unsigned char *)payload->data, .left = payload->length};
    size_t length;
    ddp_text t = {0};
    ddp_frame f = {.type = DDP_FRAME_REPLY};
    const uint8_t *bytes;

    (void)err;
    FUZZ_CHECK(type == DDP_FRAME_REQUEST);
    ddp_pack_u64(&t, ddp_unpack_u64(&asked));
    ddp_pack_u32(&t, (uint32_t)(int8_t)fuzz_u8(&asking->in));
    length = fuzz_u8(&asking->in);
    bytes = fuzz_some(&asking->in, &length);
    if (length > 0) ddp_text_append(&t, bytes, length);
    f.length = (uint32_t)t.length;
    f.data = (const unsigned char *)t.data;
    FUZZ_CHECK(ddp_client_dispatch(g, &f));
    ddp_text_free(&t);
    ddp_text_free(payload);
    return DDP_OK;
}

static void ask_something(play *x)
{
    const ddp_store *store;
    const void *out[WORLD];
    size_t lengths[WORLD], length = 0;
    char buffer[AGREED];
    void *block = NULL;
    int64_t value;
    ddp_err err = {0};
    ddp_status status;

    asking = x;
    store = ddp_group_store(x->g, "scope", &err);
    FUZZ_CHECK(store != NULL);
    switch (fuzz_u8(&x->in) % 7) {
    case 0: status = ddp_group_barrier(x->g, "barrier", 10, &err); break;
    case 1: status = ddp_group_agree(x->g, "agree", "a = 1\n", 4, 10, &err); break;
    case 2: status = store->set(store->ctx, "key", "value", 5, &err); break;
    case 3: status = store->get(store->ctx, "key", buffer, sizeof(buffer), &length, 10, &err); break;
    case 4: status = store->add(store->ctx, "key", 1, &value, &err); break;
    case 5: status = store->remove(store->ctx, "key", &err); break;
    default:
        status = ddp_group_gather(x->g, "gather", "x", 1, &block, out, lengths, 10, &err);
        for (int32_t r = 0; r < WORLD && status == DDP_OK; r++)
            for (size_t i = 0; i < lengths[r]; i++) length += ((const unsigned char *)out[r])[i];
        if (status == DDP_OK) free(block);
        break;
    }
    fuzz_check_error(status, &err);
}

static void act(play *x)
{
    uint8_t action = fuzz_u8(&x->in);
    end *e = &x->ends[(action >> 4) % x->count];
    ddp_text t = {0};
    size_t length;
    const uint8_t *bytes;

    switch (action & 15) {
    case 0:
        length = fuzz_u8(&x->in);
        bytes = fuzz_some(&x->in, &length);
        fuzz_send(e->far, bytes, length);
        break;
    case 1: send_some(x, e->far, DDP_WIRE_VERSION); break;
    case 2: send_some(x, e->far, DDP_WIRE_VERSION + 1); break;
    case 3: send_hello(x, e->far); break;
    case 4: fuzz_send_frame(e->far, DDP_WIRE_VERSION, DDP_FRAME_AGREEMENT, AGREEMENT, strlen(AGREEMENT)); break;
    case 5:
        pack_request(x, &t);
        fuzz_send_frame(e->far, DDP_WIRE_VERSION, DDP_FRAME_REQUEST, t.data, t.length);
        ddp_text_free(&t);
        break;
    case 6: own_request(x); break;
    case 7:
        x->now += fuzz_u8(&x->in) * 100000000ll;
        control_heartbeat_round(x->g, x->now);
        break;
    case 8:
        for (length = fuzz_u8(&x->in); length > 0; length--) new_end(x);
        break;
    case 9:
        if (e->far >= 0) (void)close(e->far);
        e->far = -1;
        break;
    case 10: new_end(x); break;
    case 11:
        if (x->g->rank != 0) ask_something(x);
        break;
    default: this_rank(x); break;
    }
}

/* ---- the play ---------------------------------------------------------------------------------------------------- */
static ddp_group *group_of(int32_t rank, bool secret, bool rejoins)
{
    const ddp_group_params p = {.rank = rank,
                                .world = WORLD,
                                .world_where = "node.ini:3",
                                .listen_fd = -1,
                                .timeout_ms = 20000,
                                .agreement = AGREEMENT,
                                .peer_timeout_ms = 10000,
                                .secret = secret ? "a secret of a run" : NULL,
                                .secret_length = secret ? strlen("a secret of a run") : 0,
                                .auth_none = true, /* else the user at the other end would be asked for */
                                .rejoins = rejoins,
                                .quorum = {.min_world = rejoins ? 2 : 0},
                                .log = fuzz_log()};
    ddp_group *g;
    ddp_err err;

    FUZZ_CHECK(group_new(&p, &g, &err) == DDP_OK);
    control_rendezvous_identify(g);
    if (rank == 0) FUZZ_CHECK(ddp_server_open(g, &err) == DDP_OK);
    control_heartbeat_start(g);
    return g;
}

FUZZ_TARGET(control)
{
    static play x;
    uint8_t who;

    memset(&x, 0, sizeof(x));
    x.in = (fuzz_input){data, size};
    who = fuzz_u8(&x.in) % 4;
    x.g = group_of(who == 2 ? 1 : 0, who == 1, who == 3);
    x.now = ddp_now_ns();
    new_end(&x);
    if (who == 2) {
        x.ends[0].peer->state = DDP_PEER_JOINED;
        x.ends[0].peer->rank = 0;
        x.ends[0].peer->wire.limit = 1 << 20;
    } else {
        while (x.count < 3) new_end(&x);
    }
    while (x.in.left > 0) {
        act(&x);
        turn(&x);
        if (x.g->server != NULL) check_server(x.g);
    }
    for (size_t i = 0; i < x.count; i++)
        if (x.ends[i].far >= 0) (void)close(x.ends[i].far);
    turn(&x);
    group_free(x.g);
    return 0;
}
