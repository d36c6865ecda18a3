/* tests/unit/dataset/test_csv.c -- dataset `csv`: every value of small tables, what their columns are taken for, the
 * split, bad rows with their lines, and files that want to be large. */
#include "support/dataset_util.h"
#include <math.h>

static void put(const char *name, const char *text) { write_file(name, text, strlen(text)); }

/* The plugin on t.csv with this text; then pairs of key and value up to NULL. */
static subject table(const char *text, ...)
{
    static char path[512];
    subject s = begin("dataset_csv");
    va_list ap;

    put("t.csv", text);
    (void)snprintf(path, sizeof(path), "%s", path_of("t.csv"));
    config_set(s.plugin, s.config, "path", path);
    config_set(s.plugin, s.config, "target", "y");
    config_set(s.plugin, s.config, "standardize", "no");
    va_start(ap, text);
    for (const char *key; (key = va_arg(ap, const char *)) != NULL;)
        config_set(s.plugin, s.config, key, va_arg(ap, const char *));
    va_end(ap);
    return s;
}

static const ddp_field *fields_of(subject *s, const ddp_dataset *d)
{
    const ddp_field *f;

    assert_int_equal(s->ops->fields(d, &f), 2);
    assert_string_equal(f[0].name, "input");
    assert_int_equal(f[0].dtype, DDP_F32);
    assert_int_equal(f[0].rank, 1);
    return f;
}

/* Sample `index` has these inputs, and this label or target. */
static void check(subject *s, const ddp_dataset *d, uint64_t index, const float *inputs, double target)
{
    const ddp_field *f = fields_of(s, d);
    float got[64], value = -1.0f;
    int64_t label = -1;
    ddp_err err = {0};
    void *second = f[1].dtype == DDP_I64 ? (void *)&label : (void *)&value;

    assert_true(f[0].dims[0] <= 64);
    assert_int_equal(s->ops->read(d, index, 0, (void *[2]){got, second}, &err), DDP_OK);
    for (int64_t i = 0; i < f[0].dims[0]; i++)
        if (got[i] != inputs[i])
            fail_msg("sample %u, input %d: %.9g, not %.9g", (unsigned)index, (int)i, got[i], inputs[i]);
    if (f[1].dtype == DDP_I64)
        assert_int_equal(label, (int64_t)target);
    else
        assert_true(value == (float)target);
}

#define ROW(...) ((const float[]){__VA_ARGS__})

static void expect_lines(subject *s, const ddp_dataset *d, const char *part)
{
    if (strstr(s->ops->describe(d), part) == NULL) fail_msg("\"%s\" lacks \"%s\"", s->ops->describe(d), part);
}

static void close_all(subject *s, ddp_dataset *d)
{
    s->ops->close(d);
    end(s);
}

/* ---- values ------------------------------------------------------------------------------------------------------ */
static void test_values(void **state)
{
    subject s = table("\xef\xbb\xbf"
                      "a,\"colour, of it\",b,same,none,y\r\n"
                      " 1.5 ,red,-2e3,7,,no\r\n"
                      "\r\n"
                      "2,\"Bl\"\"ue\n\",.5,7,NA,yes\r\n"
                      "+3,zeta,1,7,null,no",
                      "missing", "zero", NULL);
    ddp_dataset *d = open_ok(&s);
    const ddp_field *f = fields_of(&s, d);

    (void)state;
    assert_int_equal(s.ops->length(d), 3);
    assert_int_equal(f[0].dims[0], 5);
    assert_string_equal(f[1].name, "label");
    assert_int_equal(f[1].dtype, DDP_I64);
    assert_int_equal(f[1].min, 0);
    assert_int_equal(f[1].max, 1);
    check(&s, d, 0, ROW(1.5f, 0, 1, 0, -2000), 0); /* Bl"ue, red, zeta */
    check(&s, d, 1, ROW(2, 1, 0, 0, 0.5f), 1);
    check(&s, d, 2, ROW(3, 0, 0, 1, 1), 0);
    expect_no_sample(&s, d, 3);
    expect_lines(&s, d, "3 samples of 5 inputs, from 3 of 6 columns\n");
    expect_lines(&s, d, "a                    number    1.5 to 3, mean 2.16667");
    expect_lines(&s, d, "colour, of it        category  3 categories: Bl\"ue?, red, zeta\n");
    expect_lines(&s, d, "same                 ignored   the same in all rows\n");
    expect_lines(&s, d, "none                 ignored   no values\n");
    expect_lines(&s, d, "y                    class     2 classes: no, yes; target\n");
    close_all(&s, d);
}

static void test_standardised(void **state)
{
    static const double x[] = {1e9 + 1, 1e9 + 2, 1e9 + 3, 1e9 + 6};
    subject s = table("x,m,y\n1000000001,2,0\n1000000002,,1\n1000000003,5,0\n1000000006,5,1\n", "standardize", "yes",
                      "missing", "mean", "indicator", "yes", NULL);
    double mean = 1e9 + 3, std = sqrt(14.0 / 4);
    ddp_dataset *d = open_ok(&s);

    (void)state;
    for (unsigned i = 0; i < 4; i++) {
        float m = (float)(((i == 0 ? 2 : 5) - 4.0) / sqrt(2.0));

        check(&s, d, i, ROW((float)((x[i] - mean) / std), i == 1 ? 0.0f : m, i == 1), i % 2);
    }
    s.ops->close(d);
    config_set(s.plugin, s.config, "missing", "zero");
    config_set(s.plugin, s.config, "indicator", "no");
    d = open_ok(&s);
    check(&s, d, 1, ROW((float)((x[1] - mean) / std), (float)(-4.0 / sqrt(2.0))), 1);
    close_all(&s, d);
}

static void test_targets(void **state)
{
    subject s = table("x,y\n1,10\n2,9\n3,9.0\n4,-1\n", NULL);
    ddp_dataset *d = open_ok(&s);

    (void)state;
    assert_int_equal(fields_of(&s, d)[1].max, 2);
    check(&s, d, 0, ROW(1), 2); /* by value: -1, 9, 10 */
    check(&s, d, 1, ROW(2), 1);
    check(&s, d, 2, ROW(3), 1);
    check(&s, d, 3, ROW(4), 0);
    s.ops->close(d);
    config_set(s.plugin, s.config, "target_type", "number");
    d = open_ok(&s);
    assert_string_equal(fields_of(&s, d)[1].name, "target");
    assert_int_equal(fields_of(&s, d)[1].rank, 1);
    check(&s, d, 0, ROW(1), 10);
    check(&s, d, 3, ROW(4), -1);
    s.ops->close(d);
    put("t.csv", "x,y\n1,0.5\n2,9\n");
    config_set(s.plugin, s.config, "target_type", "auto");
    d = open_ok(&s);
    check(&s, d, 0, ROW(1), 0.5);
    s.ops->close(d);
    config_set(s.plugin, s.config, "target_type", "class");
    d = open_ok(&s);
    check(&s, d, 1, ROW(2), 1);
    s.ops->close(d);
    put("t.csv", "x,y\n1,0.5\n2,0.50\n3,5e-1\n4,0.1\n5,-.25\n");
    d = open_ok(&s);
    assert_int_equal(fields_of(&s, d)[1].max, 2);
    assert_string_equal(s.ops->class_name(d, 1, 0), "-0.25");
    assert_string_equal(s.ops->class_name(d, 1, 1), "0.1");
    for (int i = 0; i < 3; i++) check(&s, d, (uint64_t)i, ROW((float)(i + 1)), 2);
    s.ops->close(d);
    put("t.csv", "x,y\n1,0.5\n2,high\n");
    config_set(s.plugin, s.config, "target_type", "number");
    expect_error(&s, DDP_ERR_DATA, "t.csv:3: column y is \"high\", which is no number", "skip_bad");
    put("t.csv", "x,y\n1,a\n2,a\n");
    config_set(s.plugin, s.config, "target_type", "auto");
    expect_error(&s, DDP_ERR_DATA, "has one class in all 2 rows", "fit");
    end(&s);
}

/* One value and missing cells: an input where it tells them apart. */
static void test_one_value(void **state)
{
    subject s = table("x,c,n,y\n1,a,7,0\n2,,,1\n3,a,7,0\n4,a,7,1\n", "missing", "zero", NULL);
    ddp_dataset *d = open_ok(&s);

    (void)state;
    expect_lines(&s, d, "c                    category  1 categories: a, 1 missing\n");
    expect_lines(&s, d, "n                    ignored   one value, 1 missing\n");
    check(&s, d, 0, ROW(1, 1), 0);
    check(&s, d, 1, ROW(2, 0), 1);
    s.ops->close(d);
    config_set(s.plugin, s.config, "indicator", "yes");
    d = open_ok(&s);
    check(&s, d, 0, ROW(1, 1, 7, 0), 0);
    check(&s, d, 1, ROW(2, 0, 0, 1), 1);
    close_all(&s, d);
}

static void test_headers_and_delimiters(void **state)
{
    static const char *const names[] = {"semicolon", "tab", "pipe"};
    static const char signs[] = ";\t|";

    (void)state;
    for (int i = 0; i < 3; i++) {
        char text[] = "1;a;0\n2;;1\n";
        subject s;
        ddp_dataset *d;

        for (char *t = text; *t != '\0'; t++)
            if (*t == ';') *t = signs[i];
        s = table(text, "header", "no", "delimiter", names[i], "target", "3", "missing", "zero", "categorical", "1",
                  NULL);
        d = open_ok(&s);
        check(&s, d, 0, ROW(1, 0, 1), 0);
        check(&s, d, 1, ROW(0, 1, 0), 1);
        expect_lines(&s, d, "2                    category  1 categories: a, 1 missing");
        close_all(&s, d);
    }
}

/* ---- the split --------------------------------------------------------------------------------------------------- */
enum { ROWS = 400 };

/* Rows first .. last - 1, each with its number as x. */
static void put_rows(const char *header, const char *row, unsigned first, unsigned last)
{
    char *text = malloc(64 * (size_t)ROWS), *at = text;

    assert_non_null(text);
    at += sprintf(at, "%s\n", header);
    for (unsigned i = first; i < last; i++) {
        at += sprintf(at, row, i, i % 2);
        *at++ = '\n';
    }
    write_file("t.csv", text, (size_t)(at - text));
    free(text);
}

/* Marks the rows that a split has. */
static uint64_t mark_rows(subject *s, const char *split, bool *marks)
{
    ddp_dataset *d;
    uint64_t count;

    config_set(s->plugin, s->config, "split", split);
    d = open_ok(s);
    count = s->ops->length(d);
    for (uint64_t i = 0; i < count; i++) {
        float x;
        int64_t label;
        ddp_err err = {0};

        assert_int_equal(s->ops->read(d, i, 0, (void *[2]){&x, &label}, &err), DDP_OK);
        assert_int_equal(label, (int64_t)x % 2);
        marks[(int)x] = true;
    }
    s->ops->close(d);
    return count;
}

static void test_split(void **state)
{
    subject s = table("", "validation", "0.25", NULL);
    bool train[ROWS] = {false}, other[ROWS] = {false}, again[ROWS] = {false};
    uint64_t a, b;

    (void)state;
    put_rows("k,x,y", "7,%u,%u", 0, ROWS / 2);
    (void)mark_rows(&s, "validation", other);
    put_rows("k,x,y", "7,%u,%u", 0, ROWS); /* the rows that were there stay where they are */
    a = mark_rows(&s, "train", train);
    b = mark_rows(&s, "validation", again);
    assert_int_equal(a + b, ROWS);
    assert_in_range(b, ROWS / 5, ROWS / 3);
    for (int i = 0; i < ROWS; i++) {
        assert_true(train[i] != again[i]);
        if (i < ROWS / 2) assert_true(other[i] == again[i]);
    }
    end(&s);
}

/* Rows with one id are on one side, whatever else is in them; mean and std are of the training rows. */
static void test_split_by_id(void **state)
{
    subject s = table("", "validation", "0.5", "id", "who", "split", "validation", NULL);
    ddp_dataset *d;
    char mean[64];
    bool marks[ROWS] = {false};
    double sum = 0;
    uint64_t count;

    (void)state;
    put_rows("x,y,who", "%u,%u,one", 0, ROWS);
    expect_error(&s, DDP_ERR_DATA, "t.csv: none of its 400 good rows is left", "validation = 0.5");
    count = mark_rows(&s, "train", marks);
    assert_int_equal(count, ROWS);
    put("t.csv", "x,y,who\n1,1,one\n2,3,\n5,7,\n");
    config_set(s.plugin, s.config, "split", "all");
    d = open_ok(&s);
    expect_lines(&s, d, "ignored   id; empty in 2 rows, which are all on one side of the split\n");
    s.ops->close(d);
    config_set(s.plugin, s.config, "id", "");
    put_rows("x,y", "%u,%u", 0, ROWS);
    memset(marks, 0, sizeof(marks));
    count = mark_rows(&s, "train", marks);
    for (int i = 0; i < ROWS; i++) sum += marks[i] ? i : 0;
    (void)snprintf(mean, sizeof(mean), "mean %g, ", sum / (double)count);
    config_set(s.plugin, s.config, "split", "validation");
    d = open_ok(&s);
    expect_lines(&s, d, mean);
    close_all(&s, d);
}

/* ---- a file of its own for the test ------------------------------------------------------------------------------ */
static char last_line[512];

static void keep_line(void *ctx, int level, const char *file, int line, const char *fmt, ...)
{
    va_list ap;

    (void)ctx;
    (void)file;
    (void)line;
    assert_int_equal(level, DDP_LOG_WARN);
    assert_string_equal(last_line, ""); /* one alone */
    va_start(ap, fmt);
    (void)vsnprintf(last_line, sizeof(last_line), fmt, ap);
    va_end(ap);
}

/* Opens it and expects one warning with both parts. */
static ddp_dataset *open_warned(subject *s, const char *part, const char *other)
{
    const ddp_host host = {.struct_size = sizeof(host), .log = keep_line};
    ddp_dataset *d = NULL;
    ddp_err err = {0};

    last_line[0] = '\0';
    if (s->ops->open(&host, s->config, &d, &err) != DDP_OK) fail_msg("%s", err.msg);
    if (strstr(last_line, part) == NULL || strstr(last_line, other) == NULL) fail_msg("warned \"%s\"", last_line);
    return d;
}

static void test_fit(void **state)
{
    subject s = table("x,c,y\n1,red,a\n3,blue,b\n", "standardize", "yes", NULL);
    char fit[512];
    ddp_dataset *d;

    (void)state;
    (void)snprintf(fit, sizeof(fit), "%s", path_of("fit.csv"));
    put("fit.csv", "x,c,y\n0,blue,b\n4,red,c\n0,blue,a\n4,blue,a\n");
    config_set(s.plugin, s.config, "fit", fit);
    d = open_ok(&s);
    check(&s, d, 0, ROW(-0.5f, 0, 1), 0);
    check(&s, d, 1, ROW(0.5f, 1, 0), 1);
    assert_int_equal(fields_of(&s, d)[1].max, 2);
    s.ops->close(d);
    put("t.csv", "x,c,y\n2,green,a\n");
    d = open_warned(&s, "1 cells have a category that", "fit.csv does not have");
    check(&s, d, 0, ROW(0, 0, 0), 0);
    s.ops->close(d);
    put("t.csv", "x,c,y\n2,red,a\n2,red,d\n");
    expect_error(&s, DDP_ERR_DATA, "t.csv:3: the target, column y, is \"d\", which is no class", "fit");
    put("t.csv", "x,c,y\nmany,red,a\n");
    expect_error(&s, DDP_ERR_DATA, "t.csv:2: column x is \"many\", which is no number", "skip_bad = yes");
    put("t.csv", "x,C,y\n2,red,a\n");
    expect_error(&s, DDP_ERR_DATA, "t.csv:1: column 2 is \"C\", in ", "fit.csv it is \"c\"");
    put("t.csv", "x,c\n2,red\n");
    expect_error(&s, DDP_ERR_DATA, "t.csv:1: column 3 is \"(none)\"", "it is \"y\"");
    end(&s);
}

/* ---- bad rows ---------------------------------------------------------------------------------------------------- */
static void test_bad_rows(void **state)
{
    static const struct {
        const char *text, *part;
    } cases[] = {
        {"x,y\n1,0\n2\n3,1\n", "t.csv:3: the row has 1 cells, the header has 2"},
        {"x,y\n1,0\n2,1,\n3,1\n", "t.csv:3: the row has 3 cells"},
        {"x,y\n\n\"1\",\"0\n\"\n\n2\n3,1\n", "t.csv:6: "},
        {"x,y\r1,0\r\r2\r3,1\r", "t.csv:4: "},
        {"x,y\r\n1,0\r\n2\r\n3,1\r\n", "t.csv:3: "},
        {"x,y\n1,0\n2,\n3,1\n", "t.csv:3: the target, column y, is missing"},
        {"x,y\n1,0\n#N/A,1\n3,1\n", "t.csv:3: column x is missing, and missing = error"},
        {"x,y\n1,0\n?,1\n3,1\n", "t.csv:3: column x is \"?\", which is no number"},
        {"x,y\n1,0\n0x2,1\n3,1\n", "t.csv:3: column x is \"0x2\""},
        {"x,y\n1,0\n1e39,1\n3,1\n", "t.csv:3: column x is \"1e39\""},
        {"x,y\n1,0\ninf,1\n3,1\n", "t.csv:3: column x is \"inf\""},
        {"x,y\n1,0\n2\"2,1\n3,1\n", "t.csv:3: a double quote within a cell"},
        {"x,y\n1,0\n\"2\n\"2,1\n3,1\n", "t.csv:3: a double quote within a cell"},
    };

    (void)state;
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        subject s = table(cases[i].text, "numeric", "x", NULL);
        ddp_dataset *d;

        expect_error(&s, DDP_ERR_DATA, cases[i].part, "set skip_bad = yes");
        config_set(s.plugin, s.config, "skip_bad", "yes");
        d = open_warned(&s, "1 bad row is left out; the first is line ", strstr(cases[i].part, ": ") + 2);
        assert_int_equal(s.ops->length(d), 2);
        check(&s, d, 0, ROW(1), 0);
        check(&s, d, 1, ROW(3), 1);
        expect_lines(&s, d, "; 1 bad rows left out");
        close_all(&s, d);
    }
}

static void test_na_values(void **state)
{
    subject s = table("x,y\n1,0\n?,1\n-,0\n3,1\n", "na_values", "?,-", "missing", "zero", NULL);
    ddp_dataset *d = open_ok(&s);

    (void)state;
    check(&s, d, 1, ROW(0), 1);
    expect_lines(&s, d, ", 2 missing");
    close_all(&s, d);
}

/* ---- files that want to be large --------------------------------------------------------------------------------- */
/* `head`, then `piece` again and again, then `tail`. */
static void put_many(const char *head, const char *piece, size_t count, const char *tail)
{
    FILE *f = fopen(path_of("t.csv"), "wb");

    assert_non_null(f);
    (void)fputs(head, f);
    for (size_t i = 0; i < count; i++) (void)fputs(piece, f);
    (void)fputs(tail, f);
    assert_int_equal(fclose(f), 0);
}

static void close_one(subject *s, const char *part)
{
    ddp_dataset *d = open_ok(s);

    expect_lines(s, d, part);
    s->ops->close(d);
}

static void test_hostile(void **state)
{
    subject s = table("x,y\n1,0\n", "skip_bad", "yes", NULL);

    (void)state;
    put_many("x,y\n1,0\n", "0123456789abcde\n", 70000, "a\",1\n"); /* bad rows */
    expect_error(&s, DDP_ERR_DATA, "t.csv", "one class");
    put_many("x,y\n1,0\n2\"", "0123456789,1,2,3", 8000, "\n3,1\n");
    close_one(&s, "; 1 bad rows left out");
    put_many("x,y\n1,0\n2,\"", "0123456789abcde\n", 70000, "\"\n");
    expect_error(&s, DDP_ERR_DATA, "t.csv:3: the row that begins here has a cell of more than 1048576 bytes", "quote");
    put_many("x,y\n1,0\n2,\"", "0123456789abcde\n", 60000, "\n");
    expect_error(&s, DDP_ERR_DATA, "t.csv:3: the row that begins here has a quote that is not closed", "close it");
    put_many("x,", "0123456789abcdef", 70000, ",y\n1,2,3\n");
    expect_error(&s, DDP_ERR_DATA, "t.csv:1: ", "a cell of more than 1048576 bytes");
    put_many("x", ",", 1000000, "\n1,0\n");
    expect_error(&s, DDP_ERR_DATA, "t.csv:1 has 1000001 columns, more than 65536", "delimiter");
    put_many("x,y\n1,0\n2", ",", 1000000, "\n3,1\n");
    config_set(s.plugin, s.config, "skip_bad", "no");
    expect_error(&s, DDP_ERR_DATA, "t.csv:3: the row has 1000001 cells", "header has 2");
    write_file("t.csv", "x,y\n1,0\n2,\0\n", 13);
    expect_error(&s, DDP_ERR_DATA, "t.csv:3: the line has a 0 byte", "UTF-8");
    write_file("t.csv", "\xff\xfex\0,\0y\0\n", 10);
    expect_error(&s, DDP_ERR_DATA, "is UTF-16", "iconv");
    put("t.csv", "\xef\xbb\xbf");
    expect_error(&s, DDP_ERR_DATA, "holds no row", "t.csv");
    put("t.csv", "x,y\n");
    expect_error(&s, DDP_ERR_DATA, "holds no good row after its header", "t.csv");
    put("t.csv", "");
    expect_error(&s, DDP_ERR_DATA, "empty", "t.csv");
    assert_int_equal(unlink(path_of("t.csv")), 0);
    expect_error(&s, DDP_ERR_DATA, "No such file or directory; set path to your file", "t.csv");
    end(&s);
}

static void test_many_categories(void **state)
{
    subject s = table("x,y,z\n1,0,5\nA,1,6\nB,0,7\nC,1,8\n", "max_categories", "3", NULL);
    ddp_dataset *d;

    (void)state;
    expect_error(&s, DDP_ERR_DATA,
                 "t.csv:3: column x is \"A\", no number, and the column has more than max_categories = 3",
                 "write it into ignore");
    config_set(s.plugin, s.config, "categorical", "z");
    config_set(s.plugin, s.config, "ignore", "x");
    expect_error(&s, DDP_ERR_DATA, "t.csv: column z has more than max_categories = 3", "raise it");
    config_set(s.plugin, s.config, "max_categories", "4");
    d = open_ok(&s);
    check(&s, d, 2, ROW(0, 0, 1, 0), 0);
    close_all(&s, d);
}

/* ---- options and fingerprint ------------------------------------------------------------------------------------- */
static void test_options(void **state)
{
    static const struct {
        const char *key, *value, *part, *other;
    } cases[] = {
        {"target", "Y", "target = Y: ", "has no such column; it has 3: x, y, z"},
        {"target", "", "target is not set", "column to predict"},
        {"path", "", "path is not set", "CSV"},
        {"ignore", "4", "ignore = 4: ", "no such column"},
        {"ignore", "x,z,x", "ignore = x: the column is named by another option too", "exclude"},
        {"ignore", "y", "ignore = y: ", "exclude"},
        {"id", "y", "id and target name the same column", "choose another"},
        {"split", "train", "split = train needs", "validation = 0.1"},
        {"split", "validation", "split = validation needs", "validation = 0.1"},
    };
    subject s;

    (void)state;
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        s = table("x,y,z\n1,0,5\n2,1,6\n", cases[i].key, cases[i].value, NULL);
        expect_error(&s, DDP_ERR_CONFIG, cases[i].part, cases[i].other);
        end(&s);
    }
    s = table("x;y\n1;0\n2;1\n", NULL);
    expect_error(&s, DDP_ERR_CONFIG, "it has 1: x;y", "check delimiter");
    put("t.csv", "x,y,x\n1,0,1\n");
    expect_error(&s, DDP_ERR_DATA, "t.csv:1: columns 1 and 3 are both called \"x\"", "header = no");
    put("t.csv", "x,y\n1,0\n2,1\n");
    config_set(s.plugin, s.config, "ignore", "1");
    expect_error(&s, DDP_ERR_DATA, "no column is left as an input beside the target", "t.csv");
    end(&s);
}

static void test_fingerprint(void **state)
{
    static const char *const other[] = {"x,c,y\n1,a,0\n2,b,1\n4,b,0\n", "x,c,y\n1,a,0\n2,b,1\n3,b,1\n",
                                        "x,c,y\n1,a,0\n2,d,1\n3,d,0\n", "x,c,y\n1,a,0\n2,b,1\n",
                                        "x,c,y\n1,a,0\n2,b,2\n3,b,0\n"};
    subject s = table("x,c,y\n1,a,0\n2,b,1\n3,b,0\n", NULL);
    uint64_t mark = fingerprint(&s);

    (void)state;
    put("t.csv", "x,c,y\r\n1.0,\"a\",0\r\n2,b,1\r\n+3,b,0");
    assert_true(fingerprint(&s) == mark);
    config_set(s.plugin, s.config, "standardize", "yes");
    assert_true(fingerprint(&s) != mark);
    config_set(s.plugin, s.config, "standardize", "no");
    for (size_t i = 0; i < sizeof(other) / sizeof(other[0]); i++) {
        put("t.csv", other[i]);
        assert_true(fingerprint(&s) != mark);
    }
    end(&s);
}

/* ---- main -------------------------------------------------------------------------------------------------------- */
int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_values),
        cmocka_unit_test(test_one_value),
        cmocka_unit_test(test_standardised),
        cmocka_unit_test(test_targets),
        cmocka_unit_test(test_headers_and_delimiters),
        cmocka_unit_test(test_split),
        cmocka_unit_test(test_split_by_id),
        cmocka_unit_test(test_fit),
        cmocka_unit_test(test_bad_rows),
        cmocka_unit_test(test_na_values),
        cmocka_unit_test(test_hostile),
        cmocka_unit_test(test_many_categories),
        cmocka_unit_test(test_options),
        cmocka_unit_test(test_fingerprint),
    };

    return cmocka_run_group_tests_name("csv", tests, set_up, tear_down);
}
