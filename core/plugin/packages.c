/* plugin/packages.c -- which package of the system has a plugin that is not there. Who makes packages puts a text file
 * "packages" into the folder of the plugins, with a line "backend_NAME.so PACKAGE" for each that is in a package of its
 * own; without the file nothing is said. */
#include "plugin/internal.h"
#include <string.h>
#include <unistd.h>

enum { LINES_MOST = 1000, NAME_MOST = 200 };

/* The next "FILE PACKAGE"; false at the end. */
static bool next_row(FILE *f, char file[NAME_MOST], char package[NAME_MOST])
{
    char line[2 * NAME_MOST];

    while (fgets(line, sizeof(line), f) != NULL)
        if (sscanf(line, "%199s %199s", file, package) == 2 && strchr(file, '/') == NULL) return true;
    return false;
}

void plugin_packages_find(const ddp_search *s, uint32_t kind, const char *name, ddp_text *out)
{
    char path[PATH_MAX], wanted[NAME_MAX + 1] = "", file[NAME_MOST], package[NAME_MOST], is[NAME_MOST];

    if (name != NULL) plugin_search_file_name(kind, name, wanted, sizeof(wanted));
    for (size_t i = 0; i < s->count; i++) {
        uint32_t is_kind;
        FILE *f;

        (void)snprintf(path, sizeof(path), "%s/packages", s->items[i].path);
        f = fopen(path, "re");
        for (int lines = 0; f != NULL && lines < LINES_MOST && next_row(f, file, package); lines++) {
            if (!plugin_search_parse(file, &is_kind, is, sizeof(is)) || is_kind != kind) continue;
            if (name != NULL && strcmp(file, wanted) != 0) continue;
            (void)snprintf(path, sizeof(path), "%s/%s", s->items[i].path, file);
            if (access(path, F_OK) != 0) ddp_text_printf(out, "%s%s", out->length > 0 ? ", " : "", package);
        }
        if (f != NULL) (void)fclose(f);
    }
}
