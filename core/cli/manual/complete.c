/* cli/manual/complete.c -- what may come next on the command line, for the shells: `ddpengine --complete WORD...` gets
 * the words after the program's name, the last one as far as it is typed, and prints a candidate a line:
 *   WORD                a whole word
 *   WORD<tab>DOC        with what it is
 *   WORD= or WORD.      goes on without a blank
 *   :files :folders     names of files come here
 * All of it is from the tables that the program reads, plugins' too. */
#include "cli/cli.h"
#include "plugin/plugin.h"
#include <string.h>

typedef struct completion {
    const char *typed;  /* the word, or what of it stands after --name= */
    const char *before; /* "--name=", or "" */
    int before_length;
    ddp_text out;
} completion;

/* ---- candidates -------------------------------------------------------------------------------------------------- */
static void offer(completion *c, const char *word, const char *more, const char *doc)
{
    char whole[320];

    (void)snprintf(whole, sizeof(whole), "%s%s", word, more);
    if (strncmp(whole, c->typed, strlen(c->typed)) != 0) return;
    ddp_text_printf(&c->out, "%.*s%s%s%s\n", c->before_length, c->before, whole, doc != NULL ? "\t" : "",
                    doc != NULL ? doc : "");
}

/* "f32|bf16", with what stands before each. */
static void offer_choices(completion *c, const char *before, const char *choices)
{
    for (const char *end; *choices != '\0'; choices = *end == '\0' ? end : end + 1) {
        char word[288];

        end = choices + strcspn(choices, "|");
        (void)snprintf(word, sizeof(word), "%s%.*s", before, (int)(end - choices), choices);
        offer(c, word, "", NULL);
    }
}

static void offer_files(completion *c, bool folders) { ddp_text_printf(&c->out, folders ? ":folders\n" : ":files\n"); }

/* ---- plugins ----------------------------------------------------------------------------------------------------- */
/* Of each plugin: `all`: its qualified name; else, of kind `kind`, its name after `before`, or its keys. */
typedef struct plugin_query {
    completion *c;
    bool all, sections;
    uint32_t kind;
    const char *before, *keys_of;
} plugin_query;

static void offer_keys(completion *c, const char *section, const ddp_option *options, size_t count)
{
    char word[256];

    for (size_t i = 0; i < count; i++) {
        (void)snprintf(word, sizeof(word), "%s.%s", section, options[i].key);
        offer(c, word, "=", options[i].doc);
    }
}

static void offer_values(completion *c, const char *section, const ddp_option *o);

/* The values of "section.key", of a row of `options`. */
static void find_values(completion *c, const char *section, const ddp_option *options, size_t count)
{
    const char *key = c->typed + strlen(section) + 1;

    for (size_t i = 0; i < count; i++)
        if (strlen(options[i].key) == strcspn(key, "=") && strncmp(options[i].key, key, strcspn(key, "=")) == 0)
            offer_values(c, section, &options[i]);
}

static void visit_plugin(void *ctx, const char *path, const ddp_loaded *p, const ddp_err *err)
{
    const plugin_query *q = ctx;
    char word[192];

    (void)path;
    (void)err;
    if (p == NULL) return;
    if (q->all) {
        (void)snprintf(word, sizeof(word), "%s.%s", ddp_kind_name(p->kind), p->name);
        offer(q->c, word, "", p->desc.summary);
        return;
    }
    if (p->kind != q->kind) return;
    if (q->keys_of == NULL) {
        (void)snprintf(word, sizeof(word), "%s%s", q->before, p->name);
        if (!q->sections || p->desc.option_count > 0) offer(q->c, word, q->sections ? "." : "", p->desc.summary);
        return;
    }
    (void)snprintf(word, sizeof(word), "%s%s", q->before, p->name);
    if (strcmp(word, q->keys_of) != 0) return;
    if (strchr(q->c->typed, '=') != NULL)
        find_values(q->c, word, p->desc.options, p->desc.option_count);
    else
        offer_keys(q->c, word, p->desc.options, p->desc.option_count);
}

static void ask_plugins(plugin_query *q)
{
    static const ddp_list none = {0};
    ddp_registry *registry = NULL;
    ddp_err err = {0};
    ddp_log log;

    ddp_log_init(&log);
    if (ddp_registry_open(&log, &none, &registry, &err) != DDP_OK) return;
    (void)ddp_registry_list(registry, visit_plugin, q, &err);
    ddp_registry_close(registry);
}

/* ---- SECTION.KEY=VALUE ------------------------------------------------------------------------------------------- */
/* 0: no kind has this section. */
static uint32_t kind_of_section(const char *section, size_t length)
{
    if (length == 4 && (strncmp(section, "data", 4) == 0 || strncmp(section, "eval", 4) == 0)) return DDP_KIND_DATASET;
    for (uint32_t kind = DDP_KIND_BACKEND; kind < DDP_KIND_END_; kind++)
        if (kind != DDP_KIND_DATASET && strlen(ddp_kind_name(kind)) == length &&
            strncmp(section, ddp_kind_name(kind), length) == 0)
            return kind;
    return 0;
}

static void offer_values(completion *c, const char *section, const ddp_option *o)
{
    char before[256];
    uint32_t kind = strcmp(o->key, "backend") == 0  ? DDP_KIND_BACKEND
                    : strcmp(o->key, "device") == 0 ? DDP_KIND_DEVICE
                    : strcmp(o->key, "plugin") == 0 ? kind_of_section(section, strlen(section))
                                                    : 0;

    (void)snprintf(before, sizeof(before), "%s.%s=", section, o->key);
    if (o->type == DDP_OPT_ENUM) offer_choices(c, before, o->range);
    if (o->type == DDP_OPT_BOOL) offer_choices(c, before, "yes|no");
    if (o->type == DDP_OPT_PATH) offer_files(c, false);
    if (kind != 0) ask_plugins(&(plugin_query){.c = c, .kind = kind, .before = before});
}

static void offer_core_sections(completion *c, const char *more)
{
    const char *const *names;
    size_t count = ddp_config_sections(&names);

    for (size_t i = 0; i < count; i++) offer(c, names[i], more, NULL);
}

/* The sections of the core and those that plugins have. */
static void offer_sections(completion *c)
{
    size_t count;

    offer_core_sections(c, ".");
    for (uint32_t kind = DDP_KIND_BACKEND; kind < DDP_KIND_END_; kind++)
        if (ddp_config_options(ddp_kind_name(kind), &count) == NULL && kind != DDP_KIND_DATASET)
            offer(c, ddp_kind_name(kind), ".", NULL);
}

static void complete_setting(completion *c)
{
    char section[128], before[128];
    const char *equals = strchr(c->typed, '='), *dot = strchr(c->typed, '.'), *last = dot;
    const ddp_option *options;
    size_t count;
    uint32_t kind;

    if (dot == NULL) {
        offer_sections(c);
        return;
    }
    for (const char *at = dot; *at != '\0' && (equals == NULL || at < equals); at++)
        if (*at == '.') last = at;
    (void)snprintf(section, sizeof(section), "%.*s", (int)(last - c->typed), c->typed);
    (void)snprintf(before, sizeof(before), "%.*s", (int)(dot + 1 - c->typed), c->typed);
    kind = kind_of_section(c->typed, (size_t)(dot - c->typed));
    if (last != dot && kind != 0) {
        ask_plugins(&(plugin_query){.c = c, .kind = kind, .before = before, .keys_of = section});
        return;
    }
    options = ddp_config_options(section, &count);
    if (equals != NULL) {
        find_values(c, section, options, count);
        return;
    }
    offer_keys(c, section, options, count);
    if (kind != 0) ask_plugins(&(plugin_query){.c = c, .kind = kind, .before = before, .sections = true});
}

/* ---- words ------------------------------------------------------------------------------------------------------- */
/* What stands for `value` in a usage: "FILE", "f32|bf16", "SECTION.KEY=V". */
static void complete_value(completion *c, const char *value)
{
    if (value[0] == '[') value++;
    if (strncmp(value, "SECTION.KEY=", 12) == 0)
        complete_setting(c);
    else if (strncmp(value, "SECTION", 7) == 0)
        offer_core_sections(c, "");
    else if (strcmp(value, "KIND") == 0)
        for (uint32_t kind = DDP_KIND_BACKEND; kind < DDP_KIND_END_; kind++) offer(c, ddp_kind_name(kind), "", NULL);
    else if (strncmp(value, "PLUGIN", 6) == 0)
        ask_plugins(&(plugin_query){.c = c, .all = true});
    else if (strncmp(value, "DIR", 3) == 0 || strncmp(value, "FOLDER", 6) == 0)
        offer_files(c, true);
    else if (strncmp(value, "FILE", 4) == 0 || strncmp(value, "PATH", 4) == 0 || strncmp(value, "RUN", 3) == 0)
        offer_files(c, false);
    else if (value[0] >= 'a' && value[0] <= 'z')
        offer_choices(c, "", value);
}

static const ddp_cli_option *find_option(const ddp_command *command, const char *word)
{
    size_t length = strcspn(word, "=");

    for (size_t i = 0; i < command->option_count; i++) {
        const ddp_cli_option *o = &command->options[i];

        if (o->takes == DDP_TAKES_ROW) continue;
        if (strlen(o->name) == length && strncmp(o->name, word, length) == 0) return o;
        if (o->letter != 0 && word[0] == '-' && word[1] == o->letter && word[2] == '\0') return o;
    }
    return NULL;
}

static void offer_options(completion *c, const ddp_command *command)
{
    for (size_t i = 0; i < command->option_count; i++) {
        const ddp_cli_option *o = &command->options[i];

        if (o->takes == DDP_TAKES_HELP || (o->takes != DDP_TAKES_ROW && o->doc != NULL)) offer(c, o->name, "", o->doc);
    }
}

/* The first other argument of `command`, and those after it. Of its own rows those in small letters are words for the
 * first, the others stand for one argument each. `row`: what the program's own usage says of it. */
static void complete_argument(completion *c, const ddp_command *command, const ddp_cli_option *row, int position)
{
    bool nested = command != cli_all.usage || row == NULL, rows = false;
    int stands_for = 0;

    for (size_t i = 0; i < command->option_count && nested; i++) {
        const ddp_cli_option *o = &command->options[i];

        if (o->takes != DDP_TAKES_ROW) continue;
        if (o->name[0] >= 'a' && o->name[0] <= 'z') {
            if (position == 0) offer(c, o->name, "", o->doc), rows = true;
        } else if (stands_for++ == position) {
            complete_value(c, strcmp(o->name, "KIND.NAME") == 0 ? "PLUGIN" : o->name);
            rows = true;
        }
    }
    if (rows) return;
    if (position == 0 && row != NULL && row->value != NULL)
        complete_value(c, row->value);
    else if (command != cli_all.usage)
        offer_files(c, false);
}

static const ddp_command *find_command(const char *word, const ddp_cli_option **row)
{
    const ddp_command *program = cli_all.usage;

    for (size_t i = 0; i < program->option_count; i++)
        if (program->options[i].takes == DDP_TAKES_ROW && strcmp(program->options[i].name, word) == 0)
            *row = &program->options[i];
    for (size_t i = 0; i < cli_all.entry_count; i++)
        if (strcmp(cli_all.entries[i].usage->name, word) == 0) return cli_all.entries[i].usage;
    return program;
}

static void complete(completion *c, int argc, char **argv)
{
    const ddp_command *command = cli_all.usage;
    const ddp_cli_option *row = NULL, *waiting = NULL; /* waiting: an option whose value comes next */
    int others = 0;

    for (int i = 0; i + 1 < argc; i++) {
        const ddp_cli_option *o = argv[i][0] == '-' ? find_option(command, argv[i]) : NULL;

        if (waiting != NULL)
            waiting = NULL;
        else if (o != NULL && o->value != NULL && o->value[0] != '[' && strchr(argv[i], '=') == NULL)
            waiting = o;
        else if (argv[i][0] != '-' && row == NULL)
            command = find_command(argv[i], &row), others += row == NULL;
        else if (argv[i][0] != '-')
            others++;
    }
    c->typed = argc > 0 ? argv[argc - 1] : "";
    if (waiting == NULL && c->typed[0] == '-' && strchr(c->typed, '=') != NULL) {
        waiting = find_option(command, c->typed);
        c->before = c->typed;
        c->before_length = (int)strcspn(c->typed, "=") + 1;
        c->typed += c->before_length;
        if (waiting == NULL) return;
    }
    if (waiting != NULL)
        complete_value(c, waiting->value != NULL ? waiting->value : "");
    else if (c->typed[0] == '-')
        offer_options(c, command);
    else
        complete_argument(c, command, row, others);
}

int cli_complete(int argc, char **argv)
{
    completion c = {.before = ""};
    int code = DDP_EXIT_OK;

    complete(&c, argc, argv);
    if (c.out.failed || (c.out.data != NULL && fputs(c.out.data, stdout) == EOF) || fflush(stdout) == EOF)
        code = DDP_EXIT_INTERNAL;
    ddp_text_free(&c.out);
    return code;
}
