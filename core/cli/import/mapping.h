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

/* What the value of a key has to be; check.c. */
typedef enum import_takes {
    TAKES_ANY,      /* nothing is looked at */
    TAKES_TEXT,     /* one value */
    TAKES_LIST,     /* one or several */
    TAKES_BOOL,     /* as YAML 1.1 */
    TAKES_NUMBER,   /* finite */
    TAKES_FROM_0,   /* likewise, not below 0 */
    TAKES_SHARE,    /* from 0 to 1 */
    TAKES_DECAY,    /* from 0 to below 1 */
    TAKES_INTEGER,  /* whole; 3.0 is 3 */
    TAKES_COUNT,    /* likewise, from 0 on */
    TAKES_POSITIVE, /* likewise, from 1 on */
    TAKES_WHEN,     /* no, steps, epoch */
    TAKES_WHEN_BEST /* likewise, or best */
} import_takes;

typedef struct import_mapping {
    const char *key;
    import_kind kind;
    import_takes takes;
    const char *section, *to, *why;
} import_mapping;

extern const import_mapping import_mappings[];
extern const size_t import_mapping_count;

const import_mapping *import_mapping_of(const char *key); /* NULL: none */
