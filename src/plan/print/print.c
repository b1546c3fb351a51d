/* A plan as text: how the model is divided, a table of memory, what of KV layers with a window have, a table
 * of shares, and notes. */
#include <stdio.h>
#include <string.h>

#include <tsr/bytes.h>

#include "core/mem.h"
#include "plan/print/text.h"

#define COUNT(array) ((int)(sizeof(array) / sizeof *(array)))

enum { CELL_BYTES = TSR_PLAN_CELL_BYTES };

/* -- memory -- */

static void write_bytes(size_t bytes, char *text)
{
    if (bytes)
        tsr_bytes_text(bytes, text);
    else
        snprintf(text, CELL_BYTES, "-");
}

static void cell_owner(const tsr_plan *plan, const tsr_plan_device *device, int owner, char *text)
{
    (void)plan;
    write_bytes(device->bytes[owner], text);
}

static void cell_total(const tsr_plan *plan, const tsr_plan_device *device, int arg, char *text)
{
    (void)plan, (void)arg;
    write_bytes(device->total_bytes, text);
}

static void cell_cap(const tsr_plan *plan, const tsr_plan_device *device, int arg, char *text)
{
    (void)plan, (void)arg;
    write_bytes(device->memory_cap == SIZE_MAX ? 0 : device->memory_cap, text);
}

/* Of a sum, only the used bytes are known: devices of one NUMA node may share its memory. */
static void cell_free(const tsr_plan *plan, const tsr_plan_device *device, int arg, char *text)
{
    (void)plan, (void)arg;
    write_bytes(device->free_bytes == SIZE_MAX ? 0 : device->free_bytes, text);
}

static void cell_missing(const tsr_plan *plan, const tsr_plan_device *device, int arg, char *text)
{
    (void)plan, (void)arg;
    write_bytes(device->missing_bytes, text);
}

/* Memory of collectives, and of GPUs the scratch memory of their kernels. */
static void cell_other(const tsr_plan *plan, const tsr_plan_device *device, int arg, char *text)
{
    (void)plan, (void)arg;
    write_bytes(device->bytes[TSR_MEMORY_COMM] + device->bytes[TSR_MEMORY_SCRATCH] +
                    device->bytes[TSR_MEMORY_OTHER],
                text);
}

void tsr_plan_put_memory(const tsr_plan_printer *p, const tsr_plan_device *devices, int n_devices,
                         bool wanted)
{
    tsr_plan_column columns[] = {{"weights", cell_owner, TSR_MEMORY_WEIGHTS},
                                 {"KV", cell_owner, TSR_MEMORY_KV},
                                 {"arena", cell_owner, TSR_MEMORY_ARENA},
                                 {"other", cell_other, 0},
                                 {"total", cell_total, 0},
                                 {"cap", cell_cap, 0},
                                 {"free", cell_free, 0}};
    tsr_plan_device sum = {.name = "all", .memory_cap = SIZE_MAX, .free_bytes = SIZE_MAX};
    for (int d = 0; d < n_devices; d++) {
        for (int o = 0; o < TSR_MEMORY_COUNT; o++)
            sum.bytes[o] += devices[d].bytes[o];
        sum.total_bytes += devices[d].total_bytes;
        sum.missing_bytes += devices[d].missing_bytes;
    }
    if (wanted)
        columns[COUNT(columns) - 1] = (tsr_plan_column){"missing", cell_missing, 0};
    tsr_plan_put_table(p, "memory", columns, COUNT(columns), devices, n_devices, n_devices > 1 ? &sum : NULL);
}

/* -- KV by kinds of layers -- */

static void cell_full(const tsr_plan *plan, const tsr_plan_device *device, int arg, char *text)
{
    (void)plan, (void)arg;
    write_bytes(device->bytes[TSR_MEMORY_KV] - device->kv_windowed_bytes, text);
}

static void cell_windowed(const tsr_plan *plan, const tsr_plan_device *device, int arg, char *text)
{
    (void)plan, (void)arg;
    write_bytes(device->kv_windowed_bytes, text);
}

static void put_kv(const tsr_plan_printer *p)
{
    static const tsr_plan_column columns[] = {{"full layers", cell_full, 0},
                                              {"windowed layers", cell_windowed, 0}};
    const tsr_plan_info *info = &p->plan->info;
    tsr_plan_device sum = {.name = "all"};
    for (int d = 0; d < info->n_devices; d++) {
        sum.bytes[TSR_MEMORY_KV] += p->plan->devices[d].bytes[TSR_MEMORY_KV];
        sum.kv_windowed_bytes += p->plan->devices[d].kv_windowed_bytes;
    }
    tsr_plan_put_table(p, "KV", columns, COUNT(columns), p->plan->devices, info->n_devices,
                       info->n_devices > 1 ? &sum : NULL);
    tsr_plan_put(p, "%lld of %lld layers are windowed: they see the last %lld token%s\n",
                 (long long)info->n_windowed, (long long)info->n_layers, (long long)info->window,
                 tsr_plural(info->window));
}

/* -- shares -- */

static void cell_requested(const tsr_plan *plan, const tsr_plan_device *device, int arg, char *text)
{
    (void)plan, (void)arg;
    snprintf(text, CELL_BYTES, "%.1f %%", 100 * device->requested);
}

static void cell_layers(const tsr_plan *plan, const tsr_plan_device *device, int arg, char *text)
{
    (void)arg;
    snprintf(text, CELL_BYTES, "%lld of %lld", (long long)device->n_layers, (long long)plan->info.n_layers);
}

static void cell_achieved(const tsr_plan *plan, const tsr_plan_device *device, int class_id, char *text)
{
    (void)plan;
    snprintf(text, CELL_BYTES, "%.1f %%", 100 * device->achieved[class_id]);
}

/* Layers in which the device has any granules of a class of layers. */
static int64_t count_layers(const tsr_plan *plan, const tsr_plan_device *device, int class_id)
{
    const tsr_block block = class_id == TSR_CLASS_FFN ? TSR_BLOCK_FFN : TSR_BLOCK_ATTENTION;
    const ptrdiff_t d = device - plan->devices;
    int64_t n = 0;
    for (int64_t l = 0; l < plan->split.n_layers; l++) {
        const tsr_shard_map *map =
            tsr_split_group_map(tsr_model_split_group(&plan->split, block, l), class_id);
        n += map->begin[d + 1] > map->begin[d];
    }
    return n;
}

/* "66.7 %   4 of 6", the counts in line with those above and below. Where other devices have the class in
 * some layers whole, "58.3 %  28 of 48 layers", or "29.2 %  3 of 6 in 28 layers". */
static void cell_granules(const tsr_plan *plan, const tsr_plan_device *device, int class_id, char *text)
{
    int width = snprintf(NULL, 0, "%lld", (long long)plan->info.n_granules[class_id]);
    const int64_t n_layers = plan->split.n_layers;
    int64_t n = class_id == TSR_CLASS_OUTPUT ? n_layers : count_layers(plan, device, class_id);
    if (n > 0 && n < n_layers && device->granules[class_id] == plan->info.n_granules[class_id]) {
        snprintf(text, CELL_BYTES, "%.1f %%  %lld of %lld layers", 100 * device->achieved[class_id],
                 (long long)n, (long long)n_layers);
        return;
    }
    if (n > 0 && n < n_layers) {
        snprintf(text, CELL_BYTES, "%.1f %%  %lld of %lld in %lld layer%s", 100 * device->achieved[class_id],
                 (long long)device->granules[class_id], (long long)plan->info.n_granules[class_id],
                 (long long)n, tsr_plural(n));
        return;
    }
    snprintf(text, CELL_BYTES, "%.1f %%  %*lld of %lld", 100 * device->achieved[class_id], width,
             (long long)device->granules[class_id], (long long)plan->info.n_granules[class_id]);
}

static void put_granule_sizes(const tsr_plan_printer *p)
{
    bool whole = p->plan->info.expert_split == TSR_EXPERT_SPLIT_EXPERTS;
    const char *const units[TSR_CLASS_COUNT] = {"KV head", whole ? "expert" : "column", "row"};
    tsr_plan_put(p, "One granule:");
    for (int c = 0; c < TSR_CLASS_COUNT; c++) {
        long long size = (long long)p->plan->info.granule_size[c];
        tsr_plan_put(p, "%s %s %lld %s%s", c ? "," : "", tsr_split_class_name(c), size, units[c],
                     tsr_plural(size));
    }
    tsr_plan_put(p, "\n");
}

static void put_shares(const tsr_plan_printer *p)
{
    static const tsr_plan_column by_granule[] = {{"requested", cell_requested, 0},
                                                 {"attention", cell_granules, TSR_CLASS_ATTENTION},
                                                 {"ffn", cell_granules, TSR_CLASS_FFN},
                                                 {"output", cell_granules, TSR_CLASS_OUTPUT}};
    static const tsr_plan_column by_layer[] = {{"requested", cell_requested, 0},
                                               {"layers", cell_layers, 0},
                                               {"attention", cell_achieved, TSR_CLASS_ATTENTION},
                                               {"ffn", cell_achieved, TSR_CLASS_FFN},
                                               {"output", cell_achieved, TSR_CLASS_OUTPUT}};
    if (p->plan->info.mode == TSR_SPLIT_MODE_TENSOR) {
        tsr_plan_put_table(p, "share", by_granule, COUNT(by_granule), p->plan->devices,
                           p->plan->info.n_devices, NULL);
        put_granule_sizes(p);
    } else {
        tsr_plan_put_table(p, "share", by_layer, COUNT(by_layer), p->plan->devices, p->plan->info.n_devices,
                           NULL);
        tsr_plan_put_stages(p);
    }
}

/* -- the whole -- */

static void put_heading(const tsr_plan_printer *p)
{
    const tsr_plan_info *info = &p->plan->info;
    int n_used = 0;
    for (int d = 0; d < info->n_devices; d++)
        n_used += p->plan->devices[d].used;
    char transfers[32] = "";
    if (info->n_transfers)
        snprintf(transfers, sizeof transfers, " and %d transfer%s", info->n_transfers,
                 tsr_plural(info->n_transfers));
    tsr_plan_put_wrapped(p, "Split mode %s: %lld layer%s over %d of %d device%s, %d reduction%s%s per step",
                         tsr_split_mode_name(info->mode), (long long)info->n_layers,
                         tsr_plural(info->n_layers), n_used, info->n_devices, tsr_plural(info->n_devices),
                         info->n_all_reduces, tsr_plural(info->n_all_reduces), transfers);
    tsr_plan_put_wrapped(p, "KV in %s and %s, %d sequence%s, up to %d token%s computed at a time",
                         tsr_type_name(info->type_k), tsr_type_name(info->type_v), info->n_seq_max,
                         tsr_plural(info->n_seq_max), info->n_batch, tsr_plural(info->n_batch));
}

void tsr_plan_print_tables(const tsr_plan *plan, tsr_write_fn write, void *user)
{
    tsr_plan_printer p = {.plan = plan, .write = write, .user = user};
    put_heading(&p);
    tsr_plan_put_memory(&p, plan->devices, plan->info.n_devices, !plan->info.fits);
    if (plan->info.n_windowed > 0 && plan->info.n_windowed < plan->info.n_layers)
        put_kv(&p);
    if (plan->info.n_devices > 1)
        put_shares(&p);
    for (int i = 0; i < plan->n_notes; i++) {
        if (i == 0)
            tsr_plan_put(&p, "\n");
        tsr_plan_put_wrapped(&p, "Note: %s", plan->notes[i]);
    }
}

void tsr_plan_print(const tsr_plan *plan, tsr_write_fn write, void *user)
{
    tsr_plan_print_summary(plan, write, user);
    write("\n", user);
    tsr_plan_print_tables(plan, write, user);
}
