/* cli/commands.c -- the commands that only print: plugins, help, --print-config. */
#include "cli/cli.h"
#include "session/open.h"
#include "session/plugins.h"
#include <errno.h>
#include <string.h>
#include <sys/ioctl.h>
#include <unistd.h>

int cli_print_text(ddp_text *text, ddp_log *log)
{
    int code = DDP_EXIT_INTERNAL;

    if (text->failed)
        ddp_log_line(log, DDP_LOG_ERROR, "out of memory for what is to be printed");
    else if ((text->data != NULL && fputs(text->data, stdout) == EOF) || fflush(stdout) == EOF)
        ddp_log_line(log, DDP_LOG_ERROR, "cannot write to standard output: %s", strerror(errno));
    else
        code = DDP_EXIT_OK;
    ddp_text_free(text);
    return code;
}

int cli_print_error(const ddp_err *err, ddp_log *log)
{
    ddp_log_line(log, DDP_LOG_ERROR, "%s", err->msg);
    return ddp_err_exit_code(err);
}

int cli_load_config(const char *path, const char *const *overrides, size_t count, ddp_config *config, ddp_log *log)
{
    ddp_err err = {0};

    if (ddp_config_load(path, overrides, count, config, &err) == DDP_OK) return -1;
    (void)ddp_fail_as(&err, DDP_EXIT_CONFIG);
    return cli_print_error(&err, log);
}

/* Columns of the terminal that shows standard output; elsewhere no bound, so that grep finds whole rows. */
static size_t columns(void)
{
    struct winsize w = {0};

    return ioctl(STDOUT_FILENO, TIOCGWINSZ, &w) == 0 && w.ws_col >= 40 ? w.ws_col : SIZE_MAX;
}

static void option_rows(const ddp_option *options, size_t count, ddp_text *out)
{
    const size_t most = columns();

    for (size_t i = 0; i < count; i++) {
        ddp_text row = {0};

        ddp_text_printf(&row, "%s (", options[i].doc);
        ddp_option_describe(&options[i], &row);
        ddp_text_printf(&row, ")");
        ddp_text_printf(out, "  %-22s ", options[i].key);
        if (row.failed)
            out->failed = true;
        else
            cli_wrap(row.data, 25, most, out);
        ddp_text_printf(out, "\n");
        ddp_text_free(&row);
    }
}

/* ---- plugins ----------------------------------------------------------------------------------------------------- */
struct listing {
    const char *wanted; /* NULL: all */
    ddp_text out;
    ddp_text refused;
    int found;
};

static bool is_wanted(const ddp_loaded *p, const char *wanted)
{
    char qualified[160];

    (void)snprintf(qualified, sizeof(qualified), "%s.%s", ddp_kind_name(p->kind), p->name);
    return wanted == NULL || strcmp(p->name, wanted) == 0 || strcmp(qualified, wanted) == 0;
}

static void list_one(void *ctx, const char *path, const ddp_loaded *p, const ddp_err *err)
{
    struct listing *l = ctx;

    if (p == NULL) {
        ddp_text_printf(&l->refused, "refused: %s\n", err->msg);
        return;
    }
    if (!is_wanted(p, l->wanted)) return;
    l->found++;
    if (l->wanted == NULL) {
        ddp_text_printf(&l->out, "%-8s %-14s %-8s %s\n", ddp_kind_name(p->kind), p->name, p->desc.version,
                        p->desc.summary);
        return;
    }
    ddp_text_printf(&l->out, "%s \"%s\" %s: %s\n  %s\n", ddp_kind_name(p->kind), p->name, p->desc.version,
                    p->desc.summary, path);
    if (p->desc.option_count == 0)
        ddp_text_printf(&l->out, "  no options\n");
    else
        ddp_text_printf(&l->out, "options, in section [%s.%s]:\n",
                        p->kind == DDP_KIND_DATASET ? "data" : ddp_kind_name(p->kind), p->name);
    option_rows(p->desc.options, p->desc.option_count, &l->out);
}

/* The search path comes from the config where one is given. */
static ddp_status open_registry(const ddp_args *args, ddp_log *log, ddp_config *config, ddp_registry **out,
                                ddp_err *err)
{
    static const ddp_list none = {0};

    if (args->config_path != NULL)
        DDP_TRY(ddp_config_load(args->config_path, args->overrides, args->override_count, config, err));
    return ddp_registry_open(log, args->config_path != NULL ? &config->plugin_path : &none, out, err);
}

static ddp_status list(const ddp_args *args, ddp_log *log, struct listing *l, ddp_config *config,
                       ddp_registry **registry, ddp_err *err)
{
    DDP_TRY_AS(DDP_EXIT_CONFIG, err, open_registry(args, log, config, registry, err));
    DDP_TRY_AS(DDP_EXIT_PLUGIN, err, ddp_registry_list(*registry, list_one, l, err));
    if (l->wanted == NULL || l->found > 0) return DDP_OK;
    (void)ddp_fail(err, DDP_ERR_CONFIG, "no plugin \"%s\"; `ddpengine plugins` lists those that are found", l->wanted);
    return ddp_fail_as(err, DDP_EXIT_PLUGIN);
}

int cli_command_plugins(const ddp_args *args, const char *wanted, ddp_log *log)
{
    struct listing l = {.wanted = wanted};
    ddp_config config = {0};
    ddp_registry *registry = NULL;
    ddp_err err = {0};
    int code = DDP_EXIT_OK;

    if (list(args, log, &l, &config, &registry, &err) != DDP_OK) code = cli_print_error(&err, log);
    if (l.wanted == NULL && l.refused.length > 0) ddp_text_append(&l.out, l.refused.data, l.refused.length);
    ddp_text_free(&l.refused);
    if (cli_print_text(&l.out, log) != DDP_EXIT_OK && code == DDP_EXIT_OK) code = DDP_EXIT_INTERNAL;
    if (registry != NULL) ddp_registry_close(registry);
    ddp_config_free(&config);
    return code;
}

/* ---- help -------------------------------------------------------------------------------------------------------- */
int cli_command_help(const ddp_command *program, const char *section, ddp_log *log)
{
    const char *const *names;
    size_t sections = ddp_config_sections(&names), count = 0;
    const ddp_option *options = section == NULL ? NULL : ddp_config_options(section, &count);
    ddp_text out = {0};

    if (section == NULL) {
        cli_print_usage(program, stdout);
        ddp_text_printf(&out, "\nsections of the INI file (`ddpengine help SECTION` shows the keys of one):\n ");
        for (size_t i = 0; i < sections; i++) ddp_text_printf(&out, " [%s]", names[i]);
        ddp_text_printf(&out,
                        "\nand one section for each plugin, [KIND.NAME] (`ddpengine plugins NAME` shows its keys).\n");
        return cli_print_text(&out, log);
    }
    if (options == NULL) {
        const char *near = ddp_nearest(section, names, sections);

        ddp_log_line(log, DDP_LOG_ERROR, "no section [%s]%s%s%s", section, near == NULL ? "" : "; did you mean [",
                     near == NULL ? "" : near,
                     near == NULL
                         ? "; `ddpengine help` lists them, and `ddpengine plugins NAME` shows the keys of a plugin"
                         : "]?");
        return DDP_EXIT_CONFIG;
    }
    ddp_text_printf(&out, "[%s]\n", section);
    option_rows(options, count, &out);
    return cli_print_text(&out, log);
}

/* ---- config ------------------------------------------------------------------------------------------------------ */
int cli_command_print_config(ddp_config *config, const ddp_launch *launch, ddp_log *log)
{
    ddp_session s = {.log = log, .host = ddp_log_host(log), .config = config, .launch = *launch};
    ddp_text out = {0};
    ddp_err err = {0};
    int code;

    if (ddp_session_load_plugins(&s, &err) != DDP_OK) {
        code = ddp_err_exit_code(&err);
        ddp_log_line(log, DDP_LOG_ERROR, "%s", err.msg);
    } else {
        ddp_settings_print(&config->settings, &out);
        code = cli_print_text(&out, log);
    }
    ddp_session_close(&s);
    return code;
}
