/* tests/doubles/simt_fiber.h -- the switch from one stack to another, for simt_double.cpp. By hand where that is
 * known, else by ucontext; the sanitizers are told. */
#pragma once

#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>

#if defined __SANITIZE_ADDRESS__
#include <sanitizer/asan_interface.h>
#include <sanitizer/common_interface_defs.h>
#elif defined __SANITIZE_THREAD__
extern "C" void *__tsan_get_current_fiber(void);
extern "C" void *__tsan_create_fiber(unsigned flags);
extern "C" void __tsan_destroy_fiber(void *fiber);
extern "C" void __tsan_switch_to_fiber(void *fiber, unsigned flags);
#endif
#if !defined __x86_64__ || defined SIMT_UCONTEXT
#include <ucontext.h>
#define SIMT_BY_HAND 0
#else
#define SIMT_BY_HAND 1
#endif

enum { SIMT_STACK = 256 * 1024, SIMT_GUARD = 4096 };

struct simt_stack {
    char *base; /* NULL: the stack of the host's thread */
    const void *bottom;
    size_t size;
    unsigned index;
    void *sp;    /* while it does not run */
    void *spare; /* what the sanitizer keeps for it */
#if !SIMT_BY_HAND
    ucontext_t context;
#endif
};

#if SIMT_BY_HAND
extern "C" void simt_switch_by_hand(void **from, void *to);
asm(".text\n.p2align 4\n.type simt_switch_by_hand,@function\n"
    "simt_switch_by_hand:\n"
    "pushq %rbp\npushq %rbx\npushq %r12\npushq %r13\npushq %r14\npushq %r15\n"
    "movq %rsp, (%rdi)\nmovq %rsi, %rsp\n"
    "popq %r15\npopq %r14\npopq %r13\npopq %r12\npopq %rbx\npopq %rbp\n"
    "retq\n.size simt_switch_by_hand,.-simt_switch_by_hand\n");
#endif

static inline void simt_stack_unpoison(simt_stack *s)
{
#if defined __SANITIZE_ADDRESS__
    __asan_unpoison_memory_region(s->base + SIMT_GUARD, SIMT_STACK);
#else
    (void)s;
#endif
}

static inline simt_stack *simt_stack_create(unsigned index)
{
    const size_t bytes = SIMT_STACK + SIMT_GUARD;
    simt_stack *s = static_cast<simt_stack *>(calloc(1, sizeof(simt_stack)));
    void *at = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);

    if (s == nullptr || at == MAP_FAILED || mprotect(at, SIMT_GUARD, PROT_NONE) != 0) {
        (void)fprintf(stderr, "simt double: no memory for the stack of a CUDA thread\n");
        abort();
    }
    s->base = static_cast<char *>(at);
    s->bottom = s->base + SIMT_GUARD;
    s->size = SIMT_STACK;
    s->index = index;
#if defined __SANITIZE_THREAD__
    s->spare = __tsan_create_fiber(0);
#endif
    return s;
}

static inline void simt_stack_free(simt_stack *s)
{
#if defined __SANITIZE_THREAD__
    __tsan_destroy_fiber(s->spare);
#endif
    simt_stack_unpoison(s); /* what is mapped here next is another's */
    (void)munmap(s->base, SIMT_STACK + SIMT_GUARD);
    free(s);
}

/* `enter` starts on it at the next switch; it never returns. Tops differ by cache lines: else those of all stacks
 * fall into one set. */
static inline void simt_stack_begin(simt_stack *s, void (*enter)(void))
{
    simt_stack_unpoison(s); /* the one before was left without unwinding */
#if SIMT_BY_HAND
    char *top = s->base + SIMT_GUARD + SIMT_STACK - static_cast<size_t>(s->index % 21) * 192;
    void **sp = reinterpret_cast<void **>(top);

    *--sp = nullptr; /* the return address of `enter`, and the alignment that a call would have left */
    *--sp = reinterpret_cast<void *>(enter);
    for (int i = 0; i < 6; i++) *--sp = nullptr;
    s->sp = sp;
#else
    (void)getcontext(&s->context);
    s->context.uc_stack.ss_sp = s->base + SIMT_GUARD;
    s->context.uc_stack.ss_size = SIMT_STACK;
    s->context.uc_link = nullptr;
    makecontext(&s->context, enter, 0);
#endif
}

/* What runs first after a switch; `from` is where it came from. */
static inline void simt_stack_arrived(simt_stack *here, simt_stack *from)
{
#if defined __SANITIZE_ADDRESS__
    const void *bottom;
    size_t size;

    __sanitizer_finish_switch_fiber(here->spare, &bottom, &size);
    if (from->base == nullptr) {
        from->bottom = bottom;
        from->size = size;
    }
#else
    (void)here;
    (void)from;
#endif
}

static inline void simt_stack_switch(simt_stack *from, simt_stack *to, bool for_good)
{
    (void)for_good;
#if defined __SANITIZE_ADDRESS__
    __sanitizer_start_switch_fiber(for_good ? nullptr : &from->spare, to->bottom, to->size);
    if (for_good) from->spare = nullptr;
#elif defined __SANITIZE_THREAD__
    __tsan_switch_to_fiber(to->spare, 0);
#endif
#if SIMT_BY_HAND
    simt_switch_by_hand(&from->sp, to->sp);
#else
    (void)swapcontext(&from->context, &to->context);
#endif
}
