/* Reading with several streams per core: a single sequential stream does not keep enough cache misses in
 * flight to reach a core's bandwidth. How many are best, and whether asking ahead helps, differs, so a few
 * ways are tried. Streams begin an odd number of lines apart: a power of two would have them meet in cache
 * sets. */
#include "support/measured.h"

#include <pthread.h>
#include <stdint.h>
#include <stdlib.h>
#include <time.h>

enum { MAX_STREAMS = 8, AHEAD_LINES = 32, LINE_WORDS = 8, MAX_THREADS = 64 };

double bench_now(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
}

typedef struct part {
    const uint64_t *data;
    size_t n_words;
    int repeats;
    pthread_barrier_t *barrier;
    double best; /* seconds, thread 0 */
    uint64_t sum;
} part;

static uint64_t read_all(const uint64_t *data, size_t n_words, int n_streams)
{
    const size_t stream = ((n_words / LINE_WORDS / (size_t)n_streams - 1) | 1) * LINE_WORDS;
    uint64_t sum[LINE_WORDS] = {0};
    for (size_t i = 0; i < stream; i += LINE_WORDS)
        for (int s = 0; s < n_streams; s++) {
            const uint64_t *line = data + (size_t)s * stream + i;
            __builtin_prefetch(line + AHEAD_LINES * LINE_WORDS);
            for (int w = 0; w < LINE_WORDS; w++)
                sum[w] += line[w];
        }
    for (int w = 1; w < LINE_WORDS; w++)
        sum[0] += sum[w];
    return sum[0];
}

static void *read_part(void *argument)
{
    part *p = argument;
    p->best = 1e30;
    for (int r = 0; r < 3 * p->repeats; r++) {
        pthread_barrier_wait(p->barrier);
        double begin = bench_now();
        p->sum += read_all(p->data, p->n_words, MAX_STREAMS >> r % 3);
        pthread_barrier_wait(p->barrier);
        double seconds = bench_now() - begin;
        if (seconds < p->best)
            p->best = seconds;
    }
    return NULL;
}

double bench_read_bandwidth(const void *data, size_t bytes, int n_threads, int repeats)
{
    pthread_t threads[MAX_THREADS];
    part parts[MAX_THREADS];
    pthread_barrier_t barrier;
    size_t n_words = bytes / sizeof(uint64_t) / (size_t)n_threads;
    volatile uint64_t sink = 0;
    pthread_barrier_init(&barrier, NULL, (unsigned)n_threads);
    for (int t = 0; t < n_threads; t++) {
        parts[t] = (part){(const uint64_t *)data + (size_t)t * n_words, n_words, repeats, &barrier, 0, 0};
        if (pthread_create(&threads[t], NULL, read_part, &parts[t]) != 0)
            abort();
    }
    for (int t = 0; t < n_threads; t++) {
        pthread_join(threads[t], NULL);
        sink += parts[t].sum;
    }
    pthread_barrier_destroy(&barrier);
    (void)sink;
    return (double)(n_words * sizeof(uint64_t) * (size_t)n_threads) / parts[0].best;
}

static int compare(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

double bench_median(double *values, int n)
{
    qsort(values, (size_t)n, sizeof *values, compare);
    return n % 2 ? values[n / 2] : (values[n / 2 - 1] + values[n / 2]) / 2;
}
