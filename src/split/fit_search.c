/* Whole granules of several classes into the devices' memory, as near to given targets as possible.
 *
 * For a permitted deviation (in bytes) every class has an interval of counts on every device. Whether counts
 * inside the intervals fit is decided device by device with dynamic programming: the state after some devices
 * is how many granules of each class but the last have been placed, and the value of a state is the most
 * granules of the last (smallest) class that can have been placed together with them. Small granules fill the
 * room that large ones leave, so one value is enough. Intervals confine the states to a narrow band around
 * the targets: a search near the targets visits few states, and only a search far from the targets visits
 * many.
 *
 * Bisection over the deviation gives its smallest value. The counts of the first class (largest granules) are
 * then fixed, and the other classes are searched in the remaining room. The last class is rounded alone. */
#include "split/fit.h"

#include <string.h>

#include "core/mem.h"
#include "core/status.h"
#include "split/round.h"

enum { MOST_DIMS = TSR_SPLIT_MAX_CLASSES - 1 };
static const int64_t MOST_TRANSITIONS = INT64_C(1) << 28;
static const int64_t MOST_STATES = INT64_C(1) << 23;

/* The states after the first `device` devices: a box of counts, stored from `first` on in the value array. */
typedef struct band {
    int64_t from[MOST_DIMS], width[MOST_DIMS];
    int64_t first, n_states;
} band;

typedef struct search {
    const tsr_split_fit_problem *p;
    int settled;                   /* classes before this one have fixed counts, subtracted from `room` */
    int n_dims;                    /* state classes: settled .. p->n_classes - 2 */
    int64_t room[TSR_MAX_DEVICES]; /* bytes */
    int64_t low[TSR_SPLIT_MAX_CLASSES][TSR_MAX_DEVICES], high[TSR_SPLIT_MAX_CLASSES][TSR_MAX_DEVICES];
    band bands[TSR_MAX_DEVICES + 1];
    int64_t *value; /* per state the most granules of the last class, -1: unreachable */
    int64_t transitions_left;
} search;

/* Set the intervals for a deviation. Returns whether each class can be distributed completely. */
static bool set_intervals(search *s, int64_t deviation)
{
    const tsr_split_fit_problem *p = s->p;
    for (int k = s->settled; k < p->n_classes; k++) {
        int64_t bytes = p->granule_bytes[k], sum_low = 0, sum_high = 0;
        for (int d = 0; d < p->n_devices; d++) {
            int64_t target = p->target_bytes[k][d], lowest = target - deviation;
            int64_t most = p->allowed[k][d] ? TSR_MIN(p->n_granules[k], s->room[d] / bytes) : 0;
            s->low[k][d] = lowest > 0 ? (lowest - 1) / bytes + 1 : 0;
            s->high[k][d] = TSR_MIN(most, (target + deviation) / bytes);
            if (s->low[k][d] > s->high[k][d])
                return false;
            sum_low += s->low[k][d];
            sum_high += s->high[k][d];
        }
        if (sum_low > p->n_granules[k] || sum_high < p->n_granules[k])
            return false;
    }
    return true;
}

/* The states that are reachable after each device and from which all granules can be distributed. */
static tsr_status set_bands(search *s, int64_t *n_states_out)
{
    const tsr_split_fit_problem *p = s->p;
    int64_t first = 0;

    for (int d = 0; d <= p->n_devices; d++) {
        band *b = &s->bands[d];
        b->first = first;
        b->n_states = 1;
        for (int i = 0; i < s->n_dims; i++) {
            int k = s->settled + i;
            int64_t low = 0, high = 0, low_after = 0, high_after = 0;
            for (int e = 0; e < p->n_devices; e++) {
                *(e < d ? &low : &low_after) += s->low[k][e];
                *(e < d ? &high : &high_after) += s->high[k][e];
            }
            b->from[i] = TSR_MAX(low, p->n_granules[k] - high_after);
            b->width[i] = TSR_MIN(high, p->n_granules[k] - low_after) - b->from[i] + 1;
            if (b->width[i] > (MOST_STATES - first) / b->n_states)
                return tsr_fail(
                    TSR_ERR_UNSUPPORTED,
                    "fitting these granules into the devices' memory takes too long a search; use "
                    "larger granules, fewer devices or more memory");
            b->n_states *= b->width[i];
        }
        first += b->n_states;
    }
    *n_states_out = first;
    return TSR_OK;
}

static void state_counts(const search *s, const band *b, int64_t state, int64_t *count)
{
    for (int i = s->n_dims - 1; i >= 0; i--) {
        count[i] = b->from[i] + state % b->width[i];
        state /= b->width[i];
    }
}

/* The most granules of the last class on device d together with take[] of the other classes; -1: its interval
 * allows none. */
static int64_t fill(const search *s, int d, const int64_t *take)
{
    const tsr_split_fit_problem *p = s->p;
    int last = p->n_classes - 1;
    int64_t room = s->room[d];

    for (int i = 0; i < s->n_dims; i++)
        room -= take[i] * p->granule_bytes[s->settled + i];
    if (room < s->low[last][d] * p->granule_bytes[last])
        return -1;
    return TSR_MIN(s->high[last][d], room / p->granule_bytes[last]);
}

/* The choices of one device in one state: take[] enumerates all counts that lead from `count` into the next
 * band. */
typedef struct walk {
    int64_t from[MOST_DIMS], to[MOST_DIMS], take[MOST_DIMS];
} walk;

static bool walk_start(const search *s, int d, const int64_t *count, walk *w)
{
    const band *next = &s->bands[d + 1];
    for (int i = 0; i < s->n_dims; i++) {
        int k = s->settled + i;
        w->from[i] = TSR_MAX(s->low[k][d], next->from[i] - count[i]);
        w->to[i] = TSR_MIN(s->high[k][d], next->from[i] + next->width[i] - 1 - count[i]);
        if (w->from[i] > w->to[i])
            return false;
        w->take[i] = w->from[i];
    }
    return true;
}

static bool walk_next(const search *s, walk *w)
{
    for (int i = s->n_dims - 1; i >= 0; i--) {
        if (++w->take[i] <= w->to[i])
            return true;
        w->take[i] = w->from[i];
    }
    return false;
}

static int64_t walk_state(const search *s, int d, const int64_t *count, const walk *w)
{
    const band *next = &s->bands[d + 1];
    int64_t state = 0;
    for (int i = 0; i < s->n_dims; i++)
        state = state * next->width[i] + count[i] + w->take[i] - next->from[i];
    return next->first + state;
}

static tsr_status fill_values(search *s, int64_t n_states)
{
    memset(s->value, -1, (size_t)n_states * sizeof *s->value);
    s->value[0] = 0;
    for (int d = 0; d < s->p->n_devices; d++) {
        const band *b = &s->bands[d];
        for (int64_t state = 0; state < b->n_states; state++) {
            int64_t count[MOST_DIMS], before = s->value[b->first + state];
            walk w;
            if (before < 0)
                continue;
            state_counts(s, b, state, count);
            for (bool more = walk_start(s, d, count, &w); more; more = walk_next(s, &w)) {
                if (--s->transitions_left < 0)
                    return tsr_fail(
                        TSR_ERR_UNSUPPORTED,
                        "fitting these granules into the devices' memory takes too long a search; "
                        "use larger granules, fewer devices or more memory");
                int64_t more_of_last = fill(s, d, w.take), next = walk_state(s, d, count, &w);
                if (more_of_last >= 0)
                    s->value[next] = TSR_MAX(s->value[next], before + more_of_last);
            }
        }
    }
    return TSR_OK;
}

/* The granules of the state classes that each device took on the path to `state`. Any predecessor that
 * explains the value of a state is valid; states are tried in a fixed order, so the answer is always the
 * same. */
static void trace_back(const search *s, int64_t state, int64_t count_out[][TSR_MAX_DEVICES])
{
    int64_t reached[MOST_DIMS], count[MOST_DIMS], take[MOST_DIMS];

    state_counts(s, &s->bands[s->p->n_devices], 0, reached);
    for (int d = s->p->n_devices - 1; d >= 0; d--) {
        const band *b = &s->bands[d];
        for (int64_t from = 0; from < b->n_states; from++) {
            int64_t before = s->value[b->first + from];
            bool allowed = before >= 0;
            state_counts(s, b, from, count);
            for (int i = 0; i < s->n_dims; i++) {
                take[i] = reached[i] - count[i];
                allowed =
                    allowed && take[i] >= s->low[s->settled + i][d] && take[i] <= s->high[s->settled + i][d];
            }
            int64_t filled = allowed ? fill(s, d, take) : -1;
            if (filled >= 0 && before + filled == s->value[state]) {
                for (int i = 0; i < s->n_dims; i++)
                    count_out[i][d] = take[i];
                memcpy(reached, count, sizeof count);
                state = b->first + from;
                break;
            }
        }
    }
}

/* Whether counts inside the intervals fit. If so, the counts of the state classes are written. */
static tsr_status try_intervals(search *s, bool *possible_out, int64_t count_out[][TSR_MAX_DEVICES])
{
    tsr_status status = TSR_OK;
    int64_t n_states = 0;

    *possible_out = false;
    TSR_TRY(set_bands(s, &n_states));
    TSR_TRY(tsr_mem_array((size_t)n_states, sizeof *s->value, "the search for a split", &s->value));
    TSR_TRY(fill_values(s, n_states));
    /* The last band has one state: all granules are distributed. */
    if (s->value[n_states - 1] >= s->p->n_granules[s->p->n_classes - 1]) {
        *possible_out = true;
        trace_back(s, n_states - 1, count_out);
    }
out:
    tsr_mem_free(s->value);
    s->value = NULL;
    return status;
}

/* Decide whether counts exist for one deviation. If so, the counts of the first open class are written to
 * count_out. */
static tsr_status try_deviation(search *s, int64_t deviation, bool *possible_out, int64_t *count_out)
{
    int64_t counts[MOST_DIMS][TSR_MAX_DEVICES];
    *possible_out = false;
    if (!set_intervals(s, deviation))
        return TSR_OK;
    tsr_status status = try_intervals(s, possible_out, counts);
    if (status == TSR_OK && *possible_out)
        memcpy(count_out, counts[0], (size_t)s->p->n_devices * sizeof *count_out);
    return status;
}

/* Counts of the first open class in an assignment with the smallest possible deviation of all open
 * classes. */
static tsr_status settle_class(search *s, bool *fits_out, int64_t *count_out)
{
    tsr_status status = TSR_OK;
    const tsr_split_fit_problem *p = s->p;
    int64_t widest = 0, impossible = -1, deviation = p->granule_bytes[s->settled];
    bool possible;

    for (int k = s->settled; k < p->n_classes; k++)
        widest = TSR_MAX(widest, p->n_granules[k] * p->granule_bytes[k]); /* no interval is cut off there */
    for (;;) {
        TSR_TRY(try_deviation(s, deviation, &possible, count_out));
        if (possible || deviation >= widest)
            break;
        impossible = deviation;
        deviation = TSR_MIN(deviation * 2, widest);
    }
    *fits_out = possible;
    while (possible && deviation - impossible > 1) {
        int64_t middle = impossible + (deviation - impossible) / 2;
        bool nearer;
        TSR_TRY(try_deviation(s, middle, &nearer, count_out));
        *(nearer ? &deviation : &impossible) = middle;
    }
out:
    return status;
}

/* Round the last class in the room that the other classes leave. */
static bool round_last(const search *s, int64_t *count_out)
{
    const tsr_split_fit_problem *p = s->p;
    int last = p->n_classes - 1;
    int64_t ideal[TSR_MAX_DEVICES], cap[TSR_MAX_DEVICES], bytes = p->granule_bytes[last];

    for (int d = 0; d < p->n_devices; d++) {
        ideal[d] = tsr_split_scale(p->target_bytes[last][d], INT64_C(1) << TSR_SPLIT_IDEAL_BITS, bytes);
        cap[d] = p->allowed[last][d] ? TSR_MIN(p->n_granules[last], s->room[d] / bytes) : 0;
    }
    return tsr_split_round_ideals(ideal, cap, p->n_devices, p->n_granules[last], count_out);
}

tsr_status tsr_split_fit_search(const tsr_split_fit_problem *problem, bool *fits_out,
                                int64_t count_out[][TSR_MAX_DEVICES])
{
    tsr_status status = TSR_OK;
    search s = {.p = problem, .transitions_left = MOST_TRANSITIONS};
    bool fits = true;

    memcpy(s.room, problem->room_bytes, sizeof s.room);
    for (; fits && s.settled < problem->n_classes - 1; s.settled++) {
        s.n_dims = problem->n_classes - 1 - s.settled;
        TSR_TRY(settle_class(&s, &fits, count_out[s.settled]));
        for (int d = 0; fits && d < problem->n_devices; d++)
            s.room[d] -= count_out[s.settled][d] * problem->granule_bytes[s.settled];
    }
    *fits_out = fits && round_last(&s, count_out[problem->n_classes - 1]);
out:
    return status;
}

/* Place the last class in the room that the other classes leave, in device order. */
static void place_last(const search *s, int64_t count_out[][TSR_MAX_DEVICES])
{
    int last = s->p->n_classes - 1;
    int64_t left = s->p->n_granules[last], take[MOST_DIMS];
    for (int d = 0; d < s->p->n_devices; d++) {
        for (int i = 0; i < s->n_dims; i++)
            take[i] = count_out[i][d];
        count_out[last][d] = TSR_MIN(fill(s, d, take), left);
        left -= count_out[last][d];
    }
}

tsr_status tsr_split_place(const tsr_split_fit_problem *problem, const int64_t most[][TSR_MAX_DEVICES],
                           int64_t *work_left, bool *fits_out, int64_t count_out[][TSR_MAX_DEVICES])
{
    search s = {.p = problem, .n_dims = problem->n_classes - 1, .transitions_left = *work_left};
    *fits_out = false;
    memcpy(s.room, problem->room_bytes, sizeof s.room);
    for (int k = 0; k < problem->n_classes; k++) {
        int64_t sum = 0;
        for (int d = 0; d < problem->n_devices; d++) {
            s.high[k][d] = TSR_MIN(most[k][d], s.room[d] / problem->granule_bytes[k]);
            sum += s.high[k][d];
        }
        if (sum < problem->n_granules[k])
            return TSR_OK;
    }
    tsr_status status = try_intervals(&s, fits_out, count_out);
    if (status == TSR_OK && *fits_out)
        place_last(&s, count_out);
    *work_left = TSR_MAX(s.transitions_left, 0);
    return status;
}
