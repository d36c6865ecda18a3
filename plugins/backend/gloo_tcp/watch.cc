/* plugins/backend/gloo_tcp/watch.cc -- see watch.h. */
#include "sockets.h"
#include "watch.h"

#include <algorithm>
#include <sys/socket.h>

namespace ddp_gloo_mesh
{
namespace
{
constexpr int64_t kReportMs = 5000;
constexpr std::chrono::milliseconds kAgain(50);

std::thread start(void (*main)(Watch *), Watch *w)
{
    ThreadName name("ddp-gloo-watch");
    return std::thread(main, w);
}
} // namespace

Watch::Watch(ddp_gloo &g)
    : g_(g), key_("gloo/connected/" + std::to_string(g.p.rank)), thread_(start([](Watch *w) { w->run(); }, this))
{
}

Watch::~Watch() { join(); }

void Watch::join() noexcept
{
    ddp_err err{};
    if (!thread_.joinable()) return;
    {
        std::lock_guard<std::mutex> lock(mutex_);
        over_ = true;
    }
    changed_.notify_all();
    (void)g_.p.store->set(g_.p.store->ctx, key_.c_str(), "1", 1, &err);
    thread_.join();
    (void)g_.p.store->remove(g_.p.store->ctx, key_.c_str(), &err);
}

void Watch::end()
{
    join();
    if (state_ == Aborted) throw Failure(DDP_ERR_ABORTED, "the run was aborted while the ranks connected");
    if (state_ == Late)
        throw Failure(
            DDP_ERR_TIMEOUT,
            "the ranks have not connected before rendezvous_timeout, or after a loss rejoin_timeout, was over");
}

void Watch::waits_for(const std::string &whom)
{
    std::lock_guard<std::mutex> lock(mutex_);
    whom_ = whom;
}

/* Until connecting is over, or must be. */
Watch::State Watch::wait()
{
    char value;
    size_t length = 0;
    ddp_err err{};
    for (;;) {
        const int64_t ms = std::min(kReportMs, g_.left_ms());
        if (ms <= 0) return Late;
        const ddp_status st = g_.p.store->get(g_.p.store->ctx, key_.c_str(), &value, 1, &length, ms, &err);
        if (st == DDP_OK) return Going;
        if (st != DDP_ERR_TIMEOUT) return Aborted;
        if (ms == kReportMs) report();
    }
}

void Watch::run()
{
    const State v = wait();
    if (v == Going) return;
    state_ = v;
    std::unique_lock<std::mutex> lock(mutex_);
    /* again and again: a wait of Gloo's that begins now would not notice */
    do hang_up();
    while (!changed_.wait_for(lock, kAgain, [this] { return over_; }));
}

/* A pair in synchronous mode holds its lock while it waits: its socket is shut down, never the pair closed. Nor is one
 * whose connection is on its way: Gloo would be told of its fate after the pair is gone, so that comes first. */
void Watch::hang_up()
{
    if (end_half_open()) return;
    std::lock_guard<std::mutex> lock(g_.fds);
    for (uint32_t peer = 0; peer < g_.p.world; peer++) {
        if (peer == g_.p.rank) continue;
        if (g_.peers[peer].fd >= 0)
            (void)shutdown(g_.peers[peer].fd, SHUT_RDWR);
        else
            g_.context->getPair((int)peer)->close();
    }
}

void Watch::report()
{
    std::lock_guard<std::mutex> lock(mutex_);
    const double limit = (double)g_.p.connect_timeout_ms / 1e3;
    if (!whom_.empty())
        g_.p.host->log(g_.p.host->ctx, DDP_LOG_INFO, __FILE__, __LINE__,
                       "gloo-tcp: %s still waits for a connection with %s (%.0f s of %.3g s)",
                       g_.peers[g_.p.rank].name.c_str(), whom_.c_str(), limit - (double)g_.left_ms() / 1e3, limit);
}
} // namespace ddp_gloo_mesh
