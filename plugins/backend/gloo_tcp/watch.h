/* plugins/backend/gloo_tcp/watch.h -- the thread that ends connecting when its time is over or the run is aborted.
 * C++. */
#pragma once

#include "mesh.h"

#include <condition_variable>
#include <thread>

namespace ddp_gloo_mesh
{
/* While the ranks connect, no communicator exists that could be aborted, and Gloo's own limits are of one wait each.
 * This thread, "ddp-gloo-watch", waits for a key that is set when connecting is over; a get ends at once when the
 * run is aborted. At the deadline too it ends all connections, which wakes the threads that wait in Gloo. Meanwhile
 * it says whom this rank waits for. All pairs must have been made. */
class Watch
{
  public:
    enum State { Going, Aborted, Late };

    explicit Watch(ddp_gloo &g);
    ~Watch();
    Watch(const Watch &) = delete;
    Watch &operator=(const Watch &) = delete;
    /* Connecting is over. Throws when the watch had ended the connections before. */
    void end();
    State state() const { return state_; }
    void waits_for(const std::string &whom);

  private:
    void run();
    State wait();
    void report();
    void hang_up();
    void join() noexcept;

    ddp_gloo &g_;
    const std::string key_;
    std::mutex mutex_;
    std::condition_variable changed_;
    std::string whom_;  /* guarded by mutex_ */
    bool over_ = false; /* guarded by mutex_ */
    std::atomic<State> state_{Going};
    std::thread thread_; /* the last: it uses all of the above */
};
} // namespace ddp_gloo_mesh
