/* The candidates of a step: every device that has a part of the logits has a list of its part, and the lists
 * are merged. A list is sorted, so the next candidate is the first of what is left of some list. */
#include "model/session/session.h"

/* Lists [n_lists][n] merged into the first n of all. */
static void merge(const tsr_candidate *lists, int n_lists, int n, tsr_candidate *merged)
{
    int at[TSR_MAX_DEVICES] = {0};
    for (int i = 0; i < n; i++) {
        int best = -1;
        for (int l = 0; l < n_lists; l++) {
            const tsr_candidate *next = &lists[l * n + at[l]];
            if (at[l] < n && next->id >= 0 &&
                (best < 0 || tsr_candidate_is_before(*next, lists[best * n + at[best]])))
                best = l;
        }
        merged[i] = lists[best * n + at[best]++];
    }
}

tsr_status tsr_session_get_candidates(tsr_session *session, const tsr_step *step, tsr_candidate *candidates)
{
    tsr_status status = TSR_OK;
    const tsr_tensor *found = step->candidates;
    const int n = step->shape.n_candidates;
    const size_t bytes = (size_t)n * sizeof *candidates;
    for (int64_t output = 0; output < step->shape.n_outputs; output++) {
        int n_lists = 0;
        TSR_FOR_DEVICES(d, found->placement.devices) {
            const tsr_candidate *list = found->shards[d].data;
            TSR_TRY(tsr_device_fetch(session->model->rt->devices[d], session->parts + n_lists++ * n, bytes,
                                     list + output * n, bytes, bytes, 1));
        }
        merge(session->parts, n_lists, n, candidates + output * n);
    }
out:
    return tsr_processes_end(session->model->rt->processes, status);
}
