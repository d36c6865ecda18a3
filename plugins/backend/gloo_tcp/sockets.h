/* plugins/backend/gloo_tcp/sockets.h -- what is done to Gloo's sockets behind its back: the one of a pair is found, its
 * waits are limited, strangers are kept out. C++.
 *
 * Gloo keeps its descriptors to itself, and Debian's package lacks the headers of its pairs, so sockets are found in
 * /proc/self/fd, by what every version of Gloo must do with them: an address is published, a pair in synchronous mode
 * blocks. */
#pragma once

#include "mesh.h"

namespace ddp_gloo_mesh
{
/* Finds the socket of a connected pair. Addresses alone do not tell it: until 2023 each pair of Gloo had a listening
 * socket of its own, now all pairs of a rank share one, so accepted connections share their local address too, and
 * the address that the peer has published is not the one that its connection comes from. But setSync makes the pair's
 * socket, and no other, one that blocks: this is made before setSync, and asked after it. */
class PairSocket
{
  public:
    explicit PairSocket(const sockaddr_storage &self);
    ~PairSocket();
    PairSocket(const PairSocket &) = delete;
    PairSocket &operator=(const PairSocket &) = delete;
    /* A duplicate of the descriptor, the caller's to close; -1: not found. Where several have begun to block, because
     * other threads connect too, the one whose remote address is `other`. */
    int take(const sockaddr_storage &other);

  private:
    std::vector<int> candidates_; /* duplicates; sockets with the local address of the pair that do not block yet */
};

/* Of one send or receive. */
void limit_waits(int fd, int64_t ms);
/* Makes room for what is under way; returns how many bytes of it there are. */
size_t make_room(int fd);

/* Ends the connections of Gloo that have been asked for but not answered, those of other communicators too: it is for
 * when the run ends, or the time in which all ranks connect. Returns whether there was one. */
bool end_half_open() noexcept;
} // namespace ddp_gloo_mesh
