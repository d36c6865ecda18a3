/* base/text.c -- the growing text, figures as people read them, and the nearest known name for a mistyped one. */
#include "base/base.h"
#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { TEXT_FIRST = 256, NEAREST_DISTANCE = 3, NEAREST_LENGTH = 64 };

static bool text_reserve(ddp_text *t, size_t more)
{
    size_t needed = t->length + more + 1, capacity = t->capacity > 0 ? t->capacity : TEXT_FIRST;
    char *data;

    if (t->failed) return false;
    if (needed <= t->capacity) return true;
    while (capacity < needed) capacity *= 2;
    data = realloc(t->data, capacity);
    if (data == NULL) {
        t->failed = true;
        return false;
    }
    t->data = data;
    t->capacity = capacity;
    return true;
}

void ddp_text_append(ddp_text *t, const void *data, size_t length)
{
    if (!text_reserve(t, length)) return;
    if (length > 0) memcpy(t->data + t->length, data, length);
    t->length += length;
    t->data[t->length] = '\0';
}

void ddp_text_printf(ddp_text *t, const char *fmt, ...)
{
    va_list ap;
    int length;

    va_start(ap, fmt);
    length = vsnprintf(NULL, 0, fmt, ap);
    va_end(ap);
    if (length < 0) {
        t->failed = true;
        return;
    }
    if (!text_reserve(t, (size_t)length)) return;
    va_start(ap, fmt);
    (void)vsnprintf(t->data + t->length, (size_t)length + 1, fmt, ap);
    va_end(ap);
    t->length += (size_t)length;
}

void ddp_text_shell_path(ddp_text *t, const char *path)
{
    static const char plain[] = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-+=:,./@%";

    if (path[0] == '-') ddp_text_printf(t, "./");
    if (path[0] != '\0' && path[strspn(path, plain)] == '\0') {
        ddp_text_printf(t, "%s", path);
        return;
    }
    ddp_text_printf(t, "'");
    for (; *path != '\0'; path++) ddp_text_printf(t, *path == '\'' ? "'\\''" : "%c", *path);
    ddp_text_printf(t, "'");
}

void ddp_text_free(ddp_text *t)
{
    free(t->data);
    *t = (ddp_text){0};
}

/* Bytes of the UTF-8 character at `text`, 0 when it is none or a control character of C1. */
static size_t utf8_length(const unsigned char *text)
{
    size_t length = text[0] < 0x80                      ? 1
                    : text[0] >= 0xc2 && text[0] < 0xe0 ? 2
                    : text[0] >= 0xe0 && text[0] < 0xf0 ? 3
                                                        : 4;

    if (length == 1) return 1;
    if (text[0] < 0xc2 || text[0] > 0xf4 || (text[0] == 0xc2 && text[1] < 0xa0)) return 0;
    for (size_t i = 1; i < length; i++)
        if ((text[i] & 0xc0) != 0x80) return 0; /* the end of the text as well */
    return length;
}

void ddp_clean_text(char *text)
{
    while (*text != '\0') {
        size_t length = utf8_length((const unsigned char *)text);

        if (((unsigned char)*text < 0x20 && *text != '\t') || *text == 0x7f) *text = ' ';
        if (length == 0) *text = '?';
        text += length == 0 ? 1 : length;
    }
}

bool ddp_locale_is_utf8(void)
{
    const char *names[] = {"LC_ALL", "LC_CTYPE", "LANG"}, *value = NULL;

    for (size_t i = 0; i < DDP_COUNT(names) && (value == NULL || value[0] == '\0'); i++) value = getenv(names[i]);
    return value != NULL && (strcasestr(value, "utf-8") != NULL || strcasestr(value, "utf8") != NULL);
}

/* Wagner and Fischer's table, one row at a time; words are at most NEAREST_LENGTH bytes. */
static size_t edit_distance(const char *a, size_t a_length, const char *b, size_t b_length)
{
    size_t row[NEAREST_LENGTH + 1];

    for (size_t j = 0; j <= b_length; j++) row[j] = j;
    for (size_t i = 1; i <= a_length; i++) {
        size_t diagonal = row[0];

        row[0] = i;
        for (size_t j = 1; j <= b_length; j++) {
            size_t replace = diagonal + (a[i - 1] != b[j - 1]);
            size_t edit = DDP_MIN_OF(row[j], row[j - 1]) + 1;

            diagonal = row[j];
            row[j] = DDP_MIN_OF(replace, edit);
        }
    }
    return row[b_length];
}

const char *ddp_nearest(const char *word, const char *const *candidates, size_t count)
{
    size_t length = strlen(word), best = NEAREST_DISTANCE + 1;
    const char *nearest = NULL;

    if (length > NEAREST_LENGTH) return NULL;
    for (size_t i = 0; i < count; i++) {
        size_t other = strlen(candidates[i]), distance;

        if (other > NEAREST_LENGTH) continue;
        distance = edit_distance(word, length, candidates[i], other);
        if (distance < best && distance < length) {
            best = distance;
            nearest = candidates[i];
        }
    }
    return nearest;
}

/* "1.2 GiB": one decimal, left out when it is 0. */
static void format_scaled(double value, const char *unit, char *buf, size_t capacity)
{
    double tenths = round(value * 10);

    (void)snprintf(buf, capacity, fmod(tenths, 10) == 0 ? "%.0f %s" : "%.1f %s", tenths / 10, unit);
}

const char *ddp_format_bytes(uint64_t bytes, char *buf, size_t capacity)
{
    static const char *const units[] = {"B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB"};
    double value = (double)bytes;
    size_t unit = 0;

    while (round(value * 10) >= 10240 && unit + 1 < DDP_COUNT(units)) {
        value /= 1024;
        unit++;
    }
    format_scaled(value, units[unit], buf, capacity);
    return buf;
}

const char *ddp_format_seconds(double seconds, char *buf, size_t capacity)
{
    if (!(seconds >= 0) || !isfinite(seconds)) {
        (void)snprintf(buf, capacity, "?");
    } else if (seconds < 0.99995e-3) {
        format_scaled(seconds * 1e6, "us", buf, capacity);
    } else if (seconds < 0.99995) {
        format_scaled(seconds * 1e3, "ms", buf, capacity);
    } else if (seconds < 59.95) {
        format_scaled(seconds, "s", buf, capacity);
    } else {
        uint64_t whole = seconds < 1e15 ? (uint64_t)(seconds + 0.5) : (uint64_t)1e15;

        if (whole < 3600)
            (void)snprintf(buf, capacity, "%" PRIu64 " min %" PRIu64 " s", whole / 60, whole % 60);
        else
            (void)snprintf(buf, capacity, "%" PRIu64 " h %" PRIu64 " min", whole / 3600, whole / 60 % 60);
    }
    return buf;
}

const char *ddp_format_count(uint64_t n, char *buf, size_t capacity)
{
    char digits[24], grouped[32];
    size_t length = (size_t)snprintf(digits, sizeof(digits), "%" PRIu64, n), at = 0;

    for (size_t i = 0; i < length; i++) {
        if (i > 0 && (length - i) % 3 == 0) grouped[at++] = ',';
        grouped[at++] = digits[i];
    }
    grouped[at] = '\0';
    ddp_copy_text(buf, capacity, grouped);
    return buf;
}

void ddp_copy_text(char *dst, size_t capacity, const char *src)
{
    size_t length = strnlen(src, capacity);

    if (capacity == 0) return;
    if (length == capacity) length--;
    memmove(dst, src, length);
    dst[length] = '\0';
}
