/* The packer: greedy packings first, the exact search where none of them meets the bound. */
#include "alloc/pack.h"

#include <string.h>
#include <time.h>

#include "alloc/pack_work.h"
#include "core/mem.h"
#include "core/status.h"

static int chunk_of(const tsr_pack_work *w, int64_t offset)
{
    return (int)(offset / w->chunk_bytes);
}

/* Bytes of one chunk up to the end of its highest item. */
static int64_t chunk_peak(const tsr_pack_work *w, const int64_t *offset, int chunk)
{
    int64_t base = chunk ? chunk * w->chunk_bytes : 0, peak = 0;
    for (int i = 0; i < w->n; i++)
        if (chunk_of(w, offset[i]) == chunk)
            peak = TSR_MAX(peak, offset[i] + w->size[i] - base);
    return peak;
}

static int count_chunks(const tsr_pack_work *w, const int64_t *offset)
{
    int last = -1;
    for (int i = 0; i < w->n; i++)
        last = TSR_MAX(last, chunk_of(w, offset[i]));
    return last + 1;
}

int64_t tsr_pack_total(const tsr_pack_work *w, const int64_t *offset)
{
    int64_t total = 0;
    for (int chunk = count_chunks(w, offset) - 1; chunk >= 0; chunk--)
        total += chunk_peak(w, offset, chunk);
    return total;
}

/* The offsets found, as the caller's value. */
static tsr_status write_solution(const tsr_pack_work *w, const int64_t *offset, const char *method,
                                 tsr_pack_solution *solution_out)
{
    tsr_status status = TSR_OK;
    tsr_pack_solution s = {.n_items = w->n, .bound_bytes = (size_t)w->bound, .n_nodes = w->n_nodes};
    int n_chunks = count_chunks(w, offset);

    TSR_TRY(tsr_mem_array((size_t)w->n, sizeof *s.places, "packing", &s.places));
    TSR_TRY(tsr_mem_array((size_t)n_chunks, sizeof *s.chunk_bytes, "packing", &s.chunk_bytes));
    for (int chunk = 0; chunk < n_chunks; chunk++) {
        s.chunk_bytes[chunk] = (size_t)chunk_peak(w, offset, chunk);
        s.total_bytes += s.chunk_bytes[chunk];
    }
    for (int i = 0; i < w->n; i++) {
        int chunk = chunk_of(w, offset[i]);
        s.places[w->id[i]] =
            (tsr_pack_place){chunk, (size_t)(offset[i] - (chunk ? chunk * w->chunk_bytes : 0))};
    }
    s.n_chunks = n_chunks;
    s.method = method;
    s.optimal = (int64_t)s.total_bytes == w->least;
    *solution_out = s;
    memset(&s, 0, sizeof s);
out:
    tsr_pack_solution_free(&s);
    return status;
}

/* The limits as a budget; the default costs about the same for few items as for many. */
static tsr_pack_budget budget_of(const tsr_pack_work *w, const tsr_pack_limits *limits)
{
    enum { DEFAULT_ITEMS = 1000000 }; /* looked at, of the order of 0.1 us each */
    struct timespec now;
    tsr_pack_budget budget = {.nodes = limits ? limits->max_nodes : DEFAULT_ITEMS / TSR_MAX(w->n, 1)};

    if (limits && limits->max_cpu_seconds > 0) {
        clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
        budget.deadline_ns = now.tv_sec * INT64_C(1000000000) + now.tv_nsec +
                             (int64_t)(TSR_MIN(limits->max_cpu_seconds, 1e9) * 1e9);
    }
    return budget;
}

/* The best of the greedy packings, up to the first that meets the bound; its name. */
static tsr_status pack_greedily(tsr_pack_work *w, int64_t *best, const char **method_out)
{
    tsr_status status = TSR_OK;
    int64_t *trial = NULL;

    TSR_TRY(tsr_mem_array((size_t)w->n, sizeof *trial, "packing", &trial));
    TSR_TRY(tsr_pack_best_fit(w, best));
    *method_out = "best fit";
    for (int order = 0; order < TSR_PACK_SKYLINE_ORDERS && tsr_pack_total(w, best) > w->bound; order++) {
        TSR_TRY(tsr_pack_skyline(w, order, trial));
        if (tsr_pack_total(w, trial) < tsr_pack_total(w, best)) {
            memcpy(best, trial, (size_t)w->n * sizeof *best);
            *method_out = "skyline";
        }
    }
out:
    tsr_mem_free(trial);
    return status;
}

tsr_status tsr_pack_solve(const tsr_pack_problem *problem, const tsr_pack_limits *limits,
                          tsr_pack_solution *solution_out)
{
    tsr_status status = TSR_OK;
    tsr_pack_work w = {0};
    int64_t *offset = NULL;
    const char *method;

    TSR_TRY(tsr_pack_work_init(problem, &w));
    TSR_TRY(tsr_mem_array((size_t)w.n, sizeof *offset, "packing", &offset));
    TSR_TRY(pack_greedily(&w, offset, &method));
    int64_t greedy = tsr_pack_total(&w, offset);
    if (greedy > w.bound) {
        tsr_pack_budget budget = budget_of(&w, limits);
        int64_t capacity = limits ? (int64_t)TSR_MIN(limits->capacity, (size_t)INT64_MAX) : 0;
        TSR_TRY(tsr_pack_exact(&w, capacity, &budget, offset));
        method = tsr_pack_total(&w, offset) < greedy ? "exact" : method;
    }
    TSR_TRY(write_solution(&w, offset, method, solution_out));
out:
    tsr_mem_free(offset);
    tsr_pack_work_free(&w);
    return status;
}

void tsr_pack_solution_free(tsr_pack_solution *solution)
{
    if (!solution)
        return;
    tsr_mem_free(solution->chunk_bytes);
    tsr_mem_free(solution->places);
    memset(solution, 0, sizeof *solution);
}
