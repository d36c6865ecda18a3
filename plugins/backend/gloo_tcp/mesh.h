/* plugins/backend/gloo_tcp/mesh.h -- the inside of a ddp_gloo, shared by shim.cc (messages, abort, errors) and
 * connect.cc (how it comes to be). C++. */
#pragma once

#include "shim.h"

#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wconversion"
#pragma GCC diagnostic ignored "-Wsign-conversion"
#pragma GCC diagnostic ignored "-Wunused-parameter"
#include <gloo/common/error.h>
#include <gloo/transport/buffer.h>
#include <gloo/transport/context.h>
#include <gloo/transport/pair.h>
#include <gloo/transport/tcp/address.h>
#include <gloo/transport/tcp/device.h>
#pragma GCC diagnostic pop

#include <atomic>
#include <chrono>
#include <memory>
#include <mutex>
#include <pthread.h>
#include <signal.h>
#include <stdexcept>
#include <string>
#include <sys/socket.h>
#include <vector>

namespace ddp_gloo_mesh
{
namespace tp = gloo::transport;

/* A ddp_status with its text, on its way to the extern "C" function. */
struct Failure : std::runtime_error {
    ddp_status status;
    Failure(ddp_status s, const std::string &text) : std::runtime_error(text), status(s) {}
};

struct Peer {
    std::string name;        /* "rank 1 on host b (192.0.2.7:40123)" */
    sockaddr_storage port{}; /* the address at which this rank waits for the peer, as published */
    int fd = -1;             /* a duplicate of the pair's socket, for shutdown(2) and options; ours to close */
    std::unique_ptr<char[]> inbox;
    std::unique_ptr<tp::Buffer> to_inbox, to_region; /* over the whole address space: send() takes absolute addresses */
    std::unique_ptr<tp::Buffer> from_inbox, from_region;
};

/* Threads that Gloo starts inherit this mask, so that they get none of the process's signals. */
class SignalsBlocked
{
  public:
    SignalsBlocked()
    {
        sigset_t all;
        sigfillset(&all);
        pthread_sigmask(SIG_BLOCK, &all, &before_);
    }
    ~SignalsBlocked() { pthread_sigmask(SIG_SETMASK, &before_, nullptr); }

  private:
    sigset_t before_;
};

/* A thread starts with the name of the thread that starts it; Gloo does not name its own. */
class ThreadName
{
  public:
    explicit ThreadName(const char *name)
    {
        if (pthread_getname_np(pthread_self(), before_, sizeof before_) != 0) before_[0] = '\0';
        (void)pthread_setname_np(pthread_self(), name);
    }
    ~ThreadName()
    {
        if (before_[0] != '\0') (void)pthread_setname_np(pthread_self(), before_);
    }

  private:
    char before_[16];
};

/* Connects everything of a new mesh whose `p` and `group` are set; throws. In connect.cc. */
void connect(ddp_gloo &g);
/* No connection beside those of the pairs: new ones get no answer, and those that wait for nothing are ended. A Gloo
 * that keeps its listening socket would accept whoever comes for as long as the communicator lives, and crash when the
 * communicator ends before a stranger that has said nothing. In sockets.cc. */
void shut_out_strangers(const ddp_gloo &g) noexcept;
/* Sends one message. In shim.cc. */
void send_to(Peer &peer, uint32_t where, size_t at, const void *data, size_t bytes);
} // namespace ddp_gloo_mesh

struct ddp_gloo {
    ddp_gloo_params p{};
    std::string group;
    std::shared_ptr<gloo::transport::Device> device;
    std::shared_ptr<gloo::transport::Context> context; /* holds the device; its pairs outlive the buffers in `peers` */
    std::vector<ddp_gloo_mesh::Peer> peers;            /* by rank; that of this rank is empty */
    std::atomic<bool> aborted{false};
    size_t room = 0;
    std::mutex fds; /* guards Peer::fd against the watch while connecting, and ddp_gloo_abort, in other threads */
    std::chrono::steady_clock::time_point deadline; /* of connecting as a whole */
    bool broken = false;
    ddp_err cause{}; /* why, once broken */

    int64_t left_ms() const /* of connecting; 0: the time is over */
    {
        using ms = std::chrono::milliseconds;
        const int64_t left = std::chrono::duration_cast<ms>(deadline - std::chrono::steady_clock::now()).count();
        return left > 0 ? left : 0;
    }
    ~ddp_gloo()
    {
        for (ddp_gloo_mesh::Peer &peer : peers) {
            peer.from_region.reset();
            peer.from_inbox.reset();
            peer.to_region.reset();
            peer.to_inbox.reset();
        }
        ddp_gloo_mesh::SignalsBlocked guard;
        ddp_gloo_mesh::shut_out_strangers(*this);
        context.reset();
        device.reset();
        for (ddp_gloo_mesh::Peer &peer : peers)
            if (peer.fd >= 0) ::close(peer.fd);
    }
};
