/* cli/import/mapping.c -- see mapping.h. */
#include "cli/import/mapping.h"
#include <string.h>

#define TEXT(key, section, to)                                                                                         \
    {                                                                                                                  \
        key, IMPORT_TEXT, section, to, NULL                                                                            \
    }
#define NUMBER(key, section, to)                                                                                       \
    {                                                                                                                  \
        key, IMPORT_NUMBER, section, to, NULL                                                                          \
    }
#define COUNT(key, section, to)                                                                                        \
    {                                                                                                                  \
        key, IMPORT_COUNT, section, to, NULL                                                                           \
    }
#define BOOL(key, section, to)                                                                                         \
    {                                                                                                                  \
        key, IMPORT_BOOL, section, to, NULL                                                                            \
    }
#define LIST(key, section, to)                                                                                         \
    {                                                                                                                  \
        key, IMPORT_LIST, section, to, NULL                                                                            \
    }
#define SPECIAL(key)                                                                                                   \
    {                                                                                                                  \
        key, IMPORT_SPECIAL, NULL, NULL, NULL                                                                          \
    }
#define NOTHING(key, why)                                                                                              \
    {                                                                                                                  \
        key, IMPORT_NOTHING, NULL, NULL, why                                                                           \
    }
#define REFUSED(key, why)                                                                                              \
    {                                                                                                                  \
        key, IMPORT_REFUSED, NULL, NULL, why                                                                           \
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
    SPECIAL("model_name_or_path"),
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
    SPECIAL("stage"),
    NOTHING("do_train", always),
    REFUSED("do_eval", "ddpengine eval -c FILE evaluates a checkpoint"),
    REFUSED("do_predict", "ddpengine predict and generate use a checkpoint"),
    REFUSED("predict_with_generate", generation),
    SPECIAL("finetuning_type"),
    SPECIAL("lora_rank"),
    NUMBER("lora_alpha", "lora", "alpha"),
    NUMBER("lora_dropout", "lora", "dropout"),
    SPECIAL("lora_target"),
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
    SPECIAL("dataset"),
    SPECIAL("dataset_dir"),
    SPECIAL("eval_dataset"),
    SPECIAL("template"),
    SPECIAL("cutoff_len"),
    SPECIAL("max_samples"),
    SPECIAL("packing"),
    SPECIAL("neat_packing"),
    SPECIAL("train_on_prompt"),
    SPECIAL("mask_history"),
    SPECIAL("default_system"),
    SPECIAL("preprocessing_batch_size"),
    SPECIAL("val_size"),
    SPECIAL("mix_strategy"),
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
    SPECIAL("output_dir"),
    COUNT("logging_steps", "output", "log_every"),
    SPECIAL("save_steps"),
    SPECIAL("save_strategy"),
    COUNT("save_total_limit", "checkpoint", "keep"),
    NOTHING("plot_loss", "metrics.jsonl has the losses"),
    NOTHING("overwrite_output_dir", "a run that is started again goes on from its newest checkpoint"),
    REFUSED("save_only_model", "a checkpoint has what a run needs to go on"),
    SPECIAL("report_to"),
    NOTHING("logging_dir", "metrics.jsonl is in [output] dir"),
    NOTHING("run_name", "metrics.jsonl is in [output] dir"),
    NOTHING("include_num_input_tokens_seen", "metrics.jsonl counts samples"),
    REFUSED("load_best_model_at_end", "see [checkpoint] keep_best"),
    NOTHING("push_to_hub", hub),
    /* train */
    COUNT("per_device_train_batch_size", "train", "batch_size"),
    COUNT("gradient_accumulation_steps", "train", "accumulate"),
    NUMBER("learning_rate", "optimizer", "lr"),
    SPECIAL("num_train_epochs"),
    SPECIAL("max_steps"),
    SPECIAL("lr_scheduler_type"),
    SPECIAL("warmup_ratio"),
    COUNT("warmup_steps", "optimizer", "warmup_steps"),
    NUMBER("weight_decay", "optimizer", "weight_decay"),
    SPECIAL("adam_beta1"),
    SPECIAL("adam_beta2"),
    NUMBER("adam_epsilon", "optimizer", "eps"),
    SPECIAL("max_grad_norm"),
    SPECIAL("optim"),
    SPECIAL("seed"),
    SPECIAL("bf16"),
    REFUSED("pure_bf16", "[train] precision = bf16 keeps f32 weights"),
    REFUSED("fp16", "half precision is bf16 here: set [train] precision = bf16"),
    NOTHING("ddp_timeout", "see [group] step_timeout"),
    NOTHING("ddp_find_unused_parameters", "a parameter without a gradient ends the run, by its name"),
    SPECIAL("resume_from_checkpoint"),
    REFUSED("deepspeed", sharded),
    REFUSED("fsdp", sharded),
    REFUSED("fsdp_config", sharded),
    REFUSED("label_smoothing_factor", "label smoothing of language models is not supported"),
    REFUSED("group_by_length", "samples have one length"),
    REFUSED("disable_shuffling", "see [sampler] plugin = sequential"),
    REFUSED("torch_compile", "the program is compiled before step 0"),
    /* eval */
    SPECIAL("eval_strategy"),
    SPECIAL("evaluation_strategy"),
    SPECIAL("eval_steps"),
    NOTHING("per_device_eval_batch_size", "an evaluation has the batches of the training"),
    REFUSED("compute_accuracy", "see [eval] metrics"),
    /* merge */
    SPECIAL("export_dir"),
    SPECIAL("export_size"),
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
