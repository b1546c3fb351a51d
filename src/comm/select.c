/* Selecting between communicators; see select.h. Timing is in probe.c. */
#include "comm/select.h"

#include <stdio.h>

#include <tsr/bytes.h>
#include <tsr/memory.h>

#include "comm/probe.h"
#include "core/event.h"
#include "core/mem.h"

typedef struct select_row {
    size_t bytes;
    int best; /* index of the implementation */
    uint64_t latency_ns;
} select_row;

typedef struct select_comm {
    tsr_comm base;
    int n_comms;
    tsr_comm *comms[TSR_COMM_MAX_MEMBERS];
    bool measured[TSR_COMM_MAX_MEMBERS]; /* the others do not serve all devices together */
    int n_rows;
    select_row rows[TSR_COMM_MAX_ROWS];
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

/* The table's selection. If it leaves the stream (or does not serve these devices), prefer an
 * implementation that was not benchmarked because it serves only some of the devices, these included. */
static tsr_comm *choose(const select_comm *selection, const tsr_collective_desc *desc)
{
    int row = 0;
    while (row + 1 < selection->n_rows && selection->rows[row].bytes < bytes_of(desc))
        row++;
    tsr_comm *best = selection->comms[selection->rows[row].best];
    if (serves(best, desc) && best->ops->enqueue)
        return best;
    for (int c = 0; c < selection->n_comms; c++)
        if (!selection->measured[c] && selection->comms[c]->ops->enqueue && serves(selection->comms[c], desc))
            return selection->comms[c];
    return serves(best, desc) ? best : selection->comms[selection->n_comms - 1];
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
    .poll = choice_poll,
    .aborted = choice_aborted,
    .abort = choice_abort,
    .reset = choice_reset,
    .missing = choice_missing,
};

/* -- the benchmark -- */

/* Sizes of one device's partial: the exact sums of an 8B model are 32 KiB per token. A size costs about
 * four times as much as the previous one. */
static const size_t sizes[] = {4 << 10, 16 << 10, 64 << 10, 256 << 10, 1 << 20, 4 << 20};
enum { N_SIZES = (int)(sizeof sizes / sizeof *sizes), COST_FACTOR = 4 };

/* Small collectives follow one another as in a step; large ones are timed with few operations. */
enum { SMALL = 64 << 10, N_SMALL = 8, N_LARGE = 2 };

/* Of the probe: an odd number of elements; time for loading code and connecting. */
enum { CHECK_ELEMENTS = 2055 };
#define CHECK_TIMEOUT_NS 2000000000u

static void drop(select_comm *selection, int index)
{
    tsr_comm *comm = selection->comms[index];
    selection->n_comms--;
    for (int c = index; c < selection->n_comms; c++) {
        selection->comms[c] = selection->comms[c + 1];
        selection->measured[c] = selection->measured[c + 1];
    }
    tsr_comm_destroy(comm);
}

/* Probe the implementations that run in a GPU's stream first. The last implementation serves everything
 * and has no alternative, so it is not probed. */
static tsr_status try_all(select_comm *selection, tsr_device *const *devices, const tsr_logger *logger)
{
    tsr_status status = TSR_OK;
    tsr_probe *probe = NULL;
    for (int c = 0; c < selection->n_comms;) {
        char problem[512] = "";
        if (selection->measured[c] && selection->comms[c]->ops->enqueue) {
            /* New buffers for each: the partials of the previous one may have changed. */
            const tsr_probe_config config = {devices, selection->base.n_devices, .kind = TSR_OP_ALL_REDUCE,
                                             .n = CHECK_ELEMENTS};
            TSR_TRY(tsr_probe_create(&config, &probe));
            TSR_TRY(tsr_probe_check(probe, selection->comms[c], CHECK_TIMEOUT_NS, problem, sizeof problem));
            tsr_probe_destroy(probe);
            probe = NULL;
        }
        if (*problem && selection->n_comms == 1)
            TSR_TRY(tsr_fail(TSR_ERR_DEVICE, "collectives: %s: %s", selection->comms[c]->ops->kind, problem));
        if (*problem) {
            tsr_log(logger, TSR_LOG_WARN, "collectives: %s is not used: %s", selection->comms[c]->ops->kind,
                    problem);
            drop(selection, c);
        } else {
            c++;
        }
    }
out:
    tsr_probe_destroy(probe);
    return status;
}

/* One size; the row is added once all implementations have run. */
static tsr_status benchmark(select_comm *selection, tsr_device *const *devices, size_t bytes)
{
    tsr_status status = TSR_OK;
    select_row row = {.bytes = bytes, .latency_ns = UINT64_MAX};
    tsr_probe *probe = NULL;
    const tsr_probe_config config = {devices, selection->base.n_devices, .kind = TSR_OP_ALL_REDUCE,
                                     .n = (int64_t)(bytes / sizeof(int64_t)), .zeros = true};
    TSR_TRY(tsr_probe_create(&config, &probe));
    for (int c = 0; c < selection->n_comms; c++) {
        uint64_t ns;
        if (!selection->measured[c])
            continue;
        TSR_TRY(tsr_probe_measure(probe, selection->comms[c], bytes <= SMALL ? N_SMALL : N_LARGE,
                                  row.latency_ns, &ns));
        if (ns < row.latency_ns) {
            row.latency_ns = ns;
            row.best = c;
        }
    }
    selection->rows[selection->n_rows++] = row;
out:
    tsr_probe_destroy(probe);
    return status;
}

/* Fill the table. Sizes beyond the memory or the time budget are not measured. */
static tsr_status benchmark_all(select_comm *selection, tsr_device *const *devices, uint64_t budget_ns)
{
    uint64_t begin = tsr_clock_ns(), cost = 0;
    int racers = 0, first = selection->n_comms - 1;
    for (int c = selection->n_comms - 1; c >= 0; c--) {
        racers += selection->measured[c];
        if (selection->measured[c])
            first = c;
    }
    for (int i = 0; i < N_SIZES && racers > 1; i++) {
        uint64_t now = tsr_clock_ns();
        if (now - begin + COST_FACTOR * cost > budget_ns)
            break;
        tsr_status status = benchmark(selection, devices, sizes[i]);
        if (status == TSR_ERR_MEMORY) {
            tsr_fail_clear();
            break;
        }
        if (status != TSR_OK)
            return status;
        cost = tsr_clock_ns() - now;
    }
    if (selection->n_rows == 0)
        selection->rows[selection->n_rows++] = (select_row){.best = first};
    return TSR_OK;
}

/* "peer up to 64 KiB (6.1 us for 4 KiB), nccl above (35 us for 256 KiB)" */
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
        if (!last || r > 0)
            n = snprintf(text + used, sizeof text - used, last ? " above" : " up to %s",
                         tsr_bytes_text(selection->rows[next - 1].bytes, bytes));
        used = TSR_MIN(used + (size_t)TSR_MAX(n, 0), sizeof text - 1);
    }
    tsr_log(logger, TSR_LOG_INFO, "collectives between %d devices: %s", selection->base.n_devices, text);
}

/* -- creation -- */

tsr_status tsr_comm_select_create(tsr_device *const *devices, int n_devices, tsr_comm *const *comms,
                                  int n_comms, uint64_t budget_ns, const tsr_logger *logger,
                                  tsr_comm **comm_out)
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
    selection->n_comms = n_comms;
    for (int c = 0; c < n_comms; c++) {
        selection->comms[c] = comms[c];
        selection->comms[c]->whole = &selection->base;
        selection->measured[c] = tsr_probe_serves(comms[c]);
    }
    TSR_TRY(try_all(selection, devices, logger));
    TSR_TRY(benchmark_all(selection, devices, budget_ns));
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
