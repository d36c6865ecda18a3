/* tests/doubles/simt_warp_double.cpp -- of the machinery behind simt_double.h: barriers, what a warp does together,
 * asynchronous copies. */
#include "simt_parts.h"

namespace simt_double
{
/* ---- barriers and warps ------------------------------------------------------------------------------------------ */
void engine::release_barrier(void)
{
    at_barrier = 0;
    if (barrier.first == nullptr) return;
    if (ready.first == nullptr)
        ready = barrier;
    else {
        ready.last->next = barrier.first;
        ready.last = barrier.last;
    }
    barrier = queue{nullptr, nullptr};
}

static bool in_shared(const engine *e, const void *p, size_t bytes)
{
    const char *at = static_cast<const char *>(p), *area = e->shared + AREA;

    return (at >= e->shared && at + bytes <= e->shared + e->launch->shared) ||
           (at >= area && at + bytes <= area + e->static_end);
}

static float of_bf16(uint32_t half) { return __uint_as_float(half << 16); }

/* PTX ISA, "Matrix Fragments for mma.m16n8k16": group = lane / 4, pair = lane % 4. */
static void run_mma(fiber *const lanes[32])
{
    float a[16][16], b[16][8];

    for (unsigned l = 0; l < 32; l++) {
        const unsigned group = l / 4, pair = l % 4;
        const uint32_t *in = static_cast<const uint32_t *>((*lanes[l]->matrix)[0]);
        for (unsigned r = 0; r < 4; r++)
            for (unsigned h = 0; h < 2; h++)
                a[group + r % 2 * 8][pair * 2 + h + r / 2 * 8] = of_bf16(in[r] >> 16 * h & 0xffffu);
        in = static_cast<const uint32_t *>((*lanes[l]->matrix)[1]);
        for (unsigned r = 0; r < 2; r++)
            for (unsigned h = 0; h < 2; h++) b[pair * 2 + h + r * 8][group] = of_bf16(in[r] >> 16 * h & 0xffffu);
    }
    for (unsigned l = 0; l < 32; l++) {
        const float *c = static_cast<const float *>((*lanes[l]->matrix)[2]);
        float sums[4];
        for (unsigned r = 0; r < 4; r++) {
            const unsigned row = l / 4 + r / 2 * 8, column = l % 4 * 2 + r % 2;
            double sum = static_cast<double>(c[r]);
            for (unsigned k = 0; k < 16; k++) sum += static_cast<double>(a[row][k]) * static_cast<double>(b[k][column]);
            sums[r] = static_cast<float>(sum);
        }
        memcpy(lanes[l]->result, sums, sizeof(sums));
    }
}

/* Lane 8 m + r holds the address of row r of matrix m; register m of lane l gets the pair l % 4 of row l / 4. */
static void run_ldmatrix(fiber *const lanes[32], bool transposed)
{
    for (unsigned l = 0; l < 32; l++) {
        uint32_t out[4];
        for (unsigned m = 0; m < 4; m++) {
            uint32_t pair[2];
            for (unsigned h = 0; h < 2; h++) {
                const unsigned row = transposed ? l % 4 * 2 + h : l / 4, column = transposed ? l / 4 : l % 4 * 2 + h;
                uint16_t half;
                memcpy(&half, static_cast<const char *>((*lanes[m * 8 + row]->matrix)[0]) + column * 2, sizeof(half));
                pair[h] = half;
            }
            out[m] = pair[0] | pair[1] << 16;
        }
        memcpy(lanes[l]->result, out, sizeof(out));
    }
}

/* All of them are there: each gets its result, and all that wait are ready. */
void engine::complete(warp *w, gathering *m)
{
    const unsigned arrived = m->arrived, first = static_cast<unsigned>(w - warps) * 32;
    const simt_kind kind = m->kind;
    fiber *lanes[32];
    unsigned votes = 0;

    for (unsigned l = 0; l < 32; l++) {
        lanes[l] = &fibers[first + l];
        if ((arrived >> l & 1) && lanes[l]->in != 0) votes |= 1u << l;
    }
    *m = w->gatherings[--w->gathering_count];
    if (kind == SIMT_MMA) run_mma(lanes);
    if (kind == SIMT_LDMATRIX || kind == SIMT_LDMATRIX_TRANS) run_ldmatrix(lanes, kind == SIMT_LDMATRIX_TRANS);
    for (unsigned l = 0; l < 32; l++) {
        fiber *f = lanes[l];
        if (!(arrived >> l & 1)) continue;
        if (kind == SIMT_SHFL) f->out = arrived >> f->from & 1 ? lanes[f->from]->in : UINT64_MAX;
        if (kind == SIMT_BALLOT) f->out = votes;
        if (kind == SIMT_ANY) f->out = votes != 0;
        if (kind == SIMT_ALL) f->out = votes == arrived;
        if (f != now) push(&ready, f);
    }
}

static void gather(engine *e, fiber *f, simt_kind kind, unsigned mask)
{
    warp *w = &e->warps[f->warp];
    gathering *m = w->gatherings;

    while (m < w->gatherings + w->gathering_count && m->mask != mask) m++;
    if (m == w->gatherings + w->gathering_count) {
        *m = gathering{mask, 0, kind};
        w->gathering_count++;
    }
    if (m->kind != kind) die("threads of one warp and one mask (%08x) come to different operations", mask);
    m->arrived |= 1u << f->lane;
    if (m->arrived == (mask & w->alive)) {
        e->complete(w, m);
        return;
    }
    f->state = AT_WARP;
    e->wait();
}

void finish_copies(fiber *f, unsigned before)
{
    size_t kept = 0;

    for (const async_copy &c : f->copies)
        if (c.group >= before)
            f->copies[kept++] = c;
        else if (c.valid)
            memcpy(c.to, c.from, 16);
        else
            memset(c.to, 0, 16);
    f->copies.resize(kept);
}
} // namespace simt_double
using namespace simt_double;

void __syncthreads(void)
{
    engine *e = inside("__syncthreads");
    fiber *f = e->now;

    if (++e->at_barrier == e->alive) {
        e->release_barrier();
        return;
    }
    f->state = AT_BARRIER;
    push(&e->barrier, f);
    e->wait();
}

unsigned simt_lane(void) { return inside("a shuffle")->now->lane; }

uint64_t simt_warp(simt_kind kind, unsigned mask, uint64_t value, unsigned from)
{
    engine *e = inside("an operation of a warp");
    fiber *f = e->now;

    if (!(mask >> f->lane & 1)) die("lane %u is not in its own mask %08x", f->lane, mask);
    f->in = value;
    f->from = from;
    gather(e, f, kind, mask);
    return f->out;
}

void simt_matrix(simt_kind kind, const void *in[3], void *out)
{
    engine *e = inside("cu_mma or cu_ldmatrix");
    fiber *f = e->now;
    const operands held = {in[0], in[1], in[2]};

    if (e->warps[f->warp].alive != 0xffffffffu) die("cu_mma or cu_ldmatrix in a warp that is not whole");
    if (kind != SIMT_MMA && !in_shared(e, in[0], 16)) die("cu_ldmatrix of a row outside of shared memory");
    if (kind != SIMT_MMA && reinterpret_cast<uintptr_t>(in[0]) % 16 != 0)
        die("cu_ldmatrix of a row that is not 16-byte aligned");
    f->in = 0;
    f->matrix = &held;
    f->result = out;
    gather(e, f, kind, 0xffffffffu);
}

/* ---- cp.async ---------------------------------------------------------------------------------------------------- */
void cu_copy_async(void *to, const void *from, bool valid)
{
    engine *e = inside("cu_copy_async");

    if (!in_shared(e, to, 16)) die("cu_copy_async to outside of shared memory");
    if (reinterpret_cast<uintptr_t>(to) % 16 != 0) die("cu_copy_async to memory that is not 16-byte aligned");
    if (valid && reinterpret_cast<uintptr_t>(from) % 16 != 0)
        die("cu_copy_async from memory that is not 16-byte aligned");
    memset(to, 0xff, 16); /* it may be written from now on */
    e->now->copies.push_back(async_copy{to, from, valid, e->now->group});
}

void cu_copy_commit(void) { inside("cu_copy_commit")->now->group++; }

void simt_copy_wait(unsigned pending)
{
    fiber *f = inside("cu_copy_wait")->now;

    if (f->group > pending) finish_copies(f, f->group - pending);
}
