/* config/value.c -- one value: its text to what a config struct's field holds, and back to canonical text. Lists,
 * tables and positions are in options.c. */
#include "config/private.h"
#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

typedef struct unit {
    const char *name;
    uint64_t factor;
} unit;

/* Canonical text takes the first, which is the largest, that divides without a rest. */
static const unit size_units[] = {{"TiB", 1ull << 40}, {"TB", 1000000000000}, {"GiB", 1ull << 30},
                                  {"GB", 1000000000},  {"MiB", 1ull << 20},   {"MB", 1000000},
                                  {"KiB", 1ull << 10}, {"kB", 1000},          {"B", 1}};
static const unit time_units[] = {{"d", 86400000}, {"h", 3600000}, {"min", 60000},
                                  {"m", 60000},    {"s", 1000},    {"ms", 1}};

static bool refuse(char *why, const char *fmt, ...) DDP_PRINTF_(2, 3);
static bool refuse(char *why, const char *fmt, ...)
{
    va_list ap;

    va_start(ap, fmt);
    (void)vsnprintf(why, DDP_WHY_MAX, fmt, ap);
    va_end(ap);
    return false;
}

size_t config_scalar_size(uint32_t type)
{
    switch (type) {
    case DDP_OPT_BOOL:
    case DDP_OPT_ENUM: return sizeof(int32_t);
    case DDP_OPT_INT:
    case DDP_OPT_DURATION: return sizeof(int64_t);
    case DDP_OPT_UINT:
    case DDP_OPT_SIZE: return sizeof(uint64_t);
    case DDP_OPT_FLOAT: return sizeof(double);
    case DDP_OPT_STRING:
    case DDP_OPT_PATH:
    case DDP_OPT_HOSTPORT: return sizeof(const char *);
    default: return 0;
    }
}

const char *config_type_name(uint32_t type)
{
    static const char *const names[] = {
        [DDP_OPT_INT] = "int",           [DDP_OPT_UINT] = "uint",     [DDP_OPT_FLOAT] = "float",
        [DDP_OPT_BOOL] = "bool",         [DDP_OPT_STRING] = "string", [DDP_OPT_PATH] = "path",
        [DDP_OPT_ENUM] = "enum",         [DDP_OPT_SIZE] = "size",     [DDP_OPT_DURATION] = "duration",
        [DDP_OPT_HOSTPORT] = "host:port"};

    return type > 0 && type < DDP_COUNT(names) ? names[type] : "?";
}

/* ---- numbers ----------------------------------------------------------------------------------------------------- */
static bool parse_int(const char *text, int64_t *out, char *why)
{
    const char *digits = text + (*text == '-');
    long long value;

    if (*digits == '\0' || digits[strspn(digits, "0123456789")] != '\0') return refuse(why, "not a whole number");
    errno = 0;
    value = strtoll(text, NULL, 10);
    if (errno == ERANGE) return refuse(why, "too large, at most 64 bits");
    *out = value;
    return true;
}

static bool parse_uint(const char *text, uint64_t *out, char *why)
{
    unsigned long long value;

    if (*text == '\0' || text[strspn(text, "0123456789")] != '\0')
        return refuse(why, "not a whole number of 0 or more");
    errno = 0;
    value = strtoull(text, NULL, 10);
    if (errno == ERANGE) return refuse(why, "too large, at most 64 bits");
    *out = value;
    return true;
}

static bool parse_float(const char *text, double *out, char *why)
{
    char *end;
    double value;

    /* strtod alone takes "inf", "nan" and hexadecimals too */
    if (*text == '\0' || text[strspn(text, "0123456789.eE+-")] != '\0') return refuse(why, "not a number");
    value = strtod(text, &end);
    if (end == text || *end != '\0') return refuse(why, "not a number");
    if (!isfinite(value)) return refuse(why, "too large for a double");
    *out = value;
    return true;
}

/* Digits and a unit of the list, with blanks between them or none. */
static bool parse_units(const char *text, const unit *units, size_t count, uint64_t *out, char *why)
{
    size_t digits = strspn(text, "0123456789");
    const char *name = text + digits + strspn(text + digits, " \t");
    char number[24];
    uint64_t value = 0, product;

    if (digits == 0 || digits >= sizeof(number)) return false;
    ddp_copy_text(number, digits + 1, text);
    if (!parse_uint(number, &value, why)) return false;
    if (*name == '\0' && (units == size_units || value == 0)) {
        *out = value;
        return true;
    }
    for (size_t i = 0; i < count; i++) {
        if (strcmp(units[i].name, name) != 0) continue;
        if (__builtin_mul_overflow(value, units[i].factor, &product)) return refuse(why, "too large, at most 64 bits");
        *out = product;
        return true;
    }
    return false;
}

static bool parse_size(const char *text, uint64_t *out, char *why)
{
    why[0] = '\0';
    if (parse_units(text, size_units, DDP_COUNT(size_units), out, why)) return true;
    if (why[0] != '\0') return false;
    return refuse(why,
                  "not a size; write a whole number and a unit of B, kB, MB, GB, TB, KiB, MiB, GiB, TiB, as in 25MiB");
}

static bool parse_duration(const char *text, int64_t *out, char *why)
{
    uint64_t value = 0;

    why[0] = '\0';
    if (parse_units(text, time_units, DDP_COUNT(time_units), &value, why)) {
        if (value > INT64_MAX) return refuse(why, "too long");
        *out = (int64_t)value;
        return true;
    }
    if (why[0] != '\0') return false;
    return refuse(why, "not a time; write a whole number and a unit of ms, s, min, h, d, as in 30s");
}

/* ---- words ------------------------------------------------------------------------------------------------------- */
static bool parse_bool(const char *text, int32_t *out, char *why)
{
    static const char *const words[] = {"no", "yes", "false", "true", "off", "on", "0", "1"};

    for (size_t i = 0; i < DDP_COUNT(words); i++) {
        if (strcasecmp(text, words[i]) != 0) continue;
        *out = (int32_t)(i % 2);
        return true;
    }
    return refuse(why, "not yes or no");
}

/* Name `index` of "a|b|c" with its length, NULL after the last. */
static const char *enum_name(const char *range, int32_t index, size_t *length)
{
    while (index-- > 0) {
        range = strchr(range, '|');
        if (range == NULL) return NULL;
        range++;
    }
    *length = strcspn(range, "|");
    return range;
}

/* Of a value that is none of the range's. */
static bool refuse_enum(const char *range, const char *text, char *why)
{
    char copy[512], *next = copy;
    const char *words[64], *nearest;
    size_t count = 0;

    ddp_copy_text(copy, sizeof(copy), range);
    while (next != NULL && count < DDP_COUNT(words)) words[count++] = strsep(&next, "|");
    nearest = ddp_nearest(text, words, count);
    if (nearest != NULL) return refuse(why, "not one of %.150s; did you mean \"%s\"?", range, nearest);
    return refuse(why, "not one of %.150s", range);
}

static bool parse_enum(const char *range, const char *text, int32_t *out, char *why)
{
    size_t length;
    int32_t index = 0;

    for (const char *name; (name = enum_name(range, index, &length)) != NULL; index++) {
        if (strlen(text) != length || memcmp(name, text, length) != 0) continue;
        *out = index;
        return true;
    }
    return refuse_enum(range, text, why);
}

/* "host:port", "[v6]:port". */
static bool parse_hostport(const char *text, char *why)
{
    const char *colon = strrchr(text, ':');
    bool bracketed = text[0] == '[';
    uint64_t port = 0;
    char ignored[DDP_WHY_MAX];

    if (colon == NULL || colon == text) return refuse(why, "not host:port");
    if (bracketed && (colon[-1] != ']' || colon - text < 4)) return refuse(why, "not [address]:port");
    if (!bracketed && memchr(text, ':', (size_t)(colon - text)) != NULL)
        return refuse(why, "an IPv6 address needs brackets, [address]:port");
    if (!parse_uint(colon + 1, &port, ignored) || port > 65535) return refuse(why, "its port is not 0..65535");
    return true;
}

/* ---- ranges ------------------------------------------------------------------------------------------------------ */
static bool parse_number(uint32_t type, const char *text, ddp_scalar *out, char *why)
{
    switch (type) {
    case DDP_OPT_INT: return parse_int(text, &out->i, why);
    case DDP_OPT_UINT: return parse_uint(text, &out->u, why);
    case DDP_OPT_FLOAT: return parse_float(text, &out->f, why);
    case DDP_OPT_SIZE: return parse_size(text, &out->u, why);
    case DDP_OPT_DURATION: return parse_duration(text, &out->i, why);
    default: return refuse(why, "not a number");
    }
}

static int compare(uint32_t type, ddp_scalar a, ddp_scalar b)
{
    switch (type) {
    case DDP_OPT_FLOAT: return (a.f > b.f) - (a.f < b.f);
    case DDP_OPT_UINT:
    case DDP_OPT_SIZE: return (a.u > b.u) - (a.u < b.u);
    default: return (a.i > b.i) - (a.i < b.i);
    }
}

typedef struct bounds {
    bool has_low, has_high;
    ddp_scalar low, high;
} bounds;

/* "LOW..HIGH", either may be missing. */
static bool parse_bounds(const ddp_option *o, bounds *out, char *why)
{
    const char *dots = strstr(o->range, "..");
    char low[64];

    if (dots == NULL || (size_t)(dots - o->range) >= sizeof(low))
        return refuse(why, "range \"%.60s\" is not LOW..HIGH", o->range);
    ddp_copy_text(low, (size_t)(dots - o->range) + 1, o->range);
    out->has_low = low[0] != '\0';
    out->has_high = dots[2] != '\0';
    if (out->has_low && !parse_number(o->type, low, &out->low, why)) return false;
    return !out->has_high || parse_number(o->type, dots + 2, &out->high, why);
}

static bool check_bounds(const ddp_option *o, ddp_scalar value, char *why)
{
    bounds b = {0};

    if (o->range == NULL) return true;
    if (!parse_bounds(o, &b, why)) return false;
    if ((b.has_low && compare(o->type, value, b.low) < 0) || (b.has_high && compare(o->type, value, b.high) > 0))
        return refuse(why, "out of range %s", o->range);
    return true;
}

static bool check_enum_names(const char *range, char *why)
{
    size_t length, other_length;
    const char *name, *other;

    for (int32_t i = 0; (name = enum_name(range, i, &length)) != NULL; i++) {
        if (length == 0 || length > 63 || memchr(name, ' ', length) != NULL || memchr(name, ',', length) != NULL)
            return refuse(why, "range \"%.60s\" is not names like a|b|c", range);
        for (int32_t j = 0; j < i && (other = enum_name(range, j, &other_length)) != NULL; j++)
            if (other_length == length && memcmp(name, other, length) == 0)
                return refuse(why, "range \"%.60s\" has \"%.*s\" twice", range, (int)length, name);
    }
    return true;
}

bool config_range_check(const ddp_option *o, char *why)
{
    bounds b = {0};

    switch (o->type) {
    case DDP_OPT_ENUM:
        if (o->range == NULL) return refuse(why, "an enum needs its names in range");
        return check_enum_names(o->range, why);
    case DDP_OPT_BOOL:
    case DDP_OPT_STRING:
    case DDP_OPT_PATH:
    case DDP_OPT_HOSTPORT: return o->range == NULL || refuse(why, "type %s takes no range", config_type_name(o->type));
    default:
        if (o->range == NULL) return true;
        if (!parse_bounds(o, &b, why)) return false;
        if (b.has_low && b.has_high && compare(o->type, b.low, b.high) > 0)
            return refuse(why, "range \"%.60s\" is empty", o->range);
        return true;
    }
}

/* ---- a value ----------------------------------------------------------------------------------------------------- */
bool config_scalar_parse(const ddp_option *o, const char *text, ddp_scalar *out, char *why)
{
    ddp_scalar value = {0};
    bool good;

    if ((o->flags & DDP_OPT_F_AUTO) != 0 && strcmp(text, "auto") == 0) {
        *out = value;
        return true;
    }
    switch (o->type) {
    case DDP_OPT_BOOL: good = parse_bool(text, &value.e, why); break;
    case DDP_OPT_ENUM: good = parse_enum(o->range, text, &value.e, why); break;
    case DDP_OPT_STRING:
    case DDP_OPT_PATH:
        value.s = text;
        good = true;
        break;
    case DDP_OPT_HOSTPORT:
        value.s = text;
        good = text[0] == '\0' || parse_hostport(text, why);
        break;
    default: good = parse_number(o->type, text, &value, why) && check_bounds(o, value, why); break;
    }
    if (good) *out = value;
    return good;
}

static void print_units(uint64_t value, const unit *units, size_t count, ddp_text *out)
{
    for (size_t i = 0; i < count; i++) {
        if (value == 0 || value % units[i].factor != 0) continue;
        /* bytes are printed without a unit */
        ddp_text_printf(out, "%" PRIu64 "%s", value / units[i].factor,
                        strcmp(units[i].name, "B") == 0 ? "" : units[i].name);
        return;
    }
    ddp_text_printf(out, "0");
}

/* The shortest decimal that reads back as the same double. */
static void print_float(double value, ddp_text *out)
{
    char text[40];

    for (int digits = 1; digits <= 17; digits++) {
        (void)snprintf(text, sizeof(text), "%.*g", digits, value);
        if (strtod(text, NULL) == value) break;
    }
    ddp_text_printf(out, "%s", text);
}

void config_scalar_print(const ddp_option *o, ddp_scalar value, ddp_text *out)
{
    size_t length = 0;
    const char *name;

    if ((o->flags & DDP_OPT_F_AUTO) != 0 && value.u == 0) {
        ddp_text_printf(out, "auto");
        return;
    }
    switch (o->type) {
    case DDP_OPT_INT: ddp_text_printf(out, "%" PRId64, value.i); break;
    case DDP_OPT_UINT: ddp_text_printf(out, "%" PRIu64, value.u); break;
    case DDP_OPT_FLOAT: print_float(value.f, out); break;
    case DDP_OPT_BOOL: ddp_text_printf(out, "%s", value.e ? "yes" : "no"); break;
    case DDP_OPT_SIZE: print_units(value.u, size_units, DDP_COUNT(size_units), out); break;
    case DDP_OPT_DURATION: print_units((uint64_t)value.i, time_units, DDP_COUNT(time_units), out); break;
    case DDP_OPT_ENUM:
        name = enum_name(o->range, value.e, &length);
        ddp_text_append(out, name, length);
        break;
    default: ddp_text_printf(out, "%s", value.s); break;
    }
}
