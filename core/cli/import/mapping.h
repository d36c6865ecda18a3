/* cli/import/mapping.h -- what each key of LLaMA-Factory and of transformers' TrainingArguments becomes. */
#pragma once

#include <stddef.h>

typedef enum import_kind {
    IMPORT_TEXT,    /* as it is */
    IMPORT_NUMBER,  /* likewise, if it is a number */
    IMPORT_COUNT,   /* likewise, if it is a whole one; 3.0 is 3 */
    IMPORT_BOOL,    /* yes or no */
    IMPORT_LIST,    /* with commas */
    IMPORT_SPECIAL, /* convert.c */
    IMPORT_NOTHING, /* nothing has to be said here: `why` */
    IMPORT_REFUSED  /* there is no such thing here: `why`, unless it is off */
} import_kind;

typedef struct import_mapping {
    const char *key;
    import_kind kind;
    const char *section, *to, *why;
} import_mapping;

extern const import_mapping import_mappings[];
extern const size_t import_mapping_count;

const import_mapping *import_mapping_of(const char *key); /* NULL: none */
