/* Selecting between communicators; see select.h. Timing is in probe.c. */
#include "comm/select.h"

#include <stdio.h>
#include <string.h>

#include <tsr/bytes.h>
#include <tsr/memory.h>

#include "comm/probe.h"
#include "core/event.h"
#include "core/mem.h"

/* Sizes of one device's partial: the exact sums of an 8B model are 32 KiB per token. */
static const size_t sizes[] = {4 << 10, 16 << 10, 64 << 10, 256 << 10, 1 << 20, 4 << 20};
enum { N_SIZES = (int)(sizeof sizes / sizeof *sizes) };

typedef struct select_row {
    size_t bytes;
    int best;            /* index of the implementation */
    uint64_t latency_ns; /* 0: not measured */
} select_row;

typedef struct select_comm {
    tsr_comm base;
    tsr_device_set members;
    int n_comms;
    tsr_comm *comms[TSR_COMM_MAX_MEMBERS];
    bool measured[TSR_COMM_MAX_MEMBERS];        /* the others do not serve all members together */
    uint64_t ns[TSR_COMM_MAX_MEMBERS][N_SIZES]; /* what was measured; 0: nothing */
    bool slow;                                  /* sizes were left out, since smaller ones took too long */
    int n_rows;
    select_row rows[N_SIZES];
} select_comm;

/* -- the interface of a communicator -- */

static bool serves(const tsr_comm *comm, const tsr_collective_desc *desc)
{
    return !comm->ops->serves || comm->ops->serves(comm, desc);
}

static size_t bytes_of(const tsr_collective_desc *desc)
{
    size_t n = (size_t)desc->n * (size_t)(desc->kind == TSR_OP_ALL_GATHER ? desc->n_rows : 1);
    return n * (desc->kind == TSR_OP_ALL_REDUCE ? tsr_reduce_bytes(desc->reduce) : sizeof(float));
}

/* An implementation that was not benchmarked serves only some of the devices. Where it serves these, they
 * have a shorter way to each other than all have. Otherwise the table's selection; if that does not serve
 * these devices, or no longer, any that does. */
static tsr_comm *choose(const select_comm *selection, const tsr_collective_desc *desc)
{
    int row = 0;
    while (row + 1 < selection->n_rows && selection->rows[row].bytes < bytes_of(desc))
        row++;
    tsr_comm *best = selection->comms[selection->rows[row].best];
    const bool serves_best = serves(best, desc);
    for (int c = 0; c < selection->n_comms; c++)
        if (!(selection->measured[c] && serves_best) && selection->comms[c]->ops->enqueue &&
            serves(selection->comms[c], desc))
            return selection->comms[c];
    return serves_best ? best : selection->comms[selection->n_comms - 1];
}

static tsr_status choice_collective_create(tsr_comm *base, const tsr_collective_desc *desc,
                                           tsr_collective **collective_out)
{
    tsr_comm *comm = choose((const select_comm *)base, desc);
    return comm->ops->collective_create(comm, desc, collective_out);
}

static void choice_collective_destroy(tsr_comm *base, tsr_collective *collective)
{
    (void)base;
    collective->comm->ops->collective_destroy(collective->comm, collective);
}

/* The devices may be in collectives of any of them. */
static void choice_abort(tsr_comm *base)
{
    const select_comm *selection = (const select_comm *)base;
    for (int c = 0; c < selection->n_comms; c++)
        selection->comms[c]->ops->abort(selection->comms[c]);
}

/* Epochs only rise, so the sum rises when one does. */
static uint64_t epoch_of(const select_comm *selection)
{
    uint64_t epoch = 0;
    for (int c = 0; c < selection->n_comms; c++)
        epoch += selection->comms[c]->epoch;
    return epoch;
}

static void choice_reset(tsr_comm *base)
{
    select_comm *selection = (select_comm *)base;
    for (int c = 0; c < selection->n_comms; c++)
        selection->comms[c]->ops->reset(selection->comms[c]);
    base->epoch = epoch_of(selection);
}

static tsr_status choice_poll(tsr_comm *base, tsr_device *device)
{
    const select_comm *selection = (const select_comm *)base;
    tsr_status status = TSR_OK;
    for (int c = 0; c < selection->n_comms && status == TSR_OK; c++)
        if (selection->comms[c]->ops->poll)
            status = selection->comms[c]->ops->poll(selection->comms[c], device);
    return status;
}

static bool choice_aborted(tsr_comm *base)
{
    const select_comm *selection = (const select_comm *)base;
    for (int c = 0; c < selection->n_comms; c++)
        if (selection->comms[c]->ops->aborted && selection->comms[c]->ops->aborted(selection->comms[c]))
            return true;
    return false;
}

static tsr_device_set choice_missing(tsr_comm *base, const tsr_collective *collective, int index)
{
    (void)base;
    return collective->comm->ops->missing(collective->comm, collective, index);
}

static bool choice_stages(const tsr_comm *base, tsr_device_set devices)
{
    const select_comm *selection = (const select_comm *)base;
    (void)devices;
    return !selection->comms[selection->rows[selection->n_rows - 1].best]->ops->enqueue;
}

static void select_destroy(tsr_comm *base)
{
    select_comm *selection = (select_comm *)base;
    for (int c = 0; c < selection->n_comms; c++)
        tsr_comm_destroy(selection->comms[c]);
    tsr_mem_free(selection);
}

/* Collectives are run by the communicator that made them. */
static const struct tsr_comm_ops select_ops = {
    .kind = "selection",
    .destroy = select_destroy,
    .collective_create = choice_collective_create,
    .collective_destroy = choice_collective_destroy,
    .stages = choice_stages,
    .poll = choice_poll,
    .aborted = choice_aborted,
    .abort = choice_abort,
    .reset = choice_reset,
    .missing = choice_missing,
};

/* -- leaving out what does not work -- */

static void drop(select_comm *selection, int index)
{
    tsr_comm *comm = selection->comms[index];
    selection->n_comms--;
    for (int c = index; c < selection->n_comms; c++) {
        selection->comms[c] = selection->comms[c + 1];
        selection->measured[c] = selection->measured[c + 1];
        memcpy(selection->ns[c], selection->ns[c + 1], sizeof selection->ns[c]);
    }
    tsr_comm_destroy(comm);
}

tsr_status tsr_comm_fail_lost(const char *kind)
{
    char cause[512];
    snprintf(cause, sizeof cause, "%s", tsr_last_error());
    return tsr_fail(TSR_ERR_DEVICE_LOST,
                    "collectives '%s': %s; start again with --collectives staged, which does without", kind,
                    cause);
}

/* The last implementation serves what the others do not. */
static bool has_alternative(const select_comm *selection, int index)
{
    int last = selection->n_comms - 1;
    return index < last || (last > 0 && selection->measured[last - 1]);
}

/* An implementation has failed with `status`, or has the `problem`, a sentence; "": none. It is dropped with
 * a warning, unless the failure is the machine's, or there is nothing else. */
static tsr_status judge(select_comm *selection, int index, tsr_status status, const char *problem,
                        const tsr_logger *logger)
{
    const char *kind = selection->comms[index]->ops->kind;
    if (status == TSR_ERR_MEMORY || (status == TSR_OK && !*problem))
        return status;
    if (status == TSR_ERR_DEVICE_LOST && selection->comms[index]->ops->enqueue)
        return tsr_comm_fail_lost(kind);
    if (status == TSR_ERR_DEVICE_LOST || !has_alternative(selection, index))
        return status == TSR_OK ? tsr_fail(TSR_ERR_DEVICE, "collectives: %s: %s", kind, problem)
                                : tsr_fail_in(status, "collectives: %s", kind);
    tsr_log(logger, TSR_LOG_WARN,
            "collectives: %s is not used: %s; to open without trying it, name another with --collectives",
            kind, status == TSR_OK ? problem : tsr_last_error());
    tsr_fail_clear();
    drop(selection, index);
    return TSR_OK;
}

/* Of the probe: an odd number of elements; time for loading code and connecting. */
enum { CHECK_ELEMENTS = 2055 };
#define CHECK_TIMEOUT_NS 2000000000u

/* Probe the implementations that run in a GPU's stream first. The last implementation serves everything
 * and has no alternative, so it is not probed. */
static tsr_status try_all(select_comm *selection, tsr_device *const *devices, const tsr_logger *logger)
{
    tsr_status status = TSR_OK;
    tsr_probe *probe = NULL;
    for (int c = 0; c < selection->n_comms;) {
        const int n_comms = selection->n_comms;
        char problem[512] = "";
        if (selection->measured[c] && selection->comms[c]->ops->enqueue) {
            /* New buffers for each: the partials of the previous one may have changed. */
            const tsr_probe_config config = {devices, selection->base.n_devices, selection->members,
                                             .kind = TSR_OP_ALL_REDUCE, .n = CHECK_ELEMENTS};
            TSR_TRY(tsr_probe_create(&config, &probe));
            status = tsr_probe_check(probe, selection->comms[c], CHECK_TIMEOUT_NS, problem, sizeof problem);
            tsr_probe_destroy(probe);
            probe = NULL;
            TSR_TRY(judge(selection, c, status, problem, logger));
        }
        c += selection->n_comms == n_comms; /* otherwise it was dropped */
    }
out:
    tsr_probe_destroy(probe);
    return status;
}

/* -- the benchmark -- */

/* The first three sizes are measured unless smaller ones are slow: they are what decoding, small batches and
 * prompts send. The others follow within the budget. */
static const int order[N_SIZES] = {0, 3, 5, 2, 1, 4};
enum { N_FIRST = 3 };

/* Small collectives follow one another as in a step; large ones are timed with few operations, or one. */
enum { MOST_OPS = 8, BYTES_OF_ALL = 512 << 10 };

static int n_ops_of(int size)
{
    const int fit = (int)(BYTES_OF_ALL / sizes[size]);
    return TSR_MAX(1, TSR_MIN(fit, MOST_OPS));
}

/* An implementation that takes longer than this for one run does not work. */
#define RUN_TIMEOUT_NS 10000000000u

/* Where each part is added up everywhere, n - 1 parts are read per device; in shares, less than 2. From three
 * parts and this size on that counts for more than a second barrier, unless it was measured otherwise. */
enum { MIN_SHARED_PARTS = 3, MIN_SHARED_BYTES = 64 << 10 };

/* One size, in all implementations. *run_ns_out: the time of the collectives, without that of making them. */
static tsr_status benchmark(select_comm *selection, tsr_device *const *devices, int size, uint64_t budget_ns,
                            const tsr_logger *logger, uint64_t *run_ns_out)
{
    tsr_status status = TSR_OK;
    tsr_probe *probe = NULL;
    uint64_t best = UINT64_MAX;
    const tsr_probe_config config = {devices,
                                     selection->base.n_devices,
                                     selection->members,
                                     .kind = TSR_OP_ALL_REDUCE,
                                     .n = (int64_t)(sizes[size] / sizeof(int64_t)),
                                     .zeros = true,
                                     .timeout_ns = RUN_TIMEOUT_NS,
                                     .enough_ns = budget_ns / N_SIZES};
    *run_ns_out = 0;
    TSR_TRY(tsr_probe_create(&config, &probe));
    for (int c = 0; c < selection->n_comms;) {
        const int n_comms = selection->n_comms;
        uint64_t ns = 0;
        /* The buffers may have ended the access to peers' memory. */
        if (selection->measured[c] && tsr_probe_serves(selection->comms[c], selection->members)) {
            status = tsr_probe_measure(probe, selection->comms[c], n_ops_of(size), best, &ns);
            TSR_TRY(judge(selection, c, status, "", logger));
        }
        if (selection->n_comms < n_comms)
            continue; /* it was dropped */
        selection->ns[c][size] = ns;
        best = ns > 0 ? TSR_MIN(best, ns) : best;
        c++;
    }
    *run_ns_out = tsr_probe_run_ns(probe);
out:
    tsr_probe_destroy(probe);
    for (int c = 0; c < selection->n_comms && status != TSR_OK; c++)
        selection->ns[c][size] = 0; /* not all were measured */
    return status;
}

/* The number of implementations that are compared. */
static int n_racers(const select_comm *selection)
{
    int n = 0;
    for (int c = 0; c < selection->n_comms; c++)
        n += selection->measured[c];
    return n;
}

/* Whether sizes below `size` took so long that `size` and larger ones are left out. */
static bool is_slow(const uint64_t run_ns[N_SIZES], int size, uint64_t smaller_ns)
{
    uint64_t spent = 0;
    for (int i = 0; i < size; i++)
        spent += run_ns[i];
    return spent > smaller_ns;
}

/* Measure the sizes that the memory and the budget permit. */
static tsr_status benchmark_all(select_comm *selection, tsr_device *const *devices, tsr_comm_budget budget,
                                const tsr_logger *logger)
{
    uint64_t spent = 0, run_ns[N_SIZES] = {0};
    for (int k = 0; k < N_SIZES && n_racers(selection) > 1; k++) {
        int i = order[k], larger = i + 1;
        while (larger < N_SIZES && run_ns[larger] == 0)
            larger++;
        /* No size costs more than a larger one. */
        if (k >= N_FIRST && (larger == N_SIZES || spent + run_ns[larger] > budget.all_ns))
            continue;
        if (k < N_FIRST && is_slow(run_ns, i, budget.smaller_ns)) {
            selection->slow = true;
            continue;
        }
        tsr_status status = benchmark(selection, devices, i, budget.all_ns, logger, &run_ns[i]);
        if (status == TSR_ERR_MEMORY)
            tsr_fail_clear();
        else if (status != TSR_OK)
            return status;
        spent += run_ns[i];
    }
    return TSR_OK;
}

/* -- the table -- */

/* The fastest for a size; -1: not measured. */
static int fastest(const select_comm *selection, int size)
{
    int best = -1;
    for (int c = 0; c < selection->n_comms; c++)
        if (selection->ns[c][size] > 0 && (best < 0 || selection->ns[c][size] < selection->ns[best][size]))
            best = c;
    return best;
}

/* For a size that was not measured: as the next size that was, the larger one for large messages and the
 * smaller one for small ones. For large messages beyond all measured ones, in shares if it can be, unless
 * they were left out because smaller ones are slow. */
static int guess(const select_comm *selection, int size)
{
    bool large = sizes[size] >= MIN_SHARED_BYTES;
    int smaller = -1, larger = -1, shared = -1, first = selection->n_comms - 1;
    for (int i = 0; i < N_SIZES; i++) {
        if (fastest(selection, i) >= 0 && i < size)
            smaller = i;
        if (fastest(selection, i) >= 0 && i > size && larger < 0)
            larger = i;
    }
    for (int c = selection->n_comms - 1; c >= 0; c--) {
        if (selection->measured[c])
            first = c;
        if (selection->measured[c] && selection->comms[c]->ops->in_shares)
            shared = c;
    }
    if (larger >= 0 && (large || smaller < 0))
        return fastest(selection, larger);
    bool was_large = smaller >= 0 && sizes[smaller] >= MIN_SHARED_BYTES;
    if (large && !was_large && !selection->slow && shared >= 0 &&
        tsr_device_set_count(selection->members) >= MIN_SHARED_PARTS)
        return shared;
    return smaller >= 0 ? fastest(selection, smaller) : first;
}

/* A row for every size, without guesses that say the same as the next row (the last: as the one before). */
static void fill_table(select_comm *selection)
{
    select_row all[N_SIZES];
    bool kept[N_SIZES];
    int next = -1; /* the choice of the row that follows */
    for (int i = 0; i < N_SIZES; i++) {
        int best = fastest(selection, i);
        all[i] = (select_row){.bytes = sizes[i],
                              .best = best < 0 ? guess(selection, i) : best,
                              .latency_ns = best < 0 ? 0 : selection->ns[best][i]};
    }
    for (int i = N_SIZES - 1; i >= 0; i--) {
        int neighbour = next >= 0 || i == 0 ? next : all[i - 1].best;
        kept[i] = all[i].latency_ns > 0 || all[i].best != neighbour;
        next = kept[i] ? all[i].best : next;
    }
    for (int i = 0; i < N_SIZES; i++)
        if (kept[i])
            selection->rows[selection->n_rows++] = all[i];
}

/* The largest size that was measured; -1: none. */
static int largest_measured(const select_comm *selection)
{
    int i = N_SIZES - 1;
    while (i >= 0 && fastest(selection, i) < 0)
        i--;
    return i;
}

/* "peer up to 64 KiB, nccl above; not measured beyond 256 KiB, since smaller sums took too long" */
static void log_table(const select_comm *selection, const tsr_logger *logger)
{
    char text[256] = "", bytes[TSR_BYTES_TEXT];
    size_t used = 0;
    for (int r = 0, next; r < selection->n_rows; r = next) {
        const select_row *row = &selection->rows[r];
        for (next = r + 1; next < selection->n_rows && selection->rows[next].best == row->best; next++)
            continue;
        bool last = next == selection->n_rows;
        int n = snprintf(text + used, sizeof text - used, "%s%s", r ? ", " : "",
                         selection->comms[row->best]->ops->kind);
        used = TSR_MIN(used + (size_t)TSR_MAX(n, 0), sizeof text - 1);
        n = 0;
        if (!last || r > 0)
            n = snprintf(text + used, sizeof text - used, last ? " above" : " up to %s",
                         tsr_bytes_text(selection->rows[next - 1].bytes, bytes));
        used = TSR_MIN(used + (size_t)TSR_MAX(n, 0), sizeof text - 1);
    }
    if (selection->slow)
        snprintf(text + used, sizeof text - used,
                 "; not measured beyond %s, since smaller sums took too long",
                 tsr_bytes_text(sizes[largest_measured(selection)], bytes));
    tsr_log(logger, TSR_LOG_INFO, "collectives between %d devices: %s",
            tsr_device_set_count(selection->members), text);
}

/* -- creation -- */

/* Whether some implementation still serves all members, or never was for all: memory that was allocated since
 * may have ended the access to peers. */
static bool serves_some(const select_comm *selection)
{
    for (int c = 0; c < selection->n_comms; c++)
        if (!selection->measured[c] || tsr_probe_serves(selection->comms[c], selection->members))
            return true;
    return false;
}

tsr_status tsr_comm_select_create(tsr_device *const *devices, int n_devices, tsr_device_set members,
                                  tsr_comm *const *comms, int n_comms, tsr_comm_budget budget,
                                  const tsr_logger *logger, tsr_comm **comm_out)
{
    select_comm *selection = NULL;
    tsr_status status = n_comms < 1 || n_comms > TSR_COMM_MAX_MEMBERS
                            ? tsr_fail(TSR_ERR_INVALID, "a selection among %d communicators", n_comms)
                            : TSR_NEW(&selection, "a communicator");
    if (status != TSR_OK) {
        for (int c = 0; c < n_comms; c++)
            tsr_comm_destroy(comms[c]);
        return status;
    }
    selection->base = (tsr_comm){.ops = &select_ops, .n_devices = n_devices};
    selection->members = members;
    selection->n_comms = n_comms;
    for (int c = 0; c < n_comms; c++) {
        selection->comms[c] = comms[c];
        selection->comms[c]->whole = &selection->base;
        selection->measured[c] = tsr_device_set_count(members) > 1 && tsr_probe_serves(comms[c], members);
    }
    TSR_TRY(try_all(selection, devices, logger));
    TSR_TRY(benchmark_all(selection, devices, budget, logger));
    if (!serves_some(selection))
        TSR_TRY(tsr_fail(TSR_ERR_UNSUPPORTED,
                         "collectives: %s no longer serves these devices; use auto, pinned, nccl or staged",
                         selection->comms[0]->ops->kind));
    fill_table(selection);
    log_table(selection, logger);
    *comm_out = &selection->base;
    selection = NULL;
out:
    if (selection)
        select_destroy(&selection->base);
    return status;
}

int tsr_comm_select_members(tsr_comm *base, tsr_comm *members[TSR_COMM_MAX_MEMBERS])
{
    select_comm *selection = (select_comm *)base;
    members[0] = base;
    if (base->ops != &select_ops)
        return 1;
    for (int c = 0; c < selection->n_comms; c++)
        members[c] = selection->comms[c];
    return selection->n_comms;
}

int tsr_comm_select_rows(const tsr_comm *base, tsr_comm_row rows[TSR_COMM_MAX_ROWS])
{
    const select_comm *selection = (const select_comm *)base;
    if (base->ops != &select_ops)
        return 0;
    for (int r = 0; r < selection->n_rows; r++)
        rows[r] = (tsr_comm_row){.bytes = selection->rows[r].bytes,
                                 .kind = selection->comms[selection->rows[r].best]->ops->kind,
                                 .latency_ns = selection->rows[r].latency_ns};
    return selection->n_rows;
}
