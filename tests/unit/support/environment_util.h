/* tests/unit/support/environment_util.h -- an environment with a launcher's variables and no others. */
#pragma once

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

extern char **environ;

/* Whoever runs the tests may be under a launcher itself. */
static inline void environment_clean(void)
{
    static const char *const prefixes[] = {
        "RANK=", "WORLD_SIZE=", "LOCAL_RANK=", "LOCAL_WORLD_SIZE=", "MASTER_", "OMPI_",
        "PMI",   "SLURM_",      "MPI_",        "TORCHELASTIC_"};

    for (char **e = environ; *e != NULL;) {
        char name[128];
        size_t i = 0, count = sizeof(prefixes) / sizeof(prefixes[0]);

        while (i < count && strncmp(*e, prefixes[i], strlen(prefixes[i])) != 0) i++;
        if (i == count) {
            e++;
            continue;
        }
        (void)snprintf(name, sizeof(name), "%.*s", (int)strcspn(*e, "="), *e);
        (void)unsetenv(name);
        e = environ;
    }
}

/* "A=1 B=2", separated by one space; '+' in a value stands for a space. */
static inline void environment_set(const char *words)
{
    char copy[1024], *rest = copy;

    environment_clean();
    (void)snprintf(copy, sizeof(copy), "%s", words);
    for (char *word = strtok_r(rest, " ", &rest); word != NULL; word = strtok_r(NULL, " ", &rest)) {
        char *value = strchr(word, '=');

        *value++ = '\0';
        for (char *c = value; *c != '\0'; c++)
            if (*c == '+') *c = ' ';
        (void)setenv(word, value, 1);
    }
}
