/* launch/hosts/parse.c -- see parse.h. */
#include "launch/hosts/parse.h"
#include "base/sys.h"
#include <stdlib.h>
#include <string.h>

#define RANKS_MAX 4096

/* A name, or an IPv6 address in brackets with perhaps a zone: what stands between them must not be taken for another
 * word of ssh once they are gone. */
static bool is_host(const char *name)
{
    static const char letters[] = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789._-";
    const char *p = name;

    if (name[0] != '[') return name[0] != '\0' && name[0] != '-' && strpbrk(name, ":@[]") == NULL;
    p += 1 + strspn(name + 1, "0123456789abcdefABCDEF:.");
    if (p == name + 1) return false;
    if (*p == '%' && strspn(p + 1, letters) > 0) p += 1 + strspn(p + 1, letters);
    return strcmp(p, "]") == 0;
}

/* Not one that begins with '-', which would be an option of ssh. */
static bool is_login(const char *login, const char *name)
{
    const char *bracket = strpbrk(login, "[]");

    return login[0] != '-' && login[0] != '@' && strpbrk(login, " \t\r\n'\"\\$`") == NULL && is_host(name) &&
           (bracket == NULL || bracket == login + (strlen(login) - strlen(name)));
}

static ddp_status parse_one(const char *text, size_t length, launch_host *out, ddp_err *err)
{
    char entry[256], *colon, *end, *at;
    long ranks = 0;

    ddp_copy_text(entry, DDP_MIN_OF(sizeof(entry), length + 1), text);
    colon = strrchr(entry, ':');
    at = strchr(entry, '@');
    if (colon != NULL) {
        ranks = strtol(colon + 1, &end, 10);
        if (colon[1] == '\0' || *end != '\0') ranks = 0;
        *colon = '\0';
    }
    ddp_copy_text(out->login, sizeof(out->login), entry);
    ddp_copy_text(out->name, sizeof(out->name), at == NULL ? entry : at + 1);
    if (length < sizeof(entry) && ranks >= 1 && ranks <= RANKS_MAX && is_login(out->login, out->name)) {
        out->ranks = (int32_t)ranks;
        return DDP_OK;
    }
    return ddp_fail(
        err, DDP_ERR_CONFIG,
        "\"%.*s\" is no host: write [USER@]HOST:RANKS, as in node1:2 or me@[2001:db8::7]:2, and a comma between hosts",
        (int)DDP_MIN_OF(length, (size_t)200), text);
}

static ddp_status number(launch_host *hosts, size_t count, ddp_err *err)
{
    int64_t world = 0;

    for (size_t i = 0; i < count; i++) {
        char *name = hosts[i].login;
        size_t length = strlen(name);

        hosts[i].first_rank = (int32_t)world;
        world += hosts[i].ranks;
        for (size_t k = 0; k < i; k++)
            if (strcmp(hosts[k].name, hosts[i].name) == 0)
                return ddp_fail(err, DDP_ERR_CONFIG, "%s is listed twice: write it once, with all of its ranks",
                                hosts[i].name);
        /* ssh takes an IPv6 address without brackets */
        if (length > 0 && name[length - 1] == ']') {
            char *bracket = strchr(name, '[');

            if (bracket == NULL) continue;
            memmove(bracket, bracket + 1, strlen(bracket));
            name[strlen(name) - 1] = '\0';
        }
    }
    if (world > RANKS_MAX)
        return ddp_fail(err, DDP_ERR_CONFIG, "the hosts have %lld ranks, at most %d are possible", (long long)world,
                        RANKS_MAX);
    return DDP_OK;
}

static ddp_status finish(launch_host *hosts, size_t count, ddp_status status, launch_host **out, size_t *out_count,
                         ddp_err *err)
{
    if (status == DDP_OK) status = number(hosts, count, err);
    if (status != DDP_OK) {
        free(hosts);
        return status;
    }
    *out = hosts;
    *out_count = count;
    return DDP_OK;
}

ddp_status launch_hosts_parse(const char *text, launch_host **out, size_t *out_count, ddp_err *err)
{
    launch_host *hosts = ddp_alloc(LAUNCH_HOSTS_MAX * sizeof(*hosts), err);
    ddp_status status = DDP_OK;
    size_t count = 0;

    if (hosts == NULL) return DDP_ERR_NOMEM;
    for (const char *at = text; status == DDP_OK;) {
        size_t length;

        at += strspn(at, " \t");
        length = strcspn(at, ",");
        if (count == LAUNCH_HOSTS_MAX)
            status = ddp_fail(err, DDP_ERR_CONFIG, "more than %d hosts", LAUNCH_HOSTS_MAX);
        else {
            size_t used = length;

            while (used > 0 && (at[used - 1] == ' ' || at[used - 1] == '\t')) used--;
            status = parse_one(at, used, &hosts[count++], err);
        }
        if (at[length] == '\0') break;
        at += length + 1;
    }
    return finish(hosts, count, status, out, out_count, err);
}

ddp_status launch_hosts_from_nodes(const ddp_list *nodes, launch_host **out, size_t *out_count, ddp_err *err)
{
    ddp_text joined = {0};
    ddp_status status;

    ddp_text_printf(&joined, "%s", "");
    for (size_t i = 0; i < nodes->count; i++)
        ddp_text_printf(&joined, "%s%s", i == 0 ? "" : ",", ((const char *const *)nodes->items)[i]);
    status = joined.failed || joined.data == NULL ? ddp_fail(err, DDP_ERR_NOMEM, "no memory for the list of hosts")
                                                  : launch_hosts_parse(joined.data, out, out_count, err);
    ddp_text_free(&joined);
    return status;
}

void launch_shell_quote(ddp_text *out, const char *text)
{
    ddp_text_append(out, "'", 1);
    for (const char *p = text; *p != '\0'; p++)
        if (*p == '\'')
            ddp_text_append(out, "'\\''", 4);
        else
            ddp_text_append(out, p, 1);
    ddp_text_append(out, "'", 1);
}
