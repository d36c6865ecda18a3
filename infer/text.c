/* infer/text.c -- see text.h. */
#include "infer/text.h"
#include "base/sys.h"
#include "session/open.h"
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { BYTES = 256 };

/* ---- tokens ------------------------------------------------------------------------------------------------------ */
/* The row so far; it grows to its full length at once. */
typedef struct row {
    int64_t *tokens;
    size_t count;
    bool numbers; /* printed as such */

    /* of a tokenizer; else NULL: tokens are bytes */
    const ddp_source *source;
    size_t from, printed; /* tokens that are decoded together, the first of them; bytes of their text that are out */
    char *text;
    size_t capacity;
} row;

static ddp_status parse_tokens(const char *text, int64_t vocabulary, row *r, ddp_err *err)
{
    for (const char *at = text; *at != '\0';) {
        char *end;
        long long id = strtoll(at, &end, 10);

        if (end == at || id < 0 || id >= vocabulary || (*end != ',' && *end != '\0'))
            return ddp_fail(err, DDP_ERR_CONFIG,
                            "--prompt-tokens takes numbers from 0 to %lld with commas between them, not %.100s",
                            (long long)vocabulary - 1, at);
        r->tokens[r->count++] = id;
        at = *end == ',' ? end + 1 : end;
    }
    return r->count > 0 ? DDP_OK : ddp_fail(err, DDP_ERR_CONFIG, "--prompt-tokens names no token to continue");
}

/* The prompt by the dataset's tokenizer; DDP_ERR_UNSUPPORTED: it has none. */
static ddp_status encode_prompt(const ddp_source *src, const char *text, const ddp_text_request *q, row *r,
                                ddp_err *err)
{
    size_t count = 0;

    DDP_TRY(src->ops->encode(src->dataset, text, strlen(text), NULL, 0, &count, err));
    r->tokens = ddp_alloc((count + (size_t)q->tokens + 1) * sizeof(*r->tokens), err);
    if (r->tokens == NULL) return err->status;
    DDP_TRY(src->ops->encode(src->dataset, text, strlen(text), r->tokens, count, &r->count, err));
    r->source = src;
    return DDP_OK;
}

static ddp_status make_row(const ddp_source *src, const ddp_text_request *q, int64_t vocabulary, row *r, ddp_err *err)
{
    const char *text = q->prompt_tokens != NULL ? q->prompt_tokens : q->prompt != NULL ? q->prompt : "\n";
    size_t capacity = strlen(text) + (size_t)q->tokens + 1;

    r->numbers = q->prompt_tokens != NULL;
    if (!r->numbers && vocabulary != BYTES) {
        ddp_err why = {0};
        ddp_status status = encode_prompt(src, text, q, r, &why);

        if (status == DDP_ERR_UNSUPPORTED)
            return ddp_fail(err, DDP_ERR_CONFIG,
                            "the model has %lld tokens, which are not bytes, and [data] has no tokenizer for them; "
                            "set tokenizer of dataset tokens, or give token numbers with --prompt-tokens",
                            (long long)vocabulary);
        if (status != DDP_OK) return ddp_fail(err, status, "--prompt: %s", why.msg);
    } else {
        r->tokens = ddp_alloc(capacity * sizeof(*r->tokens), err);
        if (r->tokens == NULL) return err->status;
        if (r->numbers) return parse_tokens(text, vocabulary, r, err);
        for (; *text != '\0'; text++) r->tokens[r->count++] = (unsigned char)*text;
    }
    for (size_t i = 0; i < r->count; i++)
        if (r->tokens[i] >= vocabulary)
            return ddp_fail(
                err, DDP_ERR_CONFIG,
                "--prompt: token %lld of the tokenizer is beyond the model's %lld; they do not belong together",
                (long long)r->tokens[i], (long long)vocabulary);
    return r->count > 0 ? DDP_OK : ddp_fail(err, DDP_ERR_CONFIG, "--prompt is empty; give a text to continue");
}

/* A model may write any byte; a terminal must not obey it. */
static ddp_status print_token(const row *r, size_t i, bool terminal, ddp_err *err)
{
    int64_t token = r->tokens[i];
    int byte = (int)token, good;

    if (terminal && ((byte < ' ' && byte != '\n' && byte != '\t') || byte == 0x7f)) byte = '?';
    good = r->numbers ? printf("%s%lld", i > 0 ? " " : "", (long long)token) : putchar(byte);
    if (good < 0 || (terminal && fflush(stdout) == EOF)) return ddp_fail_errno(err, "cannot write to standard output");
    return DDP_OK;
}

static ddp_status print_bytes(const char *text, size_t size, bool terminal, ddp_err *err)
{
    bool good = true;

    for (size_t i = 0; i < size && good; i++) {
        int byte = (unsigned char)text[i];

        if (terminal && ((byte < ' ' && byte != '\n' && byte != '\t') || byte == 0x7f)) byte = '?';
        good = putchar(byte) != EOF;
    }
    if (!good || (terminal && fflush(stdout) == EOF)) return ddp_fail_errno(err, "cannot write to standard output");
    return DDP_OK;
}

static ddp_status decode_row(row *r, size_t end, size_t *size, ddp_err *err)
{
    const ddp_source *src = r->source;

    for (;;) {
        DDP_TRY(src->ops->decode(src->dataset, r->tokens + r->from, end - r->from, r->text, r->capacity, size, err));
        if (*size <= r->capacity) return DDP_OK;
        free(r->text);
        r->capacity = 0;
        r->text = ddp_alloc(2 * *size, err);
        if (r->text == NULL) return err->status;
        r->capacity = 2 * *size;
    }
}

/* What tokens .. end - 1 add to the text. A token may be a part of a character, or of what the tokens after it make:
 * what ends in U+FFFD waits for them, unless it is the `last`. Now and then decoding begins at a later token. */
static ddp_status print_new(row *r, size_t end, bool last, bool terminal, ddp_err *err)
{
    size_t size, longest = 64;

    DDP_TRY(decode_row(r, end, &size, err));
    if (!last && size >= 3 && memcmp(r->text + size - 3, "\xef\xbf\xbd", 3) == 0 && end - r->from < 2 * longest)
        return DDP_OK;
    if (size > r->printed) DDP_TRY(print_bytes(r->text + r->printed, size - r->printed, terminal, err));
    r->printed = size;
    if (end - r->from < longest) return DDP_OK;
    r->from = end - 1; /* this token is out, and stays as what the next one follows */
    DDP_TRY(decode_row(r, end, &r->printed, err));
    return DDP_OK;
}

static ddp_status write_words(ddp_generator *g, const ddp_text_request *q, row *r, ddp_err *err)
{
    bool terminal = isatty(STDOUT_FILENO) == 1;
    size_t end = r->count + (size_t)q->tokens;

    DDP_TRY(print_new(r, r->count, r->count == end, terminal, err));
    while (r->count < end) {
        DDP_TRY(infer_generator_next(g, &q->how, r->tokens, r->count, &r->tokens[r->count], err));
        r->count++;
        DDP_TRY(print_new(r, r->count, r->count == end, terminal, err));
    }
    return putchar('\n') == EOF || fflush(stdout) == EOF ? ddp_fail_errno(err, "cannot write to standard output")
                                                         : DDP_OK;
}

static ddp_status write_text(ddp_generator *g, const ddp_source *src, const ddp_text_request *q, row *r, ddp_err *err)
{
    bool terminal = isatty(STDOUT_FILENO) == 1;
    size_t end;

    DDP_TRY(make_row(src, q, infer_generator_vocabulary(g), r, err));
    if (r->source != NULL) return write_words(g, q, r, err);
    end = r->count + (size_t)q->tokens;
    for (size_t i = 0; i < r->count; i++) DDP_TRY(print_token(r, i, terminal, err));
    for (; r->count < end; r->count++) {
        DDP_TRY(infer_generator_next(g, &q->how, r->tokens, r->count, &r->tokens[r->count], err));
        DDP_TRY(print_token(r, r->count, terminal, err));
    }
    return putchar('\n') == EOF || fflush(stdout) == EOF ? ddp_fail_errno(err, "cannot write to standard output")
                                                         : DDP_OK;
}

/* ---- the run ----------------------------------------------------------------------------------------------------- */
/* A single-rank run, whatever group the config describes. */
int ddp_generate_text(const ddp_text_request *q, ddp_config *config, ddp_log *log)
{
    const ddp_launch launch = {.purpose = DDP_TO_GENERATE,
                               .weights = q->weights,
                               .world = 1,
                               .local_size = 1,
                               .nproc = 1,
                               .rank_where = "generate",
                               .world_where = "generate",
                               .listen_fd = -1};
    ddp_generator *g = NULL;
    ddp_session session;
    ddp_err err = {0};
    row r = {0};
    ddp_status st = ddp_session_open(&session, log, config, &launch, &err);
    int code;

    if (st != DDP_OK) {
        ddp_log_line(log, DDP_LOG_ERROR, "%s", err.msg);
        return ddp_err_exit_code(&err);
    }
    st = infer_generator_open(&session, &g, &err);
    if (st == DDP_OK) {
        st = write_text(g, &session.train, q, &r, &err);
        if (st != DDP_OK) (void)ddp_fail_as(&err, st == DDP_ERR_SYSTEM ? DDP_EXIT_INTERNAL : DDP_EXIT_CONFIG);
        infer_generator_close(g);
    }
    code = st == DDP_OK ? DDP_EXIT_OK : ddp_err_exit_code(&err);
    if (st != DDP_OK) ddp_log_line(log, DDP_LOG_ERROR, "%s", err.msg);
    free(r.tokens);
    free(r.text);
    ddp_session_close(&session);
    return code;
}
