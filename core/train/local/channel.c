/* train/local/channel.c -- see channel.h. */
#include "train/local/channel.h"
#include "base/sys.h"
#include <stdlib.h>

struct ddp_channel {
    uint32_t slots;
    pthread_mutex_t lock;    /* guards all below */
    pthread_cond_t change;   /* one side at most waits at a time */
    uint64_t sent, released; /* messages */
    bool cancelled;
};

ddp_status local_channel_open(uint32_t slots, ddp_channel **out, ddp_err *err)
{
    ddp_channel *c = ddp_alloc(sizeof(*c), err);

    if (c == NULL) return err->status;
    c->slots = slots;
    pthread_mutex_init(&c->lock, NULL);
    ddp_cond_init(&c->change);
    *out = c;
    return DDP_OK;
}

void local_channel_close(ddp_channel *c)
{
    if (c == NULL) return;
    pthread_cond_destroy(&c->change);
    pthread_mutex_destroy(&c->lock);
    free(c);
}

void local_channel_reset(ddp_channel *c)
{
    pthread_mutex_lock(&c->lock);
    c->sent = c->released = 0;
    c->cancelled = false;
    pthread_mutex_unlock(&c->lock);
}

/* Until *counter is at least `least`; with the lock held. */
static ddp_status wait_for(ddp_channel *c, const uint64_t *counter, uint64_t least, int64_t deadline_ns)
{
    bool in_time = true;

    while (!c->cancelled && *counter < least && in_time)
        in_time = ddp_cond_wait_until(&c->change, &c->lock, deadline_ns);
    return c->cancelled ? DDP_ERR_ABORTED : *counter < least ? DDP_ERR_TIMEOUT : DDP_OK;
}

ddp_status local_channel_reserve(ddp_channel *c, int64_t deadline_ns)
{
    ddp_status st = DDP_OK;

    pthread_mutex_lock(&c->lock);
    if (c->sent >= c->slots) st = wait_for(c, &c->released, c->sent - c->slots + 1, deadline_ns);
    pthread_mutex_unlock(&c->lock);
    return st;
}

void local_channel_send(ddp_channel *c)
{
    pthread_mutex_lock(&c->lock);
    c->sent++;
    pthread_cond_signal(&c->change);
    pthread_mutex_unlock(&c->lock);
}

ddp_status local_channel_wait(ddp_channel *c, uint64_t message, int64_t deadline_ns)
{
    ddp_status st;

    pthread_mutex_lock(&c->lock);
    st = wait_for(c, &c->sent, message + 1, deadline_ns);
    pthread_mutex_unlock(&c->lock);
    return st;
}

void local_channel_release(ddp_channel *c)
{
    pthread_mutex_lock(&c->lock);
    c->released++;
    pthread_cond_signal(&c->change);
    pthread_mutex_unlock(&c->lock);
}

void local_channel_cancel(ddp_channel *c)
{
    pthread_mutex_lock(&c->lock);
    c->cancelled = true;
    pthread_cond_broadcast(&c->change);
    pthread_mutex_unlock(&c->lock);
}
