/* cli/import/import.c -- `ddpengine import-yaml`: its arguments. What a key becomes is in mapping.c. */
#include "cli/cli.h"
#include "cli/import/convert.h"
#include "cli/options.h"
#include <errno.h>
#include <stdlib.h>
#include <string.h>

typedef struct request {
    const char *output;
} request;

static const ddp_cli_option options[] = {
    {"--output", "FILE", "where the INI goes; without it to standard output", DDP_TAKES_TEXT, .letter = 'o',
     .offset = offsetof(request, output)},
    {"--help", NULL, NULL, DDP_TAKES_HELP, .letter = 'h'},
};

const ddp_command cli_import_yaml_usage = {
    .name = "import-yaml",
    .usage = "usage: ddpengine import-yaml [-o INI] FILE\n"
             "makes an INI of a YAML of LLaMA-Factory: of the stages sft and pt, and of a\n"
             "merge\n",
    .options = options,
    .option_count = DDP_COUNT(options),
    .footer = "",
    .example = "ddpengine import-yaml -o sft.ini sft.yaml",
};

static int write_file(const char *path, ddp_text *text, ddp_log *log)
{
    FILE *f = fopen(path, "wxe");
    bool good = f != NULL && fwrite(text->data, 1, text->length, f) == text->length;
    int number = errno;

    if (f != NULL && fclose(f) != 0) good = false, number = errno;
    if (!good) ddp_log_line(log, DDP_LOG_ERROR, "\"%s\" cannot be written: %s", path, strerror(number));
    ddp_text_free(text);
    return good ? DDP_EXIT_OK : DDP_EXIT_CONFIG;
}

static void warn(const converter *c, ddp_log *log)
{
    const char *at = c->refused.data;

    while (at != NULL && *at != '\0') {
        int length = (int)strcspn(at, "\n");

        ddp_log_line(log, DDP_LOG_WARN, "%s: not taken over: %.*s", c->yaml->path, length, at);
        at += length + 1;
    }
}

int cli_command_import_yaml(int argc, char **argv, ddp_log *log)
{
    request q = {0};
    import_file yaml = {0};
    converter c = {.yaml = &yaml};
    ddp_text out = {0};
    ddp_err err = {0};
    int next, code = cli_parse_options(&cli_import_yaml_usage, argc, argv, &q, &next);

    if (code >= 0) return code;
    if (next == argc) return cli_usage_error(&cli_import_yaml_usage, "no YAML file", "");
    if (next + 1 < argc) return cli_usage_error(&cli_import_yaml_usage, "too many arguments: ", argv[next + 1]);
    if (import_read(argv[next], &yaml, &err) != DDP_OK || convert(&c, &err) != DDP_OK) {
        (void)ddp_fail_as(&err, DDP_EXIT_CONFIG);
        code = cli_print_error(&err, log);
    } else {
        warn(&c, log);
        convert_print(&c, &out);
        code = q.output != NULL && !out.failed ? write_file(q.output, &out, log) : cli_print_text(&out, log);
    }
    convert_free(&c);
    import_free(&yaml);
    return code;
}
