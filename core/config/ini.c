/* config/ini.c -- files, includes and overrides: which value of a key is effective, and where it was written. The
 * syntax of a file is reader.c's; what a key means is options.c's. */
#include "config/private.h"
#include "base/sys.h"
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

ddp_ini_item *config_ini_item_find(const ddp_ini *ini, const char *section, const char *key)
{
    for (ddp_ini_item *i = ini->items; i != NULL; i = i->next)
        if (strcmp(i->entry.key, key) == 0 && strcmp(i->entry.section, section) == 0) return i;
    return NULL;
}

const ddp_ini_entry *ddp_ini_next(const ddp_ini *ini, const ddp_ini_entry *before)
{
    const ddp_ini_item *item =
        before == NULL ? ini->items : ((const ddp_ini_item *)before)->next; /* its first member */

    return item == NULL ? NULL : &item->entry;
}

const ddp_ini_entry *config_ini_find(const ddp_ini *ini, const char *section, const char *key)
{
    const ddp_ini_item *item = config_ini_item_find(ini, section, key);

    return item != NULL ? &item->entry : NULL;
}

static const ddp_ini_section *find_section(const ddp_ini *ini, const char *name)
{
    for (const ddp_ini_section *s = ini->sections; s != NULL; s = s->next)
        if (strcmp(s->name, name) == 0) return s;
    return NULL;
}

const char *ddp_ini_section_where(const ddp_ini *ini, const char *section)
{
    const ddp_ini_section *s = find_section(ini, section);

    return s != NULL ? s->where : NULL;
}

ddp_status config_ini_put_section(ddp_ini *ini, const char *name, const char *where, ddp_err *err)
{
    ddp_ini_section *s;

    if (find_section(ini, name) != NULL) return DDP_OK;
    if (ini->section_count == DDP_INI_SECTIONS_MAX)
        return ddp_fail(err, DDP_ERR_CONFIG, "%s: more than %d sections", where, DDP_INI_SECTIONS_MAX);
    s = ddp_pool_alloc(&ini->pool, sizeof(*s), err);
    if (s == NULL) return err->status;
    s->name = ddp_pool_strdup(&ini->pool, name, err);
    s->where = ddp_pool_strdup(&ini->pool, where, err);
    if (s->name == NULL || s->where == NULL) return err->status;
    *ini->sections_end = s;
    ini->sections_end = &s->next;
    ini->section_count++;
    return DDP_OK;
}

static ddp_ini_item *new_item(ddp_ini *ini, const ddp_ini_entry *e, ddp_err *err)
{
    ddp_ini_item *item;

    if (ini->item_count == DDP_INI_ENTRIES_MAX) {
        (void)ddp_fail(err, DDP_ERR_CONFIG, "%s: more than %d keys", e->where, DDP_INI_ENTRIES_MAX);
        return NULL;
    }
    item = ddp_pool_alloc(&ini->pool, sizeof(*item), err);
    if (item == NULL) return NULL;
    item->entry.section = ddp_pool_strdup(&ini->pool, e->section, err);
    item->entry.key = ddp_pool_strdup(&ini->pool, e->key, err);
    return item->entry.section != NULL && item->entry.key != NULL ? item : NULL;
}

ddp_status config_ini_put(ddp_ini *ini, const ddp_ini_item *given, ddp_err *err)
{
    const ddp_ini_entry *e = &given->entry;
    ddp_ini_item *item = config_ini_item_find(ini, e->section, e->key);
    const char *value = ddp_pool_strdup(&ini->pool, e->value, err), *where, *continued = NULL;
    bool added = item == NULL;

    if (value == NULL) return err->status;
    where = ddp_pool_strdup(&ini->pool, e->where, err);
    if (where == NULL) return err->status;
    if (given->continued != NULL) {
        continued = ddp_pool_strdup(&ini->pool, given->continued, err);
        if (continued == NULL) return err->status;
    }
    if (added) item = new_item(ini, e, err);
    if (item == NULL) return err->status;
    item->entry.value = value;
    item->entry.where = where;
    item->continued = continued;
    item->file = given->file;
    if (!added) return DDP_OK;
    *ini->items_end = item;
    ini->items_end = &item->next;
    ini->item_count++;
    return DDP_OK;
}

/* ---- files ------------------------------------------------------------------------------------------------------- */
static void print_chain(const ddp_ini_file *file, ddp_text *out)
{
    if (file->parent != NULL) print_chain(file->parent, out);
    ddp_text_printf(out, "%s -> ", file->path);
}

static ddp_status check_chain(const ddp_ini_file *file, const char *where, ddp_err *err)
{
    ddp_text chain = {0};

    if (file->depth > DDP_INI_DEPTH_MAX)
        return ddp_fail(err, DDP_ERR_CONFIG, "%s: includes are nested deeper than %d", where, DDP_INI_DEPTH_MAX);
    for (const ddp_ini_file *f = file->parent; f != NULL; f = f->parent) {
        if (f->device != file->device || f->inode != file->inode) continue;
        print_chain(file->parent, &chain);
        (void)ddp_fail(err, DDP_ERR_CONFIG, "%s: the include makes a loop: %s%s", where,
                       chain.data != NULL ? chain.data : "", file->path);
        ddp_text_free(&chain);
        return err->status;
    }
    return DDP_OK;
}

static ddp_status missing(const char *path, const char *where, ddp_err *err)
{
    if (where == NULL)
        return ddp_fail(err, DDP_ERR_CONFIG,
                        "%s: no such file; give the path of an INI file, absolute or relative to the current directory",
                        path);
    return ddp_fail(err, DDP_ERR_CONFIG,
                    "%s: include: %s: no such file; a relative name is looked for beside the file that includes it",
                    where, path);
}

static ddp_status read_file(ddp_ini *ini, ddp_ini_file *file, const char *where, ddp_err *err)
{
    struct stat st;
    char *text;
    size_t length;
    ddp_status status;

    if (stat(file->path, &st) == 0) {
        file->device = (uint64_t)st.st_dev;
        file->inode = (uint64_t)st.st_ino;
        if (where != NULL) DDP_TRY(check_chain(file, where, err));
        if (where != NULL && !S_ISREG(st.st_mode)) /* a pipe of nobody would be waited for without end */
            return ddp_fail(err, DDP_ERR_CONFIG, "%s: include: %s: not a regular file; name an INI file", where,
                            file->path);
    } else if (errno == ENOENT) {
        return missing(file->path, where, err);
    }
    status = ddp_file_read(file->path, DDP_INI_FILE_MAX, &text, &length, err);
    if (status != DDP_OK) {
        if (where != NULL) (void)ddp_fail_context(err, "%s: include", where);
        return err->status = status == DDP_ERR_NOMEM ? status : DDP_ERR_CONFIG;
    }
    file->index = ++ini->file_count;
    status = config_ini_read_text(ini, file, text, length, err);
    free(text);
    return status;
}

ddp_status config_ini_include(ddp_ini *ini, const ddp_ini_file *from, const char *name, const char *where, ddp_err *err)
{
    const char *slash = strrchr(from->path, '/');
    int folder = name[0] != '/' && slash != NULL ? (int)(slash - from->path) + 1 : 0;
    ddp_ini_file file = {.depth = from->depth + 1, .parent = from};

    if (name[0] == '\0') return ddp_fail(err, DDP_ERR_CONFIG, "%s: include names no file", where);
    file.path = ddp_pool_printf(&ini->pool, err, "%.*s%s", folder, from->path, name);
    if (file.path == NULL) return err->status;
    return read_file(ini, &file, where, err);
}

ddp_status ddp_ini_load(const char *path, ddp_ini **out, ddp_err *err)
{
    ddp_ini *ini = ddp_alloc(sizeof(*ini), err);
    ddp_ini_file file = {0};

    if (ini == NULL) return err->status;
    ini->items_end = &ini->items;
    ini->sections_end = &ini->sections;
    ini->path = file.path = ddp_pool_strdup(&ini->pool, path, err);
    if (ini->path == NULL || read_file(ini, &file, NULL, err) != DDP_OK) {
        ddp_ini_free(ini);
        return err->status;
    }
    *out = ini;
    return DDP_OK;
}

void ddp_ini_free(ddp_ini *ini)
{
    if (ini == NULL) return;
    ddp_pool_free(&ini->pool);
    free(ini);
}

/* ---- overrides --------------------------------------------------------------------------------------------------- */
static char *trim(char *text)
{
    size_t length = strlen(text);

    while (length > 0 && text[length - 1] == ' ') text[--length] = '\0';
    return text + strspn(text, " ");
}

/* What a line of a file could not hold is refused, so that the effective values can always be printed as a file. */
static ddp_status check_override(const char *assignment, const char *section, const char *key, const char *value,
                                 ddp_err *err)
{
    if (section[0] == '\0' || key[0] == '\0')
        return ddp_fail(err, DDP_ERR_CONFIG, "--set %.200s: expected section.key=value", assignment);
    if (strlen(section) > DDP_INI_NAME_MAX || strlen(key) > DDP_INI_NAME_MAX)
        return ddp_fail(err, DDP_ERR_CONFIG, "--set %.200s: a section or key has at most %d bytes", assignment,
                        DDP_INI_NAME_MAX);
    if (value[0] == ';' || strstr(value, " ;") != NULL)
        return ddp_fail(err, DDP_ERR_CONFIG, "--set %.200s: \" ;\" begins a comment, a value cannot hold it",
                        assignment);
    return DDP_OK;
}

ddp_status ddp_ini_set(ddp_ini *ini, const char *assignment, ddp_err *err)
{
    const char *equals = strchr(assignment, '=');
    char *copy, *section, *key = NULL, *value;
    ddp_ini_item item = {.entry = {.where = "--set"}};
    ddp_status status;

    if (strlen(assignment) > DDP_INI_LINE_MAX)
        return ddp_fail(err, DDP_ERR_CONFIG, "--set %.40s...: longer than %d bytes", assignment, DDP_INI_LINE_MAX);
    for (const char *c = assignment; *c != '\0'; c++)
        if (((unsigned char)*c < 0x20 && *c != '\t') || *c == 0x7f)
            return ddp_fail(err, DDP_ERR_CONFIG, "--set %.*s...: control character 0x%02x", (int)(c - assignment),
                            assignment, (unsigned)(unsigned char)*c);
    if (equals != NULL) key = memrchr(assignment, '.', (size_t)(equals - assignment));
    if (key == NULL) return ddp_fail(err, DDP_ERR_CONFIG, "--set %.200s: expected section.key=value", assignment);
    copy = ddp_pool_strdup(&ini->pool, assignment, err);
    if (copy == NULL) return err->status;
    for (char *c = copy; *c != '\0'; c++)
        if (*c == '\t') *c = ' '; /* as in files */
    copy[key - assignment] = copy[equals - assignment] = '\0';
    section = trim(copy);
    key = trim(copy + (key - assignment) + 1);
    value = trim(copy + (equals - assignment) + 1);
    status = check_override(assignment, section, key, value, err);
    if (status != DDP_OK) return status;
    item.entry.section = section;
    item.entry.key = key;
    item.entry.value = value;
    DDP_TRY(config_ini_put_section(ini, section, "--set", err));
    return config_ini_put(ini, &item, err);
}
