/* plugins/dataset/sft/template.h -- how a conversation is written for a model: a template as conf/templates has it,
 * with the slots of LLaMA-Factory's, and the tokens of a message by it. */
#pragma once

#include "common/tokenizer/tokenizer.h"
#include "row.h"

/* One of a format's slots, each of which is tokenized by itself. */
typedef struct slot {
    enum { SLOT_TEXT = 0, SLOT_BOS, SLOT_EOS, SLOT_TOKEN } kind;
    bytes text; /* or the token's */
    int64_t id; /* of SLOT_TOKEN, after template_bind */
} slot;

typedef struct slots {
    slot *all;
    size_t count, capacity;
    bool given;
} slots;

enum { SLOTS_USER = 0, SLOTS_ASSISTANT, SLOTS_SYSTEM, SLOTS_OBSERVATION, SLOTS_PREFIX, SLOTS };

typedef struct template
{
    slots formats[SLOTS];
    bytes default_system, stop_words; /* stop_words: each with a 0 byte after it */
    bool replace_eos, efficient_eos, system_in_user;
    uint64_t hash;         /* of the file's content */
    int64_t bos, eos, pad; /* after template_bind; bos -1: none */
    bytes text;            /* what is tokenized next */
    const tokenizer *tokenizer;
    tokenizer_scratch *scratch;
}
template;

/* A name of conf/templates, or a path, which has a "/" or ends with ".json". One thread uses a template at a time. */
ddp_status template_open(const char *name, template *t, ddp_err *err);
/* The same of a text; `where` is for messages. */
ddp_status template_read(const char *where, const char *text, size_t size, template *t, ddp_err *err);
/* Looks the tokens up. DDP_ERR_DATA: the tokenizer does not have what the template needs. */
ddp_status template_bind(template *t, const tokenizer *tokenizer, const char *name, ddp_err *err);
/* What is put behind a sample: the tokenizer's token for that, else the end. For a template that is not bound. */
void template_choose_pad(template *t, int64_t eos);
/* Adds the tokens of turn `index` of a conversation, with what the template has before the first one. */
ddp_status template_encode(template *t, const conversation *c, size_t index, numbers *out, ddp_err *err);
/* Adds the tokens of a text and of the end after it, as LLaMA-Factory's stage pt. */
ddp_status template_encode_text(template *t, const char *text, size_t size, numbers *out, ddp_err *err);
void template_close(template *t);
