/* cli/preflight/rendezvous.c -- whether the ranks can find each other as far as one host can tell: interface, address
 * and port of rank 0, who is let in, and how many ranks are started here. Connects to nobody. */
#include "cli/preflight/checks.h"
#include "net/endpoint.h"
#include "net/interface.h"
#include "net/nodes.h"
#include <errno.h>
#include <netdb.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

/* ---- interface --------------------------------------------------------------------------------------------------- */
static void check_interface(ddp_preflight_run *r)
{
    const char *name = r->config->group->interface;
    char address[DDP_ADDRESS_MAX];
    ddp_err err = {0};

    if (name[0] == '\0') return;
    if (ddp_interface_check(name, address, sizeof(address), &err) == DDP_OK)
        preflight_add(&r->findings, DDP_FINDING_OK, 0, "interface", "%s has address %s", name, address);
    else if (!preflight_has(&r->findings, err.msg))
        preflight_add(&r->findings, DDP_FINDING_PROBLEM, DDP_EXIT_CONFIG, "interface",
                      "%s; set [group] interface to one of them", err.msg);
}

/* ---- rank 0 ------------------------------------------------------------------------------------------------------ */
static void in_use(ddp_preflight_run *r, const char *endpoint)
{
    const char *colon = strrchr(endpoint, ':');
    char owner[128];

    (void)preflight_port_owner((uint16_t)strtoul(colon != NULL ? colon + 1 : "0", NULL, 10), owner, sizeof(owner));
    preflight_add(&r->findings, DDP_FINDING_PROBLEM, DDP_EXIT_RENDEZVOUS, "port",
                  "%s is in use%s%s: end that process, or write another port into init_method on all hosts", endpoint,
                  owner[0] != '\0' ? " by " : "", owner);
}

/* Who may join is known by a secret, or because all are on this host. */
static void check_secret(ddp_preflight_run *r, const char *endpoint)
{
    static const unsigned char any[16] = {1};
    ddp_err err = {0};

    if (r->launch.secret_length > 0) {
        preflight_add(&r->findings, DDP_FINDING_OK, 0, "secret", "ranks know each other by a secret");
    } else if (r->config->group->auth != 1 && !ddp_endpoint_is_loopback(endpoint) &&
               r->method->ops->put_secret(r->method->handle, any, sizeof(any), &err) != DDP_OK &&
               !preflight_has(&r->findings, "secret_file")) {
        preflight_add(
            &r->findings, DDP_FINDING_PROBLEM, DDP_EXIT_CONFIG, "secret",
            "anyone who reaches %s could join the run: give all hosts the file of ddpengine --gen-secret FILE in [group] secret_file, or on a private network write auth = none",
            endpoint);
    }
}

static void check_listen(ddp_preflight_run *r)
{
    char endpoint[DDP_ENDPOINT_MAX] = "", actual[DDP_ENDPOINT_MAX], host[DDP_ENDPOINT_MAX - 16], port[8];
    ddp_err err = {0};
    int fd;

    if (r->method->ops->listen_at(r->method->handle, endpoint, &err) != DDP_OK) goto report;
    if (endpoint[0] == ':') {
        ddp_copy_text(port, sizeof(port), endpoint + 1);
        if (ddp_own_address(r->config->group->interface, host, sizeof(host), &err) != DDP_OK) goto report;
        (void)snprintf(endpoint, sizeof(endpoint), strchr(host, ':') != NULL ? "[%s]:%s" : "%s:%s", host, port);
    }
    check_secret(r, endpoint);
    if (ddp_endpoint_listen(endpoint, &fd, actual, &err) == DDP_OK) {
        (void)close(fd);
        preflight_add(&r->findings, DDP_FINDING_OK, 0, "port", "%s is free for rank 0", endpoint);
        return;
    }
    if (err.sys_errno == EADDRINUSE) {
        in_use(r, endpoint);
        return;
    }
report:
    (void)ddp_fail_as(&err, DDP_EXIT_RENDEZVOUS);
    if (!preflight_has(&r->findings, err.msg)) preflight_add_error(&r->findings, "port", &err);
}

/* ---- the other ranks --------------------------------------------------------------------------------------------- */
static void check_find(ddp_preflight_run *r)
{
    const struct addrinfo hints = {.ai_socktype = SOCK_STREAM};
    char endpoint[DDP_ENDPOINT_MAX] = "", host[DDP_ENDPOINT_MAX];
    struct addrinfo *list = NULL;
    ddp_err err = {0};
    char *colon;
    int rc;

    if (r->method->ops->find(r->method->handle, endpoint, &err) != DDP_OK) return; /* what is wrong it has reported */
    ddp_copy_text(host, sizeof(host), endpoint + (endpoint[0] == '['));
    colon = strrchr(host, ':');
    if (colon == NULL) return;
    colon[colon > host && colon[-1] == ']' ? -1 : 0] = '\0';
    rc = getaddrinfo(host, NULL, &hints, &list);
    if (rc == 0) freeaddrinfo(list);
    if (rc == 0)
        preflight_add(&r->findings, DDP_FINDING_OK, 0, "rank 0", "at %s; --check --net tries to reach it", endpoint);
    else
        preflight_add(
            &r->findings, DDP_FINDING_PROBLEM, DDP_EXIT_RENDEZVOUS, "rank 0",
            "its host name %s is not known here (%s): write it into /etc/hosts, or the address into init_method", host,
            gai_strerror(rc));
}

/* Ranks at a loopback address are all here; of several hosts each one starts its own. */
static void check_started(ddp_preflight_run *r)
{
    int32_t here = r->args->nproc > 0 ? r->launch.nproc : r->launch.local_size, first = r->launch.rank;
    const char *at = strstr(r->launch.url, "://");

    if (r->launch.world == 1 || first < 0) return;
    if (r->args->nproc > 0 && here < r->launch.world && at != NULL && ddp_endpoint_is_loopback(at + 3))
        preflight_add(
            &r->findings, DDP_FINDING_WARNING, 0, "ranks",
            "--nproc starts %d of world_size = %d ranks, and at %s only this host's reach rank 0: start all with --nproc %d, or name this host's address in init_method",
            here, r->launch.world, r->launch.url, r->launch.world);
    else
        preflight_add(&r->findings, DDP_FINDING_OK, 0, "ranks", "%d of %d are on this host", DDP_MAX_OF(here, 1),
                      r->launch.world);
}

void preflight_rendezvous(ddp_preflight_run *r)
{
    check_interface(r);
    check_started(r);
    if (r->method == NULL || r->launch.world == 1) return;
    if (r->launch.rank == 0)
        check_listen(r);
    else
        check_find(r);
}
