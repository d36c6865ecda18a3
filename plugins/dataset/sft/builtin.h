/* plugins/dataset/sft/builtin.h -- the templates of conf/templates, as builtin.sh has made C of them. */
#pragma once

typedef struct builtin_template {
    const char *name;
    const unsigned char *text;
    unsigned long size;
} builtin_template;

extern const builtin_template builtin_templates[];
extern const unsigned long builtin_count;
extern const char builtin_names[]; /* all, with commas between them */
