/* session/report/run_file.c -- run.json beside metrics.jsonl: the machine of rank 0 and the model's parameters, for the
 * report. */
#include "base/sys.h"
#include "session/report/report.h"
#include <jansson.h>
#include <stdlib.h>
#include <sys/utsname.h>
#include <unistd.h>

/* NULL where there is no memory; a text that is no UTF-8 is null. */
static json_t *text(const char *s)
{
    json_t *v = json_string(s);

    return v != NULL ? v : json_null();
}

static json_t *machine(const ddp_session *s)
{
    struct utsname u = {0};
    long pages = sysconf(_SC_PHYS_PAGES), page = sysconf(_SC_PAGESIZE);
    char system[256];
    json_t *o = json_object();
    int bad = 0;

    (void)uname(&u);
    (void)snprintf(system, sizeof(system), "%.60s %.100s %.60s", u.sysname, u.release, u.machine);
    bad |= json_object_set_new(o, "host", text(u.nodename));
    bad |= json_object_set_new(o, "system", text(system));
    bad |= json_object_set_new(o, "processors", json_integer(ddp_cpu_count()));
    bad |= json_object_set_new(o, "memory_bytes",
                               pages > 0 && page > 0 ? json_integer((json_int_t)pages * page) : json_null());
    bad |= json_object_set_new(o, "device", text(s->device.info.name));
    bad |= json_object_set_new(o, "library", text(s->device.info.library));
    bad |= json_object_set_new(o, "threads", json_integer(s->device.threads));
    if (bad == 0) return o;
    json_decref(o);
    return NULL;
}

static json_t *parameter(const ddp_param_info *p)
{
    json_t *o = json_object(), *shape = json_array();
    int bad = 0;

    for (uint32_t i = 0; i < p->rank; i++) bad |= json_array_append_new(shape, json_integer(p->dims[i]));
    bad |= json_object_set_new(o, "name", text(p->name));
    bad |= json_object_set_new(o, "shape", shape);
    bad |= json_object_set_new(o, "trained", json_boolean(!p->frozen));
    if (bad == 0) return o;
    json_decref(o);
    return NULL;
}

static json_t *parameters(const ddp_graph *g)
{
    const ddp_param_info *params;
    uint32_t count = ddp_graph_params(g, &params);
    json_t *list = json_array();

    for (uint32_t i = 0; i < count; i++) {
        if (json_array_append_new(list, parameter(&params[i])) == 0) continue;
        json_decref(list);
        return NULL;
    }
    return list;
}

static char *contents(const ddp_session *s)
{
    json_t *o = json_object();
    char *data = NULL;

    if ((json_object_set_new(o, "machine", machine(s)) |
         json_object_set_new(o, "parameters", parameters(s->model.graph))) == 0)
        data = json_dumps(o, JSON_INDENT(1));
    json_decref(o);
    return data;
}

void ddp_session_write_run_file(const ddp_session *s)
{
    const char *dir = s->config->output->dir;
    ddp_text file = {0};
    ddp_err err = {0};
    char path[4096], *data;

    if (dir[0] == '\0' || (size_t)snprintf(path, sizeof(path), "%s/run.json", dir) >= sizeof(path)) return;
    data = contents(s);
    if (data != NULL) ddp_text_printf(&file, "%s\n", data);
    free(data);
    if (file.data == NULL || file.failed)
        ddp_log_line(s->log, DDP_LOG_WARN, "out of memory for %s; the run continues without this file", path);
    else if (ddp_file_replace(path, file.data, file.length, &err) != DDP_OK)
        ddp_log_line(s->log, DDP_LOG_WARN, "%s; the run continues without this file", err.msg);
    ddp_text_free(&file);
}
