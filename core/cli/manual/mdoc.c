/* cli/manual/mdoc.c -- see mdoc.h. */
#include "cli/manual/mdoc.h"
#include "config/config.h"
#include <ctype.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { LINE_MOST = 68 }; /* without what escapes add */

/* A character that roff would show as another one, or take for itself. */
static void add_escaped(char c, ddp_text *out)
{
    static const struct {
        char c;
        const char *as;
    } escapes[] = {{'\\', "\\e"},  {'`', "\\(ga"}, {'\'', "\\(aq"}, {'^', "\\(ha"},
                   {'~', "\\(ti"}, {'"', "\\(dq"}, {'-', "\\-"}};

    for (size_t i = 0; i < DDP_COUNT(escapes); i++) {
        if (c != escapes[i].c) continue;
        ddp_text_printf(out, "%s", escapes[i].as);
        return;
    }
    ddp_text_append(out, &c, 1);
}

void mdoc_date(ddp_text *out)
{
    const char *epoch = getenv("SOURCE_DATE_EPOCH");
    time_t now = epoch != NULL ? (time_t)strtoll(epoch, NULL, 10) : time(NULL);
    struct tm date = {0};
    char month[16] = "January";

    (void)gmtime_r(&now, &date);
    (void)strftime(month, sizeof(month), "%B", &date);
    ddp_text_printf(out, ".Dd %s %d, %d\n", month, date.tm_mday, date.tm_year + 1900);
}

void mdoc_head(const char *name, int section, const char *summary, ddp_text *out)
{
    char title[128];

    ddp_copy_text(title, sizeof(title), name);
    for (char *c = title; *c != '\0'; c++) *c = (char)toupper((unsigned char)*c);
    mdoc_date(out);
    ddp_text_printf(out, ".Dt %s %d\n.Os\n.Sh NAME\n.Nm %s\n.Nd", title, section, name);
    mdoc_argument(summary, strlen(summary), out);
    ddp_text_printf(out, "\n");
}

void mdoc_prose(const char *text, ddp_text *out)
{
    size_t column = 0;

    for (text += strspn(text, " \n"); *text != '\0';) {
        size_t word = strcspn(text, " \n");
        const char *next = text + word + strspn(text + word, " \n");
        bool ends = strchr(".!?", text[word - 1]) != NULL && (isupper((unsigned char)*next) || *next == '[');

        if (column > 0 && column + 1 + word > LINE_MOST) {
            ddp_text_append(out, "\n", 1);
            column = 0;
        }
        ddp_text_printf(out, "%s", column > 0 ? " " : text[0] == '.' || text[0] == '\'' ? "\\&" : "");
        for (size_t i = 0; i < word; i++) add_escaped(text[i], out);
        column += word + (column > 0);
        if (ends) ddp_text_append(out, "\n", 1), column = 0;
        text = next;
    }
    if (column > 0) ddp_text_append(out, "\n", 1);
}

void mdoc_argument(const char *text, size_t length, ddp_text *out)
{
    bool quoted = memchr(text, ' ', length) != NULL;

    ddp_text_printf(out, quoted ? " \"\\&" : " \\&");
    for (size_t i = 0; i < length; i++) add_escaped(text[i], out);
    ddp_text_printf(out, quoted ? "\"" : "");
}

void mdoc_literal(const char *lines, const char *end, ddp_text *out)
{
    ddp_text_printf(out, ".Bd -literal\n");
    for (bool starts = true; *lines != '\0' && lines != end; lines++) {
        if (starts && (*lines == '.' || *lines == '\'')) ddp_text_printf(out, "\\&");
        add_escaped(*lines, out);
        starts = *lines == '\n';
    }
    ddp_text_printf(out, ".Ed\n");
}

void mdoc_keys(const ddp_option *options, size_t count, ddp_text *out)
{
    ddp_text_printf(out, ".Bl -tag -width Ds\n");
    for (size_t i = 0; i < count; i++) {
        ddp_text about = {0};

        ddp_text_printf(out, ".It Cm");
        mdoc_argument(options[i].key, strlen(options[i].key), out);
        ddp_text_printf(out, "\n");
        mdoc_prose(options[i].doc, out);
        ddp_text_printf(out, ".Pp\n");
        ddp_text_printf(&about, "(");
        ddp_option_describe(&options[i], &about);
        ddp_text_printf(&about, ")");
        if (about.failed)
            out->failed = true;
        else
            mdoc_prose(about.data, out);
        ddp_text_free(&about);
    }
    ddp_text_printf(out, ".El\n");
}
