/* cli/merge.c -- `ddpengine merge`: its arguments. What it does is infer/export/merge.c. */
#include "cli/cli.h"
#include "cli/options.h"
#include "config/defaults.h"
#include "infer/export/export.h"
#include <math.h>
#include <stdlib.h>
#include <string.h>

#define SHARD_BYTES UINT64_C(5000000000) /* of transformers, for long */

typedef struct request {
    ddp_export_request export;
    const char *config_path, *overrides[DDP_MAX_OVERRIDES];
    size_t override_count;
} request;

static int take_dtype(const ddp_command *c, void *to, const char *value)
{
    ddp_export_request *q = &((request *)to)->export;

    if (strcmp(value, "f32") != 0 && strcmp(value, "bf16") != 0)
        return cli_usage_error(c, "--dtype takes f32 or bf16, not ", value);
    q->dtype = strcmp(value, "f32") == 0 ? DDP_F32 : DDP_BF16;
    return -1;
}

/* "5GB", "200MiB" */
static int take_size(const ddp_command *c, void *to, const char *value)
{
    static const struct {
        const char *name;
        double bytes;
    } units[] = {{"KB", 1e3}, {"MB", 1e6}, {"GB", 1e9}, {"KiB", 0x1p10}, {"MiB", 0x1p20}, {"GiB", 0x1p30}};
    char *end;
    double n = strtod(value, &end);

    for (size_t i = 0; i < DDP_COUNT(units); i++) {
        if (strcmp(end, units[i].name) != 0 || !isfinite(n) || n <= 0.0 || n * units[i].bytes > 1e15) continue;
        ((request *)to)->export.shard_bytes = (uint64_t)(n * units[i].bytes);
        return -1;
    }
    return cli_usage_error(c, "--shard-size takes a size as 5GB or 500MiB, not ", value);
}

#define FIELD(name) .offset = offsetof(request, name)

static const ddp_cli_option options[] = {
    {"--config", "FILE", "the INI that the adapters were trained with", DDP_TAKES_TEXT, .letter = 'c',
     FIELD(config_path)},
    {"--set", "SECTION.KEY=V", "overrides one key; may be repeated", DDP_TAKES_LIST, .most = DDP_MAX_OVERRIDES,
     FIELD(overrides), .count_offset = offsetof(request, override_count)},
    {"--checkpoint", "PATH",
     "a checkpoint, a folder with checkpoints (the newest), or a folder with PEFT's adapters; "
     "without it the newest of [checkpoint] dir, else [lora] init_from",
     DDP_TAKES_TEXT, FIELD(export.weights)},
    {"--dtype", "f32|bf16", "of the weights that are written; without it f32", DDP_TAKES_CALL, .take = take_dtype},
    {"--shard-size", "SIZE", "the most in one file, as 500MB or 2GiB; without it 5GB", DDP_TAKES_CALL,
     .take = take_size},
    {"--help", NULL, NULL, DDP_TAKES_HELP, .letter = 'h'},
};

const ddp_command cli_merge_usage = {
    .name = "merge",
    .usage = "usage: ddpengine merge -c FILE [--checkpoint PATH] [--dtype f32|bf16]\n"
             "                       [--shard-size SIZE] DIR\n"
             "writes DIR as Hugging Face's save_pretrained does: the model with its adapters\n"
             "in its weights\n",
    .options = options,
    .option_count = DDP_COUNT(options),
    .footer = "",
    .example = "ddpengine merge -c lora.ini --dtype bf16 merged",
};

int cli_command_merge(int argc, char **argv, ddp_log *log)
{
    /* nothing is computed, so the machine need not have the device that the model was trained on */
    request q = {.export = {.dtype = DDP_F32, .shard_bytes = SHARD_BYTES},
                 .overrides = {"train.device=" DDP_DEFAULT_DEVICE},
                 .override_count = 1};
    ddp_config config = {0};
    int next, code = cli_parse_options(&cli_merge_usage, argc, argv, &q, &next);

    if (code >= 0) return code;
    if (q.config_path == NULL) return cli_usage_error(&cli_merge_usage, "no config file: give -c FILE", "");
    if (next == argc) return cli_usage_error(&cli_merge_usage, "no folder to write to", "");
    if (next + 1 < argc) return cli_usage_error(&cli_merge_usage, "too many arguments: ", argv[next + 1]);
    q.export.path = argv[next];
    if ((code = cli_load_config(q.config_path, q.overrides, q.override_count, &config, log)) >= 0) return code;
    code = infer_export(&q.export, &config, log, infer_export_merged);
    ddp_config_free(&config);
    return code;
}
