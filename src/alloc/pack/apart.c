/* Packing items that share no memory: greedy packings first, then the exact search if no greedy packing
 * meets the bound. */
#include <string.h>

#include "alloc/pack/work.h"
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

/* Write the offsets as a solution for the caller. */
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

/* The best greedy packing, or the first that meets the bound; *method_out is its name. */
static tsr_status pack_greedily(tsr_pack_work *w, int64_t *best, const char **method_out)
{
    tsr_status status = TSR_OK;
    int64_t *candidate = NULL;

    TSR_TRY(tsr_mem_array((size_t)w->n, sizeof *candidate, "packing", &candidate));
    TSR_TRY(tsr_pack_best_fit(w, best));
    *method_out = "best fit";
    for (int order = 0; order < TSR_PACK_SKYLINE_ORDERS && tsr_pack_total(w, best) > w->bound; order++) {
        TSR_TRY(tsr_pack_skyline(w, order, candidate));
        if (tsr_pack_total(w, candidate) < tsr_pack_total(w, best)) {
            memcpy(best, candidate, (size_t)w->n * sizeof *best);
            *method_out = "skyline";
        }
    }
out:
    tsr_mem_free(candidate);
    return status;
}

/* The searches, if no greedy packing meets the bound. With limited chunks the first search treats all chunks
 * as one line of bytes and only finds packings; the second assigns items to chunks, finds packings and
 * proves bounds. */
static tsr_status pack_exactly(tsr_pack_work *w, size_t capacity, tsr_pack_budget *budget, int64_t *offset)
{
    tsr_status status = TSR_OK;
    int64_t most = (int64_t)TSR_MIN(capacity, (size_t)INT64_MAX);
    if (w->chunk_bytes == INT64_MAX)
        return tsr_pack_exact(w, most, budget, offset);
    tsr_pack_budget half = tsr_pack_budget_half(budget);
    int64_t nodes = half.nodes;
    TSR_TRY(tsr_pack_exact(w, most, &half, offset));
    tsr_pack_spend(budget, nodes - half.nodes);
    TSR_TRY(tsr_pack_chunks(w, capacity, budget, offset));
out:
    return status;
}

tsr_status tsr_pack_apart(const tsr_pack_problem *problem, size_t capacity, tsr_pack_budget *budget,
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
        TSR_TRY(pack_exactly(&w, capacity, budget, offset));
        method = tsr_pack_total(&w, offset) < greedy ? "exact" : method;
    }
    TSR_TRY(write_solution(&w, offset, method, solution_out));
out:
    tsr_mem_free(offset);
    tsr_pack_work_free(&w);
    return status;
}
