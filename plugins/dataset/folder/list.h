/* plugins/dataset/folder/list.h -- images and their labels from a text file: "path<TAB>label" or "path,label", a line
 * for each image. */
#pragma once

#include "common/image/catalog.h"

/* Adds the images of the list; *root is the folder that their names are relative to: `path`, or where that is empty
 * the list's own; free() it. */
ddp_status list_read(catalog *c, const char *list, const char *path, char **root, ddp_err *err);
