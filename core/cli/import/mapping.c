/* cli/import/mapping.c -- see mapping.h. */
#include "cli/import/mapping.h"
#include <string.h>

#define TEXT(key, section, to)                                                                                         \
    {                                                                                                                  \
        key, IMPORT_TEXT, TAKES_TEXT, section, to, NULL                                                                \
    }
#define NUMBER(key, section, to)                                                                                       \
    {                                                                                                                  \
        key, IMPORT_NUMBER, TAKES_NUMBER, section, to, NULL                                                            \
    }
#define COUNT(key, section, to)                                                                                        \
    {                                                                                                                  \
        key, IMPORT_COUNT, TAKES_COUNT, section, to, NULL                                                              \
    }
#define BOOL(key, section, to)                                                                                         \
    {                                                                                                                  \
        key, IMPORT_BOOL, TAKES_BOOL, section, to, NULL                                                                \
    }
#define LIST(key, section, to)                                                                                         \
    {                                                                                                                  \
        key, IMPORT_LIST, TAKES_LIST, section, to, NULL                                                                \
    }
#define SPECIAL(key, takes)                                                                                            \
    {                                                                                                                  \
        key, IMPORT_SPECIAL, TAKES_##takes, NULL, NULL, NULL                                                           \
    }
#define NOTHING(key, why)                                                                                              \
    {                                                                                                                  \
        key, IMPORT_NOTHING, TAKES_ANY, NULL, NULL, why                                                                \
    }
#define REFUSED(key, why)                                                                                              \
    {                                                                                                                  \
        key, IMPORT_REFUSED, TAKES_ANY, NULL, NULL, why                                                                \
    }

static const char always[] = "this is always so here";
static const char once[] = "the samples are made once and kept, by the content of the files";
static const char plain[] = "only plain LoRA is supported";
static const char quantised[] = "quantised bases are not supported";
static const char tools[] = "descriptions of tools are not supported";
static const char media[] = "images, sounds and videos are not supported";
static const char sharded[] = "sharding is [ddp] zero = 1 here, which shards the optimiser state";
static const char hub[] = "no hub is used; copy the files and name their folder";
static const char preference[] = "only supervised fine-tuning and pre-training are supported";
static const char generation[] = "ddpengine generate, with options of its own, makes texts";
static const char kernels[] = "the device chooses its kernels itself";

const import_mapping import_mappings[] = {
    /* model */
    SPECIAL("model_name_or_path", TEXT),
    TEXT("adapter_name_or_path", "lora", "init_from"),
    NOTHING("trust_remote_code", "no code of a model is run"),
    NOTHING("use_fast_tokenizer", "there is one tokenizer, with the ids of the fast one"),
    NOTHING("flash_attn", kernels),
    NOTHING("enable_liger_kernel", kernels),
    NOTHING("use_unsloth", kernels),
    NOTHING("upcast_layernorm", "norms are computed in f32"),
    NOTHING("disable_gradient_checkpointing", "see [train] recompute"),
    NOTHING("gradient_checkpointing", "see [train] recompute"),
    REFUSED("quantization_bit", quantised),
    REFUSED("quantization_method", quantised),
    REFUSED("double_quantization", quantised),
    REFUSED("rope_scaling", "the model's config.json says how positions are scaled"),
    REFUSED("shift_attn", "shifted sparse attention is not supported"),
    REFUSED("resize_vocab", "the vocabulary stays that of the model"),
    REFUSED("image_max_pixels", media),
    REFUSED("video_max_pixels", media),
    NOTHING("cache_dir", hub),
    NOTHING("hf_hub_token", hub),
    /* method */
    SPECIAL("stage", TEXT),
    NOTHING("do_train", always),
    REFUSED("do_eval", "ddpengine eval -c FILE evaluates a checkpoint"),
    REFUSED("do_predict", "ddpengine predict and generate use a checkpoint"),
    REFUSED("predict_with_generate", generation),
    SPECIAL("finetuning_type", TEXT),
    SPECIAL("lora_rank", POSITIVE),
    NUMBER("lora_alpha", "lora", "alpha"),
    NUMBER("lora_dropout", "lora", "dropout"),
    SPECIAL("lora_target", LIST),
    LIST("additional_target", "lora", "modules_to_save"),
    BOOL("use_rslora", "lora", "rslora"),
    NUMBER("loraplus_lr_ratio", "lora", "plus_ratio"),
    REFUSED("use_dora", plain),
    REFUSED("pissa_init", plain),
    REFUSED("create_new_adapter", "one adapter at a time is supported"),
    REFUSED("use_galore", "this optimiser is not supported"),
    REFUSED("use_badam", "this optimiser is not supported"),
    REFUSED("use_apollo", "this optimiser is not supported"),
    REFUSED("use_muon", "this optimiser is not supported"),
    REFUSED("neftune_noise_alpha", "noise on embeddings is not supported"),
    REFUSED("pref_beta", preference),
    REFUSED("pref_loss", preference),
    REFUSED("reward_model", preference),
    /* dataset */
    SPECIAL("dataset", LIST),
    SPECIAL("dataset_dir", TEXT),
    SPECIAL("eval_dataset", LIST),
    SPECIAL("template", TEXT),
    SPECIAL("cutoff_len", POSITIVE),
    SPECIAL("max_samples", POSITIVE),
    SPECIAL("packing", BOOL),
    SPECIAL("neat_packing", BOOL),
    SPECIAL("train_on_prompt", BOOL),
    SPECIAL("mask_history", BOOL),
    SPECIAL("default_system", TEXT),
    SPECIAL("preprocessing_batch_size", POSITIVE),
    SPECIAL("val_size", FROM_0),
    SPECIAL("mix_strategy", TEXT),
    NOTHING("overwrite_cache", once),
    NOTHING("preprocessing_num_workers", once),
    NOTHING("tokenized_path", once),
    COUNT("dataloader_num_workers", "loader", "workers"),
    REFUSED("tool_format", tools),
    REFUSED("streaming", "the files are read once and then by position"),
    REFUSED("enable_thinking", "templates with thoughts are not supported"),
    REFUSED("media_dir", media),
    NOTHING("ignore_pad_token_for_loss", always),
    /* output */
    SPECIAL("output_dir", TEXT),
    COUNT("logging_steps", "output", "log_every"),
    SPECIAL("save_steps", COUNT),
    SPECIAL("save_strategy", WHEN_BEST),
    COUNT("save_total_limit", "checkpoint", "keep"),
    NOTHING("plot_loss", "metrics.jsonl has the losses"),
    NOTHING("overwrite_output_dir", "a run that is started again goes on from its newest checkpoint"),
    REFUSED("save_only_model", "a checkpoint has what a run needs to go on"),
    SPECIAL("report_to", LIST),
    NOTHING("logging_dir", "metrics.jsonl is in [output] dir"),
    NOTHING("run_name", "metrics.jsonl is in [output] dir"),
    NOTHING("include_num_input_tokens_seen", "metrics.jsonl counts samples"),
    REFUSED("load_best_model_at_end", "see [checkpoint] keep_best"),
    NOTHING("push_to_hub", hub),
    /* train */
    COUNT("per_device_train_batch_size", "train", "batch_size"),
    COUNT("gradient_accumulation_steps", "train", "accumulate"),
    NUMBER("learning_rate", "optimizer", "lr"),
    SPECIAL("num_train_epochs", FROM_0),
    SPECIAL("max_steps", INTEGER),
    SPECIAL("lr_scheduler_type", TEXT),
    SPECIAL("warmup_ratio", SHARE),
    COUNT("warmup_steps", "optimizer", "warmup_steps"),
    NUMBER("weight_decay", "optimizer", "weight_decay"),
    SPECIAL("adam_beta1", DECAY),
    SPECIAL("adam_beta2", DECAY),
    NUMBER("adam_epsilon", "optimizer", "eps"),
    SPECIAL("max_grad_norm", NUMBER),
    SPECIAL("optim", TEXT),
    SPECIAL("seed", COUNT),
    SPECIAL("bf16", BOOL),
    REFUSED("pure_bf16", "[train] precision = bf16 keeps f32 weights"),
    REFUSED("fp16", "half precision is bf16 here: set [train] precision = bf16"),
    NOTHING("ddp_timeout", "see [group] step_timeout"),
    NOTHING("ddp_find_unused_parameters", "a parameter without a gradient ends the run, by its name"),
    SPECIAL("resume_from_checkpoint", TEXT),
    REFUSED("deepspeed", sharded),
    REFUSED("fsdp", sharded),
    REFUSED("fsdp_config", sharded),
    REFUSED("label_smoothing_factor", "label smoothing of language models is not supported"),
    REFUSED("group_by_length", "samples have one length"),
    REFUSED("disable_shuffling", "see [sampler] plugin = sequential"),
    REFUSED("torch_compile", "the program is compiled before step 0"),
    /* eval */
    SPECIAL("eval_strategy", WHEN),
    SPECIAL("evaluation_strategy", WHEN),
    SPECIAL("eval_steps", FROM_0),
    NOTHING("per_device_eval_batch_size", "an evaluation has the batches of the training"),
    REFUSED("compute_accuracy", "see [eval] metrics"),
    /* merge */
    SPECIAL("export_dir", TEXT),
    SPECIAL("export_size", POSITIVE),
    NOTHING("export_device", "a merge needs no device"),
    NOTHING("export_legacy_format", "safetensors are written"),
    REFUSED("export_quantization_bit", quantised),
    REFUSED("export_quantization_dataset", quantised),
    NOTHING("export_hub_model_id", hub),
    /* inference */
    NOTHING("infer_backend", generation),
    NOTHING("infer_dtype", generation),
};

const size_t import_mapping_count = sizeof(import_mappings) / sizeof(*import_mappings);

const import_mapping *import_mapping_of(const char *key)
{
    for (size_t i = 0; i < import_mapping_count; i++)
        if (strcmp(import_mappings[i].key, key) == 0) return &import_mappings[i];
    return NULL;
}
