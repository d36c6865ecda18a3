/* bench_tokenizer.c -- the tokens of texts, for tests/bench/tokenizer_ids.py.
 *
 * make tests/bench/bench_tokenizer && tests/bench/bench_tokenizer ids|speed TOKENIZER < TEXTS
 *
 * TEXTS: for each its length, 32 bits little-endian, and its bytes. ids: for each its number of tokens and these, 32
 * bits each. speed: one line, MB (10^6 bytes) that one thread tokenizes in a second of its processor time. Nothing is
 * put around a text; special tokens in it become their ids. */
#include "common/tokenizer/tokenizer.h"
#include <stdio.h>
#include <time.h>

static void ok(ddp_status status, const ddp_err *err)
{
    if (status == DDP_OK) return;
    (void)fprintf(stderr, "%s\n", err->msg);
    exit(1);
}

static double now(void)
{
    struct timespec t;

    (void)clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

/* false: no more */
static bool read_text(bytes *text)
{
    uint32_t size;
    ddp_err err = {0};

    if (fread(&size, sizeof(size), 1, stdin) != 1) return false;
    text->size = 0;
    ok(bytes_reserve(text, (size_t)size + 1, &err), &err);
    text->size = fread(text->data, 1, size, stdin);
    return text->size == size;
}

static void print_ids(const numbers *ids)
{
    uint32_t count = (uint32_t)ids->size;

    (void)fwrite(&count, sizeof(count), 1, stdout);
    if (count > 0) (void)fwrite(ids->data, sizeof(*ids->data), count, stdout);
}

int main(int argc, char **argv)
{
    tokenizer *t = NULL;
    tokenizer_scratch *s = NULL;
    bytes text = {0};
    numbers ids = {0};
    ddp_err err = {0};
    double seconds = 0, size = 0;
    bool speed;

    if (argc != 3) return 2;
    speed = strcmp(argv[1], "speed") == 0;
    ok(tokenizer_open(argv[2], &t, &err), &err);
    ok(tokenizer_scratch_new(&s, &err), &err);
    while (read_text(&text)) {
        double begin = now();

        ids.size = 0;
        ok(tokenizer_encode(t, s, (const char *)text.data, text.size, 0, &ids, &err), &err);
        seconds += now() - begin;
        size += 1e-6 * (double)text.size;
        if (!speed) print_ids(&ids);
    }
    if (speed) (void)printf("%.3f\n", size / seconds);
    free(text.data);
    free(ids.data);
    tokenizer_scratch_free(s);
    tokenizer_close(t);
    return fflush(stdout) == 0 ? 0 : 1;
}
