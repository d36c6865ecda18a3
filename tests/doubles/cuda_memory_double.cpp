/* tests/doubles/cuda_memory_double.cpp -- of the double of the CUDA runtime: memory of devices, page-locked memory,
 * copies. */
#include "cuda_parts.h"
#include <map>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>

namespace cuda_double
{
enum { PAGE = 4096, ALIGNMENT = 256 };

struct block {
    size_t bytes;
    int device; /* -1: page-locked memory of the host */
    bool registered;
};
static std::map<uintptr_t, block> blocks;
static std::map<int, size_t> used;
static unsigned opened; /* pieces of work that touch memory now */

static size_t pages(size_t bytes) { return (bytes + PAGE - 1) / PAGE * PAGE; }

/* `lock` held. The block that holds address p, or NULL. */
static const std::pair<const uintptr_t, block> *find(const void *p)
{
    const uintptr_t at = reinterpret_cast<uintptr_t>(p);
    auto next = blocks.upper_bound(at);

    if (next == blocks.begin()) return nullptr;
    --next;
    return at < next->first + next->second.bytes ? &*next : nullptr;
}

static bool within(const void *p, size_t bytes, bool on_device)
{
    const auto *found = find(p);

    return found != nullptr && (found->second.device >= 0) == on_device &&
           reinterpret_cast<uintptr_t>(p) + bytes <= found->first + found->second.bytes;
}

static void protect_all(int how)
{
    for (const auto &b : blocks)
        if (b.second.device >= 0) (void)mprotect(reinterpret_cast<void *>(b.first), pages(b.second.bytes), how);
}

void open_memory(void)
{
    if (!strict) return;
    guard held(lock);
    if (opened++ == 0) protect_all(PROT_READ | PROT_WRITE);
}

void close_memory(void)
{
    if (!strict) return;
    guard held(lock);
    if (--opened == 0) protect_all(PROT_NONE);
}

/* Strict: pages of its own, with one behind them that is never there. */
static void *take(size_t bytes)
{
    void *at;

    if (!strict) {
        if (posix_memalign(&at, ALIGNMENT, bytes) != 0) return nullptr;
        memset(at, 0xff, bytes);
        return at;
    }
    at = mmap(nullptr, pages(bytes) + PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (at == MAP_FAILED) return nullptr;
    memset(at, 0xff, bytes);
    (void)mprotect(static_cast<char *>(at) + pages(bytes), PAGE, PROT_NONE);
    if (opened == 0) (void)mprotect(at, pages(bytes), PROT_NONE);
    return at;
}

static void give(void *at, size_t bytes)
{
    if (strict)
        (void)munmap(at, pages(bytes) + PAGE);
    else
        free(at);
}

/* Which sides of a copy are on a device; `kind` must agree. */
static cudaError_t check_copy(const void *to, const void *from, size_t bytes, cudaMemcpyKind kind)
{
    const bool to_device = find(to) != nullptr && find(to)->second.device >= 0;
    const bool from_device = find(from) != nullptr && find(from)->second.device >= 0;
    const bool wants_to = kind == cudaMemcpyHostToDevice || kind == cudaMemcpyDeviceToDevice;
    const bool wants_from = kind == cudaMemcpyDeviceToHost || kind == cudaMemcpyDeviceToDevice;

    if (kind != cudaMemcpyDefault && (to_device != wants_to || from_device != wants_from))
        return misused(cudaErrorInvalidValue, "a copy of %zu bytes whose direction (%d) is not that of its addresses",
                       bytes, kind);
    if ((find(to) != nullptr && !within(to, bytes, to_device)) ||
        (find(from) != nullptr && !within(from, bytes, from_device)))
        return misused(cudaErrorInvalidValue, "a copy of %zu bytes beyond the end of a block", bytes);
    return cudaSuccess;
}

static void move(void *to, const void *from, size_t bytes)
{
    memmove(to, from, bytes);
    guard held(lock);
    counts.copies++;
    counts.copied_bytes += bytes;
}

/* Waits at the end where CUDA would: host memory that is not page-locked. */
static cudaError_t copy(void *to, const void *from, size_t bytes, cudaMemcpyKind kind, cudaStream_t s, bool wait)
{
    bool pageable;
    guard held(lock);
    cudaError_t e = fails() ? cudaErrorInvalidValue : usable();

    if (e == cudaSuccess && bytes > 0) e = check_copy(to, from, bytes, kind);
    if (e == cudaSuccess && wait) e = allowed("cudaMemcpy");
    if (e != cudaSuccess) return said(e);
    pageable = bytes > 0 && (find(to) == nullptr || find(from) == nullptr);
    if (pageable && !wait) {
        CUstream_st *on = stream_of(held, s);
        counts.pageable++;
        if (on != nullptr && on->capturing != nullptr) return said(broken(on, "cudaMemcpyAsync with pageable memory"));
    }
    held.unlock();
    e = submit(
        s, [=] { move(to, from, bytes); }, TOUCHES_MEMORY);
    if (e == cudaSuccess && (wait || pageable)) {
        held.lock();
        e = wait_for(held, stream_of(held, s));
    }
    return said(e);
}

static cudaError_t set(void *to, int value, size_t bytes, cudaStream_t s, bool plain)
{
    guard held(lock);
    cudaError_t e = fails() ? cudaErrorInvalidValue : usable();

    if (e == cudaSuccess && plain) e = allowed("cudaMemset");
    if (e != cudaSuccess) return said(e);
    if (bytes > 0 && !within(to, bytes, true) && !within(to, bytes, false))
        return said(misused(cudaErrorInvalidValue, "cudaMemset of %zu bytes that are not within a block", bytes));
    held.unlock();
    return said(submit(
        s,
        [=] {
            memset(to, value, bytes);
            guard again(lock);
            counts.sets++;
        },
        TOUCHES_MEMORY));
}

static cudaError_t allocate(void **out, size_t bytes, int device, const char *call)
{
    void *at;
    guard held(lock);
    cudaError_t e = usable();

    *out = nullptr;
    if (e == cudaSuccess) e = allowed(call);
    if (e == cudaSuccess && fails()) e = cudaErrorMemoryAllocation;
    if (e != cudaSuccess || bytes == 0) return said(e);
    if (device >= 0 && (used[device] > memory_bytes || bytes > memory_bytes - used[device]))
        return said(cudaErrorMemoryAllocation);
    if (device >= 0) {
        at = take(bytes);
    } else if (posix_memalign(&at, PAGE, bytes) != 0) {
        at = nullptr;
    } else {
        memset(at, 0xff, bytes);
    }
    if (at == nullptr) return said(cudaErrorMemoryAllocation);
    blocks[reinterpret_cast<uintptr_t>(at)] = block{bytes, device, false};
    if (device >= 0) {
        used[device] += bytes;
        counts.device_memory++;
        counts.device_bytes += static_cast<int64_t>(bytes);
    } else {
        counts.host_memory++;
    }
    counts.mallocs++;
    *out = at;
    return cudaSuccess;
}

/* Waits for what is queued, as CUDA does. */
static cudaError_t release(void *p, bool on_device, const char *call)
{
    block b;
    guard held(lock);
    cudaError_t e = allowed(call);

    if (e != cudaSuccess || p == nullptr) return said(e);
    auto found = blocks.find(reinterpret_cast<uintptr_t>(p));
    if (found == blocks.end() || (found->second.device >= 0) != on_device || found->second.registered)
        return said(misused(cudaErrorInvalidValue, "%s of what is no block", call));
    b = found->second;
    wait_for_device(held, b.device);
    blocks.erase(reinterpret_cast<uintptr_t>(p));
    if (on_device) {
        used[b.device] -= b.bytes;
        counts.device_memory--;
        counts.device_bytes -= static_cast<int64_t>(b.bytes);
        give(p, b.bytes);
    } else {
        counts.host_memory--;
        free(p);
    }
    return cudaSuccess;
}
} // namespace cuda_double
using namespace cuda_double;

extern "C" {
void cuda_double_open(void) { open_memory(); }
void cuda_double_close(void) { close_memory(); }

int cuda_double_is_device(const void *p, size_t bytes)
{
    guard held(lock);

    return within(p, bytes, true);
}

int cuda_double_is_host(const void *p, size_t bytes)
{
    guard held(lock);

    return within(p, bytes, false);
}

cudaError_t cudaMalloc(void **out, size_t bytes) { return allocate(out, bytes, current_device, "cudaMalloc"); }
cudaError_t cudaFree(void *p) { return release(p, true, "cudaFree"); }

cudaError_t cudaHostAlloc(void **out, size_t bytes, unsigned flags)
{
    (void)flags;
    return allocate(out, bytes, -1, "cudaHostAlloc");
}

cudaError_t cudaMallocHost(void **out, size_t bytes) { return allocate(out, bytes, -1, "cudaMallocHost"); }
cudaError_t cudaFreeHost(void *p) { return release(p, false, "cudaFreeHost"); }

cudaError_t cudaHostGetDevicePointer(void **out, void *host, unsigned flags)
{
    guard held(lock);

    if (flags != 0 || !within(host, 1, false)) return said(cudaErrorInvalidValue);
    *out = host;
    return cudaSuccess;
}

cudaError_t cudaHostRegister(void *p, size_t bytes, unsigned flags)
{
    guard held(lock);
    cudaError_t e = usable();

    (void)flags;
    if (e == cudaSuccess) e = allowed("cudaHostRegister");
    if (e == cudaSuccess && fails()) e = cudaErrorMemoryAllocation;
    if (e != cudaSuccess) return said(e);
    if (p == nullptr || bytes == 0 || find(p) != nullptr) return said(cudaErrorInvalidValue);
    blocks[reinterpret_cast<uintptr_t>(p)] = block{bytes, -1, true};
    counts.host_memory++;
    return cudaSuccess;
}

cudaError_t cudaHostUnregister(void *p)
{
    guard held(lock);
    const auto found = blocks.find(reinterpret_cast<uintptr_t>(p));

    if (found == blocks.end() || !found->second.registered) return said(cudaErrorInvalidValue);
    blocks.erase(found);
    counts.host_memory--;
    return cudaSuccess;
}

cudaError_t cudaPointerGetAttributes(cudaPointerAttributes *out, const void *p)
{
    guard held(lock);
    const auto *found = find(p);

    memset(out, 0, sizeof(*out));
    out->device = found == nullptr ? -2 : found->second.device < 0 ? 0 : found->second.device;
    out->type = found == nullptr           ? cudaMemoryTypeUnregistered
                : found->second.device < 0 ? cudaMemoryTypeHost
                                           : cudaMemoryTypeDevice;
    if (found != nullptr) out->devicePointer = const_cast<void *>(p);
    if (found != nullptr && found->second.device < 0) out->hostPointer = const_cast<void *>(p);
    return cudaSuccess;
}

cudaError_t cudaMemGetInfo(size_t *available, size_t *total)
{
    guard held(lock);
    const cudaError_t e = fails() ? cudaErrorUnknown : usable();

    if (e != cudaSuccess) return said(e);
    *total = memory_bytes;
    *available = memory_bytes - used[current_device];
    return cudaSuccess;
}

cudaError_t cudaMemset(void *to, int value, size_t bytes) { return set(to, value, bytes, nullptr, true); }
cudaError_t cudaMemsetAsync(void *to, int value, size_t bytes, cudaStream_t s)
{
    return set(to, value, bytes, s, false);
}

cudaError_t cudaMemcpy(void *to, const void *from, size_t bytes, cudaMemcpyKind kind)
{
    return copy(to, from, bytes, kind, nullptr, true);
}

cudaError_t cudaMemcpyAsync(void *to, const void *from, size_t bytes, cudaMemcpyKind kind, cudaStream_t s)
{
    return copy(to, from, bytes, kind, s, false);
}

cudaError_t cudaMemcpyPeerAsync(void *to, int to_device, const void *from, int from_device, size_t bytes,
                                cudaStream_t s)
{
    {
        guard held(lock);
        const auto *a = find(to), *b = find(from);
        if (a == nullptr || b == nullptr || a->second.device != to_device || b->second.device != from_device)
            return said(
                misused(cudaErrorInvalidValue, "cudaMemcpyPeerAsync with memory of other devices than it names"));
    }
    return copy(to, from, bytes, cudaMemcpyDeviceToDevice, s, false);
}
}
