/* tests/unit/dataset/test_datasets.c -- datasets `cifar`, `stl10` and `tokens` on small files in the true format:
 * every value, what is wrong with a file, files that change while they are open, and what the fingerprint sees. */
#include "support/dataset_util.h"

/* ---- cifar ------------------------------------------------------------------------------------------------------- */
enum { CIFAR_IMAGE = 3072, CIFAR_COUNT = 6 };

static unsigned char pixel(unsigned file, unsigned sample, unsigned i)
{
    return (unsigned char)(file * 101 + sample * 29 + i * 7 + i / 256);
}

static void write_cifar(const char *name, unsigned file, unsigned labels, unsigned count)
{
    unsigned char *data = calloc(count, CIFAR_IMAGE + labels), *at = data;

    assert_non_null(data);
    for (unsigned s = 0; s < count; s++) {
        if (labels == 2) *at++ = (unsigned char)((file + s) % 20);
        *at++ = (unsigned char)((file + s) % (labels == 2 ? 100 : 10));
        for (unsigned i = 0; i < CIFAR_IMAGE; i++) *at++ = pixel(file, s, i);
    }
    write_file(name, data, (size_t)(at - data));
    free(data);
}

static void write_cifar_10(void)
{
    char name[32];

    for (unsigned f = 1; f <= 5; f++) {
        (void)snprintf(name, sizeof(name), "data_batch_%u.bin", f);
        write_cifar(name, f, 1, CIFAR_COUNT + f);
    }
    write_cifar("test_batch.bin", 6, 1, 4);
}

static void check_cifar(subject *s, const ddp_dataset *d, uint64_t index, unsigned file, unsigned sample, int64_t label)
{
    unsigned char image[CIFAR_IMAGE];
    int64_t got = -1;
    ddp_err err = {0};

    assert_int_equal(s->ops->read(d, index, 0, (void *[2]){image, &got}, &err), DDP_OK);
    assert_int_equal(got, label);
    for (unsigned i = 0; i < CIFAR_IMAGE; i++) assert_int_equal(image[i], pixel(file, sample, i));
}

static void test_cifar_10(void **state)
{
    subject s = begin("dataset_cifar");
    const ddp_field *f;
    ddp_dataset *d;
    uint64_t index = 0;

    (void)state;
    write_cifar_10();
    config_set(s.plugin, s.config, "folder", folder);
    d = open_ok(&s);
    assert_int_equal(s.ops->length(d), 5 * CIFAR_COUNT + 15);
    assert_int_equal(s.ops->fields(d, &f), 2);
    assert_string_equal(f[0].name, "image");
    assert_int_equal(f[0].dtype, DDP_U8);
    assert_int_equal(f[0].rank, 3);
    assert_memory_equal(f[0].dims, ((int64_t[3]){3, 32, 32}), sizeof(int64_t[3]));
    assert_string_equal(f[1].name, "label");
    assert_int_equal(f[1].dtype, DDP_I64);
    assert_int_equal(f[1].max, 9);
    for (unsigned file = 1; file <= 5; file++)
        for (unsigned i = 0; i < CIFAR_COUNT + file; i++) check_cifar(&s, d, index++, file, i, (file + i) % 10);
    expect_no_sample(&s, d, index);
    s.ops->close(d);
    config_set(s.plugin, s.config, "split", "test");
    d = open_ok(&s);
    assert_int_equal(s.ops->length(d), 4);
    check_cifar(&s, d, 3, 6, 3, 9);
    s.ops->close(d);
    end(&s);
}

static void test_cifar_100(void **state)
{
    subject s = begin("dataset_cifar");
    const ddp_field *f;
    ddp_dataset *d;

    (void)state;
    write_cifar("train.bin", 90, 2, 20);
    write_cifar("test.bin", 3, 2, 2);
    config_set(s.plugin, s.config, "folder", folder);
    config_set(s.plugin, s.config, "classes", "100");
    d = open_ok(&s);
    assert_int_equal(s.ops->length(d), 20);
    s.ops->fields(d, &f);
    assert_int_equal(f[1].max, 99);
    for (unsigned i = 0; i < 20; i++) check_cifar(&s, d, i, 90, i, (90 + i) % 100);
    s.ops->close(d);
    config_set(s.plugin, s.config, "classes", "20");
    d = open_ok(&s);
    s.ops->fields(d, &f);
    assert_int_equal(f[1].max, 19);
    for (unsigned i = 0; i < 20; i++) check_cifar(&s, d, i, 90, i, (90 + i) % 20);
    s.ops->close(d);
    end(&s);
}

/* Within the first file, at its end, within the third. */
static void test_cifar_limit(void **state)
{
    static const char *const limits[] = {"3", "7", "17", "1000"};
    static const uint64_t lengths[] = {3, 7, 17, 5 * CIFAR_COUNT + 15};
    subject s = begin("dataset_cifar");
    uint64_t seen[4];

    (void)state;
    write_cifar_10();
    config_set(s.plugin, s.config, "folder", folder);
    for (int i = 0; i < 4; i++) {
        ddp_dataset *d;

        config_set(s.plugin, s.config, "limit", limits[i]);
        d = open_ok(&s);
        assert_int_equal(s.ops->length(d), lengths[i]);
        expect_no_sample(&s, d, lengths[i]);
        check_cifar(&s, d, 2, 1, 2, 3);
        if (i == 2) check_cifar(&s, d, 16, 3, 1, 4);
        seen[i] = s.ops->fingerprint(d);
        for (int k = 0; k < i; k++) assert_true(seen[k] != seen[i]);
        s.ops->close(d);
    }
    end(&s);
}

static void test_cifar_damage(void **state)
{
    subject s = begin("dataset_cifar");
    unsigned char image[CIFAR_IMAGE];
    uint64_t mark;
    int64_t label;

    (void)state;
    expect_error(&s, DDP_ERR_CONFIG, "folder is not set", "cifar-10-batches-bin");
    write_cifar_10();
    config_set(s.plugin, s.config, "folder", folder);
    mark = fingerprint(&s);
    change_byte("data_batch_4.bin", 3073L * 3 + 1500, 99);
    assert_true(fingerprint(&s) != mark);
    write_cifar_10();
    assert_true(fingerprint(&s) == mark);
    change_byte("data_batch_2.bin", 3073L * 2, 10);
    expect_error(&s, DDP_ERR_DATA, path_of("data_batch_2.bin"), "record 2 has the label 10, of 10 classes");
    write_cifar("data_batch_2.bin", 2, 1, 8);
    assert_int_equal(truncate(path_of("data_batch_5.bin"), 3073L * 4 - 1), 0);
    expect_error(&s, DDP_ERR_DATA, path_of("data_batch_5.bin"),
                 "12291 bytes, which is not a multiple of the 3073 that a record takes (9219 would be 3 records)");
    assert_int_equal(truncate(path_of("data_batch_5.bin"), 0), 0);
    expect_error(&s, DDP_ERR_DATA, path_of("data_batch_5.bin"), "empty");
    assert_int_equal(unlink(path_of("data_batch_5.bin")), 0);
    expect_error(&s, DDP_ERR_DATA, path_of("data_batch_5.bin"), "No such file or directory; set folder");
    write_cifar_10();
    expect_cut(&s, "data_batch_1.bin", 3073L * 5 - 1, 4, image, &label);
    end(&s);
}

/* ---- stl10 ------------------------------------------------------------------------------------------------------- */
enum { STL_SIDE = 96, STL_PLANE = STL_SIDE * STL_SIDE, STL_IMAGE = 3 * STL_PLANE, STL_COUNT = 19 };

/* The value in row y, column x. */
static unsigned char stl_pixel(unsigned sample, unsigned c, unsigned y, unsigned x)
{
    return (unsigned char)(sample * 31 + c * 85 + y * 3 + x * 11 + (y * x) / 64);
}

static void write_stl(const char *split, unsigned first, unsigned count)
{
    unsigned char *data = malloc((size_t)count * STL_IMAGE), *at = data, labels[64];
    char name[32];

    assert_non_null(data);
    for (unsigned s = 0; s < count; s++) {
        for (unsigned c = 0; c < 3; c++) /* the file goes down each column */
            for (unsigned x = 0; x < STL_SIDE; x++)
                for (unsigned y = 0; y < STL_SIDE; y++) *at++ = stl_pixel(first + s, c, y, x);
        labels[s] = (unsigned char)(1 + (first + s) % 10);
    }
    (void)snprintf(name, sizeof(name), "%s_X.bin", split);
    write_file(name, data, (size_t)(at - data));
    (void)snprintf(name, sizeof(name), "%s_y.bin", split);
    write_file(name, labels, count);
    free(data);
}

static void check_stl(subject *s, const ddp_dataset *d, uint64_t index, unsigned sample)
{
    unsigned char *image = malloc(STL_IMAGE);
    int64_t label = -1;
    ddp_err err = {0};

    assert_non_null(image);
    assert_int_equal(s->ops->read(d, index, 0, (void *[2]){image, &label}, &err), DDP_OK);
    assert_int_equal(label, sample % 10);
    for (unsigned i = 0; i < STL_IMAGE; i++)
        assert_int_equal(image[i], stl_pixel(sample, i / STL_PLANE, i / STL_SIDE % STL_SIDE, i % STL_SIDE));
    free(image);
}

static void test_stl10(void **state)
{
    subject s = begin("dataset_stl10");
    const ddp_field *f;
    ddp_dataset *d;

    (void)state;
    write_stl("train", 0, STL_COUNT);
    write_stl("test", 5, 2);
    config_set(s.plugin, s.config, "folder", folder);
    d = open_ok(&s);
    assert_int_equal(s.ops->length(d), STL_COUNT);
    assert_int_equal(s.ops->fields(d, &f), 2);
    assert_string_equal(f[0].name, "image");
    assert_int_equal(f[0].dtype, DDP_U8);
    assert_memory_equal(f[0].dims, ((int64_t[3]){3, STL_SIDE, STL_SIDE}), sizeof(int64_t[3]));
    assert_int_equal(f[1].min, 0);
    assert_int_equal(f[1].max, 9);
    for (unsigned i = 0; i < STL_COUNT; i++) check_stl(&s, d, i, i);
    expect_no_sample(&s, d, STL_COUNT);
    s.ops->close(d);
    config_set(s.plugin, s.config, "split", "test");
    d = open_ok(&s);
    assert_int_equal(s.ops->length(d), 2);
    check_stl(&s, d, 1, 6);
    s.ops->close(d);
    config_set(s.plugin, s.config, "limit", "1");
    d = open_ok(&s);
    assert_int_equal(s.ops->length(d), 1);
    s.ops->close(d);
    end(&s);
}

static void test_stl10_damage(void **state)
{
    subject s = begin("dataset_stl10");
    unsigned char *image = malloc(STL_IMAGE);
    int64_t label;
    uint64_t mark;

    (void)state;
    assert_non_null(image);
    expect_error(&s, DDP_ERR_CONFIG, "folder is not set", "stl10_binary");
    write_stl("train", 0, STL_COUNT);
    config_set(s.plugin, s.config, "folder", folder);
    mark = fingerprint(&s);
    change_byte("train_X.bin", 17L * STL_IMAGE + 5, 0);
    assert_true(fingerprint(&s) != mark);
    write_stl("train", 0, STL_COUNT);
    change_byte("train_y.bin", 3, 5);
    assert_true(fingerprint(&s) != mark);
    for (unsigned char bad = 0; bad < 22; bad = (unsigned char)(bad + 11)) {
        char part[64];

        change_byte("train_y.bin", 8, bad);
        (void)snprintf(part, sizeof(part), "sample 8 has the label %u, not one from 1 to 10", bad);
        expect_error(&s, DDP_ERR_DATA, path_of("train_y.bin"), part);
    }
    assert_int_equal(truncate(path_of("train_y.bin"), STL_COUNT - 1), 0);
    expect_error(&s, DDP_ERR_DATA, path_of("train_y.bin"), "must have 19 bytes, a label for each; it has 18");
    write_stl("train", 0, STL_COUNT);
    assert_int_equal(truncate(path_of("train_X.bin"), 2L * STL_IMAGE + 1), 0);
    expect_error(&s, DDP_ERR_DATA, path_of("train_X.bin"),
                 "55297 bytes, which is not a multiple of the 27648 that an image takes (55296 would be 2 images)");
    write_stl("train", 0, STL_COUNT);
    expect_cut(&s, "train_X.bin", 9L * STL_IMAGE - 1, 8, image, &label);
    assert_int_equal(unlink(path_of("train_X.bin")), 0);
    expect_error(&s, DDP_ERR_DATA, path_of("train_X.bin"), "No such file or directory; set folder");
    free(image);
    end(&s);
}

/* ---- tokens ------------------------------------------------------------------------------------------------------ */
static void put32(unsigned char *p, uint32_t v)
{
    for (int i = 0; i < 4; i++) p[i] = (unsigned char)(v >> 8 * i);
}

static unsigned nth_token(unsigned i) { return (i * 2654435761u >> 7) % 50257; }

/* llm.c's format with tokens nth_token(first) ... */
static void write_llmc(const char *name, unsigned first, unsigned count)
{
    unsigned char *data = calloc(1, 1024 + 2 * (size_t)count);

    assert_non_null(data);
    put32(data, 20240520);
    put32(data + 4, 1);
    put32(data + 8, count);
    for (unsigned i = 0; i < count; i++) {
        data[1024 + 2 * i] = (unsigned char)nth_token(first + i);
        data[1025 + 2 * i] = (unsigned char)(nth_token(first + i) >> 8);
    }
    write_file(name, data, 1024 + 2 * (size_t)count);
    free(data);
}

static unsigned nth_byte(unsigned i) { return nth_token(i) % 256; }

static void write_text(const char *name, unsigned first, unsigned count)
{
    unsigned char *data = malloc(count);

    assert_non_null(data);
    for (unsigned i = 0; i < count; i++) data[i] = (unsigned char)nth_byte(first + i);
    write_file(name, data, count);
    free(data);
}

/* All samples of a row of tokens that begins with number `begin`. */
static void check_tokens(subject *s, const char *context, unsigned (*nth)(unsigned), unsigned begin, uint64_t length)
{
    unsigned width = (unsigned)strtoul(context, NULL, 10);
    int64_t *input = calloc(width, sizeof(*input)), *target = calloc(width, sizeof(*target));
    const ddp_field *f;
    ddp_dataset *d;
    ddp_err err = {0};

    assert_true(input != NULL && target != NULL);
    config_set(s->plugin, s->config, "context", context);
    d = open_ok(s);
    assert_int_equal(s->ops->length(d), length);
    assert_int_equal(s->ops->fields(d, &f), 2);
    assert_string_equal(f[0].name, "input");
    assert_string_equal(f[1].name, "target");
    for (int i = 0; i < 2; i++) {
        assert_int_equal(f[i].dtype, DDP_I64);
        assert_int_equal(f[i].rank, 1);
        assert_int_equal(f[i].dims[0], width);
        assert_int_equal(f[i].max, nth == nth_byte ? 255 : 50256);
    }
    for (unsigned i = 0; i < length; i++) {
        if (s->ops->read(d, i, 0, (void *[2]){input, target}, &err) != DDP_OK) fail_msg("%s", err.msg);
        for (unsigned k = 0; k < width; k++) {
            assert_int_equal(input[k], nth(begin + i * width + k));
            assert_int_equal(target[k], nth(begin + i * width + k + 1));
        }
    }
    expect_no_sample(s, d, length);
    s->ops->close(d);
    free(input);
    free(target);
}

static void test_tokens_bytes(void **state)
{
    subject s = begin("dataset_tokens");

    (void)state;
    write_text("a.txt", 0, 20001);
    config_set(s.plugin, s.config, "files", path_of("a.txt"));
    check_tokens(&s, "1", nth_byte, 0, 20000);
    check_tokens(&s, "7", nth_byte, 0, 2857);
    check_tokens(&s, "1000", nth_byte, 0, 20);
    check_tokens(&s, "4095", nth_byte, 0, 4); /* around the size in which tokens are converted */
    check_tokens(&s, "4096", nth_byte, 0, 4);
    check_tokens(&s, "4097", nth_byte, 0, 4);
    check_tokens(&s, "20000", nth_byte, 0, 1);
    end(&s);
}

/* Several files are one row; a pattern is sorted. */
static void test_tokens_files(void **state)
{
    subject s = begin("dataset_tokens");
    char files[1200];

    (void)state;
    write_text("b1.txt", 0, 1000);
    write_text("b2.txt", 1000, 3);
    write_text("b3.txt", 1003, 777);
    (void)snprintf(files, sizeof(files), "%s/b*.txt", folder);
    config_set(s.plugin, s.config, "files", files);
    check_tokens(&s, "33", nth_byte, 0, 53);
    check_tokens(&s, "1779", nth_byte, 0, 1);
    (void)snprintf(files, sizeof(files), "%s/b1.txt,%s/b[23].txt", folder, folder);
    config_set(s.plugin, s.config, "files", files);
    check_tokens(&s, "2", nth_byte, 0, 889);
    (void)snprintf(files, sizeof(files), "%s/b1.txt,%s/c*.txt", folder, folder);
    config_set(s.plugin, s.config, "files", files);
    expect_error(&s, DDP_ERR_DATA, "no file matches", "c*.txt");
    (void)snprintf(files, sizeof(files), "%s/b1.txt,%s/b4.txt", folder, folder);
    config_set(s.plugin, s.config, "files", files);
    expect_error(&s, DDP_ERR_DATA, path_of("b4.txt"), "No such file or directory; set files");
    end(&s);
}

static void test_tokens_llmc(void **state)
{
    subject s = begin("dataset_tokens");
    char files[600];

    (void)state;
    write_llmc("x_0.bin", 0, 5000);
    write_llmc("x_1.bin", 5000, 301);
    (void)snprintf(files, sizeof(files), "%s/x_*.bin", folder);
    config_set(s.plugin, s.config, "files", files);
    check_tokens(&s, "64", nth_token, 0, 82);
    check_tokens(&s, "5300", nth_token, 0, 1);
    config_set(s.plugin, s.config, "format", "llmc");
    check_tokens(&s, "64", nth_token, 0, 82);
    end(&s);
}

/* Parts side by side share no token and leave none out. */
static void test_tokens_parts(void **state)
{
    subject s = begin("dataset_tokens");

    (void)state;
    write_text("a.txt", 0, 10007);
    config_set(s.plugin, s.config, "files", path_of("a.txt"));
    config_set(s.plugin, s.config, "to", "0.9");
    check_tokens(&s, "8", nth_byte, 0, (9006 - 1) / 8);
    config_set(s.plugin, s.config, "from", "0.9");
    config_set(s.plugin, s.config, "to", "1");
    check_tokens(&s, "8", nth_byte, 9006, (1001 - 1) / 8);
    check_tokens(&s, "1000", nth_byte, 9006, 1);
    config_set(s.plugin, s.config, "context", "1001");
    expect_error(&s, DDP_ERR_DATA, "1001 tokens from 0.9 to 1", "context = 1001 takes 1002");
    config_set(s.plugin, s.config, "from", "1");
    expect_error(&s, DDP_ERR_CONFIG, "from = 1, to = 1", "from must be below to");
    end(&s);
}

static void test_tokens_fingerprint(void **state)
{
    subject s = begin("dataset_tokens");
    uint64_t mark, other;

    (void)state;
    write_text("a.txt", 0, 200000); /* several blocks */
    config_set(s.plugin, s.config, "files", path_of("a.txt"));
    mark = fingerprint(&s);
    for (long at = 0; at < 200000; at += 19999) {
        change_byte("a.txt", at, (unsigned char)(nth_byte((unsigned)at) ^ 1));
        assert_true(fingerprint(&s) != mark);
        change_byte("a.txt", at, (unsigned char)nth_byte((unsigned)at));
    }
    assert_true(fingerprint(&s) == mark);
    config_set(s.plugin, s.config, "to", "0.5");
    other = fingerprint(&s);
    assert_true(other != mark);
    change_byte("a.txt", 150000, 1); /* beyond the part in use */
    assert_true(fingerprint(&s) == other);
    config_set(s.plugin, s.config, "context", "12");
    assert_true(fingerprint(&s) != other);
    end(&s);
}

static void test_tokens_damage(void **state)
{
    subject s = begin("dataset_tokens");
    int64_t input[256], target[256];
    ddp_dataset *d;
    ddp_err err = {0};

    (void)state;
    expect_error(&s, DDP_ERR_CONFIG, "files is not set", "tokens");
    write_text("short.txt", 0, 256);
    config_set(s.plugin, s.config, "files", path_of("short.txt"));
    expect_error(&s, DDP_ERR_DATA, path_of("short.txt"), "context = 256 takes 257");
    config_set(s.plugin, s.config, "format", "llmc");
    expect_error(&s, DDP_ERR_DATA, path_of("short.txt"), "256 bytes, too few for the header");
    write_text("text.txt", 0, 3000);
    config_set(s.plugin, s.config, "files", path_of("text.txt"));
    expect_error(&s, DDP_ERR_DATA, path_of("text.txt"), "20240520, version 1");
    config_set(s.plugin, s.config, "format", "auto");
    config_set(s.plugin, s.config, "vocabulary", "200");
    d = open_ok(&s);
    assert_int_equal(s.ops->read(d, 0, 0, (void *[2]){input, target}, &err), DDP_ERR_DATA);
    expect_parts(&err, path_of("text.txt"), "beyond vocabulary = 200");
    s.ops->close(d);
    config_set(s.plugin, s.config, "vocabulary", "0");
    expect_cut(&s, "text.txt", 1500, 10, input, target);
    write_llmc("y.bin", 0, 700);
    config_set(s.plugin, s.config, "files", path_of("y.bin"));
    change_byte("y.bin", 4, 2);
    expect_error(&s, DDP_ERR_DATA, path_of("y.bin"), "version 2");
    change_byte("y.bin", 4, 1);
    change_byte("y.bin", 8, (700 & 255) + 1);
    expect_error(&s, DDP_ERR_DATA, "2424 bytes", "promises 701 tokens, which makes 2426");
    config_set(s.plugin, s.config, "files", folder);
    expect_error(&s, DDP_ERR_DATA, folder, "not a regular file");
    end(&s);
}

/* More than 4096 blocks of 64 Ki tokens: a sparse file, of which some blocks are taken, the first and the last
 * always. */
static void test_tokens_large(void **state)
{
    const off_t size = ((off_t)300 << 20) + 5;
    subject s = begin("dataset_tokens");
    uint64_t mark;

    (void)state;
    write_text("large", 0, 10);
    if (truncate(path_of("large"), size) != 0) skip();
    config_set(s.plugin, s.config, "files", path_of("large"));
    mark = fingerprint(&s);
    change_byte("large", (long)size - 1, 7);
    assert_true(fingerprint(&s) != mark);
    change_byte("large", (long)size - 1, 0);
    change_byte("large", 20, 7);
    assert_true(fingerprint(&s) != mark);
    change_byte("large", 20, 0);
    assert_int_equal(truncate(path_of("large"), size + 1), 0);
    assert_true(fingerprint(&s) != mark);
    assert_int_equal(unlink(path_of("large")), 0);
    end(&s);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_cifar_10),      cmocka_unit_test(test_cifar_100),
        cmocka_unit_test(test_cifar_limit),   cmocka_unit_test(test_cifar_damage),
        cmocka_unit_test(test_stl10),         cmocka_unit_test(test_stl10_damage),
        cmocka_unit_test(test_tokens_bytes),  cmocka_unit_test(test_tokens_files),
        cmocka_unit_test(test_tokens_llmc),   cmocka_unit_test(test_tokens_parts),
        cmocka_unit_test(test_tokens_damage), cmocka_unit_test(test_tokens_fingerprint),
        cmocka_unit_test(test_tokens_large),
    };

    return cmocka_run_group_tests_name("datasets", tests, set_up, tear_down);
}
