/* See leak_check.h. */
#include "support/leak_check.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include <cmocka.h>

#include "core/runtime.h"
#include "support/failing_alloc.h"

/* The linker's names; no header declares them. */
void __real_tsr_runtime_close(tsr_runtime *rt);
void __wrap_tsr_runtime_close(tsr_runtime *rt);

static _Thread_local const tsr_runtime *expected; /* runtimes may have threads of their own */
static pid_t program;                             /* children of tests that fork may end as they like */
static bool is_abandoned;

void leak_check_expect(const tsr_runtime *rt)
{
    expected = rt;
}

void leak_check_abandon(void)
{
    is_abandoned = true;
}

static void check_devices(const tsr_runtime *rt)
{
    for (int d = 0; rt->devices && d < rt->n_devices; d++) {
        tsr_device_trim(rt->devices[d]); /* what is only kept for the next time is no leak */
        for (tsr_memory_owner o = 0; o < TSR_MEMORY_COUNT; o++)
            if (rt->devices[d]->used[o] > 0)
                fail_msg("leaked on device %s: %zu bytes of %s", rt->devices[d]->name,
                         rt->devices[d]->used[o], tsr_memory_owner_name(o));
    }
}

void __wrap_tsr_runtime_close(tsr_runtime *rt)
{
    tsr_object_info holder;
    if (rt && rt != expected) {
        if (tsr_runtime_objects(rt, &holder, 1) > 0)
            fail_msg("leaked: %s", holder.name);
        check_devices(rt);
    }
    expected = NULL;
    __real_tsr_runtime_close(rt);
}

__attribute__((constructor)) static void begin(void)
{
    program = getpid();
}

__attribute__((destructor)) static void end(void)
{
    int64_t n = failing_alloc_live();
    if (n == 0 || is_abandoned || getpid() != program)
        return;
    fprintf(stderr, "leaked: %lld blocks of host memory\n", (long long)n);
    fflush(NULL);
    _exit(1);
}
