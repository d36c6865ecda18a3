/* fuzz/targets/import.c -- a YAML of LLaMA-Factory. Input: the length of the YAML, 16 bits; the YAML, to which its
 * model and the folder of dataset_info.json are added; and then dataset_info.json. What comes out is an INI. */
#include "cli/import/convert.h"
#include "fuzz.h"

static void check_ini(const ddp_text *text)
{
    FUZZ_CHECK(!text->failed && text->length > 0);
    for (size_t i = 0; i < text->length; i++)
        FUZZ_CHECK((uint8_t)text->data[i] >= ' ' || text->data[i] == '\n' || text->data[i] == '\t');
}

FUZZ_TARGET(import)
{
    static const char *const names[] = {"dataset_info.json"};
    static const char *folder;
    fuzz_input in = {data, size};
    size_t length = fuzz_u16(&in);
    const uint8_t *text;
    ddp_text yaml = {0}, out = {0};
    import_file file = {0};
    converter c = {.yaml = &file};
    ddp_err err = {0};
    ddp_status status;

    if (folder == NULL) folder = fuzz_folder(1, names, 1);
    length = DDP_MIN_OF(length, in.left);
    text = fuzz_take(&in, length);
    ddp_text_printf(&yaml, "model_name_or_path: m\ndataset_dir: %s\n", folder);
    if (text != NULL) ddp_text_append(&yaml, text, length);
    (void)fuzz_file(1, in.at, in.left, 0);
    status = import_read(fuzz_file(0, yaml.data, yaml.length, 0), &file, &err);
    if (status == DDP_OK) status = convert(&c, &err);
    fuzz_check_error(status, &err);
    if (status == DDP_OK) {
        convert_print(&c, &out);
        check_ini(&out);
    }
    convert_free(&c);
    import_free(&file);
    ddp_text_free(&yaml);
    ddp_text_free(&out);
    return 0;
}
