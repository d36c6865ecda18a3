/* cli/export.c -- `ddpengine export`: its arguments. What it does is infer/export/. */
#include "cli/cli.h"
#include "cli/options.h"
#include "config/defaults.h"
#include "infer/export/export.h"
#include <string.h>

typedef struct request {
    ddp_export_request export;
    const char *config_path, *overrides[DDP_MAX_OVERRIDES];
    size_t override_count;
} request;

#define FIELD(name) .offset = offsetof(request, name)

static const ddp_cli_option options[] = {
    {"torch", "DIR", "writes DIR/model.safetensors, a state_dict by PyTorch's names, and DIR/config.json",
     DDP_TAKES_ROW, .most = 0},
    {"peft", "DIR", "writes the adapters of [lora] as PEFT does: DIR/adapter_model.safetensors, adapter_config.json",
     DDP_TAKES_ROW, .most = 0},
    {"onnx", "FILE", "writes the forward pass as ONNX, opset 17, for any batch size", DDP_TAKES_ROW, .most = 0},
    {"gguf", "FILE", "writes a model for llama.cpp, with its tokenizer, or a LoRA adapter", DDP_TAKES_ROW, .most = 0},
    {"--config", "FILE", "the INI that the model was trained with", DDP_TAKES_TEXT, .letter = 'c', FIELD(config_path)},
    {"--set", "SECTION.KEY=V", "overrides one key; may be repeated", DDP_TAKES_LIST, .most = DDP_MAX_OVERRIDES,
     FIELD(overrides), .count_offset = offsetof(request, override_count)},
    {"--checkpoint", "PATH",
     "a checkpoint, a folder with checkpoints (the newest), or a safetensors file; "
     "without it the newest of [checkpoint] dir, else init_from",
     DDP_TAKES_TEXT, FIELD(export.weights)},
    {"--type", "f32|f16|bf16", "gguf: of the matrices; without it f32", DDP_TAKES_TEXT, FIELD(export.type)},
    {"--tokenizer", "PATH",
     "gguf: a folder with tokenizer.model, tokenizer.json or vocab.json and merges.txt; "
     "without it tokenizer of the dataset's section, \"\" for none",
     DDP_TAKES_TEXT, FIELD(export.tokenizer)},
    {"--adapter", "DIR", "gguf: writes this adapter, adapter_model.safetensors and adapter_config.json of PEFT",
     DDP_TAKES_TEXT, FIELD(export.adapter)},
    {"--help", NULL, NULL, DDP_TAKES_HELP, .letter = 'h'},
};

const ddp_command cli_export_usage = {
    .name = "export",
    .usage = "usage: ddpengine export torch -c FILE [--checkpoint PATH] DIR\n"
             "       ddpengine export peft -c FILE [--checkpoint PATH] DIR\n"
             "       ddpengine export onnx -c FILE [--checkpoint PATH] FILE\n"
             "       ddpengine export gguf -c FILE [--checkpoint PATH | --adapter DIR]\n"
             "                             [--type TYPE] FILE\n",
    .options = options,
    .option_count = DDP_COUNT(options),
    .footer = "",
    .example = "ddpengine export torch -c run.ini exported",
};

static infer_writer find_writer(const char *format)
{
    if (strcmp(format, "torch") == 0) return infer_export_torch;
    if (strcmp(format, "peft") == 0) return infer_export_peft;
    if (strcmp(format, "gguf") == 0) return infer_export_gguf;
    return strcmp(format, "onnx") == 0 ? infer_export_onnx : NULL;
}

/* -1: go on; else the exit code of a command that is done. */
static int parse(int argc, char **argv, request *q, infer_writer *write)
{
    const char *format = argc > 1 && argv[1][0] != '-' ? argv[1] : NULL;
    int next, code = cli_parse_options(&cli_export_usage, format != NULL ? argc - 1 : argc, argv + (format != NULL), q,
                                       &next);

    if (code >= 0) return code;
    if (format == NULL) return cli_usage_error(&cli_export_usage, "no format: torch, peft, onnx or gguf", "");
    *write = find_writer(format);
    if (*write == NULL)
        return cli_usage_error(&cli_export_usage, "a format is torch, peft, onnx or gguf, not ", format);
    argc--;
    argv++;
    if (*write == infer_export_gguf)
        q->export.check = infer_export_gguf_check;
    else if (q->export.type != NULL || q->export.tokenizer != NULL || q->export.adapter != NULL)
        return cli_usage_error(&cli_export_usage, "--type, --tokenizer and --adapter go with gguf, not ", format);
    if (q->config_path == NULL) return cli_usage_error(&cli_export_usage, "no config file: give -c FILE", "");
    if (next == argc) return cli_usage_error(&cli_export_usage, "no path to write to", "");
    if (next + 1 < argc) return cli_usage_error(&cli_export_usage, "too many arguments: ", argv[next + 1]);
    q->export.path = argv[next];
    return -1;
}

int cli_command_export(int argc, char **argv, ddp_log *log)
{
    /* nothing is computed, so the machine need not have the device that the model was trained on */
    request q = {.overrides = {"train.device=" DDP_DEFAULT_DEVICE}, .override_count = 1};
    ddp_config config = {0};
    infer_writer write = NULL;
    int code = parse(argc, argv, &q, &write);

    if (code >= 0) return code;
    if ((code = cli_load_config(q.config_path, q.overrides, q.override_count, &config, log)) >= 0) return code;
    code = infer_export(&q.export, &config, log, write);
    ddp_config_free(&config);
    return code;
}
