/* cli/preflight/host.c -- what the run asks of this host: memory, processors, open files. */
#include "base/sys.h"
#include "cli/cli.h"
#include "cli/preflight/checks.h"
#include "session/report/report.h"
#include <math.h>
#include <sys/resource.h>

/* ---- memory ------------------------------------------------------------------------------------------------------ */
static const char *advice(const ddp_session *s)
{
    return s->config->ddp->zero == 0 && s->launch.world > 1
               ? "lower [train] batch_size, set [ddp] zero = 1, or start fewer ranks here"
               : "lower [train] batch_size, or take a smaller model";
}

/* "the plan needs 1 GiB, WHO 40 GiB TAIL" */
static void compare(ddp_preflight_run *r, const char *who, const char *tail, uint64_t need, uint64_t room)
{
    char a[32], b[32];

    (void)ddp_format_bytes(need, a, sizeof(a));
    (void)ddp_format_bytes(room, b, sizeof(b));
    if (need > room)
        preflight_add(&r->findings, DDP_FINDING_PROBLEM, DDP_EXIT_INTERNAL, "memory", "the plan needs %s, %s %s%s: %s",
                      a, who, b, tail, advice(r->session));
    else if (need > room / 10 * 9)
        preflight_add(&r->findings, DDP_FINDING_WARNING, 0, "memory", "the plan needs %s, and %s only %s%s: %s", a, who,
                      b, tail, advice(r->session));
    else
        preflight_add(&r->findings, DDP_FINDING_OK, 0, "memory", "the plan needs %s, %s %s%s", a, who, b, tail);
}

static void check_memory(ddp_preflight_run *r)
{
    const ddp_session *s = r->session;
    uint64_t room = ddp_memory_available(), need;
    struct rlimit limit;
    ddp_memory_plan m;

    if (s == NULL) return;
    ddp_session_memory(s, &m);
    if (ddp_device_has_memory(&s->device)) {
        if (s->device.info.memory_bytes > 0) compare(r, "the device has", "", m.all, s->device.info.memory_bytes);
        return;
    }
    need = m.all * s->devices.replicas;
    if (getrlimit(RLIMIT_AS, &limit) == 0 && limit.rlim_cur != RLIM_INFINITY && need > limit.rlim_cur)
        compare(r, "a process may have", " (ulimit -v)", need, limit.rlim_cur);
    else
        compare(r, "this host or its cgroup has", " left", need * (uint64_t)s->launch.local_size, room);
}

/* ---- processors -------------------------------------------------------------------------------------------------- */
static void check_processors(ddp_preflight_run *r)
{
    unsigned ranks = (unsigned)DDP_MAX_OF(r->launch.local_size, 1), threads = 1;
    double allowed = ddp_processors_allowed(), count = DDP_MIN_OF((double)ddp_cpu_count(), allowed);
    const char *quota = allowed < ddp_cpu_count() ? " (quota of the cgroup)" : "";
    char what[64];

    if (r->session != NULL)
        threads = r->session->device.threads * ddp_session_devices(r->session);
    else if (r->config->train->threads > 0)
        threads = (unsigned)r->config->train->threads;
    (void)snprintf(what, sizeof(what), "%u rank%s x %u thread%s on %.3g%s", ranks, ranks == 1 ? "" : "s", threads,
                   threads == 1 ? "" : "s", count, quota);
    if ((double)ranks * threads <= count)
        preflight_add(&r->findings, DDP_FINDING_OK, 0, "processors", "%s", what);
    else if (ranks > count)
        preflight_add(&r->findings, DDP_FINDING_WARNING, 0, "processors",
                      "%s, so they wait for each other: start fewer ranks here", what);
    else
        preflight_add(&r->findings, DDP_FINDING_WARNING, 0, "processors",
                      "%s, so they wait for each other: set [train] threads = %u", what, (unsigned)(count / ranks));
}

/* ---- limits ------------------------------------------------------------------------------------------------------ */
/* Rank 0 has a connection to each rank by the control plane, and every rank may have one by the backend. */
void preflight_open_files(ddp_preflight_run *r)
{
    rlim_t need = CLI_OPEN_FILES + (rlim_t)r->launch.world * (r->launch.rank == 0 ? 2 : 1);
    struct rlimit limit;

    if (getrlimit(RLIMIT_NOFILE, &limit) != 0) return;
    if (limit.rlim_cur >= need)
        preflight_add(&r->findings, DDP_FINDING_OK, 0, "open files", "ulimit -n is %llu, enough for %d rank%s",
                      (unsigned long long)limit.rlim_cur, r->launch.world, r->launch.world == 1 ? "" : "s");
    else
        preflight_add(&r->findings, DDP_FINDING_PROBLEM, DDP_EXIT_INTERNAL, "open files",
                      "ulimit -n is %llu, and %d rank%s %llu: run ulimit -n %llu%s", (unsigned long long)limit.rlim_cur,
                      r->launch.world, r->launch.world == 1 ? " needs" : "s need", (unsigned long long)need,
                      (unsigned long long)need,
                      limit.rlim_max < need ? " as root, or raise nofile in /etc/security/limits.conf" : "");
}

void preflight_host(ddp_preflight_run *r)
{
    check_memory(r);
    check_processors(r);
}
