/* cli/options.c -- see options.h. */
#include "cli/options.h"
#include <errno.h>
#include <getopt.h>
#include <stdlib.h>
#include <string.h>

enum { MAX_OPTIONS = 64, FIRST = 256, USAGE_COLUMNS = 80 };

int cli_usage_error(const ddp_command *c, const char *what, const char *detail)
{
    (void)fprintf(stderr, "ddpengine: error: %s%s; see ddpengine %s%s--help\n", what, detail, c->name,
                  c->name[0] != '\0' ? " " : "");
    return DDP_EXIT_CONFIG;
}

/* ---- usage ------------------------------------------------------------------------------------------------------- */
int cli_option_name(const ddp_cli_option *o, char out[64])
{
    char letter[] = {'-', o->letter, ',', ' ', '\0'};

    return snprintf(out, 64, "%s%s%s%s", o->letter != 0 ? letter : "", o->name, o->value != NULL ? " " : "",
                    o->value != NULL ? o->value : "");
}

void cli_wrap(const char *text, size_t at, size_t most, ddp_text *out)
{
    for (size_t column = at; *text != '\0'; text += strspn(text, " \n")) {
        size_t word = strcspn(text, " \n");

        if (column > at && column + 1 + word > most) {
            ddp_text_printf(out, "\n%*s", (int)at, "");
            column = at;
        }
        if (column > at) ddp_text_append(out, " ", 1);
        ddp_text_append(out, text, word);
        column += word + (column > at);
        text += word;
    }
}

void cli_print_usage(const ddp_command *c, FILE *to)
{
    ddp_text out = {0};
    char left[64];
    int width = 0;

    for (size_t i = 0; i < c->option_count; i++)
        if (c->options[i].doc != NULL) width = DDP_MAX_OF(width, cli_option_name(&c->options[i], left));
    ddp_text_printf(&out, "%s\n", c->usage);
    for (size_t i = 0; i < c->option_count; i++) {
        if (c->options[i].doc == NULL) continue;
        (void)cli_option_name(&c->options[i], left);
        ddp_text_printf(&out, "  %-*s  ", width, left);
        cli_wrap(c->options[i].doc, (size_t)width + 4, USAGE_COLUMNS, &out);
        ddp_text_printf(&out, "\n");
    }
    ddp_text_printf(&out, "%s\nexample: %s\n", c->footer, c->example);
    (void)fputs(out.failed ? c->usage : out.data, to);
    ddp_text_free(&out);
}

/* ---- parsing ----------------------------------------------------------------------------------------------------- */
static int take_count(const ddp_command *c, const ddp_cli_option *o, const char *text, int32_t *out)
{
    char *end, what[96];
    long n;

    errno = 0;
    n = strtol(text, &end, 10);
    if (end != text && *end == '\0' && errno == 0 && n >= 1 && n <= o->most) {
        *out = (int32_t)n;
        return -1;
    }
    (void)snprintf(what, sizeof(what), "%s takes a number from 1 to %d, not ", o->name, o->most);
    return cli_usage_error(c, what, text);
}

/* -1: go on; else the exit code of a command that is done. */
static int take(const ddp_command *c, const ddp_cli_option *o, void *request, const char *value)
{
    void *field = (char *)request + o->offset, *count = (char *)request + o->count_offset;
    size_t n;

    switch (o->takes) {
    case DDP_TAKES_HELP: cli_print_usage(c, stdout); return DDP_EXIT_OK;
    case DDP_TAKES_NOTHING: *(bool *)field = true; return -1;
    case DDP_TAKES_TEXT: *(const char **)field = value != NULL ? value : ""; return -1;
    case DDP_TAKES_COUNT: return take_count(c, o, value, field);
    case DDP_TAKES_LIST:
        memcpy(&n, count, sizeof(n));
        if (n == (size_t)o->most) return cli_usage_error(c, "too many ", o->name);
        memcpy((char *)field + n++ * sizeof(value), &value, sizeof(value));
        memcpy(count, &n, sizeof(n));
        return -1;
    default: return o->take(c, request, value);
    }
}

int cli_parse_options(const ddp_command *c, int argc, char **argv, void *request, int *rest)
{
    struct option table[MAX_OPTIONS + 1] = {0};
    char letters[2 * MAX_OPTIONS + 2] = ":", *letter = letters + 1;
    size_t count = 0;
    int option, code;

    for (size_t i = 0; i < c->option_count && count < MAX_OPTIONS; i++) {
        const ddp_cli_option *o = &c->options[i];
        int argument = o->value == NULL ? no_argument : o->value[0] == '[' ? optional_argument : required_argument;

        if (o->takes == DDP_TAKES_ROW) continue;
        table[count++] = (struct option){.name = o->name + 2, .has_arg = argument, .val = FIRST + (int)i};
        if (o->letter == 0) continue;
        *letter++ = o->letter;
        if (argument == required_argument) *letter++ = ':';
    }
    opterr = 0; /* one line, ours */
    optind = 1;
    while ((option = getopt_long(argc, argv, letters, table, NULL)) != -1) {
        const char given_letter[] = {'-', (char)optopt, '\0'};
        const char *given = optopt > ' ' && optopt < 0x7f ? given_letter : argv[optind - 1];
        size_t i = (size_t)option - FIRST;

        if (option == ':') return cli_usage_error(c, "missing value after ", given);
        if (option == '?') return cli_usage_error(c, "unknown option, or one that takes no value: ", given);
        if (option < FIRST)
            for (i = 0; c->options[i].letter != option;) i++;
        if ((code = take(c, &c->options[i], request, optarg)) >= 0) return code;
    }
    *rest = optind;
    return -1;
}
