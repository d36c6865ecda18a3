/* checkpoint/history.c -- what a run remembers of its evaluations, in MANIFEST.json. Real numbers have 17 digits there,
 * so that they are read with the same bits. */
#include "checkpoint/manifest.h"
#include <jansson.h>
#include <string.h>

#define WHOLE(key, field)                                                                                              \
    {                                                                                                                  \
        key, offsetof(ddp_history, field), false                                                                       \
    }
#define REAL(key, field)                                                                                               \
    {                                                                                                                  \
        key, offsetof(ddp_history, field), true                                                                        \
    }
#define BEST(key, field)                                                                                               \
    REAL(key ".value", field.value), WHOLE(key ".found", field.found), WHOLE(key ".step", field.step),                 \
        WHOLE(key ".since", field.since), WHOLE(key ".of", field.of)

static const struct {
    const char *key;
    size_t offset;
    bool real;
} fields[] = {
    BEST("plateau", plateau.best),
    WHOLE("plateau.cooldown", plateau.cooldown),
    WHOLE("plateau.drops", plateau.drops),
    REAL("plateau.scale", plateau.scale),
    BEST("best", kept),
    BEST("early_stopping", stopping),
    WHOLE("averaged", averaged),
    WHOLE("evaluation", taken),
    WHOLE("evaluation_due", due),
};
_Static_assert(DDP_COUNT(fields) * sizeof(uint64_t) == sizeof(ddp_history), "a field without its name");

/* The bits of a field; both kinds have as many. */
static uint64_t bits_of(const ddp_history *h, size_t i)
{
    uint64_t bits;

    memcpy(&bits, (const char *)h + fields[i].offset, sizeof(bits));
    return bits;
}

bool checkpoint_history_equal(const ddp_history *a, const ddp_history *b)
{
    for (size_t i = 0; i < DDP_COUNT(fields); i++)
        if (bits_of(a, i) != bits_of(b, i)) return false;
    return true;
}

bool checkpoint_history_is_empty(const ddp_history *h)
{
    static const ddp_history none;

    return checkpoint_history_equal(h, &none);
}

json_t *checkpoint_history_json(const ddp_history *h)
{
    json_t *object = json_object();

    for (size_t i = 0; object != NULL && i < DDP_COUNT(fields); i++) {
        uint64_t whole = bits_of(h, i);
        double real;

        memcpy(&real, &whole, sizeof(real));
        if (json_object_set_new(object, fields[i].key,
                                fields[i].real ? json_real(real) : json_integer((json_int_t)whole)) == 0)
            continue;
        json_decref(object);
        object = NULL;
    }
    return object;
}

bool checkpoint_history_read(const json_t *object, ddp_history *out)
{
    ddp_history h = {0};

    if (object != NULL && !json_is_object(object)) return false;
    for (size_t i = 0; object != NULL && i < DDP_COUNT(fields); i++) {
        const json_t *v = json_object_get(object, fields[i].key);
        uint64_t whole = (uint64_t)json_integer_value(v);
        double real = json_real_value(v);

        if (v == NULL) continue; /* earlier versions have not known it: 0 */
        if (fields[i].real ? !json_is_real(v) : !json_is_integer(v) || json_integer_value(v) < 0) return false;
        memcpy((char *)&h + fields[i].offset, fields[i].real ? (const void *)&real : &whole, sizeof(whole));
    }
    *out = h;
    return true;
}
