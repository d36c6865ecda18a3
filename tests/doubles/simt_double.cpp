/* tests/doubles/simt_double.cpp -- runs a launch of simt_double.h: blocks in turn, each thread of a block a fiber that
 * starts when its turn comes.
 *
 * A thread that has to wait hands on to one that is ready, or to the next that has not started; one that ends goes
 * on to the next on the same stack. So a kernel in which nobody waits needs one stack and no switch. */
#include "simt_parts.h"
#include <memory>
#include <stdarg.h>
#include <map>
#include <mutex>
#include <string>

#if defined __SANITIZE_ADDRESS__
#include <sanitizer/asan_interface.h>
#define FORBID(p, bytes) __asan_poison_memory_region(p, bytes)
#define PERMIT(p, bytes) __asan_unpoison_memory_region(p, bytes)
#else
#define FORBID(p, bytes) (void)(p)
#define PERMIT(p, bytes) (void)(p)
#endif

/* Behind each array in shared memory lie bytes of 0xff, which no kernel may change. */
enum { FENCE = 64, MAX_SHARED = 227 * 1024, PLAIN_SHARED = 48 * 1024 };

__thread simt_place *simt_at __attribute__((tls_model("initial-exec")));
namespace simt_double
{
/* Not in the thread's own block: a library that is loaded late gets little room there. */
static thread_local std::unique_ptr<engine> machine;
static __thread engine *me __attribute__((tls_model("initial-exec"))); /* the machine while it runs a launch */

static engine *this_machine(void)
{
    if (machine == nullptr) machine = std::make_unique<engine>();
    return machine.get();
}

void die(const char *format, ...)
{
    va_list list;
    const simt_launch *l = me == nullptr ? nullptr : me->launch;

    (void)fprintf(stderr, "simt double: ");
    va_start(list, format);
    (void)vfprintf(stderr, format, list);
    va_end(list);
    if (l != nullptr)
        (void)fprintf(stderr,
                      "\n  in %s:%d, cu_launch(%s)\n  grid (%u, %u, %u), block (%u, %u, %u); block (%u, %u, %u)",
                      l->file, l->line, l->text, l->grid.x, l->grid.y, l->grid.z, l->block.x, l->block.y, l->block.z,
                      simt_at->block.x, simt_at->block.y, simt_at->block.z);
    if (l != nullptr && me->now != nullptr)
        (void)fprintf(stderr, ", thread (%u, %u, %u)", simt_at->thread.x, simt_at->thread.y, simt_at->thread.z);
    (void)fputc('\n', stderr);
    abort();
}

engine *inside(const char *what)
{
    if (me == nullptr) die("%s outside of a kernel", what);
    return me;
}

/* ---- fibers ------------------------------------------------------------------------------------------------------ */
engine::engine()
{
    const char *order = getenv("CUDA_DOUBLE_ORDER");

    reverse = order != nullptr && strcmp(order, "reverse") == 0;
    fibers.resize(MAX_THREADS);
    /* 16 bytes off any greater alignment, for the kernel that counts on more than it was promised */
    shared = static_cast<char *>(aligned_alloc(128, 2 * AREA)) + 16;
    FORBID(shared, 2 * AREA - 16);
}

engine::~engine()
{
    for (simt_stack *s : idle) simt_stack_free(s);
    PERMIT(shared, 2 * AREA - 16);
    free(shared - 16);
}

static void enter(void);

void engine::go(simt_stack *to, bool for_good)
{
    simt_stack *from = running;

    came_from = from;
    running = to;
    simt_stack_switch(from, to, for_good);
    simt_stack_arrived(from, came_from);
}

/* The next thread has no stack of its own yet: it begins on an idle one, where `enter` finds it. */
static void start_on_new_stack(engine *e)
{
    simt_stack *s;

    if (e->idle.empty()) {
        s = simt_stack_create(e->stacks++);
    } else {
        s = e->idle.back();
        e->idle.pop_back();
    }
    simt_stack_begin(s, enter);
    e->now = nullptr;
    e->go(s, false);
}

[[noreturn]] static void stuck(engine *e)
{
    unsigned warps = 0;
    std::string text;

    for (unsigned w = 0; w < (e->threads + 31) / 32; w++)
        for (unsigned i = 0; i < e->warps[w].gathering_count; i++) {
            char line[160];
            const gathering *m = &e->warps[w].gatherings[i];
            static const char *const names[] = {"__syncwarp", "a shuffle", "__ballot_sync", "__any_sync",
                                                "__all_sync", "cu_mma",    "cu_ldmatrix",   "cu_ldmatrix_trans"};
            (void)snprintf(line, sizeof(line), "\n  warp %u: lanes %08x of %08x have come to %s", w, m->arrived,
                           m->mask, names[m->kind]);
            if (warps++ < 8) text += line;
        }
    e->now = nullptr;
    die("nobody can go on: %u of %u threads have ended, %u wait in __syncthreads%s", e->threads - e->alive, e->threads,
        e->at_barrier, text.c_str());
}

/* The running stack's thread waits, or (for good) there is none left on it. */
void engine::hand_on(bool for_good)
{
    fiber *f = pop(&ready);

    if (f != nullptr) {
        now = f;
        place.thread = f->index;
        go(f->stack, for_good);
    } else if (started < threads) {
        start_on_new_stack(this);
    } else {
        stuck(this);
    }
}

void engine::wait(void)
{
    fiber *f = now;

    hand_on(false);
    now = f;
    place.thread = f->index;
    f->state = RUNS;
}

void engine::start(fiber *f)
{
    const unsigned i = static_cast<unsigned>(f - fibers.data());
    const dim3 b = place.block_dim;

    f->stack = running;
    f->index = uint3{i % b.x, i / b.x % b.y, i / b.x / b.y};
    f->lane = i % 32;
    f->warp = i / 32;
    f->state = RUNS;
    f->group = 0;
    now = f;
    place.thread = f->index;
}

void engine::end(fiber *f)
{
    warp *w = &warps[f->warp];

    if (!f->copies.empty()) finish_copies(f, UINT32_MAX);
    f->state = ENDED;
    now = nullptr;
    w->alive &= ~(1u << f->lane);
    alive--;
    for (unsigned i = 0; i < w->gathering_count; i++)
        if (w->gatherings[i].arrived == (w->gatherings[i].mask & w->alive)) complete(w, &w->gatherings[i--]);
    if (alive != 0 && at_barrier == alive) release_barrier();
}

/* The body of every stack: thread after thread while none is ready that waited on another stack. */
static void enter(void)
{
    engine *e = me;

    simt_stack_arrived(e->running, e->came_from);
    for (;;) {
        const unsigned i = e->reverse ? e->threads - 1 - e->started : e->started;
        fiber *f = &e->fibers[i];
        e->started++;
        e->start(f);
        e->launch->call(e->launch->arguments);
        e->end(f);
        if (e->ready.first == nullptr && e->started < e->threads) continue;
        e->idle.push_back(e->running);
        if (e->alive == 0)
            e->go(&e->host, true);
        else
            e->hand_on(true);
    }
}

static bool fenced(const char *p)
{
    static const char whole[FENCE] = {}; /* inverted: all bits set */
    char is[FENCE];

    PERMIT(p, FENCE);
    for (int i = 0; i < FENCE; i++) is[i] = static_cast<char>(~p[i]);
    FORBID(p, FENCE);
    return memcmp(is, whole, FENCE) == 0;
}

/* An array, all of it NaN, with a fence behind it. */
static void fill(char *p, size_t bytes)
{
    PERMIT(p, bytes + FENCE);
    memset(p, 0xff, bytes + FENCE);
    FORBID(p + bytes, FENCE);
}

void engine::check_fences(void)
{
    if (!fenced(shared + launch->shared)) die("a block wrote beyond its dynamic shared memory");
    for (unsigned i = 0; i < site_count; i++)
        if (!fenced(shared + AREA + sites[i].at + sites[i].bytes))
            die("a block wrote beyond an array of %zu bytes in shared memory", sites[i].bytes);
    FORBID(shared, AREA + static_end);
}

/* ---- a launch ---------------------------------------------------------------------------------------------------- */
void engine::run_block(void)
{
    const unsigned warp_count = (threads + 31) / 32;

    started = 0;
    alive = threads;
    at_barrier = 0;
    site_count = 0;
    static_used = static_end = 0;
    ready = barrier = queue{nullptr, nullptr};
    for (unsigned w = 0; w < warp_count; w++) {
        const unsigned lanes = threads - w * 32;
        warps[w].alive = lanes >= 32 ? 0xffffffffu : (1u << lanes) - 1;
        warps[w].gathering_count = 0;
    }
    fill(shared, launch->shared);
    start_on_new_stack(this);
    now = nullptr;
    check_fences();
}

void engine::run(const simt_launch *l)
{
    const uint64_t blocks = static_cast<uint64_t>(l->grid.x) * l->grid.y * l->grid.z;

    if (me != nullptr) die("a launch from within a kernel");
    me = this;
    simt_at = &place;
    launch = l;
    threads = l->block.x * l->block.y * l->block.z;
    place.block_dim = l->block;
    place.grid_dim = l->grid;
#if defined __SANITIZE_THREAD__
    host.spare = __tsan_get_current_fiber();
#endif
    for (uint64_t i = 0; i < blocks; i++) {
        const uint64_t b = reverse ? blocks - 1 - i : i;
        place.block.x = static_cast<unsigned>(b % l->grid.x);
        place.block.y = static_cast<unsigned>(b / l->grid.x % l->grid.y);
        place.block.z = static_cast<unsigned>(b / l->grid.x / l->grid.y);
        run_block();
    }
    launch = nullptr;
    simt_at = nullptr;
    me = nullptr;
}

} // namespace simt_double
using namespace simt_double;

static std::mutex allowed_lock;
static std::map<const void *, size_t> allowed;
static size_t most_shared = MAX_SHARED;

void simt_limit_shared(size_t bytes)
{
    std::lock_guard<std::mutex> held(allowed_lock);

    most_shared = bytes == 0 ? static_cast<size_t>(MAX_SHARED) : bytes;
    allowed.clear();
}

cudaError_t simt_allow_shared(const void *kernel, size_t bytes)
{
    std::lock_guard<std::mutex> held(allowed_lock);

    if (bytes > most_shared) return cudaErrorInvalidValue;
    allowed[kernel] = bytes;
    return cudaSuccess;
}

/* What the kernel asked for, or nothing where it did not. */
static size_t asked_shared(const void *kernel)
{
    std::lock_guard<std::mutex> held(allowed_lock);
    const auto found = allowed.find(kernel);

    return found == allowed.end() ? 0 : found->second;
}

static cudaError_t refused(const simt_launch *l, cudaError_t e, const char *why)
{
    (void)fprintf(stderr, "simt double: %s:%d: cu_launch(%s): %s (grid %u %u %u, block %u %u %u, shared %zu)\n",
                  l->file, l->line, l->text, why, l->grid.x, l->grid.y, l->grid.z, l->block.x, l->block.y, l->block.z,
                  l->shared);
    return e;
}

static cudaError_t check(const simt_launch *l)
{
    const dim3 g = l->grid, b = l->block;

    if (g.x == 0 || g.y == 0 || g.z == 0) return refused(l, cudaErrorInvalidConfiguration, "an empty grid");
    if (b.x == 0 || b.y == 0 || b.z == 0) return refused(l, cudaErrorInvalidConfiguration, "an empty block");
    if (g.x > 0x7fffffffu || g.y > 65535 || g.z > 65535)
        return refused(l, cudaErrorInvalidConfiguration, "a grid beyond 2^31 - 1, 65535, 65535");
    if (b.x > 1024 || b.y > 1024 || b.z > 64 || static_cast<uint64_t>(b.x) * b.y * b.z > MAX_THREADS)
        return refused(l, cudaErrorInvalidConfiguration, "a block beyond 1024 threads");
    if (l->shared > PLAIN_SHARED && l->shared > asked_shared(l->kernel))
        return refused(l, cudaErrorInvalidValue, "more dynamic shared memory than cu_allow_shared gave the kernel");
    return cudaSuccess;
}

/* Of cuda_runtime_double.cpp, which calls simt_run when the stream gets there. */
cudaError_t simt_submit(const simt_launch *l, cudaStream_t s) __attribute__((weak));
void simt_run(const simt_launch *l) __attribute__((visibility("hidden")));
void simt_run(const simt_launch *l) { this_machine()->run(l); }

cudaError_t simt_start(const simt_launch *l, cudaStream_t s)
{
    const cudaError_t e = check(l);

    if (e != cudaSuccess) return e;
    if (simt_submit != nullptr) return simt_submit(l, s);
    this_machine()->run(l);
    return cudaSuccess;
}

/* ---- shared memory ----------------------------------------------------------------------------------------------- */
void *simt_shared(const void *site, size_t bytes, size_t alignment)
{
    engine *e = inside("CU_SHARED");
    const size_t dynamic = e->launch->shared;
    char *area = e->shared + AREA;
    size_t at, total;

    for (unsigned i = 0; i < e->site_count; i++)
        if (e->sites[i].key == site) return area + e->sites[i].at;
    if (alignment > 16) die("static shared memory aligned to %zu", alignment);
    e->static_used = (e->static_used + 15) / 16 * 16 + bytes; /* as CU_SHARED of simt.h has it */
    total = e->static_used + dynamic;
    if (e->site_count == MAX_SITES || e->static_used > PLAIN_SHARED) die("more than 48 KiB of static shared memory");
    if (total > MAX_SHARED || (total > PLAIN_SHARED && dynamic > asked_shared(e->launch->kernel)))
        die("%zu bytes of static and %zu of dynamic shared memory, more than a block may have", e->static_used,
            dynamic);
    at = (e->static_end + 31) / 32 * 32 +
         (alignment < 16 ? alignment : 0); /* of an area at 16 beside a multiple of 32 */
    fill(area + at, bytes);
    e->sites[e->site_count].key = site;
    e->sites[e->site_count].bytes = bytes;
    e->sites[e->site_count++].at = at;
    e->static_end = at + bytes + FENCE;
    return area + at;
}

void *simt_shared_dynamic(void) { return inside("CU_SHARED_DYNAMIC")->shared; }
