/* The packer: runs the searches from the cheapest on, stops at the bound, and keeps the best. */
#include "alloc/pack.h"

#include <string.h>

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
    *solution_out = s;
    memset(&s, 0, sizeof s);
out:
    tsr_pack_solution_free(&s);
    return status;
}

tsr_status tsr_pack_solve(const tsr_pack_problem *problem, tsr_pack_solution *solution_out)
{
    tsr_status status = TSR_OK;
    tsr_pack_work w = {0};
    int64_t *best = NULL, *trial = NULL, best_total;
    const char *method = "best fit";

    TSR_TRY(tsr_pack_work_init(problem, &w));
    TSR_TRY(tsr_mem_array((size_t)w.n, sizeof *best, "packing", &best));
    TSR_TRY(tsr_mem_array((size_t)w.n, sizeof *trial, "packing", &trial));

    TSR_TRY(tsr_pack_best_fit(&w, best));
    best_total = tsr_pack_total(&w, best);
    for (int order = 0; order < TSR_PACK_SKYLINE_ORDERS && best_total > w.bound; order++) {
        TSR_TRY(tsr_pack_skyline(&w, order, trial));
        int64_t total = tsr_pack_total(&w, trial);
        if (total < best_total) {
            int64_t *swap = best;
            best = trial;
            trial = swap;
            best_total = total;
            method = "skyline";
        }
    }
    TSR_TRY(write_solution(&w, best, method, solution_out));
out:
    tsr_mem_free(trial);
    tsr_mem_free(best);
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
