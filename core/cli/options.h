/* cli/options.h -- a command's options as a table, which is the parser and the usage text at once. */
#pragma once

#include "base/base.h"
#include <stdio.h>

/* What an option does with its value and the field at `offset` of the request. */
typedef enum ddp_takes {
    DDP_TAKES_ROW = 0, /* no option: a row of the usage text */
    DDP_TAKES_HELP,    /* prints the usage text; the command is done */
    DDP_TAKES_NOTHING, /* sets a bool */
    DDP_TAKES_TEXT,    /* const char *; the last one counts; "" where the value is left out */
    DDP_TAKES_COUNT,   /* int32_t from 1 to `most` */
    DDP_TAKES_LIST,    /* appends to an array of `most` const char *, whose size_t count is at `count_offset` */
    DDP_TAKES_CALL     /* `take` decides */
} ddp_takes;

typedef struct ddp_command ddp_command;

typedef struct ddp_cli_option {
    const char *name; /* "--nproc", or "plugins" for a row of the usage text */
    const char
        *value;      /* "N"; "f32|bf16": one of these; NULL: takes none; "[FILE]" may be left out, --name=FILE alone */
    const char *doc; /* NULL: not shown */
    ddp_takes takes;
    char letter; /* 'c' for -c; 0: none */
    int32_t most;
    size_t offset, count_offset;
    int (*take)(const ddp_command *c, void *request, const char *value); /* -1: go on; else the exit code */
} ddp_cli_option;

struct ddp_command {
    const char *name;   /* "bench"; "" for the program itself */
    const char *usage;  /* the lines above the options */
    const char *footer; /* below them; "" for none */
    const ddp_cli_option *options;
    size_t option_count;
    const char *example; /* a command that uses it */
};

/* "-c, --config FILE"; its length. */
int cli_option_name(const ddp_cli_option *o, char out[64]);
/* `text`, of which the first `at` columns of a line are taken, in lines of `most` that begin at column `at`. */
void cli_wrap(const char *text, size_t at, size_t most, ddp_text *out);
/* In lines of 80 columns. */
void cli_print_usage(const ddp_command *c, FILE *to);
/* Reads the options into `request`. -1: go on, and argv[*rest] .. are the other arguments; else the exit code of a
 * command that is done. */
int cli_parse_options(const ddp_command *c, int argc, char **argv, void *request, int *rest);
/* "ddpengine: error: WHATDETAIL; see ddpengine COMMAND --help"; DDP_EXIT_CONFIG. */
int cli_usage_error(const ddp_command *c, const char *what, const char *detail);
