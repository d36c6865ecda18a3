/* plugins/dataset/folder/walk.h -- the images of a folder with a folder for each class, in the order of torchvision's
 * ImageFolder: by class, then by folder, then by name. */
#pragma once

#include "common/image/catalog.h"

enum { WALK_DEPTH_MAX = 32 };

/* Adds every image below `path` to the catalog. DDP_ERR_DATA: no folder in it, one without an image, one that cannot
 * be read. */
ddp_status walk_classes(catalog *c, const char *path, ddp_err *err);
