/* plugins/dataset/npy/npz.h -- an array in an .npz file, by libzip, unpacked into memory. */
#pragma once

#include "header.h"

typedef struct npz_array {
    npy_header header;
    void *map; /* the elements, header.bytes of them; munmap() them */
} npz_array;

/* MEMBER or MEMBER.npy of the file PATH; `option` names it. No more memory is taken than the header asks for, and the
 * packed bytes can hold. */
ddp_status npz_read(const char *path, const char *option, const char *member, const char *name, npz_array *out,
                    ddp_err *err);
