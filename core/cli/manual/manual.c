/* cli/manual/manual.c -- `ddpengine manual PAGE`: pages for man, made of the tables that the program itself reads. */
#include "cli/cli.h"
#include "cli/manual/mdoc.h"
#include "config/defaults.h"
#include "plugin/plugin.h"
#include <string.h>

static const ddp_cli_option options[] = {
    {"ini", NULL, "ddpengine.ini(5): every section and key that is not a plugin's", DDP_TAKES_ROW, .most = 0},
    {"KIND.NAME", NULL, "ddpengine-KIND-NAME(7): a plugin, as `ddpengine plugins` lists them, and its keys",
     DDP_TAKES_ROW, .most = 0},
    {"commands", NULL, "what ddpengine(1) has of commands and options, to be included", DDP_TAKES_ROW, .most = 0},
    {"keys", NULL,
     "every key that is not a plugin's, a line each with tabs between section, key, values, default, ranks, and what it is",
     DDP_TAKES_ROW, .most = 0},
    {"date", NULL, "the date of the pages, likewise", DDP_TAKES_ROW, .most = 0},
    {"--help", NULL, NULL, DDP_TAKES_HELP, .letter = 'h'},
};

const ddp_command cli_manual_usage = {
    .name = "manual",
    .usage = "usage: ddpengine manual PAGE\n"
             "prints a manual page in mdoc, which man and mandoc read\n",
    .options = options,
    .option_count = DDP_COUNT(options),
    .footer = "",
    .example = "ddpengine manual ini | man -l -",
};

/* ---- ddpengine(1) ------------------------------------------------------------------------------------------------ */
/* " Ar FILE", or in brackets where it may be left out. */
static void add_value(const char *value, ddp_text *out)
{
    size_t length = strlen(value);
    bool optional = value[0] == '[';

    ddp_text_printf(out, optional ? " Oo Ar" : " Ar");
    mdoc_argument(value + optional, length - (optional ? 2 : 0), out);
    ddp_text_printf(out, optional ? " Oc" : "");
}

/* Options, or the rows that are none. */
static void add_options(const ddp_command *c, bool rows, ddp_text *out)
{
    bool any = false;

    for (size_t i = 0; i < c->option_count; i++) {
        const ddp_cli_option *o = &c->options[i];

        if ((o->takes == DDP_TAKES_ROW) != rows || (o->doc == NULL && o->takes != DDP_TAKES_HELP)) continue;
        if (!any) ddp_text_printf(out, ".Bl -tag -width Ds\n");
        any = true;
        ddp_text_printf(out, ".It");
        if (o->letter != 0) ddp_text_printf(out, " Fl %c ,", o->letter);
        ddp_text_printf(out, rows ? " Cm" : " Fl");
        mdoc_argument(o->name + !rows, strlen(o->name + !rows), out);
        if (o->value != NULL) add_value(o->value, out);
        ddp_text_printf(out, "\n");
        mdoc_prose(o->doc != NULL ? o->doc : "prints a short text", out);
    }
    if (any) ddp_text_printf(out, ".El\n");
}

/* The lines of a usage that begin with "usage:" or a blank are what it is called with; the rest is prose. */
static void add_usage(const char *usage, ddp_text *out)
{
    const char *end = usage;

    while (*end == ' ' || strncmp(end, "usage:", 6) == 0) end = strchr(end, '\n') + 1;
    mdoc_prose(end, out);
    mdoc_literal(usage, end, out);
}

static void add_command(const ddp_cli_option *row, const ddp_command *c, ddp_text *out)
{
    ddp_text_printf(out, ".Ss");
    mdoc_argument(row->name, strlen(row->name), out);
    ddp_text_printf(out, "\n");
    if (c == NULL) {
        ddp_text_printf(out, ".Bl -tag -width Ds\n.It Cm");
        mdoc_argument(row->name, strlen(row->name), out);
        if (row->value != NULL) add_value(row->value, out);
        ddp_text_printf(out, "\n");
        mdoc_prose(row->doc, out);
        ddp_text_printf(out, ".El\n");
        return;
    }
    add_usage(c->usage, out);
    add_options(c, true, out);
    add_options(c, false, out);
    if (c->footer[0] != '\0') ddp_text_printf(out, ".Pp\n");
    mdoc_prose(c->footer, out);
    ddp_text_printf(out, ".Pp\nExample:\n.Dl");
    mdoc_argument(c->example, strlen(c->example), out);
    ddp_text_printf(out, "\n");
}

static void add_commands(ddp_text *out)
{
    const ddp_command *program = cli_all.usage;

    ddp_text_printf(out, ".Sh OPTIONS\n");
    add_options(program, false, out);
    ddp_text_printf(out, ".Sh COMMANDS\n");
    for (size_t i = 0; i < program->option_count; i++) {
        const ddp_command *c = NULL;

        if (program->options[i].takes != DDP_TAKES_ROW) continue;
        for (size_t e = 0; e < cli_all.entry_count; e++)
            if (strcmp(cli_all.entries[e].usage->name, program->options[i].name) == 0) c = cli_all.entries[e].usage;
        add_command(&program->options[i], c, out);
    }
}

/* ---- ddpengine.ini(5) -------------------------------------------------------------------------------------------- */
static void add_ini(ddp_text *out)
{
    const char *const *names;
    size_t sections = ddp_config_sections(&names);

    mdoc_head("ddpengine.ini", 5, "settings of a run of ddpengine", out);
    ddp_text_printf(out, ".Sh DESCRIPTION\n");
    mdoc_prose(
        "A run of ddpengine is described by an INI file: sections in brackets, and lines \"key = value\" in them. "
        "A line that begins with \"#\" or \";\" is a comment, and so is what follows a blank and \";\". "
        "Lists have commas; a value goes on in lines that are indented. "
        "Sizes have B, KiB, MiB or GiB; durations ms, s, m, h or d. "
        "\"include = FILE\" before the first section reads another file first, relative to this one.",
        out);
    ddp_text_printf(out, ".Pp\n");
    mdoc_prose(
        "A plugin that is chosen, as by \"backend = NAME\", has its keys in a section [KIND.NAME], as [backend.NAME]; "
        "that of a dataset is [data.NAME], or [eval.NAME]. "
        "Its page is ddpengine-KIND-NAME(7). "
        "--set SECTION.KEY=VALUE overrides a key from the command line, and --print-config prints all keys that are "
        "in effect, with the file and line that set them.",
        out);
    ddp_text_printf(out, ".Sh SECTIONS\n");
    for (size_t i = 0; i < sections; i++) {
        size_t count;
        const ddp_option *keys = ddp_config_options(names[i], &count);

        ddp_text_printf(out, ".Ss \\&[%s]\\&\n", names[i]);
        mdoc_keys(keys, count, out);
    }
    ddp_text_printf(out, ".Sh EXAMPLES\nMade-up data, for any number of ranks:\n");
    mdoc_literal(DDP_EXAMPLE_INI, NULL, out);
    ddp_text_printf(out, ".Sh SEE ALSO\n.Xr ddpengine 1\n");
}

/* ---- keys -------------------------------------------------------------------------------------------------------- */
static void add_key_lines(ddp_text *out)
{
    const char *const *names;
    size_t sections = ddp_config_sections(&names);

    for (size_t i = 0; i < sections; i++) {
        size_t count;
        const ddp_option *keys = ddp_config_options(names[i], &count);

        for (const ddp_option *o = keys; o < keys + count; o++) {
            ddp_text_printf(out, "%s\t%s\t", names[i], o->key);
            ddp_option_describe_values(o, out);
            ddp_text_printf(out, "\t%s\t%s\t%s\n",
                            o->dflt == NULL      ? "required"
                            : o->dflt[0] != '\0' ? o->dflt
                                                 : "empty",
                            ddp_option_is_compared(o) ? "same" : "may differ", o->doc);
        }
    }
}

/* ---- ddpengine-KIND-NAME(7) -------------------------------------------------------------------------------------- */
/* The section and the key by which an INI chooses a plugin of this kind. */
static const char *chosen_by(uint32_t kind)
{
    switch (kind) {
    case DDP_KIND_BACKEND: return "[group]\nbackend = ";
    case DDP_KIND_INIT: return "[group]\ninit_method = ";
    case DDP_KIND_DEVICE: return "[train]\ndevice = ";
    case DDP_KIND_DATASET: return "[data]\nplugin = ";
    case DDP_KIND_SAMPLER: return "[sampler]\nplugin = ";
    case DDP_KIND_HOOK: return "[hook]\nplugin = ";
    default: return "[model]\nplugin = ";
    }
}

static void add_plugin(const ddp_loaded *p, ddp_text *out)
{
    const char *kind = p->kind == DDP_KIND_DATASET ? "data" : ddp_kind_name(p->kind);
    ddp_text example = {0};
    char title[160];

    (void)snprintf(title, sizeof(title), "ddpengine-%s-%s", ddp_kind_name(p->kind), p->name);
    mdoc_head(title, 7, p->desc.summary, out);
    ddp_text_printf(out, ".Sh DESCRIPTION\n");
    ddp_text_printf(&example, "The %s plugin \"%s\" of ddpengine(1), version %s. ", ddp_kind_name(p->kind), p->name,
                    p->desc.version);
    ddp_text_printf(&example, p->desc.option_count == 0 ? "It has no keys." : "Its keys are in section [%s.%s].", kind,
                    p->name);
    mdoc_prose(example.data != NULL ? example.data : "", out);
    if (p->desc.option_count > 0) ddp_text_printf(out, ".Sh KEYS\n");
    if (p->desc.option_count > 0) mdoc_keys(p->desc.options, p->desc.option_count, out);
    ddp_text_free(&example);
    ddp_text_printf(out, ".Sh EXAMPLES\n");
    ddp_text_printf(&example, "%s%s%s\n", chosen_by(p->kind), p->name, p->kind == DDP_KIND_INIT ? "://..." : "");
    for (size_t i = 0; i < p->desc.option_count && p->kind != DDP_KIND_INIT; i++) {
        const ddp_option *o = &p->desc.options[i];

        if (i == 0) ddp_text_printf(&example, "\n[%s.%s]\n", kind, p->name);
        ddp_text_printf(&example,
                        o->dflt == NULL      ? "%s = %s\n"
                        : o->dflt[0] != '\0' ? "# %s = %s\n"
                                             : "# %s =%s\n",
                        o->key, o->dflt != NULL ? o->dflt : "...");
    }
    mdoc_literal(example.data != NULL ? example.data : "", NULL, out);
    ddp_text_free(&example);
    ddp_text_printf(out, ".Sh SEE ALSO\n.Xr ddpengine 1 ,\n.Xr ddpengine.ini 5\n");
}

/* "KIND.NAME" */
static ddp_status add_plugin_page(const char *page, ddp_log *log, ddp_text *out, ddp_err *err)
{
    static const ddp_list none = {0};
    const char *dot = strchr(page, '.');
    ddp_registry *registry = NULL;
    ddp_loaded *plugin;
    uint32_t kind = DDP_KIND_BACKEND;
    ddp_status status;

    while (kind < DDP_KIND_END_ && dot != NULL &&
           (strlen(ddp_kind_name(kind)) != (size_t)(dot - page) ||
            strncmp(page, ddp_kind_name(kind), (size_t)(dot - page)) != 0))
        kind++;
    if (dot == NULL || kind == DDP_KIND_END_) {
        (void)ddp_fail(
            err, DDP_ERR_CONFIG,
            "no manual page \"%s\"; there are ini, commands, keys, and KIND.NAME of each plugin, as `ddpengine plugins` lists them",
            page);
        return ddp_fail_as(err, DDP_EXIT_CONFIG);
    }
    DDP_TRY_AS(DDP_EXIT_CONFIG, err, ddp_registry_open(log, &none, &registry, err));
    status = ddp_registry_load(registry, kind, dot + 1, &plugin, err);
    if (status == DDP_OK)
        add_plugin(plugin, out);
    else
        (void)ddp_fail_as(err, DDP_EXIT_PLUGIN);
    ddp_registry_close(registry);
    return status;
}

int cli_command_manual(int argc, char **argv, ddp_log *log)
{
    ddp_text out = {0};
    ddp_err err = {0};
    char none; /* what the options would fill */
    int next, code = cli_parse_options(&cli_manual_usage, argc, argv, &none, &next);

    if (code >= 0) return code;
    if (next == argc) return cli_usage_error(&cli_manual_usage, "no page", "");
    if (next + 1 < argc) return cli_usage_error(&cli_manual_usage, "too many arguments: ", argv[next + 1]);
    if (strcmp(argv[next], "ini") == 0)
        add_ini(&out);
    else if (strcmp(argv[next], "commands") == 0)
        add_commands(&out);
    else if (strcmp(argv[next], "keys") == 0)
        add_key_lines(&out);
    else if (strcmp(argv[next], "date") == 0)
        mdoc_date(&out);
    else if (add_plugin_page(argv[next], log, &out, &err) != DDP_OK)
        return cli_print_error(&err, log);
    return cli_print_text(&out, log);
}
