/* tests/unit/dataset/test_npy.c -- dataset `npy`: every dtype, both byte orders and all versions of the format, images,
 * .npz files, and what is wrong with a file. */
#include "support/dataset_util.h"
#include <zip.h>

/* ---- files ------------------------------------------------------------------------------------------------------- */
/* A .npy file in memory; returns its bytes. */
static size_t make(unsigned version, const char *text, const void *data, size_t bytes, unsigned char *out)
{
    size_t length = strlen(text), at = version == 1 ? 10 : 12;

    memcpy(out, "\x93NUMPY\0\0\0\0\0\0", 12);
    out[6] = (unsigned char)version;
    out[8] = (unsigned char)length;
    out[9] = (unsigned char)(length >> 8);
    memcpy(out + at, text, length);
    if (bytes > 0) memcpy(out + at + length, data, bytes);
    return at + length + bytes;
}

static void put(const char *name, unsigned version, const char *text, const void *data, size_t bytes)
{
    unsigned char *out = malloc(strlen(text) + bytes + 16);

    assert_non_null(out);
    write_file(name, out, make(version, text, data, bytes, out));
    free(out);
}

static void put_array(const char *name, const char *descr, const char *shape, const void *data, size_t bytes)
{
    char text[200];

    (void)snprintf(text, sizeof(text), "{'descr': '%s', 'fortran_order': False, 'shape': %s, }   \n", descr, shape);
    put(name, 1, text, data, bytes);
}

static subject arrays(void)
{
    static char input[512], label[512];
    subject s = begin("dataset_npy");

    (void)snprintf(input, sizeof(input), "%s", path_of("x.npy"));
    (void)snprintf(label, sizeof(label), "%s", path_of("y.npy"));
    config_set(s.plugin, s.config, "input", input);
    config_set(s.plugin, s.config, "label", label);
    put_array("y.npy", "|u1", "(3,)", "\1\0\2", 3);
    return s;
}

static const ddp_field *fields_of(subject *s, const ddp_dataset *d)
{
    const ddp_field *f;

    assert_int_equal(s->ops->fields(d, &f), 2);
    return f;
}

static void read_ok(subject *s, const ddp_dataset *d, uint64_t index, void *input, void *label)
{
    ddp_err err = {0};

    if (s->ops->read(d, index, 0, (void *[2]){input, label}, &err) != DDP_OK) fail_msg("%s", err.msg);
}

/* ---- dtypes ------------------------------------------------------------------------------------------------------ */
static void test_dtypes(void **state)
{
    static const struct {
        const char *descr, *bytes;
        size_t size; /* of an element */
        float want[3];
        bool integers;
    } cases[] = {
        {"<f2", "\x00\x3e\xff\xfb\x01\x00", 2, {1.5f, -65504.0f, 0x1p-24f}, false},
        {">f2", "\x3e\x00\xfb\xff\x04\x00", 2, {1.5f, -65504.0f, 0x1p-14f}, false},
        {"<f4", "\x00\x00\xc0\x3f\x00\x00\x00\x80\x01\x00\x00\x00", 4, {1.5f, -0.0f, 0x1p-149f}, false},
        {">f4", "\x3f\xc0\x00\x00\x80\x00\x00\x00\x00\x00\x00\x01", 4, {1.5f, -0.0f, 0x1p-149f}, false},
        {"<f8", "\0\0\0\0\0\0\xf8\x3f\0\0\0\0\0\0\xf0\xbf\x9a\x99\x99\x99\x99\x99\xb9\x3f", 8, {1.5f, -1, 0.1f}, false},
        {">f8", "\x3f\xf8\0\0\0\0\0\0\xbf\xf0\0\0\0\0\0\0\x3f\xb9\x99\x99\x99\x99\x99\x9a", 8, {1.5f, -1, 0.1f}, false},
        {"|b1", "\0\1\0", 1, {0, 1, 0}, false},
        {"|u1", "\0\x7f\xff", 1, {0, 127, 255}, false},
        {"|i1", "\0\x7f\xff", 1, {0, 127, -1}, true},
        {"<i2", "\x01\x00\xfe\xff\x00\x01", 2, {1, -2, 256}, true},
        {">i2", "\x00\x01\xff\xfe\x01\x00", 2, {1, -2, 256}, true},
        {"<u2", "\x01\x00\xfe\xff\x00\x01", 2, {1, 65534, 256}, true},
        {"<i4", "\x01\0\0\0\xfe\xff\xff\xff\0\0\x01\0", 4, {1, -2, 65536}, true},
        {">u4", "\0\0\0\x01\xff\xff\xff\0\0\x01\0\0", 4, {1, 4294967040.0f, 65536}, true},
        {"<i8", "\1\0\0\0\0\0\0\0\xfe\xff\xff\xff\xff\xff\xff\xff\0\0\0\0\1\0\0\0", 8, {1, -2, 0x1p32f}, true},
        {">i8", "\0\0\0\0\0\0\0\1\xff\xff\xff\xff\xff\xff\xff\xfe\0\0\0\1\0\0\0\0", 8, {1, -2, 0x1p32f}, true},
    };
    subject s = arrays();

    (void)state;
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        ddp_dataset *d;
        int64_t number, label;
        float value;

        put_array("x.npy", cases[i].descr, "(3,)", cases[i].bytes, 3 * cases[i].size);
        for (int as_float = !cases[i].integers; as_float < 2; as_float++) {
            config_set(s.plugin, s.config, "input_type", as_float ? "f32" : "auto");
            d = open_ok(&s);
            assert_int_equal(s.ops->length(d), 3);
            assert_string_equal(fields_of(&s, d)[0].name, "input");
            assert_int_equal(fields_of(&s, d)[0].dtype, as_float ? DDP_F32 : DDP_I64);
            for (unsigned k = 0; k < 3; k++) {
                read_ok(&s, d, k, as_float ? (void *)&value : (void *)&number, &label);
                if (memcmp(&value, &cases[i].want[k], sizeof(value)) != 0 && as_float)
                    fail_msg("%s: %.9g, not %.9g", cases[i].descr, value, cases[i].want[k]);
                if (!as_float) assert_true(number == (int64_t)cases[i].want[k]);
                assert_int_equal(label, "\1\0\2"[k]);
            }
            expect_no_sample(&s, d, 3);
            s.ops->close(d);
        }
    }
    end(&s);
}

/* Integers have their bounds; a label has no dimension, other things keep theirs. */
static void test_fields(void **state)
{
    static const int64_t tokens[] = {7, 3, -1, 9, 4, 5};
    static const float targets[] = {1, 2, 3, 4, 5, 6};
    subject s = arrays();
    const ddp_field *f;
    ddp_dataset *d;
    int64_t input[2];
    float target[2];

    (void)state;
    put_array("x.npy", "<i8", "(3, 2)", tokens, sizeof(tokens));
    put_array("y.npy", "<f4", "(3, 2)", targets, sizeof(targets));
    d = open_ok(&s);
    f = fields_of(&s, d);
    assert_int_equal(f[0].rank, 1);
    assert_int_equal(f[0].dims[0], 2);
    assert_int_equal(f[0].min, -1);
    assert_int_equal(f[0].max, 9);
    assert_string_equal(f[1].name, "target");
    assert_int_equal(f[1].dtype, DDP_F32);
    assert_int_equal(f[1].dims[0], 2);
    read_ok(&s, d, 1, input, target);
    assert_true(input[0] == -1 && input[1] == 9 && target[0] == 3 && target[1] == 4);
    assert_non_null(strstr(s.ops->describe(d), "x.npy\", i8 (3, 2): input i64 from -1 to 9\n"));
    s.ops->close(d);
    put_array("y.npy", "|u1", "(3, 1)", "\1\0\2", 3);
    config_set(s.plugin, s.config, "from", "0.34");
    d = open_ok(&s);
    f = fields_of(&s, d);
    assert_string_equal(f[1].name, "label");
    assert_int_equal(f[1].rank, 0);
    assert_int_equal(f[1].max, 2);
    assert_int_equal(s.ops->length(d), 2);
    read_ok(&s, d, 0, input, target);
    assert_true(input[0] == -1);
    s.ops->close(d);
    config_set(s.plugin, s.config, "to", "0.3");
    expect_error(&s, DDP_ERR_CONFIG, "from = 0.34, to = 0.3 leave none of 3 samples", "npy");
    end(&s);
}

/* ---- images ------------------------------------------------------------------------------------------------------ */
enum { SIDE = 40, IMAGE = SIDE * SIDE * 3 };

static unsigned char pixel(unsigned sample, unsigned c, unsigned y, unsigned x)
{
    return (unsigned char)(sample * 91 + c * 37 + y * 5 + x * 11);
}

/* (N, H, W, C) and (N, C, H, W) are the same to the model, as bytes and as floats. */
static void test_images(void **state)
{
    static unsigned char last[3 * IMAGE], first[3 * IMAGE], got[IMAGE];
    static float floats[3 * IMAGE], got_floats[IMAGE];
    subject s = arrays();

    (void)state;
    for (unsigned i = 0; i < 3 * IMAGE; i++) {
        unsigned n = i / IMAGE, y = i / (3 * SIDE) % SIDE, x = i / 3 % SIDE, c = i % 3;

        last[i] = pixel(n, c, y, x);
        floats[i] = (float)last[i] / 3.0f;
        first[((n * 3 + c) * SIDE + y) * SIDE + x] = last[i];
    }
    for (int layout = 0; layout < 3; layout++) {
        ddp_dataset *d;
        int64_t label;

        if (layout < 2)
            put_array("x.npy", "|u1", layout ? "(3, 3, 40, 40)" : "(3, 40, 40, 3)", layout ? first : last, 3 * IMAGE);
        if (layout == 2) put_array("x.npy", "<f4", "(3, 40, 40, 3)", floats, sizeof(floats));
        d = open_ok(&s);
        assert_string_equal(fields_of(&s, d)[0].name, "image");
        assert_int_equal(fields_of(&s, d)[0].dtype, layout < 2 ? DDP_U8 : DDP_F32);
        assert_memory_equal(fields_of(&s, d)[0].dims, ((int64_t[3]){3, SIDE, SIDE}), sizeof(int64_t[3]));
        read_ok(&s, d, 2, layout < 2 ? (void *)got : (void *)got_floats, &label);
        for (unsigned i = 0; i < IMAGE; i++) {
            if (layout < 2) assert_int_equal(got[i], first[2 * IMAGE + i]);
            if (layout == 2) assert_true(got_floats[i] == (float)first[2 * IMAGE + i] / 3.0f);
        }
        s.ops->close(d);
    }
    end(&s);
}

static void test_image_shapes(void **state)
{
    static const struct {
        const char *shape, *layout;
        int64_t dims[3];
    } cases[] = {
        {"(3, 8, 5)", "auto", {1, 8, 5}},      {"(3, 2, 5, 4)", "auto", {4, 2, 5}},
        {"(3, 1, 10, 4)", "auto", {1, 10, 4}}, {"(3, 1, 10, 4)", "hwc", {4, 1, 10}},
        {"(3, 2, 5, 4)", "chw", {2, 5, 4}},
    };
    static const unsigned char bytes[120];
    subject s = arrays();

    (void)state;
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        ddp_dataset *d;

        put_array("x.npy", "|u1", cases[i].shape, bytes, 120);
        config_set(s.plugin, s.config, "layout", cases[i].layout);
        d = open_ok(&s);
        assert_string_equal(fields_of(&s, d)[0].name, "image");
        assert_int_equal(fields_of(&s, d)[0].max, 255);
        assert_memory_equal(fields_of(&s, d)[0].dims, cases[i].dims, sizeof(cases[i].dims));
        s.ops->close(d);
    }
    end(&s);
}

/* ---- headers ----------------------------------------------------------------------------------------------------- */
static void test_headers(void **state)
{
    static const char *const good[] = {
        "{'descr': '<f4', 'fortran_order': False, 'shape': (3,), }",
        "{\"shape\":(3L,),\"fortran_order\":False,\"descr\":\"=f4\"}\n",
        "{ 'shape' : ( 3 , 1 ) , 'descr' : 'f4' , 'fortran_order' : True }",
    };
    static const struct {
        const char *text, *part;
    } bad[] = {
        {"{'descr': '<f4', 'fortran_order': True, 'shape': (3, 2)}", "is in Fortran order"},
        {"{'descr': '|O', 'fortran_order': False, 'shape': (3,)}", "has dtype \"|O\""},
        {"{'descr': '<c8', 'fortran_order': False, 'shape': (3,)}", "has dtype \"<c8\""},
        {"{'descr': [('a', '<f4')], 'fortran_order': False, 'shape': (3,)}", "records of several fields"},
        {"{'descr': '<f4', 'fortran_order': False, 'shape': ()}", "holds a single value"},
        {"{'descr': '<f4', 'fortran_order': False, 'shape': (0, 3)}", "is empty: dimension 0"},
        {"{'descr': '<f4', 'fortran_order': False, 'shape': (1,1,1,1,1,1,1,1,3)}", "more than 8 dimensions"},
        {"{'descr': '<f4', 'fortran_order': False, 'shape': (3037000500, 3037000500)}",
         "sizes in its header are impossible"},
        {"{'descr': '|u1', 'fortran_order': False, 'shape': (3037000500, 3037000500)}",
         "sizes in its header are impossible"},
        {"{'descr': '<f4', 'fortran_order': False, 'shape': (99999999999999999999,)}",
         "no size of a dimension below 2^63"},
        {"{'descr': '<f4', 'fortran_order': False, 'shape': (-3,)}", "no size of a dimension"},
        {"{'descr': '<f4', 'fortran_order': False, 'shape': (3 3)}", "no comma or bracket"},
        {"{'descr': '<f4', 'fortran_order': False, 'shape': 3}", "no shape"},
        {"{'descr': '<f4', 'fortran_order': 0, 'shape': (3,)}", "no True or False"},
        {"{'descr': 4, 'fortran_order': False, 'shape': (3,)}", "no dtype"},
        {"{'descr': '<f4', 'fortran_order': False}", "no descr, fortran_order or shape"},
        {"{'descr': '<f4', 'descr': '<f4', 'shape': (3,)}", "each once"},
        {"{'descr': '<f4', 'order': False, 'shape': (3,)}", "no key descr"},
        {"{'descr' '<f4'}", "no colon"},
        {"{'descr': '<f4' 'shape': (3,)}", "no comma or }"},
        {"{'descr", "no key"},
        {"['descr']", "no {"},
        {"", "no {"},
    };
    static const float x[6] = {1, 2, 3};
    subject s = arrays();

    (void)state;
    for (unsigned i = 0; i < 9; i++) {
        ddp_dataset *d;
        int64_t label;
        float got;

        put("x.npy", 1 + i / 3, good[i % 3], x, 12);
        d = open_ok(&s);
        read_ok(&s, d, 2, &got, &label);
        assert_true(got == 3);
        s.ops->close(d);
    }
    for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
        put("x.npy", 1, bad[i].text, x, 24);
        expect_error(&s, DDP_ERR_DATA, bad[i].part, "x.npy\"");
    }
    put("x.npy", 4, good[0], x, 12);
    expect_error(&s, DDP_ERR_DATA, "version 4.0 of the format; 1 to 3 are known", "x.npy\"");
    end(&s);
}

static void test_damage(void **state)
{
    static float x[6] = {1, 2, 3, 4, 5, 6};
    subject s = begin("dataset_npy");
    float got[2];
    int64_t label;
    uint64_t mark;

    (void)state;
    expect_error(&s, DDP_ERR_CONFIG, "input is not set", ".npy file");
    end(&s);
    s = arrays();
    put_array("x.npy", "<f4", "(3, 2)", x, 24);
    mark = fingerprint(&s);
    put_array("y.npy", "|u1", "(3,)", "\1\0\1", 3);
    assert_true(fingerprint(&s) != mark);
    put_array("y.npy", "|u1", "(2,)", "\1\0", 2);
    expect_error(&s, DDP_ERR_DATA, "x.npy\" has 3 samples", "y.npy\" has 2");
    put_array("y.npy", "|u1", "(3,)", "\1\0\2", 3);
    put_array("x.npy", "<f4", "(3, 2)", x, 23);
    expect_error(&s, DDP_ERR_DATA, "x.npy\" is truncated: its header promises 24 bytes of elements, it has 23",
                 "numpy.save");
    put_array("x.npy", "|u1", "(3, 2)", x, 7);
    expect_error(&s, DDP_ERR_DATA, "x.npy\" is too long: its header promises 6 bytes of elements, it has 7",
                 "numpy.save");
    write_file("x.npy", "\x93NUMPY\1\0\xff\xffxx", 12);
    expect_error(&s, DDP_ERR_DATA, "x.npy\" is truncated within its header", "numpy.save");
    write_file("x.npy", "\x93NUMPY\2\0\1\0\1\0", 12);
    expect_error(&s, DDP_ERR_DATA, "x.npy\": its header has 65537 bytes, more than 65536", "numpy.save");
    write_file("x.npy", "PK\3\4abcdefghijkl", 16);
    expect_error(&s, DDP_ERR_DATA, "x.npy\" is no .npy file", "name an .npz file under path");
    write_file("x.npy", "\x93NUM", 4);
    expect_error(&s, DDP_ERR_DATA, "x.npy\" is no .npy file", "numpy.save");
    x[3] = 1.0f / 0.0f;
    put_array("x.npy", "<f4", "(3, 2)", x, 24);
    expect_error(&s, DDP_ERR_DATA, "x.npy\": sample 1 has a value that is infinite", "nan_to_num");
    x[3] = 4;
    put_array("x.npy", "<f8", "(3,)", "\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\xe0\x7f", 24);
    expect_error(&s, DDP_ERR_DATA, "x.npy\": sample 2 has a value", "beyond f32");
    config_set(s.plugin, s.config, "input_type", "u8");
    expect_error(&s, DDP_ERR_CONFIG, "input_type = u8, but ", "bytes");
    config_set(s.plugin, s.config, "input_type", "i64");
    expect_error(&s, DDP_ERR_CONFIG, "input_type = i64, but ", "floats");
    config_set(s.plugin, s.config, "input_type", "auto");
    put_array("x.npy", "<f4", "(3, 2)", x, 24);
    expect_cut(&s, "x.npy", 10 + 64 + 12, 2, got, &label);
    assert_int_equal(unlink(path_of("x.npy")), 0);
    expect_error(&s, DDP_ERR_DATA, "No such file or directory; set input to your .npy file, or path", "x.npy");
    end(&s);
}

/* ---- large ------------------------------------------------------------------------------------------------------- */
/* Of 512 MiB every second piece is looked at, when it is opened; what is in the others, when it is read. */
static void test_large(void **state)
{
    enum { SAMPLES = 8192, ELEMENTS = 16384 };
    static unsigned char labels[SAMPLES];
    static float x[ELEMENTS];
    subject s = arrays();
    ddp_err err = {0};
    ddp_dataset *d;
    struct stat st;
    uint64_t mark;
    int64_t label;

    (void)state;
    put_array("y.npy", "|u1", "(8192,)", labels, sizeof(labels));
    put_array("x.npy", "<f4", "(8192, 16384)", NULL, 0);
    assert_int_equal(stat(path_of("x.npy"), &st), 0);
    assert_int_equal(truncate(path_of("x.npy"), st.st_size + SAMPLES * (off_t)sizeof(x)), 0);
    mark = fingerprint(&s);
    change_byte("x.npy", st.st_size + 2 * (long)sizeof(x) + 3, 0x40);
    assert_true(fingerprint(&s) != mark);
    change_byte("x.npy", st.st_size + (long)sizeof(x) + 3, 0x7f); /* infinite */
    change_byte("x.npy", st.st_size + (long)sizeof(x) + 2, 0x80);
    d = open_ok(&s);
    assert_int_equal(s.ops->read(d, 0, 0, (void *[2]){x, &label}, &err), DDP_OK);
    assert_int_equal(s.ops->read(d, 1, 0, (void *[2]){x, &label}, &err), DDP_ERR_DATA);
    expect_parts(&err, "sample 1 has a value that is infinite", "x.npy");
    s.ops->close(d);
    change_byte("x.npy", st.st_size + (SAMPLES - 1) * (long)sizeof(x) + 3, 0x7f);
    change_byte("x.npy", st.st_size + (SAMPLES - 1) * (long)sizeof(x) + 2, 0x80);
    expect_error(&s, DDP_ERR_DATA, "sample 8191 has a value that is infinite", "x.npy");
    assert_int_equal(unlink(path_of("x.npy")), 0);
    end(&s);
}

/* ---- npz --------------------------------------------------------------------------------------------------------- */
static void add_member(zip_t *zip, const char *name, const void *data, size_t bytes, int method)
{
    zip_int64_t index = zip_file_add(zip, name, zip_source_buffer(zip, data, bytes, 0), 0);

    assert_true(index >= 0);
    assert_int_equal(zip_set_file_compression(zip, (zip_uint64_t)index, method, 0), 0);
}

/* a.npz has x.npy, these bytes, and y.npy, three labels. */
static void put_npz(const void *x, size_t bytes, int method)
{
    unsigned char y[256];
    size_t y_bytes = make(1, "{'descr': '|u1', 'fortran_order': False, 'shape': (3,)}", "\1\0\2", 3, y);
    zip_t *zip = zip_open(path_of("a.npz"), ZIP_CREATE | ZIP_TRUNCATE, NULL);

    assert_non_null(zip);
    add_member(zip, "x.npy", x, bytes, method);
    add_member(zip, "y.npy", y, y_bytes, ZIP_CM_STORE);
    assert_int_equal(zip_close(zip), 0);
}

/* Changes byte `at` of the one place in a.npz that has these bytes. */
static void change_after(const char *part, size_t length, size_t at, unsigned char value)
{
    static unsigned char file[65536];
    FILE *f = fopen(path_of("a.npz"), "rb");
    size_t size = fread(file, 1, sizeof(file), f);
    unsigned char *found = memmem(file, size, part, length);

    (void)fclose(f);
    assert_non_null(found);
    change_byte("a.npz", (long)(found - file) + (long)at, value);
}

static subject npz(void)
{
    static char path[512];
    subject s = begin("dataset_npy");

    (void)snprintf(path, sizeof(path), "%s", path_of("a.npz"));
    config_set(s.plugin, s.config, "path", path);
    config_set(s.plugin, s.config, "input", "x");
    config_set(s.plugin, s.config, "label", "y.npy");
    return s;
}

static void test_npz(void **state)
{
    static const int methods[] = {ZIP_CM_STORE, ZIP_CM_DEFLATE};
    static const char text[] = "{'descr': '<f4', 'fortran_order': False, 'shape': (3, 500)}";
    static float x[1500], got[500];
    static unsigned char file[8192];
    subject s = npz();
    size_t bytes;

    (void)state;
    for (unsigned i = 0; i < 1500; i++) x[i] = (float)i;
    bytes = make(1, text, x, sizeof(x), file);
    for (int i = 0; i < 2; i++) {
        ddp_dataset *d;
        int64_t label;

        put_npz(file, bytes, methods[i]);
        d = open_ok(&s);
        read_ok(&s, d, 1, got, &label);
        assert_memory_equal(got, x + 500, sizeof(got));
        assert_int_equal(label, 0);
        assert_non_null(strstr(s.ops->describe(d), "a.npz\": x, f4 (3, 500): input f32\n"));
        s.ops->close(d);
    }
    put_npz(file, bytes, ZIP_CM_STORE);
    change_after("\0\0\x80\x3f", 4, 3, 0x40); /* a float; the checksum sees it */
    expect_error(&s, DDP_ERR_DATA, "a.npz\": x cannot be read: libzip says \"CRC error\"", "numpy.savez");
    put_npz(file, bytes - 4, ZIP_CM_DEFLATE);
    expect_error(&s, DDP_ERR_DATA, "its header promises 6000 bytes of elements, the zip file has 5996", "a.npz\": x");
    put_npz(file, 40, ZIP_CM_STORE);
    expect_error(&s, DDP_ERR_DATA, "a.npz\": x is truncated within its header", "numpy.savez");
    put_npz(file, 5, ZIP_CM_STORE);
    expect_error(&s, DDP_ERR_DATA, "a.npz\": x is no .npy file", "numpy.save");
    put_npz("", 0, ZIP_CM_STORE);
    expect_error(&s, DDP_ERR_DATA, "a.npz\": x is no .npy file", "numpy.save");
    config_set(s.plugin, s.config, "input", "z");
    expect_error(&s, DDP_ERR_CONFIG, "a.npz\" has no such array; it has: x, y", "input = z");
    write_file("a.npz", "no zip file at all", 18);
    expect_error(&s, DDP_ERR_DATA, "cannot be read: libzip says \"Not a zip archive\"", "a.npz");
    assert_int_equal(unlink(path_of("a.npz")), 0);
    expect_error(&s, DDP_ERR_DATA, "No such file or directory; set path to your .npz file", "a.npz");
    end(&s);
}

/* The zip file's table and the header agree on 3 GB: no memory is taken for it. */
static void test_bomb(void **state)
{
    unsigned char file[256];
    size_t bytes = make(1, "{'descr': '|u1', 'fortran_order': False, 'shape': (3, 1000000000)}", "abcdef", 6, file);
    unsigned claimed = (unsigned)(bytes - 6) + 3000000000u;
    subject s = npz();

    (void)state;
    put_npz(file, bytes, ZIP_CM_DEFLATE);
    for (unsigned i = 0; i < 4; i++) change_after("PK\1\2", 4, 24 + i, (unsigned char)(claimed >> 8 * i));
    expect_error(&s, DDP_ERR_DATA, "3000000076 bytes cannot be packed into", "a.npz\": x");
    end(&s);
}

/* ---- main -------------------------------------------------------------------------------------------------------- */
int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_dtypes),       cmocka_unit_test(test_fields),  cmocka_unit_test(test_images),
        cmocka_unit_test(test_image_shapes), cmocka_unit_test(test_headers), cmocka_unit_test(test_damage),
        cmocka_unit_test(test_large),        cmocka_unit_test(test_npz),     cmocka_unit_test(test_bomb),
    };

    return cmocka_run_group_tests_name("npy", tests, set_up, tear_down);
}
