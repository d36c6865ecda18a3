/* test_tokenizer_memory.c -- every allocation of a tokenizer made to fail in turn, while it is opened, encodes and
 * decodes: each call says so, and nothing is lost (which the build with sanitizers sees). */
#include "common/tokenizer/tokenizer.h"
#include "support/dataset_util.h"
#include <glob.h>

#define VECTORS DDP_SRCDIR "/tests/parity/vectors/tokenizers/"

static int64_t left = -1; /* allocations until one fails; -1: none does */

int allocation_fails(void);
int allocation_fails(void) { return left >= 0 && left-- == 0; }

void *__real_malloc(size_t size);
void *__real_calloc(size_t n, size_t size);
void *__real_realloc(void *p, size_t size);
char *__real_strdup(const char *text);
void *__wrap_malloc(size_t size);
void *__wrap_calloc(size_t n, size_t size);
void *__wrap_realloc(void *p, size_t size);
char *__wrap_strdup(const char *text);
void *__wrap_malloc(size_t size) { return allocation_fails() ? NULL : __real_malloc(size); }
void *__wrap_calloc(size_t n, size_t size) { return allocation_fails() ? NULL : __real_calloc(n, size); }
void *__wrap_realloc(void *p, size_t size) { return allocation_fails() ? NULL : __real_realloc(p, size); }
char *__wrap_strdup(const char *text) { return allocation_fails() ? NULL : __real_strdup(text); }

static ddp_status use(const tokenizer *t, ddp_err *err)
{
    static const char text[] =
        "It's 12 \xff words, one <s> of them is 一\U0001f389 "
        "incomprehensibilities----------------------------------------------------------------\n";
    tokenizer_scratch *s = NULL;
    numbers ids = {0};
    bytes back = {0};
    ddp_status status = tokenizer_scratch_new(&s, err);

    if (status == DDP_OK) status = tokenizer_encode(t, s, text, strlen(text), TOKENIZER_TEMPLATE, &ids, err);
    if (status == DDP_OK) status = tokenizer_decode(t, ids.data, ids.size, TOKENIZER_SKIP_SPECIAL, &back, err);
    tokenizer_scratch_free(s);
    free(ids.data);
    free(back.data);
    return status;
}

static ddp_status open_and_use(const char *path, ddp_err *err)
{
    tokenizer *t = NULL;
    ddp_status status = tokenizer_open(path, &t, err);

    if (status == DDP_OK) status = use(t, err);
    tokenizer_close(t);
    return status;
}

/* Each of the first ones, then fewer and fewer. */
static void fail_each(const char *path)
{
    ddp_err err = {0};
    int failed = 0;

    left = -1;
    if (open_and_use(path, &err) != DDP_OK) fail_msg("%s", err.msg);
    for (int64_t n = 0;; n += 1 + n / 64) {
        ddp_status status;
        bool reached;

        err = (ddp_err){0};
        left = n;
        status = open_and_use(path, &err);
        reached = left < 0;
        left = -1;
        if (!reached) break;
        if (status == DDP_OK) continue; /* it was for a message, or could do without */
        if (strstr(err.msg, "memory") == NULL) fail_msg("%s, allocation %d: %s", path, (int)n, err.msg);
        assert_int_equal(status, DDP_ERR_NOMEM);
        failed++;
    }
    assert_in_range(failed, 10, 100000);
}

static void tokenizer_json(void **state)
{
    glob_t found;

    (void)state;
    assert_int_equal(glob(VECTORS "*.json", 0, NULL, &found), 0);
    for (size_t i = 0; i < found.gl_pathc; i++) fail_each(found.gl_pathv[i]);
    globfree(&found);
}

static void gpt2(void **state)
{
    static const char words[] = "{\"a\":0,\"b\":1,\"ab\":2,\"<|endoftext|>\":3}", merges[] = "#version: 0.2\na b\n";

    (void)state;
    write_file("vocab.json", words, strlen(words));
    write_file("merges.txt", merges, strlen(merges));
    fail_each(folder);
}

#ifdef DDP_WITH_SENTENCEPIECE
static void take_model(const char *seed)
{
    uint8_t data[70000];
    char path[512];
    size_t size;
    FILE *f;

    (void)snprintf(path, sizeof(path), DDP_SRCDIR "/tests/fuzz/corpus/pieces/%s", seed);
    f = fopen(path, "rb");
    assert_non_null(f);
    size = fread(data, 1, sizeof(data), f);
    (void)fclose(f);
    assert_in_range(size, 3, sizeof(data));
    write_file("tokenizer.model", data + 2, data[0] | (size_t)data[1] << 8);
}

static void pieces(void **state)
{
    (void)state;
    take_model("tied");
    fail_each(folder);
    take_model("unigram");
    fail_each(folder);
}
#endif

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(tokenizer_json),
        cmocka_unit_test_setup_teardown(gpt2, set_up, tear_down),
#ifdef DDP_WITH_SENTENCEPIECE
        cmocka_unit_test_setup_teardown(pieces, set_up, tear_down),
#endif
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
