/* fuzz/targets/cifar.c -- the binary files of CIFAR. Input: classes, split and limit, a byte each; for each file the
 * number of records and the bytes beyond them, a byte each; then the labels of all records. */
#define ddp_plugin_desc ddp_plugin_desc_cifar
#include "cifar/cifar.c"
#include "fuzz_dataset.h"

enum { RECORDS_MAX = 70 }; /* more than are read at once */

static void put(unsigned number, size_t labels, fuzz_input *in, size_t records, size_t odd)
{
    size_t record = labels + IMAGE;
    uint8_t *file = calloc(records * record + odd + 1, 1);

    FUZZ_CHECK(file != NULL);
    for (size_t i = 0; i < records; i++)
        for (size_t k = 0; k < labels; k++) file[i * record + k] = fuzz_u8(in);
    (void)fuzz_file(number, file, records * record + odd, 0);
    free(file);
}

FUZZ_TARGET(cifar)
{
    static const char *const names[] = {"data_batch_1.bin", "data_batch_2.bin", "data_batch_3.bin",
                                        "data_batch_4.bin", "data_batch_5.bin", "test_batch.bin"};
    static const char *const names_100[] = {"train.bin", "test.bin"};
    static const char *folder, *folder_100;
    fuzz_input in = {data, size};
    struct config c = {0};
    uint8_t sizes[2 * FILES_MAX];

    if (folder == NULL) folder = fuzz_folder(0, names, FILES_MAX);
    if (folder_100 == NULL) folder_100 = fuzz_folder(0, names_100, 2);
    c.classes = fuzz_u8(&in) % 3;
    c.split = fuzz_u8(&in) % 2;
    c.limit = fuzz_u8(&in);
    c.folder = size == 0 ? "" : c.classes == CLASSES_10 ? folder : folder_100;
    for (size_t i = 0; i < sizeof(sizes); i++) sizes[i] = fuzz_u8(&in);
    for (unsigned i = 0; i < FILES_MAX; i++)
        put(i, c.classes == CLASSES_10 ? 1 : 2, &in, sizes[2 * i] % RECORDS_MAX, sizes[2 * i + 1]);
    fuzz_dataset(&c);
    return 0;
}
