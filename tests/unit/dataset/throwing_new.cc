/* throwing_new.cc -- for test_tokenizer_memory.c: C++'s operator new, which fails where an allocation is to. */
#include <cstddef>
#include <new>

extern "C" {
int allocation_fails(void);
void *__real__Znwm(size_t size);
void *__wrap__Znwm(size_t size);

void *__wrap__Znwm(size_t size)
{
    if (allocation_fails()) throw std::bad_alloc();
    return __real__Znwm(size);
}
}
