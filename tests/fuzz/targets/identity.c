/* fuzz/targets/identity.c -- what a rank shows of itself, alone and among other bytes. */
#include "fuzz.h"
#include "net/identity.h"

static void check(const ddp_identity *id)
{
    char text[DDP_IDENTITY_MAX];
    size_t length = ddp_identity_text(id, text);
    ddp_identity again;

    FUZZ_CHECK(id->rank >= 0 && id->world >= 0 && strlen(id->lines) == sizeof(id->lines) - 1);
    FUZZ_CHECK(ddp_identity_parse(text, length, &again));
    FUZZ_CHECK(memcmp(id, &again, sizeof(again)) == 0);
}

FUZZ_TARGET(identity)
{
    ddp_identity id;

    if (ddp_identity_parse(data, size, &id)) check(&id);
    if (net_identity_search(data, size, &id)) check(&id);
    return 0;
}
