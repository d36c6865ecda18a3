/* test_safetensors.c -- the format both ways, and what a hostile or damaged file may do: nothing but be refused. */
#include "support/checkpoint_util.h"

#include "base/mt19937.h"
#include "checkpoint/safetensors.h"
#include "checkpoint/safetensors/sink.h"
#include <errno.h>
#include <sched.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/mount.h>
#include <sys/resource.h>
#include <sys/wait.h>

static const float f32[6] = {1.5f, -2.0f, 3.25f, 0.0f, 5.0f, -0.0f};
static const int64_t i64[2] = {-1, INT64_MAX};
static const uint8_t u8[3] = {1, 2, 255};
static const uint16_t bf16[1] = {0x3f80};
static const double f64 = 2.5;

static const ddp_named_tensor mixed[] = {
    {.name = "bytes", .dtype = DDP_U8, .rank = 1, .dims = {3}, .data = u8},
    {.name = "fc1.weight", .dtype = DDP_F32, .rank = 2, .dims = {2, 3}, .data = f32},
    {.name = "quote \" back \\ \xc3\xbc", .dtype = DDP_BF16, .rank = 1, .dims = {1}, .data = bf16},
    {.name = "count", .dtype = DDP_I64, .rank = 1, .dims = {2}, .data = i64},
    {.name = "empty", .dtype = DDP_F32, .rank = 2, .dims = {0, 7}, .data = NULL},
    {.name = "scalar", .dtype = DDP_F64, .rank = 0, .data = &f64},
};

static ddp_status write_it(const char *path, const ddp_named_tensor *t, size_t n, ddp_err *err)
{
    char hash[DDP_XXH128_HEX] = "";
    uint64_t bytes = 0;

    return checkpoint_safetensors_write(path, t, n, NULL, NULL, hash, &bytes, err);
}

static size_t size_of(const ddp_named_tensor *t)
{
    size_t n = ddp_dtype_size(t->dtype);

    for (uint32_t i = 0; i < t->rank; i++) n *= (size_t)t->dims[i];
    return n;
}

static void round_trip(void **state)
{
    static const char *const metadata[] = {"format", "pt", NULL};
    const char *path = in(*state, "a.safetensors");
    char hash[DDP_XXH128_HEX], own[DDP_XXH128_HEX], *data;
    ddp_safetensors *s;
    ddp_xxh128 h;
    ddp_err err = {0};
    uint64_t bytes = 0, header = 0;
    size_t length;

    assert_int_equal(checkpoint_safetensors_write(path, mixed, DDP_COUNT(mixed), metadata, NULL, hash, &bytes, &err),
                     DDP_OK);
    data = slurp(path, &length);
    assert_int_equal(length, bytes);
    assert_int_equal(ddp_xxh128_begin(&h, &err), DDP_OK);
    ddp_xxh128_add(&h, data, length);
    ddp_xxh128_end(&h, own);
    assert_string_equal(hash, own);
    memcpy(&header, data, 8);
    assert_int_equal(header % 8, 0);
    assert_contains(data + 8, "{\"__metadata__\":{\"format\":\"pt\"}");
    free(data);

    assert_int_equal(ddp_safetensors_open(path, &s, &err), DDP_OK);
    assert_int_equal(ddp_safetensors_count(s), DDP_COUNT(mixed));
    for (size_t i = 0; i < DDP_COUNT(mixed); i++) {
        const ddp_named_tensor *t = ddp_safetensors_find(s, mixed[i].name);

        assert_non_null(t);
        assert_int_equal(t->dtype, mixed[i].dtype);
        assert_int_equal(t->rank, mixed[i].rank);
        assert_memory_equal(t->dims, mixed[i].dims, sizeof(t->dims));
        assert_int_equal((uintptr_t)t->data % ddp_dtype_size(t->dtype), 0);
        if (size_of(t) > 0) assert_memory_equal(t->data, mixed[i].data, size_of(t));
    }
    assert_null(ddp_safetensors_find(s, "fc1"));
    assert_null(ddp_safetensors_at(s, DDP_COUNT(mixed)));
    assert_string_equal(ddp_safetensors_at(s, 0)->name, "count"); /* 8-byte elements stand first */
    ddp_safetensors_close(s);
}

/* Several chunks, whose ends are no block's; with `shift` also from an offset that O_DIRECT refuses, as a disk that is
 * nearly full leaves it. */
static void expect_whole(const char *path, off_t shift)
{
    enum { BYTES = (5 << 20) / 2 + 13, FIRST = 12345 };
    char *bytes = malloc(BYTES), hash[DDP_XXH128_HEX], own[DDP_XXH128_HEX], *there;
    checkpoint_sink s;
    ddp_xxh128 h;
    ddp_err err = {0};
    size_t length;

    for (size_t i = 0; i < BYTES; i++) bytes[i] = (char)(i * 2654435761u >> 13);
    assert_int_equal(checkpoint_sink_open(&s, path, NULL, &err), DDP_OK);
    assert_int_equal(lseek(s.fd, shift, SEEK_SET), shift);
    assert_int_equal(checkpoint_sink_put(&s, bytes, FIRST, &err), DDP_OK);
    assert_int_equal(checkpoint_sink_put(&s, bytes + FIRST, BYTES - FIRST, &err), DDP_OK);
    assert_int_equal(s.bytes, BYTES);
    assert_int_equal(checkpoint_sink_close(&s, DDP_OK, hash, &err), DDP_OK);
    there = slurp(path, &length);
    assert_int_equal(length, BYTES + shift);
    assert_memory_equal(there + shift, bytes, BYTES);
    assert_int_equal(ddp_xxh128_begin(&h, &err), DDP_OK);
    ddp_xxh128_add(&h, bytes, BYTES);
    ddp_xxh128_end(&h, own);
    assert_string_equal(hash, own);
    free(there);
    free(bytes);
}

static void larger_than_a_chunk(void **state)
{
    expect_whole(in(*state, "a.safetensors"), 0);
    expect_whole(in(*state, "b.safetensors"), 1);
}

static void no_tensors(void **state)
{
    const char *path = in(*state, "none.safetensors");
    ddp_safetensors *s;
    ddp_err err = {0};

    assert_int_equal(write_it(path, NULL, 0, &err), DDP_OK);
    assert_int_equal(ddp_safetensors_open(path, &s, &err), DDP_OK);
    assert_int_equal(ddp_safetensors_count(s), 0);
    assert_null(ddp_safetensors_find(s, "x"));
    ddp_safetensors_close(s);
}

/* Whatever the header's length: the data start at a multiple of 8. */
static void padding(void **state)
{
    const char *path = in(*state, "pad.safetensors");
    ddp_named_tensor t = {.dtype = DDP_F32, .rank = 1, .dims = {6}, .data = f32};
    ddp_err err = {0};

    for (size_t i = 0; i < 8; i++) {
        uint64_t header = 0;
        size_t length;
        char *data;

        t.name = "weights." + i;
        assert_int_equal(write_it(path, &t, 1, &err), DDP_OK);
        data = slurp(path, &length);
        memcpy(&header, data, 8);
        assert_int_equal(header % 8, 0);
        assert_int_equal(length, 8 + header + sizeof(f32));
        free(data);
        assert_int_equal(unlink(path), 0);
    }
}

static void what_cannot_be_written(void **state)
{
    const char *path = in(*state, "bad.safetensors");
    const ddp_named_tensor good = {.name = "w", .dtype = DDP_F32, .rank = 1, .dims = {6}, .data = f32};
    ddp_named_tensor two[2] = {good, good};
    ddp_err err = {0};
    char *data;

    assert_int_equal(write_it(path, two, 2, &err), DDP_ERR_INVALID);
    assert_contains(err.msg, "tensor name \"w\" is there twice");
    two[1].name = "__metadata__";
    assert_int_equal(write_it(path, two, 2, &err), DDP_ERR_INVALID);
    two[1].name = "\xff\xfe";
    assert_int_equal(write_it(path, two, 2, &err), DDP_ERR_INVALID);
    assert_contains(err.msg, "not UTF-8");
    two[1] = good;
    two[1].name = "v";
    two[1].dims[0] = -1;
    assert_int_equal(write_it(path, two, 2, &err), DDP_ERR_INVALID);
    two[1].rank = 3;
    two[1].dims[0] = two[1].dims[1] = two[1].dims[2] = INT64_C(1) << 31;
    assert_int_equal(write_it(path, two, 2, &err), DDP_ERR_INVALID);
    assert_contains(err.msg, "tensor v cannot be saved");
    two[1] = good;
    two[1].name = "v";
    two[1].dtype = 99;
    assert_int_equal(write_it(path, two, 2, &err), DDP_ERR_INVALID);
    assert_contains(err.msg, "dtype number 99");
    assert_false(exists(path));

    spill(path, "mine", 4);
    assert_int_equal(write_it(path, &good, 1, &err), DDP_ERR_SYSTEM);
    assert_contains(err.msg, path);
    data = slurp(path, NULL);
    assert_string_equal(data, "mine");
    free(data);
}

/* In a child: what a full disk (or a quota) leaves. 0: as it should be. */
static int write_too_much(const char *path, int wanted_errno)
{
    static float big[262144];
    const ddp_named_tensor t = {.name = "w", .dtype = DDP_F32, .rank = 1, .dims = {262144}, .data = big};
    ddp_err err = {0};

    if (write_it(path, &t, 1, &err) != DDP_ERR_SYSTEM) return 1;
    if (err.sys_errno != wanted_errno || strstr(err.msg, path) == NULL) return 2;
    return exists(path) ? 3 : 0;
}

static int wait_for(pid_t child)
{
    int status = 0;

    assert_int_equal(waitpid(child, &status, 0), child);
    return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

static void file_size_limit(void **state)
{
    const char *path = in(*state, "limit.safetensors");
    pid_t child = fork();

    if (child == 0) {
        const struct rlimit limit = {100000, 100000};

        (void)signal(SIGXFSZ, SIG_IGN);
        _exit(setrlimit(RLIMIT_FSIZE, &limit) != 0 ? 9 : write_too_much(path, EFBIG));
    }
    assert_int_equal(wait_for(child), 0);
}

static void full_disk(void **state)
{
    char dir[512];
    pid_t child;
    int code;

    (void)snprintf(dir, sizeof(dir), "%s", ((struct place *)*state)->dir);
    child = fork();
    if (child == 0) {
        char path[1024];

        if (unshare(CLONE_NEWNS) != 0 || mount("none", "/", NULL, MS_REC | MS_PRIVATE, NULL) != 0 ||
            mount("tmpfs", dir, "tmpfs", 0, "size=128k") != 0)
            _exit(77);
        (void)snprintf(path, sizeof(path), "%s/full.safetensors", dir);
        _exit(write_too_much(path, ENOSPC));
    }
    code = wait_for(child);
    if (code == 77) skip();
    assert_int_equal(code, 0);
}

/* ---- hostile files ----------------------------------------------------------------------------------------------- */
/* A file of this header and `data` zero bytes behind it. */
static void craft(const char *path, const char *header, size_t data)
{
    size_t n = strlen(header);
    char *all = calloc(1, 8 + n + data);

    assert_non_null(all);
    for (int i = 0; i < 8; i++) all[i] = (char)(n >> (8 * i) & 0xff);
    memcpy(all + 8, header, n);
    spill(path, all, 8 + n + data);
    free(all);
}

static void refused(const char *path, const char *part)
{
    ddp_safetensors *s = NULL;
    ddp_err err = {0};
    ddp_status st = ddp_safetensors_open(path, &s, &err);

    if (st == DDP_OK) fail_msg("accepted, but expected: %s", part);
    assert_null(s);
    assert_contains(err.msg, path);
    assert_contains(err.msg, part);
}

#define W(shape, from, to) "\"w\":{\"dtype\":\"F32\",\"shape\":[" shape "],\"data_offsets\":[" from "," to "]}"
#define V(from, to)        ",\"v\":{\"dtype\":\"U8\",\"shape\":[4],\"data_offsets\":[" from "," to "]}"

static void hostile_headers(void **state)
{
    static const struct {
        const char *header;
        size_t data;
        const char *part;
    } cases[] = {
        {"", 8, "does not start with '{'"},
        {"[]", 0, "does not start with '{'"},
        {" {}", 0, "does not start with '{'"},
        {"{", 0, "not valid JSON"},
        {"{}x", 0, "not valid JSON"},
        {"{\"w\xff\":1}", 0, "not valid JSON"},
        {"{" W("1", "0", "4") "," W("1", "0", "4") "}", 4, "\"w\": is there twice"},
        {"{" W("1", "0", "4") ",\"\\u0077\":{\"dtype\":\"U8\",\"shape\":[0],\"data_offsets\":[0,0]}}", 4,
         "\"w\": is there twice"},
        {"{\"w\":{\"dtype\":\"F32\",\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[0,4]}}", 4,
         "\"dtype\" is there twice"},
        {"{\"w\":{\"dtype\":\"F32\",\"strides\":[1],\"shape\":[1],\"data_offsets\":[0,4]}}", 4, "\"strides\" is"},
        {"{\"w\":{\"dtype\":\"F32\" \"shape\":[1]}}", 4, "not valid JSON: ',' or '}' is missing at byte 20"},
        {"{\"w\":{\"dtype\":\"F32\",}}", 4, "not valid JSON: a text in double quotes"},
        {"{" W("1 1", "0", "4") "}", 4, "not valid JSON: ',' or ']' is missing"},
        {"{" W("1,", "0", "4") "}", 4, "not a whole number"},
        {"{" W("01", "0", "4") "}", 4, "not a whole number"},
        {"{\"w\" 3}", 0, "not valid JSON: ':' is missing"},
        {"{\"w", 0, "not valid JSON: a text without its closing quote"},
        {"{\"w\\", 0, "wrong escape"},
        {"{\"w\\x\":3}", 0, "wrong escape"},
        {"{\"w\\u00g0\":3}", 0, "wrong escape"},
        {"{\"w\\u0000\":3}", 0, "wrong escape"},
        {"{\"\\ud83d\":3}", 0, "wrong escape"},
        {"{\"\\ud83d\\u0041\":3}", 0, "wrong escape"},
        {"{\"\\ude00\":3}", 0, "wrong escape"},
        {"{\"a\nb\":3}", 0, "not UTF-8"},
        {"{\"\xc0\x80\":3}", 0, "not UTF-8"},
        {"{\"\xed\xa0\x80\":3}", 0, "not UTF-8"},
        {"{\"\xf4\x90\x80\x80\":3}", 0, "not UTF-8"},
        {"{\"\xe2\x82\":3}", 0, "not UTF-8"},
        {"{\"w\":3}", 0, "\"w\": not a JSON object"},
        {"{\"w\":{}}", 0, "\"w\": no dtype"},
        {"{\"w\":{\"dtype\":7,\"shape\":[],\"data_offsets\":[0,4]}}", 4, "no dtype"},
        {"{\"w\":{\"dtype\":\"F12\",\"shape\":[],\"data_offsets\":[0,4]}}", 4, "dtype F12 is not one"},
        {"{\"w\":{\"dtype\":\"F32\",\"data_offsets\":[0,4]}}", 4, "no shape"},
        {"{\"w\":{\"dtype\":\"F32\",\"shape\":4,\"data_offsets\":[0,4]}}", 4, "no shape"},
        {"{\"w\":{\"dtype\":\"F32\",\"shape\":[1]}}", 4, "no data_offsets"},
        {"{\"w\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[0]}}", 4, "no data_offsets"},
        {"{\"w\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":{\"0\":0}}}", 4, "no data_offsets"},
        {"{" W("1", "0", "4.0") "}", 4, "not two whole numbers"},
        {"{" W("-1", "0", "4") "}", 4, "not a whole number"},
        {"{" W("1.0", "0", "4") "}", 4, "not a whole number"},
        {"{" W("1,1,1,1,1,1,1,1,1", "0", "4") "}", 4, "more than 8 dimensions"},
        {"{" W("-1,-1", "0", "4") "}", 4, "not a whole number"},
        {"{" W("4294967296,4294967296", "0", "0") "}", 0, "product of its shape overflows"},
        {"{" W("2305843009213693952", "0", "0") "}", 0, "product of its shape overflows"},
        {"{" W("99999999999999999999", "0", "4") "}", 4, "not a whole number from 0 to 2^63 - 1"},
        {"{" W("1", "0", "99999999999999999999") "}", 4, "two whole numbers up to 2^63 - 1"},
        {"{" W("2", "0", "4") "}", 4, "contradict"},
        {"{" W("1", "4", "0") "}", 4, "wrong way round"},
        {"{" W("1", "-4", "0") "}", 4, "negative"},
        {"{" W("1", "0", "4") "}", 3, "past the end of the file"},
        {"{" W("1", "9223372036854775803", "9223372036854775807") "}", 4, "past the end of the file"},
        {"{" W("1", "0", "4") "}", 5, "1 bytes after the last tensor"},
        {"{" W("1", "0", "4") V("2", "6") "}", 6, "\"v\": overlaps"},
        {"{" W("1", "0", "4") V("0", "4") "}", 4, "overlaps"},
        {"{" W("1", "0", "4") V("5", "9") "}", 9, "\"v\": a hole"},
        {"{\"__metadata__\":[]}", 0, "not an object of strings"},
        {"{\"__metadata__\":{\"a\":1}}", 0, "not an object of strings"},
        {"{\"__metadata__\":{\"a\":\"1\",\"b\":\"\",\"\\u0061\":\"2\"}}", 0, "has a key twice"},
        {"{\"__metadata__\":{},\"__metadata__\":{}}", 0, "__metadata__ is there twice"},
        {"{\"a\\n\\u001b[2J\":3}", 0, "\"a??[2J\": not a JSON object"},
    };
    const char *path = in(*state, "hostile.safetensors");

    for (size_t i = 0; i < DDP_COUNT(cases); i++) {
        craft(path, cases[i].header, cases[i].data);
        refused(path, cases[i].part);
    }
}

static void hostile_lengths(void **state)
{
    static const uint64_t lengths[] = {3, 4, 100000001, INT64_MAX, (uint64_t)1 << 63, UINT64_MAX, UINT64_MAX - 7};
    const char *path = in(*state, "length.safetensors");
    unsigned char data[10] = {0};
    ddp_err err = {0};
    ddp_safetensors *s;

    for (size_t i = 0; i < DDP_COUNT(lengths); i++) {
        memcpy(data, &lengths[i], 8);
        memcpy(data + 8, "{}", 2);
        spill(path, data, sizeof(data));
        refused(path, "in a file of 10");
    }
    spill(path, data, 7);
    refused(path, "7 bytes: too short");
    spill(path, "", 0);
    refused(path, "0 bytes: too short");
    refused(((struct place *)*state)->dir, "not a plain file");
    assert_int_equal(ddp_safetensors_open(in(*state, "absent"), &s, &err), DDP_ERR_SYSTEM);
    assert_contains(err.msg, "absent: No such file");
    assert_int_equal(mkfifo(in(*state, "fifo"), 0600), 0);
    refused(in(*state, "fifo"), "not a plain file");
}

static void accepted_variants(void **state)
{
    static const char *const headers[] = {"{" W("1", "0", "4") "}", "{" W("", "0", "4") "}     ",
                                          "{" W("2,2", "4", "20") V("0", "4") "}",
                                          "{\"__metadata__\":{\"by\":\"someone\"}," W("1", "0", "4") "}"};
    static const size_t data[] = {4, 4, 20, 4};
    const char *path = in(*state, "good.safetensors");
    ddp_safetensors *s;
    ddp_err err = {0};

    for (size_t i = 0; i < DDP_COUNT(headers); i++) {
        craft(path, headers[i], data[i]);
        if (ddp_safetensors_open(path, &s, &err) != DDP_OK) fail_msg("%s", err.msg);
        assert_non_null(ddp_safetensors_find(s, "w"));
        ddp_safetensors_close(s);
    }
}

/* Names as JSON may write them: escapes, and characters beyond 16 bits. */
static void escaped_names(void **state)
{
    static const char header[] =
        "{\"\\u0077\\u00fc\\u20AC\\ud83d\\ude00\\n\\\"\\\\\\/\":{\"\\u0064type\" :\t\"F\\u00332\", \"shape\" : [ 1 , 1 ],\n"
        "\"data_offsets\":[ 0 , 4 ] } }";
    const char *path = in(*state, "escapes.safetensors");
    ddp_safetensors *s;
    ddp_err err = {0};

    craft(path, header, 4);
    if (ddp_safetensors_open(path, &s, &err) != DDP_OK) fail_msg("%s", err.msg);
    assert_non_null(ddp_safetensors_find(s, "w\xc3\xbc\xe2\x82\xac\xf0\x9f\x98\x80\n\"\\/"));
    assert_int_equal(ddp_safetensors_at(s, 0)->rank, 2);
    ddp_safetensors_close(s);
}

/* ---- headers of the largest size --------------------------------------------------------------------------------- */
enum { HUGE_HEADER = 98000000, MEMORY_LIMIT = 512 << 20 };

/* A file of a header that begins with `head` and then repeats `piece` as long as there is room. */
static void craft_huge(int fd, const char *head, const char *piece)
{
    size_t length = strlen(piece), block = 4096 * length;
    char *pieces = malloc(block), *length_text = malloc(8);
    uint64_t at = 8 + strlen(head), header = HUGE_HEADER;

    assert_non_null(pieces);
    assert_non_null(length_text);
    for (size_t i = 0; i < 4096; i++) memcpy(pieces + i * length, piece, length);
    memcpy(length_text, &header, 8); /* little-endian, as the machines this runs on */
    assert_int_equal(ftruncate(fd, 0), 0);
    assert_int_equal(ftruncate(fd, 8 + HUGE_HEADER), 0);
    assert_int_equal(pwrite(fd, length_text, 8, 0), 8);
    assert_int_equal(pwrite(fd, head, strlen(head), 8), strlen(head));
    for (; at + block <= 8 + HUGE_HEADER; at += block) assert_int_equal(pwrite(fd, pieces, block, (off_t)at), block);
    free(length_text);
    free(pieces);
}

/* In a child whose memory is limited, the mapping of the file included. 0: refused, with that reason. */
static int open_in_little_memory(const char *path, const char *part)
{
    ddp_safetensors *s;
    ddp_err err = {0};
#ifndef __SANITIZE_ADDRESS__ /* it reserves terabytes: only memory in use tells */
    const struct rlimit limit = {MEMORY_LIMIT, MEMORY_LIMIT};

    if (setrlimit(RLIMIT_AS, &limit) != 0) return 9;
#endif
    if (ddp_safetensors_open(path, &s, &err) != DDP_ERR_DATA) return 1;
    if (strstr(err.msg, part) != NULL) return 0;
    (void)fprintf(stderr, "# %s\n", err.msg);
    return 2;
}

/* What is wrong in a header of 98 MB is refused without memory for all of it. */
static void huge_headers(void **state)
{
    static const struct {
        const char *head, *piece, *part;
    } cases[] = {
        {"{\"w\":", "[", "not a JSON object"},
        {"{\"w\":{\"dtype\":\"F32\",\"shape\":[", "1,", "more than 8 dimensions"},
        {"{\"__metadata__\":{\"a\":\"\"", ",\"a\":\"\"", "more than 16384 keys"},
        {"{\"a\":{\"dtype\":\"U8\",\"shape\":[0],\"data_offsets\":[0,0]}",
         ",\"a\":{\"dtype\":\"U8\",\"shape\":[0],\"data_offsets\":[0,0]}", "more than 1048576 tensors"},
        {"{\"", "name", "a text that is not UTF-8"}, /* the zeros behind it */
    };
    int fd = memfd_create("huge", MFD_CLOEXEC);
    char path[64];

    (void)state;
    assert_true(fd >= 0);
    (void)snprintf(path, sizeof(path), "/proc/self/fd/%d", fd);
    for (size_t i = 0; i < DDP_COUNT(cases); i++) {
        struct rusage used;
        int status = 0;
        pid_t child;

        craft_huge(fd, cases[i].head, cases[i].piece);
        child = fork();
        if (child == 0) _exit(open_in_little_memory(path, cases[i].part));
        assert_int_equal(wait4(child, &status, 0, &used), child);
        if (!WIFEXITED(status) || WEXITSTATUS(status) != 0) fail_msg("%s: status %d", cases[i].part, status);
        assert_in_range(used.ru_maxrss, 1, (size_t)MEMORY_LIMIT / 1024);
    }
    close(fd);
}

/* As a large mixture of experts has them. */
static void many_tensors(void **state)
{
    enum { MANY = 40000 };
    const char *path = in(*state, "many.safetensors");
    ddp_text header = {0};
    ddp_safetensors *s;
    ddp_err err = {0};
    char name[64];

    for (int i = 0; i < MANY; i++)
        ddp_text_printf(&header,
                        "%c\"layers.%d.experts.%d.w\":{\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[%d,%d]}",
                        i == 0 ? '{' : ',', i % 60, i, i, i + 1);
    ddp_text_append(&header, "}", 1);
    craft(path, header.data, MANY);
    ddp_text_free(&header);
    if (ddp_safetensors_open(path, &s, &err) != DDP_OK) fail_msg("%s", err.msg);
    assert_int_equal(ddp_safetensors_count(s), MANY);
    for (int i = 0; i < MANY; i += 97) {
        (void)snprintf(name, sizeof(name), "layers.%d.experts.%d.w", i % 60, i);
        assert_ptr_equal(ddp_safetensors_find(s, name), ddp_safetensors_at(s, (size_t)i));
    }
    ddp_safetensors_close(s);
}

/* What opens must be readable to its last byte. */
static uint64_t read_all(const ddp_safetensors *s)
{
    uint64_t sum = 0;

    for (size_t i = 0; i < ddp_safetensors_count(s); i++) {
        const ddp_named_tensor *t = ddp_safetensors_at(s, i);
        const unsigned char *d = t->data;

        for (size_t k = 0; k < size_of(t); k++) sum += d[k];
        assert_ptr_equal(ddp_safetensors_find(s, t->name), t);
    }
    return sum;
}

/* One to four changes: a flipped bit, a digit, a structural character, a cut, bytes doubled. */
static size_t mutate(ddp_mt19937 *g, char *data, size_t length)
{
    static const char alphabet[] = "0123456789-.eE{}[]\",:\\u\xff ";

    for (uint32_t n = 1 + base_mt19937_next(g) % 4; n > 0 && length > 0; n--) {
        size_t at = base_mt19937_next(g) % length, other = base_mt19937_next(g) % length;

        switch (base_mt19937_next(g) % 5) {
        case 0: data[at] ^= (char)(1 << base_mt19937_next(g) % 8); break;
        case 1: data[at] = alphabet[base_mt19937_next(g) % (sizeof(alphabet) - 1)]; break;
        case 2: length = at; break;
        case 3: memmove(data + at, data + other, length - (at > other ? at : other)); break;
        default: data[at % 8] = (char)base_mt19937_next(g); break;
        }
    }
    return length;
}

static void mutated_files(void **state)
{
    const char *path = in(*state, "fuzz.safetensors");
    int fd = memfd_create("fuzz", MFD_CLOEXEC); /* no disk waits for 4000 truncated files */
    char *original, *copy, name[64];
    size_t length, opened = 0;
    ddp_mt19937 g;
    ddp_err err = {0};

    assert_true(fd >= 0);
    (void)snprintf(name, sizeof(name), "/proc/self/fd/%d", fd);
    assert_int_equal(write_it(path, mixed, DDP_COUNT(mixed), &err), DDP_OK);
    original = slurp(path, &length);
    copy = malloc(length);
    assert_non_null(copy);
    ddp_mt19937_seed(&g, 1);
    for (int i = 0; i < 4000; i++) {
        ddp_safetensors *s;
        size_t n;

        memcpy(copy, original, length);
        n = mutate(&g, copy, length);
        assert_int_equal(ftruncate(fd, 0), 0);
        assert_int_equal(pwrite(fd, copy, n, 0), n);
        if (ddp_safetensors_open(name, &s, &err) != DDP_OK) continue;
        (void)read_all(s);
        ddp_safetensors_close(s);
        opened++;
    }
    assert_in_range(opened, 1, 3999);
    close(fd);
    free(copy);
    free(original);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(round_trip, place_setup, place_teardown),
        cmocka_unit_test_setup_teardown(larger_than_a_chunk, place_setup, place_teardown),
        cmocka_unit_test_setup_teardown(no_tensors, place_setup, place_teardown),
        cmocka_unit_test_setup_teardown(padding, place_setup, place_teardown),
        cmocka_unit_test_setup_teardown(what_cannot_be_written, place_setup, place_teardown),
        cmocka_unit_test_setup_teardown(file_size_limit, place_setup, place_teardown),
        cmocka_unit_test_setup_teardown(full_disk, place_setup, place_teardown),
        cmocka_unit_test_setup_teardown(hostile_headers, place_setup, place_teardown),
        cmocka_unit_test_setup_teardown(hostile_lengths, place_setup, place_teardown),
        cmocka_unit_test_setup_teardown(accepted_variants, place_setup, place_teardown),
        cmocka_unit_test_setup_teardown(escaped_names, place_setup, place_teardown),
        cmocka_unit_test(huge_headers),
        cmocka_unit_test_setup_teardown(many_tensors, place_setup, place_teardown),
        cmocka_unit_test_setup_teardown(mutated_files, place_setup, place_teardown),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
