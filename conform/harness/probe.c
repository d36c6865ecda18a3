/* conform/harness/probe.c -- which plugin is meant and what it can do, found out in a child, so that the parent
 * stays free of it and a constructor that crashes is a line of text. */
#include "conform/harness/probe.h"
#include "conform/harness/rank_process.h"
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

enum { PROBE_MS = 60000, TICK_US = 2000 };

static void refuse(ddp_probe *out, int exit_code, const char *why)
{
    out->exit_code = exit_code;
    ddp_copy_text(out->error, sizeof(out->error), why[0] != '\0' ? why : "the plugin failed without giving a reason");
}

/* ---- a bare name: the one plugin on the search path that has it -------------------------------------------------- */
typedef struct search {
    const char *name;
    uint32_t kind, found;
    char kinds[128], path[PATH_MAX];
} search;

/* Whether the file is called KIND_NAME.so, with '_' for '-'. */
static bool file_is(const char *path, const char *name, uint32_t *kind)
{
    const char *file = strrchr(path, '/') != NULL ? strrchr(path, '/') + 1 : path;

    for (uint32_t k = DDP_KIND_BACKEND; k < DDP_KIND_END_; k++) {
        char wanted[NAME_MAX + 64];

        (void)snprintf(wanted, sizeof(wanted), "%s_%s.so", ddp_kind_name(k), name);
        for (char *c = wanted; *c != '\0'; c++)
            if (*c == '-') *c = '_';
        *kind = k;
        if (strcmp(file, wanted) == 0) return true;
    }
    return false;
}

static void visit(void *ctx, const char *path, const ddp_loaded *p, const ddp_err *err)
{
    search *s = ctx;
    uint32_t kind;
    size_t length = strlen(s->kinds);

    (void)p; /* one that is refused is refused again, with its reason, when it is loaded */
    (void)err;
    if (!file_is(path, s->name, &kind) || (s->found > 0 && s->kind == kind)) return;
    (void)snprintf(s->kinds + length, sizeof(s->kinds) - length, "%s%s.%s", s->found > 0 ? ", " : "",
                   ddp_kind_name(kind), s->name);
    if (s->found++ > 0) return;
    s->kind = kind;
    ddp_copy_text(s->path, sizeof(s->path), path);
}

static ddp_status search_name(const char *name, ddp_log *log, search *s, ddp_err *err)
{
    static const ddp_list no_paths = {0};
    ddp_registry *r;

    *s = (search){.name = name};
    DDP_TRY(ddp_registry_open(log, &no_paths, &r, err));
    if (ddp_registry_list(r, visit, s, err) == DDP_OK && s->found != 1)
        (void)ddp_fail(err, DDP_ERR_CONFIG,
                       s->found == 0 ? "no plugin \"%s\"; `ddpengine plugins` lists those that are found. "
                                       "A file is named with its folder: ./%s.so"
                                     : "\"%s\" is several plugins; name one as %s",
                       name, s->found == 0 ? name : s->kinds);
    ddp_registry_close(r);
    return err->status;
}

/* Kind and what to give the registry. */
static ddp_status resolve(const char *plugin, ddp_log *log, uint32_t *kind, char *name, size_t capacity, ddp_err *err)
{
    ddp_gate_facts facts;
    search s;
    int fd;

    char local[DDP_HALF_MAX], remote[DDP_HALF_MAX];

    ddp_copy_text(name, capacity, plugin);
    *kind = DDP_KIND_BACKEND;
    if (ddp_config_halves(plugin, local, remote)) return DDP_OK;
    if (strchr(plugin, '/') != NULL) {
        DDP_TRY(ddp_gate_open(plugin, &fd, &facts, err));
        (void)close(fd);
        *kind = facts.kind;
        return DDP_OK;
    }
    for (uint32_t k = DDP_KIND_BACKEND; k < DDP_KIND_END_; k++) {
        size_t length = strlen(ddp_kind_name(k));

        if (strncmp(plugin, ddp_kind_name(k), length) != 0 || plugin[length] != '.') continue;
        *kind = k;
        ddp_copy_text(name, capacity, plugin + length + 1);
        return DDP_OK;
    }
    DDP_TRY(search_name(plugin, log, &s, err));
    *kind = s.kind;
    ddp_copy_text(name, capacity, s.path);
    return DDP_OK;
}

/* ---- in the child ------------------------------------------------------------------------------------------------ */
/* Whether this machine lets the backend work; one that a launcher starts can only tell there. */
static void ask_backend(ddp_rank_process *a, ddp_probe *out)
{
    const ddp_backend_ops *ops = a->plugin->ops;
    bool takes_host = ddp_memory_has(a->plugin->desc.memory, DDP_MEMORY_HOST);
    const ddp_comm_params p = {.struct_size = sizeof(p),
                               .world_size = 1,
                               .local_size = 1,
                               .group = "",
                               .address = "127.0.0.1",
                               .interface = "",
                               .device_ordinal = takes_host ? -1 : 0};
    ddp_err err = {0};

    out->caps = ops->caps;
    out->takes_host = takes_host;
    if (ops->launcher != NULL)
        ddp_copy_text(out->launcher, sizeof(out->launcher), ops->launcher->command);
    else if (ops->check(&a->host, a->config, &p, &err) != DDP_OK)
        ddp_copy_text(out->unable, sizeof(out->unable), err.msg[0] != '\0' ? err.msg : "check failed without a reason");
}

static void probe(const ddp_conform_params *p, ddp_probe *out)
{
    ddp_rank_process a = {.log = {.fd = STDERR_FILENO, .level = DDP_LOG_WARN, .rank = -1}};
    ddp_text settings = {0};
    char name[PATH_MAX];
    uint32_t kind;
    ddp_err err = {0};

    a.host = ddp_log_host(&a.log);
    for (size_t i = 0; i < p->setting_count; i++) ddp_text_printf(&settings, "%s\n", p->settings[i]);
    if (resolve(p->plugin, &a.log, &kind, name, sizeof(name), &err) != DDP_OK) {
        refuse(out, DDP_EXIT_PLUGIN, err.msg);
    } else if (ddp_rank_process_load(&a, kind, name, settings.data == NULL ? "" : settings.data, &err) != DDP_OK) {
        refuse(out, a.plugin == NULL ? DDP_EXIT_PLUGIN : DDP_EXIT_CONFIG, err.msg);
    } else {
        out->kind = kind;
        out->flags = a.plugin->desc.flags;
        ddp_copy_text(out->path, sizeof(out->path), a.plugin->path);
        ddp_copy_text(out->name, sizeof(out->name), a.plugin->name);
        ddp_copy_text(out->version, sizeof(out->version), a.plugin->desc.version);
        if (kind == DDP_KIND_BACKEND) ask_backend(&a, out);
    }
    ddp_text_free(&settings);
    ddp_rank_process_unload(&a);
}

/* ---- in the parent ----------------------------------------------------------------------------------------------- */
static void wait_for_probe(pid_t pid, const char *plugin, ddp_probe *out)
{
    int64_t deadline = ddp_now_ms() + PROBE_MS;
    char why[256];
    int status = 0;
    bool hung = false;

    while (waitpid(pid, &status, WNOHANG) == 0) {
        if (ddp_now_ms() >= deadline) {
            hung = true;
            (void)kill(pid, SIGKILL);
        }
        (void)usleep(TICK_US);
    }
    if (WIFEXITED(status) && WEXITSTATUS(status) == 0) return;
    if (hung)
        (void)snprintf(why, sizeof(why), "%.150s: loading it did not end within %d s", plugin, PROBE_MS / 1000);
    else if (WIFSIGNALED(status))
        (void)snprintf(why, sizeof(why), "%.150s: loading it ended the process by signal %d (%s)", plugin,
                       WTERMSIG(status), strsignal(WTERMSIG(status)));
    else
        (void)snprintf(why, sizeof(why), "%.150s: loading it ended the process with exit code %d", plugin,
                       WEXITSTATUS(status));
    refuse(out, DDP_EXIT_PLUGIN, why);
}

ddp_status ddp_probe_plugin(const ddp_conform_params *p, ddp_probe *out, ddp_err *err)
{
    ddp_probe *shared = mmap(NULL, sizeof(*shared), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    pid_t pid;

    if (shared == MAP_FAILED) return ddp_fail_errno(err, "cannot map shared memory");
    (void)fflush(NULL);
    pid = fork();
    if (pid == 0) {
        probe(p, shared);
        exit(DDP_EXIT_OK);
    }
    if (pid > 0) {
        wait_for_probe(pid, p->plugin, shared);
        *out = *shared;
    }
    (void)munmap(shared, sizeof(*shared));
    return pid > 0 ? DDP_OK : ddp_fail_errno(err, "cannot start a process");
}
