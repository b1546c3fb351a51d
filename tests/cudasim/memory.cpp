/* The memory of the simulated machine.
 *
 * A device's physical memory is a memfd. It is mapped twice: as a whole at `alias`, where the simulation
 * itself copies and adds, and piece by piece at the addresses that programs and kernels know. The latter
 * mappings are closed to everyone except a kernel of a device that may use them, by protection keys where the
 * CPU has them (a register per thread: cheap and exact), else with mprotect when another device's kernels
 * run, or none any more. Allocations end at the end of a page (to 256 bytes, which are looked at when they
 * are freed) and an unmapped page follows; freed addresses are unmapped and not used again soon. New memory
 * is full of 0xff: a NaN in every float format. */
#include "sim.h"

#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <ucontext.h>
#include <unistd.h>
#include <fcntl.h>

#include <algorithm>

namespace cudasim
{

static const size_t page = 4096;
static const size_t window = (size_t)64 << 30; /* address space per device */
static unsigned char *windows;                 /* CUDASIM_MAX_DEVICES of them, reserved once */

static size_t round_up(size_t n, size_t to)
{
    return (n + to - 1) / to * to;
}

/* -- who may touch what -- */

/* One key per class of memory; a class is a device (cudaMalloc) or a set of devices (virtual memory). What
 * finds no key any more is open to everyone. */
static const int max_keys = 15;
static int keys[max_keys], n_keys = -1; /* -1: not asked yet; 0: none, use mprotect */
static std::vector<uint64_t> classes;   /* of keys[i] */

static uint64_t class_of(const Region &region)
{
    return region.kind == Region::VMM || region.kind == Region::OPENED
               ? (uint64_t)region.access | (uint64_t)1 << 40
               : (uint64_t)region.device;
}

static bool may_touch(uint64_t memory_class, int device)
{
    if (device < 0)
        return false;
    if (memory_class >> 40)
        return memory_class >> device & 1;
    return memory_class == (uint64_t)device ||
           (machine().devices[(size_t)device].peers >> memory_class & 1) != 0;
}

static void find_keys()
{
    if (n_keys >= 0)
        return;
    n_keys = 0;
#ifdef __x86_64__
    while (n_keys < max_keys && (keys[n_keys] = pkey_alloc(0, PKEY_DISABLE_ACCESS)) > 0)
        n_keys++;
#endif
}

static int key_of(uint64_t memory_class)
{
    for (size_t i = 0; i < classes.size(); i++)
        if (classes[i] == memory_class)
            return keys[i];
    if ((int)classes.size() == n_keys)
        return 0;
    classes.push_back(memory_class);
    return keys[classes.size() - 1];
}

static int mprotect_device = -1; /* without keys: whose kernels may touch memory now */

/* Not through mprotect(), which tests of the library make fail: a GPU's page tables do not. */
static void set_protection(const Region &region, int protection)
{
    if (syscall(SYS_mprotect, region.map, region.map_size, protection) != 0) {
        perror("cudasim: mprotect");
        abort();
    }
}

static void protect(Region &region)
{
    if (region.kind > Region::VMM && region.kind != Region::OPENED)
        return;
    if (n_keys > 0) {
        pkey_mprotect((void *)region.map, region.map_size, PROT_READ | PROT_WRITE, key_of(class_of(region)));
        return;
    }
    int wanted = may_touch(class_of(region), mprotect_device) ? PROT_READ | PROT_WRITE : PROT_NONE;
    if (wanted != region.protection)
        set_protection(region, wanted);
    region.protection = wanted;
}

static void grant_by_mprotect(int device)
{
    mprotect_device = device;
    for (auto &entry : machine().regions)
        protect(entry.second);
}

void grant(int device)
{
    if (n_keys > 0) {
#ifdef __x86_64__
        unsigned rights, unused;
        __asm__ volatile("xorl %%ecx, %%ecx; rdpkru" : "=a"(rights), "=d"(unused) : : "rcx");
        for (size_t i = 0; i < classes.size(); i++) {
            rights |= 1u << (2 * keys[i]);
            if (may_touch(classes[i], device))
                rights &= ~(3u << (2 * keys[i]));
        }
        __asm__ volatile("wrpkru" : : "a"(rights), "c"(0), "d"(0) : "memory");
#endif
        return;
    }
    if (device >= 0 && device != mprotect_device)
        grant_by_mprotect(device);
}

void revoke()
{
    if (n_keys == 0 && mprotect_device >= 0)
        grant_by_mprotect(-1);
}

/* -- faults -- */

static struct sigaction previous_action;

static const char *describe(uintptr_t address, int device, char *text, size_t size)
{
    Region *region = region_of((void *)address);
    uintptr_t base = (uintptr_t)windows;
    int owner = address >= base && address < base + window * CUDASIM_MAX_DEVICES
                    ? (int)((address - base) / window)
                    : -1;
    if (region != NULL && region->kind == Region::VMM && device >= 0)
        snprintf(text, size, "device %d has no access (cuMemSetAccess) to this mapping of device %d's memory",
                 device, region->device);
    else if (region != NULL && region->device != device && device >= 0)
        snprintf(text, size, "device %d has no peer access to the memory of device %d", device,
                 region->device);
    else if (owner >= 0)
        snprintf(text, size, "memory of device %d that is not allocated (freed, unmapped, or past the end)",
                 owner);
    else
        snprintf(text, size, "an address outside all device memory");
    return text;
}

/* A kernel that faults ends; host code that does gets a line of explanation and then what it
 * would have got. */
static void on_fault(int signal, siginfo_t *info, void *context)
{
    uintptr_t address = (uintptr_t)info->si_addr;
    char why[256];
    int device = kernel_device();
    if (device >= 0) {
        violate("%s touches %p: %s", kernel_place().c_str(), info->si_addr,
                describe(address, device, why, sizeof why));
        poison(device, cudaErrorIllegalAddress);
        ucontext_t *interrupted = (ucontext_t *)context;
#if defined(__x86_64__)
        greg_t *registers = interrupted->uc_mcontext.gregs;
        registers[REG_RSP] = ((registers[REG_RSP] - 1024) & ~(greg_t)15) - 8;
        registers[REG_RIP] = (greg_t)(void (*)())leave_kernel;
#elif defined(__aarch64__)
        interrupted->uc_mcontext.sp = (interrupted->uc_mcontext.sp - 1024) & ~(uintptr_t)15;
        interrupted->uc_mcontext.pc = (uintptr_t)(void (*)())leave_kernel;
#else
#error "say here how to continue elsewhere after a signal"
#endif
        return;
    }
    if (is_device_range(info->si_addr)) {
        char line[400];
        int n = snprintf(line, sizeof line, "cudasim: host code touches device memory at %p (%s)\n",
                         info->si_addr, describe(address, -1, why, sizeof why));
        if (write(STDERR_FILENO, line, (size_t)n) < 0)
            n = 0;
    }
    sigaction(signal, &previous_action,
              NULL); /* the access is made again and meets the handler that was there before */
}

void catch_faults()
{
    struct sigaction action = {}, current;
    action.sa_sigaction = on_fault;
    action.sa_flags = SA_SIGINFO | SA_NODEFER | SA_ONSTACK;
    sigaction(SIGSEGV, NULL, &current);
    if ((current.sa_flags & SA_SIGINFO) && current.sa_sigaction == on_fault)
        return;
    previous_action = current;
    sigaction(SIGSEGV, &action, NULL);
}

/* -- physical memory -- */

/* A device's memory outlives its machine, for the next device of that number: pages that are there need not
 * be fetched and cleared anew by every test. What is beyond the first `kept_bytes` is given back. */
struct Physical {
    size_t size = 0;
    int fd = -1;
    unsigned char *alias = NULL;
};
static Physical kept[CUDASIM_MAX_DEVICES];
static const size_t kept_bytes = (size_t)64 << 20;

static bool physical_start(Physical &memory, size_t size)
{
    if (size <= memory.size)
        return true;
    if (memory.fd < 0)
        memory.fd = memfd_create("cudasim", MFD_CLOEXEC);
    else
        munmap(memory.alias, memory.size);
    memory.size = 0;
    if (memory.fd < 0 || ftruncate(memory.fd, (off_t)size) != 0)
        return false;
    void *alias = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_SHARED, memory.fd, 0);
    if (alias == MAP_FAILED)
        return false;
    memory.alias = (unsigned char *)alias;
    memory.size = size;
    return true;
}

cudaError_t memory_start(Device &device)
{
    find_keys();
    catch_faults();
    if (windows == NULL) {
        void *base = mmap(NULL, window * CUDASIM_MAX_DEVICES, PROT_NONE,
                          MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
        if (base == MAP_FAILED)
            return cudaErrorOperatingSystem;
        windows = (unsigned char *)base;
    }
    device.va_next = (uintptr_t)windows + window * (size_t)device.ordinal + ((size_t)2 << 20);
    device.va_end = (uintptr_t)windows + window * (size_t)(device.ordinal + 1);
    device.physical = round_up(device.memory, page) * 2 + ((size_t)64 << 20); /* room for rounding to pages */
    Physical &memory = kept[device.ordinal];
    if (!physical_start(memory, device.physical))
        return cudaErrorOperatingSystem;
    device.fd = memory.fd;
    device.alias = memory.alias;
    device.holes[0] = device.physical;
    return cudaSuccess;
}

void memory_stop()
{
    Machine &m = machine();
    for (auto &entry : m.regions) {
        Region &region = entry.second;
        if (region.kind == Region::PINNED || region.kind == Region::MANAGED)
            munmap((void *)region.map, region.map_size);
        if (region.kind == Region::OPENED)
            ipc_forget(region);
    }
    m.regions.clear();
    for (Device &device : m.devices) {
        if (device.physical > kept_bytes)
            fallocate(device.fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, (off_t)kept_bytes,
                      (off_t)(device.physical - kept_bytes));
        mmap(windows + window * (size_t)device.ordinal, window, PROT_NONE,
             MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED, -1, 0);
    }
    classes.clear();
    mprotect_device = -1;
}

bool physical_alloc(Device &device, size_t bytes, size_t *offset_out)
{
    for (auto &hole : device.holes) {
        if (hole.second < bytes)
            continue;
        size_t offset = hole.first, rest = hole.second - bytes;
        device.holes.erase(offset);
        if (rest != 0)
            device.holes[offset + bytes] = rest;
        *offset_out = offset;
        memset(device.alias + offset, 0xff, bytes);
        return true;
    }
    return false;
}

void physical_free(Device &device, size_t offset, size_t bytes)
{
    auto after = device.holes.lower_bound(offset);
    if (after != device.holes.end() && offset + bytes == after->first) {
        bytes += after->second;
        after = device.holes.erase(after);
    }
    if (after != device.holes.begin()) {
        auto before = std::prev(after);
        if (before->first + before->second == offset) {
            before->second += bytes;
            return;
        }
    }
    device.holes[offset] = bytes;
}

/* -- addresses -- */

uintptr_t address_reserve(Device &device, size_t bytes, size_t alignment)
{
    uintptr_t at = round_up(device.va_next, std::max(alignment, page));
    if (at + bytes + page > device.va_end)
        return 0;
    device.va_next = at + round_up(bytes, page) + page; /* a page that is never mapped follows */
    return at;
}

void region_map(Region &region)
{
    Device &device = machine().devices[(size_t)region.device];
    mmap((void *)region.map, region.map_size, PROT_NONE, MAP_SHARED | MAP_FIXED, device.fd,
         (off_t)region.offset);
    region.protection = PROT_NONE;
    protect(region);
}

void region_unmap(Region &region)
{
    mmap((void *)region.map, region.map_size, PROT_NONE,
         MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED, -1, 0);
}

void region_access(Region &region)
{
    protect(region);
}

Region *region_of(const void *pointer)
{
    Machine &m = machine();
    auto after = m.regions.upper_bound((uintptr_t)pointer);
    if (after == m.regions.begin())
        return NULL;
    Region &region = std::prev(after)->second;
    return (uintptr_t)pointer < region.va + std::max(region.size, (size_t)1) ? &region : NULL;
}

/* -- the window through which peers reach a device's memory -- */

bool has_guests(int owner)
{
    for (const Device &device : machine().devices)
        if (device.peers >> owner & 1)
            return true;
    return false;
}

/* However many peers use a mapping, it takes the window's bytes once. */
size_t bar1_used(int owner)
{
    size_t used = 0;
    bool guests = has_guests(owner);
    for (const auto &entry : machine().regions) {
        const Region &region = entry.second;
        if (region.device == owner && (region.kind == Region::VMM ? (region.access & ~(1u << owner)) != 0
                                                                  : guests && region.kind == Region::MALLOC))
            used += region.map_size;
    }
    return used;
}

bool bar1_fits(int owner, size_t more)
{
    size_t bar1 = machine().config.bar1;
    return bar1 == 0 || bar1_used(owner) + more <= bar1;
}

cudaError_t device_alloc(Device &device, size_t bytes, void **out)
{
    if (has_guests(device.ordinal) && !bar1_fits(device.ordinal, round_up(bytes, page)))
        return cudaErrorMapBufferObjectFailed;
    size_t counted = round_up(bytes, 512), mapped = round_up(bytes, page), offset;
    if (counted > room(device) || !physical_alloc(device, mapped, &offset))
        return cudaErrorMemoryAllocation;
    uintptr_t map = address_reserve(device, mapped, (size_t)page);
    if (map == 0) {
        physical_free(device, offset, mapped);
        return cudaErrorMemoryAllocation;
    }
    device.used += counted;
    device.peak = std::max(device.peak, device.used);
    Region region = {};
    region.kind = Region::MALLOC;
    region.va = map + mapped - round_up(bytes, 256);
    region.size = bytes;
    region.map = map;
    region.map_size = mapped;
    region.device = device.ordinal;
    region.offset = offset;
    region_map(region);
    machine().regions[region.va] = region;
    *out = (void *)region.va;
    return cudaSuccess;
}

/* Whether the bytes around an allocation are still those it began with. */
static bool margins_whole(const Device &device, const Region &region)
{
    const unsigned char *page_bytes = device.alias + region.offset;
    const unsigned char *own = page_bytes + (region.va - region.map);
    for (const unsigned char *byte = page_bytes; byte < page_bytes + region.map_size; byte++) {
        if (byte == own)
            byte += region.size;
        if (byte < page_bytes + region.map_size && *byte != 0xff)
            return false;
    }
    return true;
}

cudaError_t device_free(uintptr_t va)
{
    Machine &m = machine();
    auto found = m.regions.find(va);
    if (found == m.regions.end() ||
        (found->second.kind != Region::MALLOC && found->second.kind != Region::MANAGED))
        return cudaErrorInvalidValue;
    Region &region = found->second;
    Device &device = m.devices[(size_t)region.device];
    if (region.kind == Region::MANAGED) {
        munmap((void *)region.map, region.map_size);
    } else {
        if (!margins_whole(device, region))
            violate("memory before the start or past the end of %zu bytes of device %d was written",
                    region.size, device.ordinal);
        region_unmap(region);
        physical_free(device, region.offset, region.map_size);
    }
    device.used -= round_up(region.size, 512);
    m.regions.erase(found);
    return cudaSuccess;
}

/* -- the simulation's own accesses -- */

bool is_device_range(const void *pointer)
{
    return windows != NULL && (uintptr_t)pointer >= (uintptr_t)windows &&
           (uintptr_t)pointer < (uintptr_t)windows + window * CUDASIM_MAX_DEVICES;
}

unsigned char *host_view(const void *pointer, size_t bytes, size_t *length)
{
    *length = bytes;
    if (!is_device_range(pointer))
        return (unsigned char *)pointer;
    Region *region = region_of(pointer);
    if (region == NULL)
        return NULL;
    size_t left = region->va + region->size - (uintptr_t)pointer;
    *length = std::min(bytes, left);
    if (region->kind == Region::OPENED)
        return region->alias + ((uintptr_t)pointer - region->map);
    return machine().devices[(size_t)region->device].alias + region->offset +
           ((uintptr_t)pointer - region->map);
}

int place_of(const void *pointer)
{
    const Region *region = region_of(pointer);
    return region == NULL || region->is_host() ? -1 : region->device;
}

bool range_ok(const void *pointer, size_t bytes)
{
    uintptr_t at = (uintptr_t)pointer;
    while (bytes != 0) {
        size_t length;
        if (host_view((void *)at, bytes, &length) == NULL)
            return false;
        at += length;
        bytes -= length;
    }
    return true;
}

bool opened_to(int device, const void *pointer, size_t bytes)
{
    uintptr_t at = (uintptr_t)pointer;
    while (bytes != 0) {
        Region *region = region_of((void *)at);
        if (region == NULL)
            return true; /* no mapped memory: others look at that */
        if (region->kind == Region::VMM && !(region->access >> device & 1))
            return false;
        size_t length = std::min(bytes, region->va + region->size - at);
        at += length;
        bytes -= length;
    }
    return true;
}

void copy_bytes(void *dst, const void *src, size_t bytes)
{
    view_release_all();
    while (bytes != 0) {
        size_t n_dst, n_src;
        unsigned char *to = host_view(dst, bytes, &n_dst), *from = host_view(src, bytes, &n_src);
        size_t n = std::min(n_dst, n_src);
        memmove(to, from, n);
        dst = (unsigned char *)dst + n;
        src = (const unsigned char *)src + n;
        bytes -= n;
    }
}

void set_bytes(void *dst, int value, size_t bytes)
{
    view_release_all();
    while (bytes != 0) {
        size_t n;
        unsigned char *to = host_view(dst, bytes, &n);
        memset(to, value, n);
        dst = (unsigned char *)dst + n;
        bytes -= n;
    }
}

} // namespace cudasim
