/* A block's shared memory: dynamic, static, and asynchronous copies to both ("cp.async").
 *
 * What a thread copies arrives at its wait for the copy's group, as late as a GPU may do it; until then the
 * target holds 0xff, so that who reads too early, or refills what is still read, gets other results. */
#include "block.h"

#include <cudasim_launch.h>

#include <link.h>
#include <string.h>
#include <sys/mman.h>

namespace cudasim
{

static const size_t shared_capacity = (size_t)232 << 10; /* of an H100 block, with room for alignment */

/* -- dynamic and static -- */

/* Dynamic shared memory ends where an unmapped page begins. */
void shared_create(BlockMemory &memory)
{
    memory.shared = (unsigned char *)mmap(NULL, shared_capacity + 4096, PROT_READ | PROT_WRITE,
                                          MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    mprotect(memory.shared + shared_capacity, 4096, PROT_NONE);
}

static int first_object(struct dl_phdr_info *info, size_t, void *base)
{
    *(unsigned char **)base = (unsigned char *)info->dlpi_tls_data; /* the program itself comes first */
    return 1;
}

/* Where the host thread keeps the program's thread-local variables, __shared__ ones among them. */
static unsigned char *thread_locals()
{
    static __thread unsigned char *base;
    if (base == NULL)
        dl_iterate_phdr(first_object, &base);
    return base;
}

void shared_poison(Block &b)
{
    if (b.body->shared_bytes != 0)
        memset(cudasim_dynamic_shared(), 0xff, b.body->shared_bytes);
    for (const StaticShared &variable : b.body->kernel->shared)
        memset(thread_locals() + variable.offset, 0xff, variable.bytes);
}

static bool is_shared(const unsigned char *at, size_t bytes)
{
    const Body &body = *block->body;
    const unsigned char *dynamic = (const unsigned char *)cudasim_dynamic_shared();
    if (at >= dynamic && at + bytes <= dynamic + body.shared_bytes)
        return true;
    for (const StaticShared &variable : body.kernel->shared) {
        const unsigned char *begin = thread_locals() + variable.offset;
        if (at >= begin && at + bytes <= begin + variable.bytes)
            return true;
    }
    return false;
}

} // namespace cudasim

using namespace cudasim;

void *cudasim_dynamic_shared()
{
    return block->memory->shared + shared_capacity - (block->body->shared_bytes + 15) / 16 * 16;
}

/* -- asynchronous copies -- */

void cudasim_copy_async(void *to, const void *from, unsigned bytes)
{
    unsigned char *target = (unsigned char *)to;
    const unsigned char *source = (const unsigned char *)from;
    if (bytes != 4 && bytes != 8 && bytes != 16)
        end_kernel(cudaErrorIllegalInstruction, "copies %u bytes asynchronously; 4, 8 and 16 can be", bytes);
    if ((uintptr_t)target % bytes != 0 || (uintptr_t)source % bytes != 0)
        end_kernel(cudaErrorMisalignedAddress,
                   "copies %u bytes asynchronously from %p to %p, which are not both multiples of %u", bytes,
                   from, to, bytes);
    if (!is_shared(target, bytes))
        end_kernel(cudaErrorInvalidAddressSpace,
                   "copies asynchronously to %p, which is not in the block's shared memory", to);
    (void)*(const volatile unsigned char *)source; /* a fault is this instruction's, not the wait's */
    memset(target, 0xff, bytes);
    self->copies.push_back({target, source, bytes, self->groups});
}

void cudasim_copy_async_commit()
{
    self->groups++;
}

void cudasim_copy_async_wait(unsigned later)
{
    size_t kept = 0;
    for (const Copy &copy : self->copies) {
        if ((uint64_t)copy.group + later < self->groups)
            memcpy(copy.to, copy.from, copy.bytes);
        else
            self->copies[kept++] = copy;
    }
    self->copies.resize(kept);
}
