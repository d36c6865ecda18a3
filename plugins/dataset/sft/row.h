/* plugins/dataset/sft/row.h -- a row as a conversation: what LLaMA-Factory's converters of the formats alpaca and
 * sharegpt make of it. */
#pragma once

#include "common/tokenizer/buffer.h"
#include <jansson.h>
#include <stdbool.h>

enum { FORMAT_ALPACA = 0, FORMAT_SHAREGPT, FORMAT_MESSAGES, FORMAT_TEXT };
enum {
    COLUMN_PROMPT = 0,
    COLUMN_QUERY,
    COLUMN_RESPONSE,
    COLUMN_HISTORY,
    COLUMN_SYSTEM,
    COLUMN_MESSAGES,
    COLUMN_TOOLS,
    COLUMNS
};
enum { TAG_ROLE = 0, TAG_CONTENT, TAG_USER, TAG_ASSISTANT, TAG_OBSERVATION, TAG_FUNCTION, TAG_SYSTEM, TAGS };
enum { ROLE_USER = 0, ROLE_ASSISTANT, ROLE_OBSERVATION };
enum { ROW_WHY = 200 };

/* Names of keys and of roles; "": there is none. */
typedef struct row_format {
    int32_t format;
    const char *columns[COLUMNS], *tags[TAGS];
} row_format;

typedef struct turn {
    int32_t role;
    const char *text; /* of the row, or of `joined` */
    size_t size;
} turn;

typedef struct conversation {
    const char *system; /* NULL: none */
    size_t system_size;
    turn *turns; /* user and assistant in turn, an even number */
    size_t count, capacity;
    bytes joined; /* prompt and query of alpaca */
} conversation;

/* The defaults of a format, with NAME:KEY of the lists in their place. DDP_ERR_CONFIG: no such NAME. */
ddp_status row_format_set(row_format *f, int32_t format, const ddp_list *columns, const ddp_list *tags, ddp_err *err);
/* Texts live as long as the row. why[0] is not 0: the row cannot be used, and why says so. */
ddp_status row_read(const row_format *f, const json_t *row, conversation *c, char why[ROW_WHY], ddp_err *err);
void conversation_free(conversation *c);
