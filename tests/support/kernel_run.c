#include "support/kernel_run.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "support/amx_emulated.h"

const tsr_kernel_set *kernel_run_set(int i)
{
    static const char *const names[] = {"generic",    "avx2", "avxvnni", "avx512", "avx512vnni",
                                        "avx512bf16", "amx",  "neon",    "dotprod"};
    for (size_t n = 0; n < sizeof names / sizeof *names; n++) {
        const tsr_kernel_set *set = tsr_kernel_set_select(names[n]);
        if (set && i-- == 0)
            return set;
    }
    return NULL;
}

const tsr_kernel_set *kernel_run_product_set(int i)
{
    int n = 0;
    while (kernel_run_set(n))
        n++;
    return i == n ? amx_emulated() : i < n ? kernel_run_set(i) : NULL;
}

bool kernel_run_is_pairs(const tsr_kernel_set *set, tsr_type type, int x_bits)
{
    return set->pairs && type == TSR_TYPE_BF16 && x_bits == 8;
}

double kernel_run_product_error(const tsr_kernel_set *set, tsr_type type, int x_bits)
{
    const double x = 0x1p-17, low_products = 0x1p-16;
    const bool tiles = strncmp(set->isa, "amx", 3) == 0;
    if (kernel_run_is_pairs(set, type, x_bits) ||
        (tiles && x_bits == 8 && (type == TSR_TYPE_F16 || type == TSR_TYPE_BF16)))
        return 0x1p-9;
    if (!tiles)
        return 0;
    return type == TSR_TYPE_BF16 ? x : type == TSR_TYPE_F16 ? x + low_products : 0;
}

enum { MAX_THREADS = 16 };

/* A thread's scratch is dirty: 0xff at first, then what the last kernel left. One of exactly the size that
 * the set asks for, so that a sanitizer notices a byte too far. */
static void *scratch_of(int thread, size_t bytes)
{
    static struct {
        void *at;
        size_t bytes;
    } scratch[MAX_THREADS];
    if (scratch[thread].bytes != bytes) {
        free(scratch[thread].at);
        scratch[thread].at = aligned_alloc(64, (bytes + 63) / 64 * 64);
        if (!scratch[thread].at)
            abort();
        scratch[thread].bytes = bytes;
        memset(scratch[thread].at, 0xff, bytes);
    }
    return scratch[thread].at;
}

typedef struct worker {
    pthread_t thread;
    const tsr_kernel_set *set;
    const tsr_op *op;
    tsr_kernel_fn run;
    tsr_kernel_env env;
} worker;

static void *work(void *argument)
{
    worker *self = argument;
    self->env.scratch = scratch_of(self->env.thread, self->set->scratch_bytes);
    self->run(self->op, &self->env);
    return NULL;
}

/* Every thread of a team runs the function. */
static void run_team(const tsr_kernel_set *set, tsr_kernel_fn run, const tsr_op *op,
                     const tsr_kernel_env *env)
{
    worker workers[MAX_THREADS];
    const int n_threads = env->n_threads;
    for (int i = n_threads - 1; i >= 0; i--) {
        workers[i] = (worker){.set = set, .op = op, .run = run, .env = *env};
        workers[i].env.thread = i;
        if (i == 0)
            work(&workers[i]);
        else if (pthread_create(&workers[i].thread, NULL, work, &workers[i]) != 0)
            abort();
    }
    for (int i = 1; i < n_threads; i++)
        pthread_join(workers[i].thread, NULL);
}

static size_t guarded_bytes(size_t bytes)
{
    const size_t page = (size_t)sysconf(_SC_PAGESIZE);
    return (bytes + page - 1) / page * page;
}

void *guarded_alloc(size_t bytes)
{
    const size_t page = (size_t)sysconf(_SC_PAGESIZE), usable = guarded_bytes(bytes);
    char *base = mmap(NULL, usable + page, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (base == MAP_FAILED || mprotect(base + usable, page, PROT_NONE) != 0)
        abort();
    memset(base, 0xff, usable);
    return base + usable - bytes;
}

void guarded_free(void *pointer, size_t bytes)
{
    const size_t page = (size_t)sysconf(_SC_PAGESIZE), usable = guarded_bytes(bytes);
    if (pointer)
        munmap((char *)pointer + bytes - usable, usable + page);
}

bool kernel_run(const tsr_kernel_set *set, const tsr_op *op, int n_threads)
{
    _Atomic int64_t next = 0;
    _Atomic int fault = 0;
    tsr_host_shares shares[MAX_THREADS] = {0};
    void *shared = n_threads > 1 && set->shared_bytes > 0 ? calloc(1, set->shared_bytes) : NULL;
    tsr_kernel_env env = {.n_threads = n_threads,
                          .next = &next,
                          .range_fault = &fault,
                          .shared = shared,
                          .reading = (tsr_cpu_reading)(n_threads % TSR_CPU_READINGS),
                          .pairs = set->pairs,
                          .shares = shares};
    tsr_kernel_env before = env; /* a program finds what to pack when none of the team's threads rests */
    before.n_threads = 4 * n_threads;
    const bool may_pack = n_threads > 1 && set->pack;
    const size_t bytes = may_pack ? set->pack_bytes(op, &before) : 0;
    if (bytes > 0) {
        env.packed = guarded_alloc(bytes);
        run_team(set, set->pack, op, &env);
        next = 0;
    }
    run_team(set, set->run[op->kind], op, &env);
    guarded_free(env.packed, bytes);
    free(shared);
    return fault != 0;
}

/* xorshift64* (Vigna, arXiv:1402.6246) */
uint32_t random_u32(uint64_t *state)
{
    *state ^= *state >> 12;
    *state ^= *state << 25;
    *state ^= *state >> 27;
    return (uint32_t)(*state * 0x2545f4914f6cdd1d >> 32);
}

float random_float(uint64_t *state, float low, float high)
{
    return low + (high - low) * ((float)(random_u32(state) >> 8) * 0x1p-24f);
}

int64_t random_int(uint64_t *state, int64_t low, int64_t high)
{
    return low + (int64_t)(random_u32(state) % (uint64_t)(high - low + 1));
}

void random_fill(uint64_t *state, float *x, int64_t n, float low, float high)
{
    for (int64_t i = 0; i < n; i++)
        x[i] = random_float(state, low, high);
}
