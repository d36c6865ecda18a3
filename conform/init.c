/* conform/init.c -- an init plugin: ranks that know nothing but its URL have a rendezvous through the engine's own
 * group, twice in a row, so that what the first run left does not mislead the second; and it answers any text with a
 * status. */
#include "conform/suites.h"
#include "conform/harness/leaks.h"
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { RENDEZVOUS_MS = 30000, TIMES = 2 };

/* What env:// reads; a plugin of another scheme does not look. */
static void set_environment(const ddp_rank_process *a)
{
    const char *colon = strrchr(a->shared->endpoint, ':');
    char text[16];

    (void)snprintf(text, sizeof(text), "%u", a->rank);
    (void)setenv("RANK", text, 1);
    (void)snprintf(text, sizeof(text), "%u", a->world);
    (void)setenv("WORLD_SIZE", text, 1);
    (void)setenv("MASTER_ADDR", "127.0.0.1", 1);
    (void)setenv("MASTER_PORT", colon != NULL ? colon + 1 : "0", 1);
}

/* The URL that was given, else of those that suit some scheme the first that this plugin opens. */
static bool choose_url(ddp_rank_process *a)
{
    const ddp_init_ops *ops = a->plugin->ops;
    char path[80];
    const char *const rests[] = {path, a->shared->endpoint, ""};

    (void)snprintf(path, sizeof(path), "%s/rendezvous", a->shared->folder);
    ddp_copy_text(a->url, sizeof(a->url), a->shared->url);
    for (size_t k = 0; a->shared->url[0] == '\0'; k++) {
        ddp_init *i;
        ddp_err err = {0};

        if (k == DDP_COUNT(rests)) {
            DDP_SKIP(a, "the form of a URL of scheme %s is unknown; give --url", a->plugin->name);
            return false;
        }
        (void)snprintf(a->url, sizeof(a->url), "%.40s://%.200s", a->plugin->name, rests[k]);
        if (ops->open(&a->host, a->config, a->url, &i, &err) != DDP_OK) continue;
        ops->close(i);
        break;
    }
    return true;
}

static bool check_identity(ddp_rank_process *a, const ddp_init_ops *ops, ddp_init *i)
{
    int32_t rank = -2, world = -2;
    ddp_err err = {0};
    ddp_status st = ops->identity(i, &rank, &world, &err);

    if (st != DDP_OK) return ddp_rank_process_fail_call(a, "identity", st, &err);
    return DDP_EXPECT(a, rank == -1 || rank == (int32_t)a->rank, "identity says rank %d, not %u", rank, a->rank) &&
           DDP_EXPECT(a, world == -1 || world == (int32_t)a->world, "identity says world %d, not %u", world, a->world);
}

static void join_once(ddp_rank_process *a, const ddp_init_ops *ops, ddp_init *i)
{
    ddp_group_params p = {.rank = (int32_t)a->rank,
                          .world = (int32_t)a->world,
                          .url = a->url,
                          .init_ops = ops,
                          .init = i,
                          .listen_fd = -1,
                          .timeout_ms = RENDEZVOUS_MS,
                          .agreement = "",
                          .interface = "lo", /* all ranks are here, and nobody else shall reach them */
                          .log = &a->quiet};
    ddp_failure failure;
    ddp_err err = {0};
    ddp_group *g;

    if (ddp_group_join(&p, &g, &failure, &err) != DDP_OK) {
        (void)DDP_FAIL(a, "the rendezvous fails at %.60s: %.150s", a->url, failure.msg);
        return;
    }
    if (ddp_group_barrier(g, "joined", RENDEZVOUS_MS, &err) != DDP_OK)
        (void)DDP_FAIL(a, "after the rendezvous: %.200s", err.msg);
    ddp_group_leave(g, NULL);
}

/* Until all ranks have closed what they had of the rendezvous: an endpoint is free again. */
static void wait_for_others(ddp_rank_process *a, uint32_t round)
{
    atomic_uint *ended = &ddp_shared_results_get(a->shared, 0, (uint32_t)(a->c - a->shared->cases))->entered[0];
    int64_t deadline = ddp_now_ms() + RENDEZVOUS_MS;

    (void)atomic_fetch_add(ended, 1);
    while (atomic_load(ended) < a->world * (round + 1) && ddp_now_ms() < deadline) (void)usleep(1000);
}

static void rendezvous(ddp_rank_process *a)
{
    const ddp_init_ops *ops = a->plugin->ops;

    set_environment(a);
    if (!choose_url(a)) return;
    for (uint32_t k = 0; k < TIMES && atomic_load(&a->v->state) == DDP_NOT_CHECKED; k++) {
        ddp_init *i;
        ddp_err err = {0};
        ddp_status st = ops->open(&a->host, a->config, a->url, &i, &err);

        if (st != DDP_OK) {
            (void)ddp_rank_process_fail_call(a, "open", st, &err);
            return;
        }
        if (check_identity(a, ops, i) && a->world > 1) join_once(a, ops, i);
        ops->close(i);
        wait_for_others(a, k);
    }
}

/* Whatever the user writes, the answer is a handle that can be closed, or DDP_ERR_CONFIG and a line. */
static void refuses(ddp_rank_process *a)
{
    static const char *const rests[] = {
        "",        ":",         "://",     "://:",       "://\x01\x02",  "://host:99999999999",
        "://[::1", "://%s%n%d", "://////", "://host:-1", "://host:1:2:3"};
    const ddp_init_ops *ops = a->plugin->ops;
    char url[4096];

    for (size_t k = 0; k <= DDP_COUNT(rests); k++) {
        ddp_init *i;
        ddp_err err = {0};
        ddp_status st;

        if (k < DDP_COUNT(rests))
            (void)snprintf(url, sizeof(url), "%s%s", a->plugin->name, rests[k]);
        else
            (void)snprintf(url, sizeof(url), "%s://%0*d", a->plugin->name, 4000, 7);
        st = ops->open(&a->host, a->config, url, &i, &err);
        if (st == DDP_OK)
            ops->close(i);
        else if (!DDP_EXPECT(a, st == DDP_ERR_CONFIG && err.msg[0] != '\0',
                             "\"%.40s\" is answered by \"%s\", not by \"%s\" with a reason", url, ddp_status_text(st),
                             ddp_status_text(DDP_ERR_CONFIG)))
            return;
    }
}

static bool open_once(ddp_rank_process *a, uint32_t n)
{
    const ddp_init_ops *ops = a->plugin->ops;
    ddp_init *i;
    ddp_err err = {0};
    ddp_status st = ops->open(&a->host, a->config, a->url, &i, &err);

    (void)n;
    if (st != DDP_OK) return ddp_rank_process_fail_call(a, "open", st, &err);
    ops->close(i);
    return true;
}

void conform_init_case(ddp_rank_process *a)
{
    switch (a->c->suite) {
    case DDP_SUITE_RENDEZVOUS: rendezvous(a); break;
    case DDP_SUITE_REFUSALS: refuses(a); break;
    default:
        set_environment(a);
        if (!choose_url(a)) return;
        ddp_leaks_check(a, open_once, 256);
    }
}
