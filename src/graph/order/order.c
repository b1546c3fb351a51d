/* Choosing the order: cutting a graph into segments, and searching segments in which a better order could
 * help.
 *
 * An instruction whose position relative to every other instruction is the same in all orders cuts the
 * graph. In a transformer norms, attentions and collectives are cuts, so segments are short: the projections
 * of q, k and v with the ops behind them, gate and up, the branches of a layer that computes attention and
 * FFN in parallel. A device's peak is the highest peak of its segments. The peak is lowered in steps: a
 * search (search.c) tries to bring each segment that reaches the peak below it. If one segment cannot get
 * below, no lower peak exists. */
#include "graph/order/order.h"

#include <string.h>

#include "core/mem.h"
#include "core/runtime.h"
#include "graph/order/search.h"

typedef struct chooser {
    tsr_order_search search;
    tsr_segment *segments; /* [n_segments] */
    int n_segments;
    size_t *segment_peak; /* [n_segments][n_devices] in the current order; 0: runs nothing there */
    int *candidate;       /* [n_instrs] scratch */
    tsr_order *order;     /* the current order */
} chooser;

/* -- segments -- */

/* Mark the cuts. In the order as lowered, all instructions before i lead to i if and only if i is the only
 * sink of [0, i]. All instructions after i depend on i if and only if i is the only source of [i, n). */
static tsr_status find_cuts(const tsr_order_search *s, bool *is_cut)
{
    tsr_status status = TSR_OK;
    int n = s->low->n_instrs, open = 0;
    int *closes = NULL, *last_wait = NULL; /* [n] sinks that i closes; the last instruction that i waits
                                            * for */
    TSR_TRY(tsr_mem_array((size_t)n + 1, sizeof(int), "an order of ops", &closes));
    TSR_TRY(tsr_mem_array((size_t)n + 1, sizeof(int), "an order of ops", &last_wait));
    for (int i = 0; i <= n; i++)
        last_wait[i] = -1;
    for (int i = 0; i < n; i++) {
        int first = n;
        for (int k = s->successor_at[i]; k < s->successor_at[i + 1]; k++) {
            int next = s->successors[k];
            first = TSR_MIN(first, next);
            last_wait[next] = TSR_MAX(last_wait[next], i);
        }
        closes[first]++;
    }
    for (int i = 0; i < n; i++) {
        open += 1 - closes[i];
        is_cut[i] = open == 1;
    }
    memset(closes, 0, ((size_t)n + 1) * sizeof(int));
    for (int i = 0; i < n; i++) /* i is a source of [j, n) for last_wait[i] < j <= i */
        closes[last_wait[i] + 1]++;
    open = 0;
    for (int i = 0; i < n; i++) {
        open += closes[i];
        is_cut[i] = is_cut[i] && open == 1;
        open--;
    }
out:
    tsr_mem_free(closes);
    tsr_mem_free(last_wait);
    return status;
}

static void add_segment(chooser *c, int first, int end)
{
    tsr_segment segment = {.first = first, .end = end};
    for (int i = first; i < end; i++)
        segment.devices |= c->search.low->instrs[i].devices;
    if (first < end)
        c->segments[c->n_segments++] = segment;
}

static tsr_status find_segments(chooser *c)
{
    tsr_status status = TSR_OK;
    int n = c->search.low->n_instrs, first = 0;
    bool *is_cut = NULL;
    TSR_TRY(tsr_mem_array((size_t)n, sizeof *is_cut, "an order of ops", &is_cut));
    TSR_TRY(find_cuts(&c->search, is_cut));
    for (int i = 0; i < n; i++) {
        if (!is_cut[i])
            continue;
        add_segment(c, first, i);
        add_segment(c, i, i + 1);
        first = i + 1;
    }
    add_segment(c, first, n);
out:
    tsr_mem_free(is_cut);
    return status;
}

/* -- peaks -- */

static size_t *peak_of(chooser *c, int segment)
{
    return c->segment_peak + (size_t)segment * (size_t)c->search.n_devices;
}

/* Run a segment in the current order and record its peaks. */
static void run_segment(chooser *c, int index)
{
    tsr_order_search *s = &c->search;
    size_t *peak = peak_of(c, index);
    memset(peak, 0, (size_t)s->n_devices * sizeof *peak);
    for (int k = c->segments[index].first; k < c->segments[index].end; k++) {
        int i = c->order->instrs[k];
        TSR_FOR_DEVICES(d, s->low->instrs[i].devices) {
            size_t during, after;
            tsr_order_effect(s, i, d, &during, &after);
            peak[d] = TSR_MAX(peak[d], during);
        }
        tsr_order_run(s, i);
    }
}

/* Undo segments [0, end). */
static void take_back_segments(chooser *c, int end)
{
    int n = end > 0 ? c->segments[end - 1].end : 0;
    while (n > 0)
        tsr_order_take_back(&c->search, c->order->instrs[--n]);
}

/* Compute the peaks of all segments in the current order, and of the whole graph. */
static void measure(chooser *c, size_t *total)
{
    tsr_order_search *s = &c->search;
    memcpy(total, s->live, (size_t)s->n_devices * sizeof *total);
    for (int k = 0; k < c->n_segments; k++) {
        run_segment(c, k);
        for (int d = 0; d < s->n_devices; d++)
            total[d] = TSR_MAX(total[d], peak_of(c, k)[d]);
    }
    take_back_segments(c, c->n_segments);
}

/* -- the choice -- */

/* Find new orders of all segments that reach the peak of device d: below that peak, and no other device
 * above its own peak. Unless all are found nothing changes, and the return value says whether that is proven
 * impossible. */
static tsr_order_answer lower_device(chooser *c, int d)
{
    tsr_order_search *s = &c->search;
    tsr_order_answer answer = TSR_ORDER_IMPOSSIBLE; /* if only inputs reach the peak */
    size_t *limit = s->limit, peak = c->order->peak_bytes[d];
    int k;
    memcpy(limit, c->order->peak_bytes, (size_t)s->n_devices * sizeof *limit);
    limit[d] = peak - 1;
    memcpy(c->candidate, c->order->instrs, (size_t)c->order->n_instrs * sizeof *c->candidate);
    for (k = 0; k < c->n_segments; k++) {
        const tsr_segment *segment = &c->segments[k];
        if (peak_of(c, k)[d] == peak) {
            answer = tsr_order_find(s, segment, c->candidate + segment->first);
            if (answer != TSR_ORDER_FOUND)
                break;
        }
        for (int i = segment->first; i < segment->end; i++)
            tsr_order_run(s, c->order->instrs[i]);
    }
    take_back_segments(c, k);
    if (answer == TSR_ORDER_FOUND) {
        memcpy(c->order->instrs, c->candidate, (size_t)c->order->n_instrs * sizeof *c->candidate);
        measure(c, c->order->peak_bytes);
    }
    return answer;
}

/* Lower the peaks of all devices in turn, until no step is left. */
static void lower_peaks(chooser *c)
{
    bool lowered = true;
    while (lowered) {
        lowered = false;
        c->order->least = true;
        for (int d = 0; d < c->search.n_devices; d++) {
            tsr_order_answer answer = TSR_ORDER_FOUND;
            while (c->order->peak_bytes[d] > 0 && answer == TSR_ORDER_FOUND) {
                answer = lower_device(c, d);
                lowered = lowered || answer == TSR_ORDER_FOUND;
            }
            c->order->least = c->order->least && answer != TSR_ORDER_GAVE_UP;
        }
    }
}

/* Adopt another program's order if it is valid here: every instruction runs after those it waits for. */
static bool adopt(chooser *c, const tsr_order *like)
{
    tsr_order_search *s = &c->search;
    int n_run = 0;
    if (like->n_instrs != s->low->n_instrs || like->n_devices != s->n_devices)
        return false;
    while (n_run < like->n_instrs && tsr_order_is_ready(s, like->instrs[n_run]))
        tsr_order_run(s, like->instrs[n_run++]);
    bool suits = n_run == like->n_instrs;
    while (n_run > 0)
        tsr_order_take_back(s, like->instrs[--n_run]);
    if (suits)
        memcpy(c->order->instrs, like->instrs, (size_t)like->n_instrs * sizeof *like->instrs);
    return suits;
}

static tsr_status allocate(chooser *c, tsr_order *order)
{
    tsr_status status = TSR_OK;
    size_t n = (size_t)c->search.low->n_instrs, n_devices = (size_t)c->search.n_devices;
    TSR_TRY(tsr_mem_array(2 * n + 1, sizeof *c->segments, "an order of ops", &c->segments));
    TSR_TRY(find_segments(c));
    TSR_TRY(tsr_mem_array((size_t)c->n_segments * n_devices, sizeof(size_t), "an order of ops",
                          &c->segment_peak));
    TSR_TRY(tsr_mem_array(n, sizeof(int), "an order of ops", &c->candidate));
    TSR_TRY(tsr_mem_array(n, sizeof(int), "an order of ops", &order->instrs));
    TSR_TRY(tsr_mem_array(n_devices, sizeof(size_t), "an order of ops", &order->given_bytes));
    TSR_TRY(tsr_mem_array(n_devices, sizeof(size_t), "an order of ops", &order->peak_bytes));
out:
    return status;
}

tsr_status tsr_order_choose(const tsr_runtime *rt, const tsr_lowered *lowered, const tsr_order *like,
                            tsr_order *order_out)
{
    tsr_status status = TSR_OK;
    tsr_order order = {.n_instrs = lowered->n_instrs, .n_devices = rt->n_devices, .least = true};
    chooser c = {.order = &order};

    TSR_TRY(tsr_order_search_init(rt, lowered, &c.search));
    TSR_TRY(allocate(&c, &order));
    for (int i = 0; i < lowered->n_instrs; i++)
        order.instrs[i] = i;
    measure(&c, order.given_bytes);
    bool taken_over = like && adopt(&c, like);
    measure(&c, order.peak_bytes);
    if (taken_over)
        order.least = like->least;
    else
        lower_peaks(&c);
    for (int i = 0; i < lowered->n_instrs; i++)
        order.n_moved += order.instrs[i] != i;
    *order_out = order;
    order = (tsr_order){0};
out:
    tsr_order_free(&order);
    tsr_mem_free(c.candidate);
    tsr_mem_free(c.segment_peak);
    tsr_mem_free(c.segments);
    tsr_order_search_free(&c.search);
    return status;
}

tsr_status tsr_order_apply(const tsr_order *order, tsr_lowered *lowered)
{
    tsr_instr *instrs;
    tsr_status status = tsr_mem_array((size_t)order->n_instrs, sizeof *instrs, "an order of ops", &instrs);
    if (status != TSR_OK)
        return status;
    for (int i = 0; i < order->n_instrs; i++)
        instrs[i] = lowered->instrs[order->instrs[i]];
    tsr_mem_free(lowered->instrs);
    lowered->instrs = instrs;
    lowered->instrs_capacity = order->n_instrs;
    return TSR_OK;
}

void tsr_order_free(tsr_order *order)
{
    tsr_mem_free(order->instrs);
    tsr_mem_free(order->given_bytes);
    tsr_mem_free(order->peak_bytes);
    *order = (tsr_order){0};
}
