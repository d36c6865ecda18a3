/* plugins/init/tcp/tcp.c -- init method tcp://HOST:PORT: the URL says where rank 0 listens.
 *
 * The URL is all there is to know, so this plugin checks it and hands it on; it opens no socket and resolves no
 * name. */
#include <ddpengine/init.h>
#include <stdlib.h>
#include <string.h>

struct ddp_init {
    char endpoint[DDP_ENDPOINT_MAX];
};

#define SCHEME "tcp://"

/* What is wrong with the host part, NULL when nothing is. */
static const char *check_host(const char *host, size_t length)
{
    static const char v6[] = "0123456789abcdefABCDEF:.%";

    if (length == 0) return "the host is missing: name the address of rank 0 that the other ranks reach";
    if (host[0] == '[') {
        if (length < 4 || host[length - 1] != ']' || memchr(host, ':', length) == NULL)
            return "an IPv6 address stands in brackets, as in tcp://[2001:db8::7]:29500";
        /* after '%' the name of an interface may have any letter */
        if (strspn(host + 1, v6) < length - 2 && memchr(host, '%', length) == NULL)
            return "between the brackets stands something that is no IPv6 address";
        return NULL;
    }
    if (memchr(host, ':', length) != NULL) return "an IPv6 address stands in brackets, as in tcp://[2001:db8::7]:29500";
    if (strcspn(host, " \t/@?#[]") < length) return "the host has a character that no host name has";
    return NULL;
}

static const char *check_port(const char *port)
{
    size_t digits = strspn(port, "0123456789");

    if (port[0] == '\0') return "the port is missing";
    if (port[digits] == '/') return "nothing may follow the port";
    if (port[digits] != '\0' || digits > 5 || strtol(port, NULL, 10) > 65535)
        return "the port is not a number from 1 to 65535";
    if (strtol(port, NULL, 10) == 0)
        return "port 0 would be another one at every start, and the other ranks must know it";
    return NULL;
}

static const char *check_url(const char *url)
{
    const char *rest = url + strlen(SCHEME), *colon, *wrong;

    if (strncmp(url, SCHEME, strlen(SCHEME)) != 0) return "it does not begin with tcp://";
    if (strlen(rest) >= DDP_ENDPOINT_MAX) return "it is longer than 255 characters";
    colon = strrchr(rest, ':');
    if (colon == NULL || (strchr(rest, ']') != NULL && colon < strchr(rest, ']'))) return "the port is missing";
    wrong = check_host(rest, (size_t)(colon - rest));
    return wrong != NULL ? wrong : check_port(colon + 1);
}

static ddp_status tcp_open(const ddp_host *host, const void *config, const char *url, ddp_init **out, ddp_err *err)
{
    const char *wrong = check_url(url);
    ddp_init *i;

    (void)host;
    (void)config;
    if (wrong != NULL)
        return ddp_fail(err, DDP_ERR_CONFIG,
                        "init_method \"%.200s\": %s. Write it as tcp://HOST:PORT, for example tcp://192.0.2.7:29500",
                        url, wrong);
    i = calloc(1, sizeof(*i));
    if (i == NULL) return ddp_fail(err, DDP_ERR_NOMEM, "init tcp: no memory");
    memcpy(i->endpoint, url + strlen(SCHEME), strlen(url) - strlen(SCHEME));
    *out = i;
    return DDP_OK;
}

static void tcp_close(ddp_init *i) { free(i); }

/* Rank 0 listens where the others look. */
static ddp_status tcp_endpoint(ddp_init *i, char *endpoint, ddp_err *err)
{
    (void)err;
    memcpy(endpoint, i->endpoint, sizeof(i->endpoint));
    return DDP_OK;
}

static const ddp_init_ops ops = {
    .struct_size = sizeof(ops),
    .open = tcp_open,
    .close = tcp_close,
    .listen_at = tcp_endpoint,
    .find = tcp_endpoint,
};

DDP_PLUGIN_EXPORT const ddp_plugin ddp_plugin_desc = {
    DDP_PLUGIN_HEAD(INIT, 0),
    DDP_PLUGIN_TAIL("tcp", "0.1.0", "rank 0 listens at the address that the URL names: tcp://HOST:PORT", DDP_NO_OPTIONS,
                    ops),
};
