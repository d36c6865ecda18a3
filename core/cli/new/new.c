/* cli/new/new.c -- `ddpengine new KIND NAME`: a folder with a plugin to start from. It builds and keeps its contract
 * as it is written; what is in it are the files of templates/, with the names filled in. */
#include "base/sys.h"
#include "cli/cli.h"
#include "cli/embedded.h"
#include "cli/options.h"
#include <errno.h>
#include <string.h>
#include <sys/stat.h>

enum { NAME_MOST = 40, PATH_MOST = 4000 };

typedef struct request {
    const char *kind, *name, *folder; /* folder: --dir; NULL: as the name */
    uint32_t number;                  /* of the kind */
} request;

#define FIELD(field) .offset = offsetof(request, field)

static const ddp_cli_option options[] = {
    {"KIND", NULL, "backend, init, device, model, sampler, dataset or hook", DDP_TAKES_ROW, .most = 0},
    {"NAME", NULL, "the name in the INI: small letters, digits and '-', such as my-net", DDP_TAKES_ROW, .most = 0},
    {"--dir", "DIR", "the folder that is made; without it NAME, in this one", DDP_TAKES_TEXT, FIELD(folder)},
    {"--help", NULL, NULL, DDP_TAKES_HELP, .letter = 'h'},
};

const ddp_command cli_new_usage = {
    .name = "new",
    .usage = "usage: ddpengine new KIND NAME [--dir DIR]\n"
             "writes a plugin to start from, which builds, keeps its contract and trains as\n"
             "it is\n",
    .options = options,
    .option_count = DDP_COUNT(options),
    .footer = "\nexit codes: 0 written, 1 the files could not be written, 2 usage, or the folder\n"
              "is there already\n",
    .example = "ddpengine new model my-net && cd my-net && make check",
};

/* ---- arguments --------------------------------------------------------------------------------------------------- */
/* By kind, the line of an INI that takes the plugin: what stands in front of its name and behind. */
static const char *const lines[DDP_KIND_END_][2] = {
    [DDP_KIND_BACKEND] = {"[group] backend = ", ""},  [DDP_KIND_INIT] = {"[group] init_method = ", ":///FOLDER/FILE"},
    [DDP_KIND_DEVICE] = {"[train] device = ", ""},    [DDP_KIND_MODEL] = {"[model] plugin = ", ""},
    [DDP_KIND_SAMPLER] = {"[sampler] plugin = ", ""}, [DDP_KIND_DATASET] = {"[data] plugin = ", ""},
    [DDP_KIND_HOOK] = {"[hook] plugin = ", ""}};

/* DDP_KIND_END_: none. */
static uint32_t kind_of(const char *name)
{
    uint32_t kind = DDP_KIND_BACKEND;

    while (kind < DDP_KIND_END_ && strcmp(name, ddp_kind_name(kind)) != 0) kind++;
    return kind;
}

static int unknown_kind(const char *name)
{
    const char *kinds[DDP_KIND_END_], *near;
    char text[200];
    size_t at = 0;

    for (uint32_t k = DDP_KIND_BACKEND; k < DDP_KIND_END_; k++) kinds[k - DDP_KIND_BACKEND] = ddp_kind_name(k);
    near = ddp_nearest(name, kinds, DDP_KIND_END_ - DDP_KIND_BACKEND);
    if (near != NULL)
        (void)snprintf(text, sizeof(text), "no kind of plugin is called \"%.40s\"; did you mean %s?", name, near);
    else
        at = (size_t)snprintf(text, sizeof(text), "no kind of plugin is called \"%.40s\"; there are", name);
    for (uint32_t k = DDP_KIND_BACKEND; near == NULL && k < DDP_KIND_END_; k++)
        at +=
            (size_t)snprintf(text + at, sizeof(text) - at, "%s %s", k > DDP_KIND_BACKEND ? "," : "", ddp_kind_name(k));
    return cli_usage_error(&cli_new_usage, text, "");
}

/* The file's name has '_' for '-', so that '_' in a name would be another name. */
static bool is_name(const char *name)
{
    size_t length = strspn(name, "abcdefghijklmnopqrstuvwxyz0123456789-");

    return length > 0 && length <= NAME_MOST && name[length] == '\0' && strchr("0123456789-", name[0]) == NULL &&
           name[length - 1] != '-';
}

/* -1: go on; else the exit code of a command that is done. */
static int parse(int argc, char **argv, request *q)
{
    int next, code = cli_parse_options(&cli_new_usage, argc, argv, q, &next);

    if (code >= 0) return code;
    if (next == argc) return cli_usage_error(&cli_new_usage, "a plugin of which kind?", "");
    q->kind = argv[next++];
    if ((q->number = kind_of(q->kind)) == DDP_KIND_END_) return unknown_kind(q->kind);
    if (next == argc) return cli_usage_error(&cli_new_usage, "what is the plugin to be called?", "");
    q->name = argv[next++];
    if (next < argc) return cli_usage_error(&cli_new_usage, "too many arguments: ", argv[next]);
    if (!is_name(q->name))
        return cli_usage_error(
            &cli_new_usage,
            "a name has small letters, digits and '-', begins with a letter and is at most 40 long, not ", q->name);
    if (q->folder == NULL) q->folder = q->name;
    if (q->folder[0] == '\0') return cli_usage_error(&cli_new_usage, "--dir needs the name of a folder", "");
    if (strlen(q->folder) > PATH_MOST) return cli_usage_error(&cli_new_usage, "the path of --dir is too long", "");
    return -1;
}

/* ---- writing ----------------------------------------------------------------------------------------------------- */
/* What stands for the word at `text`, from '@' to '@'; false: nothing, it is itself. */
static bool append_word(ddp_text *out, const char *text, size_t length, const request *q)
{
    if (length == 6 && memcmp(text, "@NAME@", 6) == 0)
        ddp_text_append(out, q->name, strlen(q->name));
    else if (length == 6 && memcmp(text, "@KIND@", 6) == 0)
        ddp_text_append(out, q->kind, strlen(q->kind));
    else if (length == 6 && memcmp(text, "@LINE@", 6) == 0)
        ddp_text_printf(out, "%s%s%s", lines[q->number][0], q->name, lines[q->number][1]);
    else if (length == 6 && memcmp(text, "@FILE@", 6) == 0)
        for (const char *c = q->name; *c != '\0'; c++) ddp_text_append(out, *c == '-' ? "_" : c, 1);
    else
        return false;
    return true;
}

static void append(ddp_text *out, const char *text, size_t length, const request *q)
{
    while (length > 0) {
        const char *at = memchr(text, '@', length);
        const char *end = at != NULL ? memchr(at + 1, '@', length - (size_t)(at + 1 - text)) : NULL;
        size_t plain = at != NULL ? (size_t)(at - text) : length, taken = plain;

        ddp_text_append(out, text, plain);
        if (end != NULL && append_word(out, at, (size_t)(end + 1 - at), q))
            taken += (size_t)(end + 1 - at);
        else if (at != NULL)
            ddp_text_append(out, text + taken++, 1);
        text += taken;
        length -= taken;
    }
}

/* The path of a template's file; false: it is of another kind. */
static bool path_of(const ddp_embedded *t, const request *q, ddp_text *out)
{
    const size_t length = strlen(q->kind);
    static const char source[] = "@KIND@_@FILE@.c";

    ddp_text_printf(out, "%s/", q->folder);
    if (strncmp(t->name, q->kind, length) == 0 && strcmp(t->name + length, ".c") == 0)
        append(out, source, sizeof(source) - 1, q);
    else if (strncmp(t->name, q->kind, length) == 0 && strcmp(t->name + length, ".ini") == 0)
        ddp_text_printf(out, "example.ini");
    else if (strcmp(t->name, "gitignore") == 0)
        ddp_text_printf(out, ".gitignore");
    else if (strcmp(t->name, "Makefile") == 0 || strcmp(t->name, "CMakeLists.txt") == 0 ||
             strcmp(t->name, "README.md") == 0)
        ddp_text_printf(out, "%s", t->name);
    else
        return false;
    return true;
}

static ddp_status write_file(const ddp_embedded *t, const request *q, ddp_err *err)
{
    ddp_text path = {0}, text = {0};
    ddp_status status = DDP_OK;

    if (path_of(t, q, &path)) {
        append(&text, (const char *)t->data, t->length, q);
        status = path.failed || text.failed ? ddp_fail(err, DDP_ERR_NOMEM, "no memory for the files of a plugin")
                                            : ddp_file_replace(path.data, text.data, text.length, err);
    }
    ddp_text_free(&text);
    ddp_text_free(&path);
    return status;
}

/* The folder with its files; on failure it is not there. */
static ddp_status write_folder(const request *q, ddp_err *err)
{
    ddp_err other = {0};
    ddp_status status = DDP_OK;

    if (mkdir(q->folder, 0777) != 0) {
        const int number = errno;

        (void)ddp_fail(err, DDP_ERR_CONFIG, "cannot make the folder %s: %s; %s", q->folder, strerror(number),
                       number == EEXIST   ? "choose another one by --dir, or another name"
                       : number == ENOENT ? "make the folder that it is to be in first"
                                          : "choose one by --dir that this user can write");
        return ddp_fail_as(err, number == ENOSPC || number == EDQUOT ? DDP_EXIT_INTERNAL : DDP_EXIT_CONFIG);
    }
    for (size_t i = 0; i < new_templates_count && status == DDP_OK; i++) status = write_file(&new_templates[i], q, err);
    if (status != DDP_OK) (void)ddp_remove_folder(q->folder, &other);
    return status;
}

static void describe(const request *q, ddp_text *out)
{
    ddp_text_printf(out, "%s: a plugin of kind %s to start from. Next:\n    cd ", q->folder, q->kind);
    ddp_text_shell_path(out, q->folder);
    ddp_text_printf(out, " && make check\n");
}

int cli_command_new(int argc, char **argv, ddp_log *log)
{
    request q = {0};
    ddp_text out = {0};
    ddp_err err = {0};
    int code = parse(argc, argv, &q);

    if (code >= 0) return code;
    if (write_folder(&q, &err) != DDP_OK) return cli_print_error(&err, log);
    describe(&q, &out);
    code = cli_print_text(&out, log);
    if (code != DDP_EXIT_OK) (void)ddp_remove_folder(q.folder, &err); /* as after any other failure */
    return code;
}
