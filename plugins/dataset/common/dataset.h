/* plugins/dataset/common/dataset.h -- what the datasets of this tree have in common: how one is opened, its length,
 * fields and fingerprint, and the options that several have. Compiled into each of them. */
#pragma once

#include <ddpengine/dataset.h>
#include <stddef.h>

/* The first member of each plugin's struct ddp_dataset. */
typedef struct data_base {
    const char *plugin; /* its name, for messages */
    ddp_field fields[4];
    uint32_t field_count; /* 0: two */
    uint64_t length, fingerprint;
} data_base;

/* A zeroed dataset of `size` bytes that `fill` makes from the configuration; `close` undoes what a failed `fill` has
 * done. */
ddp_status data_open(const char *plugin, size_t size,
                     ddp_status (*fill)(ddp_dataset *d, const void *config, ddp_err *err),
                     void (*close)(ddp_dataset *d), const void *config, ddp_dataset **out, ddp_err *err);
ddp_status data_no_memory(const char *plugin, ddp_err *err);
/* DDP_ERR_INVALID where the dataset has no such sample. */
ddp_status data_check_index(const ddp_dataset *d, uint64_t index, ddp_err *err);

/* Slots of ddp_dataset_ops. */
uint64_t data_length(const ddp_dataset *d);
uint32_t data_fields(const ddp_dataset *d, const ddp_field **out);
uint64_t data_fingerprint(const ddp_dataset *d);
#define DATA_OPS                                                                                                       \
    .struct_size = sizeof(ddp_dataset_ops), .field_size = sizeof(ddp_field), .length = data_length,                    \
    .fields = data_fields, .fingerprint = data_fingerprint

/* "image", u8 (3, side, side), and "label" from 0 to classes - 1 */
void data_describe_images(data_base *b, int64_t side, int64_t classes);
/* What tokens that are bytes look like: "a", "' '", "\\n", "\\xff". */
void data_name_bytes(char names[256][8]);
/* "input" and "target", i64 (context), tokens below `vocabulary` */
void data_describe_tokens(data_base *b, uint64_t context, uint64_t vocabulary);

/* Options; `config` is the type that has them. */
enum { DATA_TRAIN = 0, DATA_TEST };
#define DATA_OPTION_SPLIT(config)                                                                                      \
    {                                                                                                                  \
        .key = "split", .dflt = "train", .range = "train|test", .doc = "Which split to read.", .type = DDP_OPT_ENUM,   \
        .offset = offsetof(config, split)                                                                              \
    }
#define DATA_OPTION_LIMIT(config)                                                                                      \
    {                                                                                                                  \
        .key = "limit", .dflt = "0", .range = "0..",                                                                   \
        .doc = "Use at most this many samples, the first ones of the files; 0 uses all.", .type = DDP_OPT_UINT,        \
        .offset = offsetof(config, limit)                                                                              \
    }
