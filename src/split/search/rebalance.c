#include "split/search/rebalance.h"

#include <math.h>

#include "core/mem.h"

static int slowest(const tsr_rebalance_window *w)
{
    int worst = 0;
    for (int d = 1; d < w->n_devices; d++)
        if (w->work_ns[d] > w->work_ns[worst])
            worst = d;
    return worst;
}

double tsr_rebalance_gain(const tsr_rebalance_window *w, const double *share)
{
    double longest = 0;
    for (int d = 0; d < w->n_devices; d++)
        if (w->share[d] > 0)
            longest = TSR_MAX(longest, w->work_ns[d] * share[d] / w->share[d]);
    return w->total_ns > 0 ? (w->work_ns[slowest(w)] - longest) / w->total_ns : 0;
}

bool tsr_rebalance_pays(const tsr_rebalance *state, const tsr_rebalance_window *w, double gain)
{
    return gain >= TSR_REBALANCE_GAIN + state->raised && gain * TSR_REBALANCE_HORIZON_NS > w->change_ns;
}

/* Shares in proportion to the speeds. */
static void even_out(const tsr_rebalance_window *w, double *share)
{
    enum { MOST_SHRINK = 4 };
    double speeds = 0, sum = 0;
    for (int d = 0; d < w->n_devices; d++)
        speeds += share[d] = w->work_ns[d] > 0 ? w->share[d] / w->work_ns[d] : 0;
    for (int d = 0; d < w->n_devices; d++)
        sum += share[d] = TSR_MAX(speeds > 0 ? share[d] / speeds : 0, w->share[d] / MOST_SHRINK);
    for (int d = 0; d < w->n_devices; d++)
        share[d] /= sum;
}

bool tsr_rebalance_propose(tsr_rebalance *state, const tsr_rebalance_window *w, double *share_out)
{
    state->raised *= exp2(-w->total_ns / TSR_REBALANCE_HORIZON_NS);
    even_out(w, share_out);
    const bool pays = tsr_rebalance_pays(state, w, tsr_rebalance_gain(w, share_out));
    const int suspect = pays ? 1 + slowest(w) : 0;
    const bool again = pays && suspect == state->suspect;
    state->suspect = suspect;
    return again;
}

void tsr_rebalance_changed(tsr_rebalance *state)
{
    const double doubled = 2 * (TSR_REBALANCE_GAIN + state->raised);
    state->raised = TSR_MIN(doubled, TSR_REBALANCE_MAX_GAIN) - TSR_REBALANCE_GAIN;
    state->suspect = 0;
}
