/* How close the host kernels come to the machine's limits.
 *
 *     host_kernels [--json] [isa|best] [threads] [only rows whose name contains this]
 *
 * Weights are read by mul_mat of one token: compared with reading the same number of bytes in eight
 * streams per thread, from matrices larger than the last-level cache; products with half of the columns
 * of rows are compared with the same columns without gaps. mul_mat of 512 tokens and attention are
 * compared with the rate of fused multiply-adds that keep every register busy; norms and activations, on
 * rows larger than the last-level cache, with reading as many bytes as they read and write. Limit and
 * kernel are measured in turn, so that a busy machine slows both; each figure is the median of REPEATS
 * ratios, with the range of the middle half. */
#include <math.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include <tsr/types.h>

#include "core/quant/fixed.h"
#include "host/cpu.h"
#include "host/kernels.h"
#include "support/measured.h"
#include "support/weight_types.h"
#if defined(__x86_64__)
#include <immintrin.h>
#endif

enum { REPEATS = 15, MAX_THREADS = 64, STREAMS = 4 };

/* -- a team of threads that runs one piece of work at a time -- */

struct thread_team;
typedef void (*work_fn)(struct thread_team *team, int thread, void *argument);

typedef struct thread_team {
    const char *only;
    bool json;
    int n_rows; /* reported */
    int n_threads;
    pthread_t threads[MAX_THREADS];
    pthread_barrier_t barrier;
    work_fn work; /* NULL: leave */
    void *argument;
    const tsr_kernel_set *set;
    void *scratch[MAX_THREADS], *shared;
    _Atomic int64_t next;
    tsr_host_shares *shares; /* [n_threads] */
    _Atomic int fault;
} thread_team;

typedef struct member {
    thread_team *team;
    int thread;
} member;

static void *member_main(void *argument)
{
    const member self = *(member *)argument;
    free(argument);
    for (;;) {
        pthread_barrier_wait(&self.team->barrier);
        if (!self.team->work)
            return NULL;
        self.team->work(self.team, self.thread, self.team->argument);
        pthread_barrier_wait(&self.team->barrier);
    }
}

static void *must(void *pointer)
{
    if (!pointer) {
        fprintf(stderr, "host_kernels: out of memory\n");
        exit(1);
    }
    return pointer;
}

static void team_start(thread_team *team, const tsr_kernel_set *set, int n_threads)
{
    team->n_threads = n_threads;
    team->set = set;
    team->shared = n_threads > 1 ? must(calloc(1, set->shared_bytes)) : NULL;
    team->shares = must(aligned_alloc(64, (size_t)n_threads * sizeof *team->shares));
    pthread_barrier_init(&team->barrier, NULL, (unsigned)n_threads);
    for (int i = 0; i < n_threads; i++) {
        team->scratch[i] = must(aligned_alloc(64, (set->scratch_bytes + 63) / 64 * 64));
        member *self = must(malloc(sizeof *self));
        *self = (member){team, i};
        if (i > 0 && pthread_create(&team->threads[i], NULL, member_main, self) != 0) {
            fprintf(stderr, "host_kernels: cannot start %d threads\n", n_threads);
            exit(1);
        }
        if (i == 0)
            free(self);
    }
}

/* One thread is timed by its own clock, which stands still while another program has the core. */
static double now(int n_threads)
{
    struct timespec t;
    clock_gettime(n_threads == 1 ? CLOCK_THREAD_CPUTIME_ID : CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

/* Seconds that the team takes. */
static double team_run(thread_team *team, work_fn work, void *argument)
{
    team->work = work;
    team->argument = argument;
    team->next = 0;
    for (int i = 0; i < team->n_threads; i++)
        tsr_host_shares_clear(&team->shares[i]);
    pthread_barrier_wait(&team->barrier);
    const double begin = now(team->n_threads);
    work(team, 0, argument);
    pthread_barrier_wait(&team->barrier);
    return now(team->n_threads) - begin;
}

static void team_stop(thread_team *team)
{
    team->work = NULL;
    pthread_barrier_wait(&team->barrier);
    for (int i = 0; i < team->n_threads; i++) {
        if (i > 0)
            pthread_join(team->threads[i], NULL);
        free(team->scratch[i]);
    }
    free(team->shared);
    free(team->shares);
    pthread_barrier_destroy(&team->barrier);
}

static void work_op(thread_team *team, int thread, void *argument)
{
    const tsr_op *op = argument;
    const tsr_kernel_env env = {thread,
                                team->n_threads,
                                &team->next,
                                &team->fault,
                                team->scratch[thread],
                                team->shared,
                                .reading = tsr_cpu_reads(),
                                .pairs = team->set->pairs,
                                .shares = team->shares};
    team->set->run[op->kind](op, &env);
}

/* -- the limits -- */

typedef struct memory {
    const unsigned char *data;
    size_t bytes;
} memory;

/* Each thread reads its part, STREAMS pieces of PIECE bytes at a time, side by side: the pattern that reads
 * fastest on the machines at hand (a single stream, or streams far apart, are slower). A piece is an odd
 * number of lines, or streams would meet in cache sets. One word per cache line: the rest of the line comes
 * along. */
static void work_read(thread_team *team, int thread, void *argument)
{
    enum { PIECE = 8192 + 64 };
    const memory *m = argument;
    const size_t part = m->bytes / (size_t)team->n_threads / (STREAMS * PIECE) * (STREAMS * PIECE);
    const unsigned char *base = m->data + (size_t)thread * part;
    uint64_t sum[STREAMS] = {0};
    for (const unsigned char *p = base; p < base + part; p += STREAMS * PIECE)
        for (size_t i = 0; i < PIECE; i += 64)
#pragma GCC unroll 8
            for (size_t s = 0; s < STREAMS; s++)
                sum[s] |= *(const uint64_t *)(const void *)(p + s * PIECE + i);
    __asm__ volatile("" : : "m"(sum));
}

static const int64_t fma_rounds = 4000000;

#if defined(__x86_64__)
#define FMA_LOOP(name, isa, type, set1, fma, lanes)                                           \
    __attribute__((target(isa))) static double name(void)                                     \
    {                                                                                         \
        type acc[12], x = set1(0.999f), y = set1(0.001f);                                     \
        for (int i = 0; i < 12; i++)                                                          \
            acc[i] = set1((float)i);                                                          \
        for (int64_t n = 0; n < fma_rounds; n++)                                              \
            _Pragma("GCC unroll 12") for (int i = 0; i < 12; i++) acc[i] = fma(acc[i], x, y); \
        __asm__ volatile("" : : "m"(acc));                                                    \
        return 2.0 * 12 * lanes * (double)fma_rounds;                                         \
    }
FMA_LOOP(fma_avx512, "avx512f", __m512, _mm512_set1_ps, _mm512_fmadd_ps, 16)
FMA_LOOP(fma_avx2, "avx2,fma", __m256, _mm256_set1_ps, _mm256_fmadd_ps, 8)
#endif

/* The generic set multiplies and adds separately (four lanes at a time on x86-64). */
static double fma_generic(void)
{
    typedef float four __attribute__((vector_size(16)));
    four acc[8], x = {0.999f, 0.999f, 0.999f, 0.999f}, y = {0.001f, 0.001f, 0.001f, 0.001f};
    for (int i = 0; i < 8; i++)
        acc[i] = x * (float)i;
    for (int64_t n = 0; n < fma_rounds; n++)
#pragma GCC unroll 8
        for (int i = 0; i < 8; i++)
            acc[i] = acc[i] * x + y;
    __asm__ volatile("" : : "m"(acc));
    return 2.0 * 8 * 4 * (double)fma_rounds;
}

static void work_fma(thread_team *team, int thread, void *argument)
{
    double *flops = argument;
    double mine = 0;
#if defined(__x86_64__)
    if (strncmp(team->set->isa, "avx512", 6) == 0 || strcmp(team->set->isa, "amx") == 0)
        mine = fma_avx512();
    else if (strcmp(team->set->isa, "avx2") == 0)
        mine = fma_avx2();
#endif
    if (mine == 0)
        mine = fma_generic();
    if (thread == 0)
        *flops = mine * team->n_threads;
}

/* -- one table row -- */

/* `amount` of work in units of 1e9 is done by op; the limit is measured by limit_work, which does
 * `limit_amount`. */
static void report(const char *what, const char *unit, thread_team *team, tsr_op *op, double amount,
                   work_fn limit_work, void *limit_argument, const double *limit_amount)
{
    double rate[REPEATS], limit[REPEATS], ratio[REPEATS];
    if (!strstr(what, team->only))
        return;
    team_run(team, work_op, op);
    for (int i = 0; i < REPEATS; i++) {
        const double seconds = team_run(team, limit_work, limit_argument);
        limit[i] = *limit_amount / seconds * 1e-9;
        rate[i] = amount / team_run(team, work_op, op) * 1e-9;
        ratio[i] = rate[i] / limit[i];
    }
    const double middle = bench_median(rate, REPEATS), most = bench_median(limit, REPEATS);
    const double share = bench_median(ratio, REPEATS);
    const double low = ratio[REPEATS / 4], high = ratio[REPEATS - 1 - REPEATS / 4];
    if (team->json)
        printf("%s\n    {\"kernel\": \"%s\", \"unit\": \"%s\", \"rate\": %.3f, \"limit\": %.3f, "
               "\"ratio\": %.3f, \"ratio_low\": %.3f, \"ratio_high\": %.3f}",
               team->n_rows ? "," : "", what, unit, middle, most, share, low, high);
    else
        printf("%-34s %8.2f %-7s %8.2f  %5.2f  [%.2f, %.2f]\n", what, middle, unit, most, share, low, high);
    team->n_rows++;
    fflush(stdout);
}

/* -- mul_mat -- */

static const tsr_type types[] = {WEIGHT_TYPES};

static float *activations(int64_t n)
{
    float *x = must(aligned_alloc(64, (size_t)n * sizeof(float)));
    for (int64_t i = 0; i < n; i++)
        x[i] = sinf((float)(i % 1000));
    return x;
}

/* One encoded row, repeated: values do not matter, but NaNs might. */
static void fill_rows(tsr_type type, int64_t k, size_t row_bytes, unsigned char *data, size_t bytes)
{
    float *row = activations(k);
    if (tsr_type_from_f32(type, row, data, k) != TSR_OK)
        exit(1);
    for (size_t at = row_bytes; at + row_bytes <= bytes; at += row_bytes)
        memcpy(data + at, data, row_bytes);
    free(row);
}

static void bench_mul_mat(thread_team *team, tsr_type type, int64_t n_tokens, bool partial, memory weights)
{
    const int64_t k = 4096, rows_limit = n_tokens > 4 ? 1024 : INT64_MAX;
    const size_t row_bytes = tsr_type_row_bytes(type, k);
    const int64_t fits = (int64_t)(weights.bytes / row_bytes), n_rows = fits < rows_limit ? fits : rows_limit;
    fill_rows(type, k, row_bytes, (unsigned char *)weights.data, (size_t)n_rows * row_bytes);
    float *x = activations(n_tokens * k);
    void *y = must(malloc((size_t)(n_rows * n_tokens) * sizeof(int64_t)));
    tsr_op op = {.kind = TSR_OP_MUL_MAT,
                 .mul_mat = {type, weights.data, row_bytes, n_rows, k, x, k, n_tokens, partial,
                             TSR_REDUCE_EXACT, 128, tsr_fixed_limit(k / 128), y, n_rows}};
    const memory same = {weights.data, (size_t)n_rows * row_bytes};
    char what[64];
    snprintf(what, sizeof what, "mul_mat %s, %d token%s%s", tsr_type_name(type), (int)n_tokens,
             n_tokens == 1 ? "" : "s", partial ? ", exact" : "");
    if (n_tokens <= 4) {
        const double bytes = (double)same.bytes;
        report(what, "GB/s", team, &op, bytes, work_read, (void *)&same, &bytes);
    } else {
        double flops = 0;
        report(what, "GFLOP/s", team, &op, 2.0 * (double)(n_rows * k * n_tokens), work_fma, &flops, &flops);
    }
    free(x);
    free(y);
}

/* The first half of the columns of rows of 2 * k, with gaps as in a file, over the same without gaps. */
static void bench_columns(thread_team *team, tsr_type type, int64_t k, memory weights)
{
    const size_t row_bytes = tsr_type_row_bytes(type, k);
    const int64_t n_rows = (int64_t)(weights.bytes / (2 * row_bytes));
    fill_rows(type, k, row_bytes, (unsigned char *)weights.data, weights.bytes);
    float *x = activations(k);
    void *y = must(malloc((size_t)n_rows * sizeof(int64_t)));
    tsr_op gaps = {.kind = TSR_OP_MUL_MAT,
                   .mul_mat = {type, weights.data, 2 * row_bytes, n_rows, k, x, k, 1, true, TSR_REDUCE_EXACT,
                               128, tsr_fixed_limit(k / 128), y, n_rows}};
    tsr_op copy = gaps;
    copy.mul_mat.w_stride = row_bytes;
    const double bytes = (double)row_bytes * (double)n_rows;
    char what[64];
    snprintf(what, sizeof what, "mul_mat %s, %d of %d columns", tsr_type_name(type), (int)k, (int)(2 * k));
    report(what, "GB/s", team, &gaps, bytes, work_op, &copy, &bytes);
    free(x);
    free(y);
}

/* -- attention -- */

static void bench_attention(thread_team *team, tsr_type type, int64_t n_tokens, int64_t n_past, memory pages)
{
    enum { KV_HEADS = 8, GROUP = 4, DIM = 128, PAGE = 64 };
    const size_t row = tsr_type_row_bytes(type, DIM), page_bytes = row * KV_HEADS * PAGE * 2;
    const int64_t total = n_past + n_tokens, n_pages = (total + PAGE - 1) / PAGE;
    fill_rows(type, DIM, row, (unsigned char *)pages.data, (size_t)n_pages * page_bytes);
    float *q = activations(n_tokens * KV_HEADS * GROUP * DIM),
          *y = activations(n_tokens * KV_HEADS * GROUP * DIM);
    int32_t *table = must(calloc((size_t)(n_pages + 2 * n_tokens), sizeof(int32_t)));
    int32_t *seq_row = table + n_pages, *position = seq_row + n_tokens;
    double pairs = 0;
    for (int64_t i = 0; i < n_pages; i++)
        table[i] = (int32_t)i;
    for (int64_t i = 0; i < n_tokens; i++) {
        position[i] = (int32_t)(n_past + i);
        pairs += (double)(n_past + i + 1);
    }
    tsr_op op = {.kind = TSR_OP_ATTENTION,
                 .attention = {.kv = {(unsigned char *)pages.data, page_bytes, 0, page_bytes / 2, row, row,
                                      type, type, KV_HEADS, DIM, PAGE},
                               .index = {table, n_pages, seq_row, position},
                               .q = q,
                               .y = y,
                               .n_tokens = n_tokens,
                               .n_heads = KV_HEADS * GROUP,
                               .scale = 0.08f}};
    const memory same = {pages.data, (size_t)n_pages * page_bytes};
    char what[64];
    snprintf(what, sizeof what, "attention %s, %d tokens at %d", tsr_type_name(type), (int)n_tokens,
             (int)n_past);
    if (n_tokens == 1) {
        const double bytes = (double)same.bytes;
        report(what, "GB/s", team, &op, bytes, work_read, (void *)&same, &bytes);
    } else {
        double flops = 0;
        report(what, "GFLOP/s", team, &op, 4.0 * pairs * KV_HEADS * GROUP * DIM, work_fma, &flops, &flops);
    }
    free(q);
    free(y);
    free(table);
}

/* -- norms and activations -- */

static void bench_rows(thread_team *team, memory buffer)
{
    const int64_t n = 4096, n_rows = (int64_t)(buffer.bytes / sizeof(float)) / n / 2, all = n * n_rows;
    float *x = (float *)(void *)(uintptr_t)buffer.data, *y = x + all;
    for (int64_t i = 0; i < all; i++)
        x[i] = (float)(i % 1000) * 1e-3f;
    tsr_op norm = {.kind = TSR_OP_RMS_NORM,
                   .rms_norm = {.x = x, .y = y, .n = n, .n_rows = n_rows, .eps = 1e-5f}};
    tsr_op glu = {.kind = TSR_OP_GLU, .glu = {TSR_GLU_SILU, x, y, y, all}};
    tsr_op softmax = {.kind = TSR_OP_SOFTMAX,
                      .softmax = {.x = x, .y = y, .n = n, .n_rows = n_rows, .scale = 1.0f}};
    const memory two = {buffer.data, (size_t)all * 2 * sizeof(float)};
    const double bytes = (double)two.bytes, three = bytes * 1.5;
    report("rms_norm, rows of 4096", "GB/s", team, &norm, bytes, work_read, (void *)&two, &bytes);
    report("softmax, rows of 4096", "GB/s", team, &softmax, bytes, work_read, (void *)&two, &bytes);
    report("silu(gate) * up", "GB/s", team, &glu, three, work_read, (void *)&two, &bytes);
}

int main(int argc, char **argv)
{
    const bool json = argc > 1 && strcmp(argv[1], "--json") == 0;
    argc -= json;
    argv += json;
    const char *isa = argc > 1 && strcmp(argv[1], "best") != 0 ? argv[1] : NULL;
    const tsr_kernel_set *set = tsr_kernel_set_select(isa);
    const int n_threads = argc > 2 ? atoi(argv[2]) : (int)sysconf(_SC_NPROCESSORS_ONLN);
    if (!set || n_threads < 1 || n_threads > MAX_THREADS) {
        fprintf(stderr, "usage: host_kernels [--json] [best|generic|avx2|...] [threads, at most %d] [only]\n",
                MAX_THREADS);
        return 2;
    }
    static thread_team team; /* zeroed */
    team.json = json;
    team.only = argc > 3 ? argv[3] : "";
    team_start(&team, set, n_threads);
    const memory buffer = {must(aligned_alloc(4096, (size_t)256 << 20)), (size_t)256 << 20};
    memset((unsigned char *)buffer.data, 0, buffer.bytes);

    if (json)
        printf("{\"isa\": \"%s\", \"threads\": %d, \"repeats\": %d, \"rows\": [", set->isa, n_threads,
               REPEATS);
    else
        printf("%s, %d thread%s, median of %d\n%-34s %16s %8s  %5s  %s\n", set->isa, n_threads,
               n_threads == 1 ? "" : "s", REPEATS, "", "kernel", "limit", "ratio", "[middle half]");
    for (size_t i = 0; i < sizeof types / sizeof *types; i++)
        bench_mul_mat(&team, types[i], 1, false, buffer);
    bench_mul_mat(&team, TSR_TYPE_F16, 1, true, buffer);
    bench_mul_mat(&team, TSR_TYPE_Q8_0, 1, true, buffer);
    bench_mul_mat(&team, TSR_TYPE_F16, 4, false, buffer);
    bench_mul_mat(&team, TSR_TYPE_Q8_0, 4, false, buffer);
    for (size_t i = 0; i < sizeof types / sizeof *types; i++)
        for (int64_t k = 1024; k <= 2816; k += 1792)
            bench_columns(&team, types[i], k, buffer);
    bench_attention(&team, TSR_TYPE_F16, 1, 32000, buffer);
    bench_attention(&team, TSR_TYPE_Q8_0, 1, 32000, buffer);
    for (size_t i = 0; i < sizeof types / sizeof *types; i++)
        bench_mul_mat(&team, types[i], 512, false, buffer);
    bench_mul_mat(&team, TSR_TYPE_Q8_0, 512, true, buffer);
    bench_attention(&team, TSR_TYPE_F16, 256, 1024, buffer);
    bench_rows(&team, buffer);
    if (json)
        printf("\n]}\n");
    team_stop(&team);
    free((void *)buffer.data);
    return 0;
}
