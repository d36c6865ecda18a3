/* config/sections_lora.c -- the table of [lora]; see sections.c. */
#include "config/sections.h"

#define L DDP_OPT_F_LIST

#define AT(field) offsetof(struct ddp_lora_config, field)
const ddp_option config_lora_options[CONFIG_LORA_OPTIONS] = {
    {"rank", "0", "0..4096", "Rank of the adapters that are trained in place of the model, PEFT's r. 0: no adapters.",
     DDP_OPT_INT, 0, AT(rank)},
    {"alpha", "0", "0..", "An adapter's result is multiplied by alpha / rank, PEFT's lora_alpha. 0: twice the rank.",
     DDP_OPT_FLOAT, 0, AT(alpha)},
    {"dropout", "0", "0..1", "Dropout probability of what the adapters read, below 1, PEFT's lora_dropout.",
     DDP_OPT_FLOAT, 0, AT(dropout)},
    {"target", "all-linear", NULL,
     "Linear layers that get an adapter, by their names or the ends of these, as in q_proj, v_proj or h.0.*; "
     "* matches any text. all-linear: all but the output layer.",
     DDP_OPT_STRING, L, AT(target)},
    {"rslora", "no", NULL, "Multiplies by alpha / sqrt(rank) instead, PEFT's use_rslora.", DDP_OPT_BOOL, 0, AT(rslora)},
    {"plus_ratio", "1", "0..",
     "LoRA+: the learning rate of B is so many times that of A, above 0, PEFT's loraplus_lr_ratio.", DDP_OPT_FLOAT, 0,
     AT(plus_ratio)},
    {"modules_to_save", "", NULL,
     "Layers that are trained whole beside the adapters, and saved with them, by name as in target.", DDP_OPT_STRING, L,
     AT(modules_to_save)},
    {"init_from", "", NULL,
     "Folder with PEFT's adapter_model.safetensors, or such a file, for a run that starts from scratch. "
     "Rank 0 reads it.",
     DDP_OPT_PATH, 0, AT(init_from)},
};
