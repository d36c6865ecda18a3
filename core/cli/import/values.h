/* cli/import/values.h -- the values of a YAML, and the INI that grows of them. */
#pragma once

#include "cli/import/yaml.h"

typedef enum import_section {
    SECTION_MODEL,
    SECTION_MODEL_LLAMA,
    SECTION_LORA,
    SECTION_DATA,
    SECTION_DATA_SFT,
    SECTION_DATA_SYNTHETIC,
    SECTION_EVAL,
    SECTION_EVAL_SFT,
    SECTION_LOADER,
    SECTION_TRAIN,
    SECTION_OPTIMIZER,
    SECTION_CHECKPOINT,
    SECTION_OUTPUT,
    SECTIONS
} import_section;

typedef struct converter {
    const import_file *yaml;
    ddp_text sections[SECTIONS];
    ddp_text refused; /* a line for each key that is not taken over */
    ddp_text nothing; /* a line for each that has no meaning here */
} converter;

/* One value of a key, NULL: it is not there, or null. */
const char *convert_value(const converter *c, const char *key);
/* The text, or what stands for it in a message if it has a control character. */
const char *convert_shown(const char *text);
ddp_status convert_fail(const converter *c, const import_entry *e, const char *what, ddp_err *err);
/* "key = value", of texts of the program's own. */
void convert_set(converter *c, import_section section, const char *key, const char *value);
/* Likewise a text from outside, which `e` names; one that an INI cannot hold is refused. */
void convert_set_text(converter *c, const import_entry *e, import_section section, const char *key, const char *value);
/* Likewise the whole number that `e` is (check.c), as digits. */
void convert_set_count(converter *c, const import_entry *e, import_section section, const char *key);
/* A line of what is not taken over, once. */
void convert_refuse(converter *c, const import_entry *e, const char *why);
bool convert_is_in(const char *text, const char *const *list); /* one that ends with NULL; no text: no */
bool convert_is_true(const char *text);                        /* NULL: no */
bool convert_is_false(const char *text);
bool convert_is_number(const char *text, double *value);
bool convert_has_control(const char *text);
bool convert_fits_ini(const char *text);  /* as a value of an INI */
bool convert_fits_list(const char *text); /* as one item of a list there; "" does */
