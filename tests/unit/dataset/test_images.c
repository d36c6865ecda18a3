/* tests/unit/dataset/test_images.c -- files of images, as dataset `folder` reads them: the pixels of Pillow
 * (tests/parity/make/make_images.py), the same whichever part is asked for, and what is wrong with a file. */
#include "support/dataset_util.h"
#include <inttypes.h>
#include <stdlib.h>

#define IMAGES DDP_SRCDIR "/tests/parity/vectors/images"

/* ---- a sink ------------------------------------------------------------------------------------------------------ */
typedef struct want {
    uint32_t scale;
    int64_t top, left, rows, columns; /* rows 0: all */
    int64_t height, width;            /* of the whole image, from the dataset */
    uint32_t scales;
    uint8_t *pixels;
    void *memory[2];
    size_t asked[2]; /* bytes of them */
    int placed;
} want;

static void *give(void *ctx, uint32_t block, size_t bytes, ddp_err *err)
{
    want *w = ctx;

    (void)err;
    assert_true(block < 2);
    w->asked[block] = bytes;
    free(w->memory[block]);
    w->memory[block] = malloc(bytes); /* as large as was asked for, for the address sanitizer */
    return w->memory[block];
}

static ddp_status place(void *ctx, ddp_image *image, ddp_err *err)
{
    want *w = ctx;

    (void)err;
    w->placed++;
    w->height = image->height;
    w->width = image->width;
    w->scales = image->scales;
    image->scale = w->scale;
    image->top = w->top;
    image->left = w->left;
    image->rows = w->rows > 0 ? w->rows : (image->height * w->scale + 7) / 8;
    image->columns = w->rows > 0 ? w->columns : (image->width * w->scale + 7) / 8;
    w->rows = image->rows;
    w->columns = image->columns;
    free(w->pixels);
    w->pixels = image->pixels = malloc((size_t)(image->rows * image->columns) * 3);
    return DDP_OK;
}

static ddp_status read_image(subject *s, const ddp_dataset *d, uint64_t index, want *w, int64_t *label, ddp_err *err)
{
    ddp_image_sink sink = {.struct_size = sizeof(sink), .ctx = w, .memory = give, .place = place};
    ddp_status status;

    w->placed = 0;
    status = s->ops->read_image(d, index, 0, &sink, (void *[2]){NULL, label}, err);
    for (int i = 0; i < 2; i++) {
        free(w->memory[i]);
        w->memory[i] = NULL;
    }
    return status;
}

static void read_ok(subject *s, const ddp_dataset *d, uint64_t index, want *w)
{
    ddp_err err = {0};
    int64_t label = -1;

    if (read_image(s, d, index, w, &label, &err) != DDP_OK) fail_msg("%s", err.msg);
    assert_int_equal(w->placed, 1);
    assert_true(label >= 0);
}

/* ---- a list of files --------------------------------------------------------------------------------------------- */
typedef struct image {
    char name[64];
    int64_t width, height;
    uint64_t plain, upright;
} image;

static size_t load(image *out, size_t room)
{
    FILE *f = fopen(IMAGES "/images.txt", "r");
    size_t n = 0;

    assert_non_null(f);
    while (n < room && fscanf(f, "%63s %" SCNd64 " %" SCNd64 " %" SCNx64 " %" SCNx64, out[n].name, &out[n].width,
                              &out[n].height, &out[n].plain, &out[n].upright) == 5)
        n++;
    (void)fclose(f);
    return n;
}

static subject listed(const image *images, size_t count)
{
    subject s = begin("dataset_folder");
    FILE *f = fopen(path_of("list"), "w");

    assert_non_null(f);
    for (size_t i = 0; i < count; i++) (void)fprintf(f, "%s\t%zu\n", images[i].name, i % 3);
    assert_int_equal(fclose(f), 0);
    config_set(s.plugin, s.config, "list", path_of("list"));
    config_set(s.plugin, s.config, "path", IMAGES);
    return s;
}

static uint64_t fnv(const uint8_t *p, size_t n)
{
    uint64_t h = UINT64_C(0xcbf29ce484222325);

    for (size_t i = 0; i < n; i++) h = (h ^ p[i]) * UINT64_C(0x100000001b3);
    return h;
}

static void test_pixels(void **state)
{
    image images[100];
    size_t count = load(images, 100);
    subject s = listed(images, count);

    (void)state;
    assert_true(count > 40);
    for (int orient = 0; orient < 2; orient++) {
        ddp_dataset *d;

        config_set(s.plugin, s.config, "exif_orientation", orient ? "yes" : "no");
        d = open_ok(&s);
        assert_int_equal(s.ops->length(d), count);
        for (size_t i = 0; i < count; i++) {
            want w = {.scale = 8};
            uint64_t hash;

            read_ok(&s, d, i, &w);
            hash = fnv(w.pixels, (size_t)(w.rows * w.columns) * 3);
            if (orient && (w.height != images[i].height || w.width != images[i].width))
                fail_msg("%s is %" PRId64 " x %" PRId64, images[i].name, w.height, w.width);
            if (hash != (orient ? images[i].upright : images[i].plain))
                fail_msg("%s: other pixels than Pillow's", images[i].name);
            free(w.pixels);
        }
        s.ops->close(d);
    }
    end(&s);
}

/* ---- parts ------------------------------------------------------------------------------------------------------- */
static uint32_t next(uint32_t *seed) { return (*seed = *seed * 1664525u + 1013904223u) >> 8; }

static void compare_part(subject *s, const ddp_dataset *d, uint64_t index, const char *name, const want *whole,
                         uint32_t *seed)
{
    want w = {.scale = whole->scale};

    w.rows = 1 + next(seed) % whole->rows;
    w.columns = 1 + next(seed) % whole->columns;
    w.top = next(seed) % (whole->rows - w.rows + 1);
    w.left = next(seed) % (whole->columns - w.columns + 1);
    read_ok(s, d, index, &w);
    if (strstr(name, ".webp") != NULL) /* the part alone, with a margin; once more where it is turned */
        assert_true(w.asked[1] <= (size_t)((w.rows + 10) * (w.columns + 10) + w.rows * w.columns) * 3);
    for (int64_t y = 0; y < w.rows; y++)
        if (memcmp(w.pixels + y * w.columns * 3, whole->pixels + ((w.top + y) * whole->columns + w.left) * 3,
                   (size_t)w.columns * 3) != 0)
            fail_msg("%s at %u/8: row %" PRId64 " of %" PRId64 ", %" PRId64 " + %" PRId64 " x %" PRId64
                     " differs from the whole image",
                     name, w.scale, y, w.top, w.left, w.rows, w.columns);
    free(w.pixels);
}

static void test_parts(void **state)
{
    image images[100];
    size_t count = load(images, 100);
    subject s = listed(images, count);
    ddp_dataset *d = open_ok(&s);
    uint32_t seed = 7;

    (void)state;
    for (size_t i = 0; i < count; i++) {
        want whole = {.scale = 8};

        read_ok(&s, d, i, &whole);
        for (uint32_t n = 8; n > 0; n--) {
            if (n < 8 && (whole.scales >> n & 1) == 0) continue;
            whole.scale = n;
            whole.rows = 0;
            read_ok(&s, d, i, &whole);
            for (int k = 0; k < 20; k++) compare_part(&s, d, i, images[i].name, &whole, &seed);
        }
        free(whole.pixels);
    }
    s.ops->close(d);
    end(&s);
}

/* ---- broken files ------------------------------------------------------------------------------------------------ */
static size_t load_file(const char *name, unsigned char *out, size_t room)
{
    char path[512];
    FILE *f;
    size_t n;

    (void)snprintf(path, sizeof(path), IMAGES "/%s", name);
    f = fopen(path, "rb");
    assert_non_null(f);
    n = fread(out, 1, room, f);
    assert_true(n < room);
    (void)fclose(f);
    return n;
}

/* One file, as it is in the test's folder. */
static void expect_broken(const char *name, const char *part)
{
    subject s = begin("dataset_folder");
    ddp_err err = {0};
    want w = {.scale = 8};
    char line[100];
    ddp_dataset *d;
    int64_t label;

    (void)snprintf(line, sizeof(line), "%s,0\n", name);
    write_file("one", line, strlen(line));
    config_set(s.plugin, s.config, "list", path_of("one"));
    d = open_ok(&s);
    if (read_image(&s, d, 0, &w, &label, &err) != DDP_ERR_DATA) fail_msg("%s: %s", name, "is not refused");
    expect_parts(&err, name, part);
    s.ops->close(d);
    free(w.pixels);
    config_set(s.plugin, s.config, "skip_bad", "yes");
    expect_error(&s, DDP_ERR_DATA, "broken ones are left out", path_of("one"));
    end(&s);
}

static void test_broken(void **state)
{
    static const char *const names[] = {"odd_420.jpg", "progressive_422.jpg", "cmyk.jpg",      "rgb.png",
                                        "palette.png", "interlaced.png",      "lossless.webp", "odd.webp"};
    static unsigned char data[1 << 16];
    size_t size;

    (void)state;
    for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++) {
        size = load_file(names[i], data, sizeof(data));
        for (size_t k = 1; k < 8; k++) { /* cut in the header, the tables, the pixels */
            write_file(names[i], data, size * k * k / 64);
            expect_broken(names[i], "");
        }
    }
    write_file("a.gif", "GIF89a....", 10);
    expect_broken("a.gif", "is no JPEG, PNG or WebP file, whatever its name says; remove it, or set skip_bad = yes");
    write_file("none.jpg", "", 0);
    expect_broken("none.jpg", "is empty; remove it, or set skip_bad = yes");
    size = load_file("tiny.jpg", data, sizeof(data));
    for (size_t i = 0; i + 9 < size; i++)
        if (data[i] == 0xff && data[i + 1] == 0xc0) memset(data + i + 5, 0xfe, 4);
    write_file("bomb.jpg", data, size);
    expect_broken("bomb.jpg", "has 65278 x 65278 pixels; max_pixels = 89478485");
}

/* ---- folders ----------------------------------------------------------------------------------------------------- */
static void test_folders(void **state)
{
    static const char *const names[] = {"b/2.png", "b/10.PNG", "b/sub/0.png", "b/.hidden.png", "b/text.txt", "B/1.png"};
    static const char *const order[] = {"B/1.png", "b/10.PNG", "b/2.png", "b/sub/0.png"};
    static unsigned char data[1 << 16];
    size_t size = load_file("interlaced_tiny.png", data, sizeof(data));
    subject s = begin("dataset_folder");
    ddp_dataset *d;
    char command[900];

    (void)state;
    (void)snprintf(command, sizeof(command), "mkdir -p '%s/t/b/sub' '%s/t/B' && ln -s none '%s/t/b/0.png'", folder,
                   folder, folder);
    assert_int_equal(system(command), 0);
    for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++) {
        char name[64];

        (void)snprintf(name, sizeof(name), "t/%s", names[i]);
        write_file(name, data, size);
    }
    config_set(s.plugin, s.config, "path", path_of("t"));
    d = open_ok(&s);
    assert_int_equal(s.ops->length(d), 4);
    assert_string_equal(s.ops->class_name(d, 1, 0), "B");
    assert_string_equal(s.ops->class_name(d, 1, 1), "b");
    assert_null(s.ops->class_name(d, 1, 2));
    assert_null(s.ops->class_name(d, 0, 0));
    for (size_t i = 0; i < 4; i++) { /* which file it is, the message says once it has changed */
        char name[64];
        ddp_err err = {0};
        want w = {.scale = 8};
        int64_t label;

        (void)snprintf(name, sizeof(name), "t/%s", order[i]);
        assert_int_equal(read_image(&s, d, i, &w, &label, &err), DDP_OK);
        assert_int_equal(label, i > 0);
        assert_int_equal(truncate(path_of(name), 20), 0);
        assert_int_equal(read_image(&s, d, i, &w, &label, &err), DDP_ERR_DATA);
        expect_parts(&err, order[i], "had ");
        free(w.pixels);
    }
    s.ops->close(d);
    end(&s);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_broken),
        cmocka_unit_test(test_folders),
        cmocka_unit_test(test_pixels),
        cmocka_unit_test(test_parts),
    };

    return cmocka_run_group_tests_name("dataset images", tests, set_up, tear_down);
}
