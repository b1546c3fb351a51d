/* Switching between the stacks of a block's fibers: by hand on x86-64, where it is a few instructions, and
 * with the C library's contexts elsewhere. AddressSanitizer is told. */
#ifndef CUDASIM_CONTEXT_H
#define CUDASIM_CONTEXT_H

#include <stddef.h>

#if !defined(__x86_64__)
#include <ucontext.h>
#endif
#if defined(__SANITIZE_ADDRESS__)
#include <sanitizer/common_interface_defs.h>
#endif

namespace cudasim
{

/* A context that does not run is its stack pointer; all else is on its stack. */
struct Context {
    void *sp = NULL;
    void *stack = NULL; /* lowest address */
    size_t size = 0;
};

#if defined(__x86_64__)
/* Callee-saved registers of the System V ABI. MXCSR and the x87 control word are left out: nothing here
 * changes them. */
extern "C" void cudasim_switch(void **save, void *to);
__asm__(".text\n"
        ".p2align 4\n"
        ".weak cudasim_switch\n" /* wherever this header is included */
        ".type cudasim_switch, @function\n"
        "cudasim_switch:\n"
        "    pushq %rbp\n"
        "    pushq %rbx\n"
        "    pushq %r12\n"
        "    pushq %r13\n"
        "    pushq %r14\n"
        "    pushq %r15\n"
        "    movq %rsp, (%rdi)\n"
        "    movq %rsi, %rsp\n"
        "    popq %r15\n"
        "    popq %r14\n"
        "    popq %r13\n"
        "    popq %r12\n"
        "    popq %rbx\n"
        "    popq %rbp\n"
        "    ret\n"
        ".size cudasim_switch, . - cudasim_switch\n");

static inline void prepare(Context &context, void (*entry)())
{
    void **top = (void **)((char *)context.stack + context.size - 16);
    *--top = NULL; /* the return address of entry, which never returns */
    *--top = (void *)entry;
    for (int i = 0; i < 6; i++)
        *--top = NULL;
    context.sp = top;
}

static inline void raw_switch(Context &from, Context &to)
{
    cudasim_switch(&from.sp, to.sp);
}
#else
/* Elsewhere: the C library's contexts, slower because they also switch the signal mask. */
static inline void prepare(Context &context, void (*entry)())
{
    ucontext_t *made = (ucontext_t *)context.sp;
    if (made == NULL)
        context.sp = made = new ucontext_t;
    getcontext(made);
    made->uc_stack.ss_sp = context.stack;
    made->uc_stack.ss_size = context.size;
    made->uc_link = NULL;
    makecontext(made, entry, 0);
}

static inline void raw_switch(Context &from, Context &to)
{
    if (from.sp == NULL)
        from.sp = new ucontext_t;
    swapcontext((ucontext_t *)from.sp, (ucontext_t *)to.sp);
}
#endif

static inline void switch_context(Context &from, Context &to)
{
#if defined(__SANITIZE_ADDRESS__)
    void *fake;
    __sanitizer_start_switch_fiber(&fake, to.stack, to.size);
    raw_switch(from, to);
    __sanitizer_finish_switch_fiber(fake, NULL, NULL);
#else
    raw_switch(from, to);
#endif
}

} // namespace cudasim

#endif
