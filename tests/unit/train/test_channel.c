/* tests/unit/train/test_channel.c -- values from one stage to the next: every message once, in order, as it was
 * written; a slot is written again when it has been released; waits end by deadline and when cancelled. Under
 * ThreadSanitizer this is the test of the handover. */
#include "train/local/channel.h"
#include "base/sys.h"
#include <setjmp.h>
#include <stdarg.h>
#include <string.h>
#include <cmocka.h> /* last: it has a macro `fail` */

enum { MESSAGES = 5000, WORDS = 33, MOST_SLOTS = 4 };

typedef struct pair {
    ddp_channel *c;
    uint32_t slots;
    uint64_t memory[MOST_SLOTS][WORDS];
    uint64_t wrong;
} pair;

static int64_t soon(int64_t ms) { return ddp_now_ns() + ms * 1000000; }

static void *send_all(void *arg)
{
    pair *p = arg;

    for (uint64_t m = 0; m < MESSAGES; m++) {
        if (local_channel_reserve(p->c, soon(20000)) != DDP_OK) return NULL;
        for (uint64_t i = 0; i < WORDS; i++) p->memory[m % p->slots][i] = m * 1000 + i;
        local_channel_send(p->c);
    }
    return NULL;
}

/* The receiver keeps `behind` messages before it releases the oldest, as a stage does that has so many in flight. */
static void receive_all(pair *p, uint64_t behind)
{
    for (uint64_t m = 0; m < MESSAGES; m++) {
        assert_int_equal(local_channel_wait(p->c, m, soon(20000)), DDP_OK);
        for (uint64_t old = m < behind ? 0 : m - behind; old <= m; old++)
            for (uint64_t i = 0; i < WORDS; i++) p->wrong += p->memory[old % p->slots][i] != old * 1000 + i;
        if (m >= behind) local_channel_release(p->c);
    }
}

static void test_every_message_in_order(void **state)
{
    (void)state;
    for (uint32_t slots = 1; slots <= MOST_SLOTS; slots++)
        for (uint64_t behind = 0; behind < slots; behind++) {
            pair p = {.slots = slots};
            pthread_t sender;
            ddp_err err = {0};

            assert_int_equal(local_channel_open(slots, &p.c, &err), DDP_OK);
            assert_int_equal(ddp_thread_start(&sender, "sender", send_all, &p, &err), DDP_OK);
            receive_all(&p, behind);
            pthread_join(sender, NULL);
            assert_int_equal(p.wrong, 0);
            local_channel_close(p.c);
        }
}

static void test_waits_have_deadlines(void **state)
{
    ddp_channel *c;
    ddp_err err = {0};

    (void)state;
    assert_int_equal(local_channel_open(2, &c, &err), DDP_OK);
    assert_int_equal(local_channel_wait(c, 0, soon(5)), DDP_ERR_TIMEOUT);
    for (int i = 0; i < 2; i++) {
        assert_int_equal(local_channel_reserve(c, soon(5)), DDP_OK);
        local_channel_send(c);
    }
    assert_int_equal(local_channel_reserve(c, soon(5)), DDP_ERR_TIMEOUT);
    assert_int_equal(local_channel_wait(c, 1, soon(5)), DDP_OK);
    local_channel_release(c);
    assert_int_equal(local_channel_reserve(c, soon(5)), DDP_OK);
    local_channel_reset(c);
    assert_int_equal(local_channel_wait(c, 0, soon(5)), DDP_ERR_TIMEOUT);
    local_channel_close(c);
    local_channel_close(NULL);
}

static void *cancel_later(void *arg)
{
    int64_t until = soon(30);

    while (ddp_now_ns() < until) continue;
    local_channel_cancel(arg);
    return NULL;
}

static void test_cancelling_ends_waits(void **state)
{
    pthread_t other;
    ddp_channel *c;
    ddp_err err = {0};

    (void)state;
    assert_int_equal(local_channel_open(1, &c, &err), DDP_OK);
    assert_int_equal(ddp_thread_start(&other, "canceller", cancel_later, c, &err), DDP_OK);
    assert_int_equal(local_channel_wait(c, 0, INT64_MAX), DDP_ERR_ABORTED);
    assert_int_equal(local_channel_wait(c, 0, INT64_MAX), DDP_ERR_ABORTED);
    pthread_join(other, NULL);
    local_channel_reset(c);
    assert_int_equal(local_channel_reserve(c, soon(5)), DDP_OK);
    local_channel_close(c);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_every_message_in_order),
        cmocka_unit_test(test_waits_have_deadlines),
        cmocka_unit_test(test_cancelling_ends_waits),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
