/* The candidates of a step: every device that has a part of the logits has a list of its part, and the lists
 * are merged. A list is sorted, so the next candidate is the first of what is left of some list. */
#include "model/session/session.h"

/* n_lists lists of n, `apart` elements from each other, merged into the first n of all. */
static void merge(const tsr_candidate *lists, int n_lists, int64_t apart, int n, tsr_candidate *merged)
{
    int at[TSR_MAX_DEVICES] = {0};
    for (int i = 0; i < n; i++) {
        int best = -1;
        for (int l = 0; l < n_lists; l++) {
            const tsr_candidate *next = &lists[l * apart + at[l]];
            if (at[l] < n && next->id >= 0 &&
                (best < 0 || tsr_candidate_is_before(*next, lists[best * apart + at[best]])))
                best = l;
        }
        merged[i] = lists[best * apart + at[best]++];
    }
}

tsr_status tsr_session_get_candidates(tsr_session *session, const tsr_step *step, tsr_candidate *candidates)
{
    tsr_status status = TSR_OK;
    const tsr_tensor *found = step->candidates;
    const int n = step->shape.n_candidates;
    const int64_t of_device = step->shape.n_outputs * n;
    const size_t bytes = (size_t)of_device * sizeof *candidates;
    int n_devices = 0;
    TSR_FOR_DEVICES(d, found->placement.devices)
        TSR_TRY(tsr_device_fetch(session->model->rt->devices[d], step->parts + n_devices++ * of_device, bytes,
                                 found->shards[d].data, bytes, bytes, 1));
    for (int64_t at = 0; at < of_device; at += n)
        merge(step->parts + at, n_devices, of_device, n, candidates + at);
out:
    return tsr_processes_end(session->model->rt->processes, status);
}
