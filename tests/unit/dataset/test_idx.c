/* tests/unit/dataset/test_idx.c -- dataset `idx`: good files plain and gzip, every kind of damage with its message,
 * and the bits of the normalisation against PyTorch (tests/parity/vectors/normalize.txt). */
#include "support/data_util.h"
#include <ddpengine/dataset.h>
#include <errno.h>
#include <stdbool.h>
#include <sys/stat.h>
#include <unistd.h>
#include <zlib.h>

enum { SAMPLES = 5, ROWS = 3, COLS = 2, PIXELS = ROWS * COLS };

static const ddp_plugin *plugin;
static const ddp_dataset_ops *ops;
static char folder[256], images_path[300], labels_path[300];

/* A file in the making; the tests spoil it before it is written. */
typedef struct bytes {
    unsigned char data[4096];
    size_t size;
} bytes;

static void put32(bytes *b, uint32_t v)
{
    for (int shift = 24; shift >= 0; shift -= 8) b->data[b->size++] = (unsigned char)(v >> shift);
}

static bytes good_images(void)
{
    bytes b = {.size = 0};

    put32(&b, 0x0803);
    put32(&b, SAMPLES);
    put32(&b, ROWS);
    put32(&b, COLS);
    for (unsigned i = 0; i < SAMPLES * PIXELS; i++) b.data[b.size++] = (unsigned char)(i * 37);
    return b;
}

static bytes good_labels(void)
{
    bytes b = {.size = 0};

    put32(&b, 0x0801);
    put32(&b, SAMPLES);
    for (unsigned i = 0; i < SAMPLES; i++) b.data[b.size++] = (unsigned char)(3 + i % 4);
    return b;
}

static bytes gzip(bytes in)
{
    bytes out = {.size = 0};
    z_stream z = {.next_in = in.data, .avail_in = (uInt)in.size, .next_out = out.data, .avail_out = sizeof(out.data)};

    assert_int_equal(deflateInit2(&z, 9, Z_DEFLATED, 16 + MAX_WBITS, 8, Z_DEFAULT_STRATEGY), Z_OK);
    assert_int_equal(deflate(&z, Z_FINISH), Z_STREAM_END);
    out.size = z.total_out;
    deflateEnd(&z);
    return out;
}

static void write_file(const char *path, const bytes *b)
{
    FILE *f = fopen(path, "wb");

    assert_non_null(f);
    assert_int_equal(fwrite(b->data, 1, b->size, f), b->size);
    assert_int_equal(fclose(f), 0);
}

static void write_both(bytes images, bytes labels)
{
    write_file(images_path, &images);
    write_file(labels_path, &labels);
}

static int set_up(void **state)
{
    const char *tmp = getenv("TMPDIR");

    (void)state;
    plugin = plugin_open("dataset_idx");
    ops = plugin->ops;
    (void)snprintf(folder, sizeof(folder), "%s/ddp-idx-XXXXXX", tmp != NULL ? tmp : "/tmp");
    if (mkdtemp(folder) == NULL) return -1;
    (void)snprintf(images_path, sizeof(images_path), "%s/images", folder);
    (void)snprintf(labels_path, sizeof(labels_path), "%s/labels", folder);
    return 0;
}

static int tear_down(void **state)
{
    (void)state;
    unlink(images_path);
    unlink(labels_path);
    return rmdir(folder);
}

static ddp_status try_open(void *config, ddp_dataset **out, ddp_err *err)
{
    memset(err, 0, sizeof(*err));
    *out = NULL;
    return ops->open(NULL, config, out, err);
}

static void *own_config(void)
{
    void *config = config_new(plugin);

    config_set(plugin, config, "images", images_path);
    config_set(plugin, config, "labels", labels_path);
    return config;
}

static ddp_dataset *open_ok(void *config)
{
    ddp_dataset *d;
    ddp_err err;

    if (try_open(config, &d, &err) != DDP_OK) fail_msg("%s", err.msg);
    return d;
}

/* Opens the two files as they are; the message must hold both parts. */
static void expect_damage(const char *part, const char *other)
{
    void *config = own_config();
    ddp_dataset *d;
    ddp_err err;

    assert_int_equal(try_open(config, &d, &err), DDP_ERR_DATA);
    assert_null(d);
    if (strstr(err.msg, part) == NULL) fail_msg("\"%s\" lacks \"%s\"", err.msg, part);
    if (strstr(err.msg, other) == NULL) fail_msg("\"%s\" lacks \"%s\"", err.msg, other);
    assert_null(strchr(err.msg, '\n'));
    config_free(plugin, config);
}

static void expect_bad_images(bytes images, const char *part)
{
    write_both(images, good_labels());
    expect_damage(images_path, part);
}

/* ---- good files -------------------------------------------------------------------------------------------------- */
static void check_good(const ddp_dataset *d)
{
    const ddp_field *f;

    assert_int_equal(ops->length(d), SAMPLES);
    assert_int_equal(ops->fields(d, &f), 2);
    assert_string_equal(f[0].name, "image");
    assert_int_equal(f[0].dtype, DDP_F32);
    assert_int_equal(f[0].rank, 3);
    assert_int_equal(f[0].dims[0], 1);
    assert_int_equal(f[0].dims[1], ROWS);
    assert_int_equal(f[0].dims[2], COLS);
    assert_string_equal(f[1].name, "label");
    assert_int_equal(f[1].dtype, DDP_I64);
    assert_int_equal(f[1].rank, 0);
    assert_int_equal(f[1].min, 3);
    assert_int_equal(f[1].max, 6);
    for (unsigned i = 0; i < SAMPLES; i++) {
        float image[PIXELS];
        int64_t label = -1;
        void *buffers[2] = {image, &label};
        ddp_err err = {0};

        assert_int_equal(ops->read(d, i, 0, buffers, &err), DDP_OK);
        for (unsigned k = 0; k < PIXELS; k++) assert_true(image[k] == (float)((i * PIXELS + k) * 37 % 256) / 255.0f);
        assert_int_equal(label, 3 + i % 4);
    }
}

static void test_good(void **state)
{
    void *config = own_config();
    ddp_dataset *plain, *zipped;

    (void)state;
    write_both(good_images(), good_labels());
    plain = open_ok(config);
    check_good(plain);
    write_both(gzip(good_images()), gzip(good_labels())); /* told by content: the names have no .gz */
    zipped = open_ok(config);
    check_good(zipped);
    assert_true(ops->fingerprint(plain) == ops->fingerprint(zipped));
    ops->close(plain);
    ops->close(zipped);
    config_free(plugin, config);
}

/* The name that is there is taken, with .gz or without. */
static void test_other_name(void **state)
{
    void *config = own_config();
    char path[310];
    bytes images = good_images();

    (void)state;
    write_both(good_images(), good_labels());
    (void)snprintf(path, sizeof(path), "%s.gz", images_path);
    config_set(plugin, config, "images", path);
    ops->close(open_ok(config));
    assert_int_equal(unlink(images_path), 0);
    write_file(path, &images);
    config_set(plugin, config, "images", images_path);
    ops->close(open_ok(config));
    assert_int_equal(unlink(path), 0);
    config_free(plugin, config);
}

static void test_fingerprint(void **state)
{
    void *config = own_config();
    bytes images = good_images();
    ddp_dataset *d;
    uint64_t seen[5];

    (void)state;
    write_both(images, good_labels());
    for (int i = 0; i < 5; i++) {
        if (i == 1) config_set(plugin, config, "mean", "0.5");
        if (i == 2) config_set(plugin, config, "std", "0.25");
        if (i == 3) config_set(plugin, config, "limit", "4");
        if (i == 4) {
            images.data[16] ^= 1;
            write_both(images, good_labels());
        }
        d = open_ok(config);
        seen[i] = ops->fingerprint(d);
        for (int k = 0; k < i; k++) assert_true(seen[k] != seen[i]);
        ops->close(d);
    }
    config_free(plugin, config);
}

static void test_limit(void **state)
{
    void *config = own_config();
    ddp_dataset *d;
    float image[PIXELS];
    int64_t label;
    void *buffers[2] = {image, &label};
    const ddp_field *f;
    ddp_err err;

    (void)state;
    for (int zipped = 0; zipped < 2; zipped++) {
        if (zipped)
            write_both(gzip(good_images()), gzip(good_labels()));
        else
            write_both(good_images(), good_labels());
        config_set(plugin, config, "limit", "2");
        d = open_ok(config);
        assert_int_equal(ops->length(d), 2);
        ops->fields(d, &f);
        assert_int_equal(f[1].max, 4);
        assert_int_equal(ops->read(d, 1, 0, buffers, &err), DDP_OK);
        assert_int_equal(ops->read(d, 2, 0, buffers, &err), DDP_ERR_INVALID);
        assert_non_null(strstr(err.msg, "no sample 2 of 2"));
        ops->close(d);
        config_set(plugin, config, "limit", "1000000");
        d = open_ok(config);
        assert_int_equal(ops->length(d), SAMPLES);
        ops->close(d);
    }
    config_free(plugin, config);
}

/* ---- normalisation ----------------------------------------------------------------------------------------------- */
/* One image of all 256 bytes. */
static void check_normalize(const char *line)
{
    void *config = own_config();
    bytes images = {.size = 0}, labels = {.size = 0};
    char mean[64], std[64], hash[32];
    float result[256];
    int64_t label;
    void *buffers[2] = {result, &label};
    int at;
    ddp_dataset *d;
    ddp_err err;

    put32(&images, 0x0803);
    put32(&images, 1);
    put32(&images, 16);
    put32(&images, 16);
    for (unsigned i = 0; i < 256; i++) images.data[images.size++] = (unsigned char)i;
    put32(&labels, 0x0801);
    put32(&labels, 1);
    labels.data[labels.size++] = 0;
    write_both(images, labels);

    assert_int_equal(sscanf(line, "%63s %63s : %31s : %n", mean, std, hash, &at), 3);
    config_set(plugin, config, "mean", mean);
    config_set(plugin, config, "std", std);
    d = open_ok(config);
    assert_int_equal(ops->read(d, 0, 0, buffers, &err), DDP_OK);
    for (int i = 0; i < 256; i++) {
        uint32_t expected, got;
        int used;

        assert_int_equal(sscanf(line + at, "%x%n", &expected, &used), 1);
        at += used;
        memcpy(&got, &result[i], sizeof(got));
        if (got != expected) fail_msg("byte %d, mean %s, std %s: %08x, not %08x", i, mean, std, got, expected);
    }
    ops->close(d);
    config_free(plugin, config);
}

static void test_normalize(void **state)
{
    (void)state;
    assert_true(each_vector("normalize.txt", check_normalize) >= 6);
}

static void test_bad_normalize(void **state)
{
    static const char *const pairs[][2] = {{"0", "0"}, {"nan", "1"}, {"0", "inf"}, {"1e300", "1"}};
    void *config = own_config();
    ddp_dataset *d;
    ddp_err err;

    (void)state;
    write_both(good_images(), good_labels());
    for (size_t i = 0; i < sizeof(pairs) / sizeof(pairs[0]); i++) {
        config_set(plugin, config, "mean", pairs[i][0]);
        config_set(plugin, config, "std", pairs[i][1]);
        assert_int_equal(try_open(config, &d, &err), DDP_ERR_CONFIG);
        assert_non_null(strstr(err.msg, "cannot be normalised"));
    }
    config_free(plugin, config);
}

/* ---- damage ------------------------------------------------------------------------------------------------------ */
static void test_absent(void **state)
{
    void *config = own_config();
    char path[320];
    ddp_dataset *d;
    ddp_err err;

    (void)state;
    write_both(good_images(), good_labels());
    assert_int_equal(unlink(labels_path), 0);
    expect_damage(labels_path, "No such file or directory, neither with nor without .gz");
    expect_damage("labels: ", "apt-get install dataset-fashion-mnist");
    config_set(plugin, config, "images", folder);
    assert_int_equal(try_open(config, &d, &err), DDP_ERR_DATA);
    assert_non_null(strstr(err.msg, "not a regular file"));
    (void)snprintf(path, sizeof(path), "%s/below", images_path); /* a file taken for a folder */
    config_set(plugin, config, "images", path);
    assert_int_equal(try_open(config, &d, &err), DDP_ERR_DATA);
    assert_int_equal(err.sys_errno, ENOTDIR);
    config_free(plugin, config);
}

static void test_header(void **state)
{
    bytes b;

    (void)state;
    b = good_images();
    b.size = 0;
    expect_bad_images(b, "is empty");
    b = good_images();
    b.size = 15;
    expect_bad_images(b, "truncated: 15 bytes hold no IDX header");
    expect_bad_images(gzip(b), "truncated: 15 bytes hold no IDX header");
    b = good_images();
    b.data[2] = 0x0d; /* floats */
    expect_bad_images(b, "starts with 00 00 0d 03, not with 00 00 08 03");
    expect_bad_images(gzip(b), "starts with 00 00 0d 03, not with 00 00 08 03");
    expect_bad_images(good_labels(), "truncated: 13 bytes");
    b = good_images();
    b.data[3] = 1;
    expect_bad_images(b, "check that images and labels are not exchanged");
    b = good_images();
    b.data[11] = 0;
    expect_bad_images(b, "dimension 1 is 0");
    b = good_images();
    memset(b.data + 4, 0xff, 12);
    expect_bad_images(b, "its header's sizes are impossible");
    b = good_images();
    b.data[4] = 0x10; /* 2^28 samples and more */
    expect_bad_images(b, "is truncated: its header promises");
    expect_bad_images(gzip(b), "bytes of gzip cannot hold");
}

static void test_size(void **state)
{
    bytes b;

    (void)state;
    b = good_images();
    b.size--;
    expect_bad_images(b, "truncated: its header promises 30 bytes of data, it has 29");
    expect_bad_images(gzip(b), "truncated: its header promises 30 bytes of data, it has 29");
    b.size += 2;
    expect_bad_images(b, "too long: its header promises 30 bytes of data, more follow");
    expect_bad_images(gzip(b), "too long: its header promises 30 bytes of data, more follow");
    expect_bad_images(b, "apt-get install --reinstall dataset-fashion-mnist");
    b = gzip(good_images());
    b.data[b.size++] = 0;
    expect_bad_images(b, "too long: 1 bytes follow its gzip stream");
    b = good_labels();
    b.data[7] = SAMPLES - 1;
    b.size--;
    write_both(good_images(), b);
    expect_damage("holds 5 samples", "holds 4; name two files of one dataset");
    expect_damage(images_path, labels_path);
}

static void test_gzip_damage(void **state)
{
    bytes b = gzip(good_images());
    size_t whole = b.size;

    (void)state;
    for (b.size = 3; b.size < whole; b.size++) expect_bad_images(b, "is truncated: its gzip stream breaks off");
    b.size = whole;
    b.data[whole - 8] ^= 1;
    expect_bad_images(b, "is damaged: zlib says \"incorrect data check\"");
    b.data[whole - 8] ^= 1;
    b.data[whole - 1] ^= 1;
    expect_bad_images(b, "is damaged: zlib says \"incorrect length check\"");
}

/* Whatever bit is turned, the file is refused or read whole; nothing crashes (run this under sanitizers). */
static void test_any_bit(void **state)
{
    void *config = own_config();
    ddp_dataset *d;
    ddp_err err;

    (void)state;
    for (int zipped = 0; zipped < 2; zipped++) {
        bytes good = zipped ? gzip(good_images()) : good_images();

        for (size_t bit = 0; bit < good.size * 8; bit++) {
            bytes b = good;

            b.data[bit / 8] ^= (unsigned char)(1u << bit % 8);
            write_both(b, good_labels());
            if (try_open(config, &d, &err) == DDP_OK) {
                assert_int_equal(ops->length(d), SAMPLES);
                ops->close(d);
            } else {
                assert_int_equal(err.status, DDP_ERR_DATA);
                assert_non_null(strstr(err.msg, images_path));
            }
        }
    }
    config_free(plugin, config);
}

/* ---- the real thing, where Debian's dataset-fashion-mnist is installed ------------------------------------------- */
static void test_fashion_mnist(void **state)
{
    void *config = config_new(plugin);
    float image[784];
    int64_t label = -1;
    void *buffers[2] = {image, &label};
    const ddp_field *f;
    ddp_dataset *d;
    ddp_err err;
    double sum = 0;

    (void)state;
    if (access("/usr/share/datasets/fashion-mnist/train-images-idx3-ubyte.gz", R_OK) != 0 &&
        access("/usr/share/datasets/fashion-mnist/train-images-idx3-ubyte", R_OK) != 0)
        skip();
    d = open_ok(config);
    assert_int_equal(ops->length(d), 60000);
    ops->fields(d, &f);
    assert_int_equal(f[0].dims[1], 28);
    assert_int_equal(f[0].dims[2], 28);
    assert_int_equal(f[1].min, 0);
    assert_int_equal(f[1].max, 9);
    assert_int_equal(ops->read(d, 0, 0, buffers, &err), DDP_OK);
    assert_int_equal(label, 9); /* an ankle boot */
    for (uint64_t i = 0; i < 60000; i += 10) {
        assert_int_equal(ops->read(d, i, 0, buffers, &err), DDP_OK);
        for (int k = 0; k < 784; k++) sum += image[k];
    }
    assert_true(sum / (6000 * 784) > 0.28 && sum / (6000 * 784) < 0.295); /* its known mean is 0.2860 */
    ops->close(d);
    config_set(plugin, config, "split", "test");
    d = open_ok(config);
    assert_int_equal(ops->length(d), 10000);
    ops->close(d);
    config_free(plugin, config);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_good),        cmocka_unit_test(test_other_name), cmocka_unit_test(test_fingerprint),
        cmocka_unit_test(test_limit),       cmocka_unit_test(test_normalize),  cmocka_unit_test(test_bad_normalize),
        cmocka_unit_test(test_absent),      cmocka_unit_test(test_header),     cmocka_unit_test(test_size),
        cmocka_unit_test(test_gzip_damage), cmocka_unit_test(test_any_bit),    cmocka_unit_test(test_fashion_mnist),
    };
    return cmocka_run_group_tests(tests, set_up, tear_down);
}
