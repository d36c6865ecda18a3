/* plugins/dataset/csv/config.h -- the options of dataset csv; csv.c has their table. */
#pragma once

#include "common/split.h"

enum { TARGET_AUTO = 0, TARGET_CLASS, TARGET_NUMBER };
enum { DELIMITER_COMMA = 0, DELIMITER_SEMICOLON, DELIMITER_TAB, DELIMITER_PIPE };
enum { MISSING_ERROR = 0, MISSING_MEAN, MISSING_ZERO };

typedef struct csv_config {
    const char *path, *fit, *target, *id;
    ddp_list ignore, categorical, numeric, na_values; /* of const char * */
    int32_t target_type, header, delimiter, missing, indicator, standardize, split, skip_bad;
    uint64_t max_categories;
    double validation;
} csv_config;
