/* A plan as text: what it lays out, a table of memory, what of KV layers with a sliding window have, a table
 * of shares, remarks.
 *
 * A table is a list of columns, each a heading and a function that writes one cell. Every cell is written
 * twice, once to learn the widths and once to print, so that nothing is allocated and printing cannot
 * fail. */
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include <tsr/bytes.h>

#include "core/mem.h"
#include "plan/fit/fit.h"
#include "plan/print/text.h"

#define COUNT(array) ((int)(sizeof(array) / sizeof *(array)))

enum { CELL_BYTES = 64, MAX_COLUMNS = 12 };

void tsr_plan_put(const tsr_plan_printer *p, const char *format, ...)
{
    char text[512];
    va_list args;
    va_start(args, format);
    vsnprintf(text, sizeof text, format, args);
    va_end(args);
    tsr_clean_text(text, strlen(text), "\n");
    p->write(text, p->user);
}

/* -- tables -- */

/* `arg` says which of several like columns it is: a memory owner or a class. */
typedef void (*cell_fn)(const tsr_plan *plan, const tsr_plan_device *device, int arg, char text[CELL_BYTES]);

typedef struct column {
    const char *heading;
    cell_fn cell;
    int arg;
} column;

static size_t column_width(const column *c, const tsr_plan *plan, const tsr_plan_device *rows, int n_rows)
{
    char text[CELL_BYTES];
    size_t width = strlen(c->heading);
    for (int r = 0; r < n_rows; r++) {
        c->cell(plan, &rows[r], c->arg, text);
        width = TSR_MAX(width, strlen(text));
    }
    return width;
}

/* The first column is set left, the others right. */
static void put_cell(const tsr_plan_printer *p, int index, size_t width, const char *text)
{
    tsr_plan_put(p, index == 0 ? "%-*s" : "  %*s", (int)width, text);
}

static void put_rows(const tsr_plan_printer *p, const column *columns, int n_columns, const size_t *widths,
                     const tsr_plan_device *rows, int n_rows)
{
    char text[CELL_BYTES];
    for (int r = 0; r < n_rows; r++) {
        for (int c = 0; c < n_columns; c++) {
            columns[c].cell(p->plan, &rows[r], columns[c].arg, text);
            put_cell(p, c, widths[c], text);
        }
        tsr_plan_put(p, "\n");
    }
}

/* One row per device, and one for their sum where `sum` is not NULL. */
static void put_table(const tsr_plan_printer *p, const column *columns, int n_columns,
                      const tsr_plan_device *devices, int n_devices, const tsr_plan_device *sum)
{
    const tsr_plan *plan = p->plan;
    size_t widths[MAX_COLUMNS];
    tsr_plan_put(p, "\n");
    for (int c = 0; c < n_columns; c++) {
        widths[c] = column_width(&columns[c], plan, devices, n_devices);
        if (sum)
            widths[c] = TSR_MAX(widths[c], column_width(&columns[c], plan, sum, 1));
        put_cell(p, c, widths[c], columns[c].heading);
    }
    tsr_plan_put(p, "\n");
    put_rows(p, columns, n_columns, widths, devices, n_devices);
    if (sum)
        put_rows(p, columns, n_columns, widths, sum, 1);
}

static void cell_name(const tsr_plan *plan, const tsr_plan_device *device, int arg, char text[CELL_BYTES])
{
    (void)plan, (void)arg;
    snprintf(text, CELL_BYTES, "%s", device->name);
}

/* -- memory -- */

static void write_bytes(size_t bytes, char text[CELL_BYTES])
{
    if (bytes)
        tsr_bytes_text(bytes, text);
    else
        snprintf(text, CELL_BYTES, "-");
}

static void cell_owner(const tsr_plan *plan, const tsr_plan_device *device, int owner, char text[CELL_BYTES])
{
    (void)plan;
    write_bytes(device->bytes[owner], text);
}

static void cell_total(const tsr_plan *plan, const tsr_plan_device *device, int arg, char text[CELL_BYTES])
{
    (void)plan, (void)arg;
    write_bytes(device->total_bytes, text);
}

static void cell_exact(const tsr_plan *plan, const tsr_plan_device *device, int arg, char text[CELL_BYTES])
{
    (void)plan, (void)arg;
    snprintf(text, CELL_BYTES, "%zu", device->total_bytes);
}

static void cell_cap(const tsr_plan *plan, const tsr_plan_device *device, int arg, char text[CELL_BYTES])
{
    (void)plan, (void)arg;
    write_bytes(device->memory_cap == SIZE_MAX ? 0 : device->memory_cap, text);
}

static void cell_margin(const tsr_plan *plan, const tsr_plan_device *device, int arg, char text[CELL_BYTES])
{
    (void)plan, (void)arg;
    write_bytes(device->memory_cap == SIZE_MAX ? 0 : device->margin_bytes, text);
}

static void cell_missing(const tsr_plan *plan, const tsr_plan_device *device, int arg, char text[CELL_BYTES])
{
    (void)plan, (void)arg;
    write_bytes(tsr_fit_missing(device), text);
}

/* Whether a column has a place in this table. Only GPUs have scratch memory. */
static bool has_column(const column *c, const tsr_plan_device *sum, bool wanted)
{
    if (c->cell == cell_owner && c->arg == TSR_MEMORY_SCRATCH)
        return sum->bytes[TSR_MEMORY_SCRATCH] > 0;
    if (c->cell == cell_margin)
        return wanted || sum->margin_bytes > 0;
    return wanted ? c->cell != cell_exact : c->cell != cell_missing;
}

void tsr_plan_put_memory(const tsr_plan_printer *p, const tsr_plan_device *devices, int n_devices,
                         bool wanted)
{
    static const column all[] = {{"memory", cell_name, 0},
                                 {"weights", cell_owner, TSR_MEMORY_WEIGHTS},
                                 {"KV", cell_owner, TSR_MEMORY_KV},
                                 {"arena", cell_owner, TSR_MEMORY_ARENA},
                                 {"reduce", cell_owner, TSR_MEMORY_COMM},
                                 {"scratch", cell_owner, TSR_MEMORY_SCRATCH},
                                 {"total", cell_total, 0},
                                 {"in bytes", cell_exact, 0},
                                 {"cap", cell_cap, 0},
                                 {"margin", cell_margin, 0},
                                 {"missing", cell_missing, 0}};
    column columns[COUNT(all)];
    int n_columns = 0;
    /* Caps are not summed: devices of one NUMA node may share its memory. */
    tsr_plan_device sum = {.name = "all", .memory_cap = SIZE_MAX};
    for (int d = 0; d < n_devices; d++) {
        for (int o = 0; o < TSR_MEMORY_COUNT; o++)
            sum.bytes[o] += devices[d].bytes[o];
        sum.total_bytes += devices[d].total_bytes;
        sum.margin_bytes += devices[d].margin_bytes;
    }
    for (int c = 0; c < (int)COUNT(all); c++)
        if (has_column(&all[c], &sum, wanted))
            columns[n_columns++] = all[c];
    put_table(p, columns, n_columns, devices, n_devices, n_devices > 1 ? &sum : NULL);
}

/* -- KV by kinds of layers -- */

static void cell_full(const tsr_plan *plan, const tsr_plan_device *device, int arg, char text[CELL_BYTES])
{
    (void)plan, (void)arg;
    write_bytes(device->bytes[TSR_MEMORY_KV] - device->kv_windowed_bytes, text);
}

static void cell_windowed(const tsr_plan *plan, const tsr_plan_device *device, int arg, char text[CELL_BYTES])
{
    (void)plan, (void)arg;
    write_bytes(device->kv_windowed_bytes, text);
}

static void put_kv(const tsr_plan_printer *p)
{
    static const column columns[] = {
        {"KV", cell_name, 0}, {"full layers", cell_full, 0}, {"windowed layers", cell_windowed, 0}};
    const tsr_plan_info *info = &p->plan->info;
    tsr_plan_device sum = {.name = "all"};
    for (int d = 0; d < info->n_devices; d++) {
        sum.bytes[TSR_MEMORY_KV] += p->plan->devices[d].bytes[TSR_MEMORY_KV];
        sum.kv_windowed_bytes += p->plan->devices[d].kv_windowed_bytes;
    }
    put_table(p, columns, COUNT(columns), p->plan->devices, info->n_devices,
              info->n_devices > 1 ? &sum : NULL);
    tsr_plan_put(p, "%lld of %lld layers are windowed: they see the last %lld token%s\n",
                 (long long)info->n_windowed, (long long)info->n_layers, (long long)info->window,
                 tsr_plural(info->window));
}

/* -- shares -- */

static void cell_requested(const tsr_plan *plan, const tsr_plan_device *device, int arg,
                           char text[CELL_BYTES])
{
    (void)plan, (void)arg;
    snprintf(text, CELL_BYTES, "%.1f %%", 100 * device->requested);
}

static void cell_layers(const tsr_plan *plan, const tsr_plan_device *device, int arg, char text[CELL_BYTES])
{
    (void)arg;
    snprintf(text, CELL_BYTES, "%lld of %lld", (long long)device->n_layers, (long long)plan->info.n_layers);
}

static void cell_achieved(const tsr_plan *plan, const tsr_plan_device *device, int class_id,
                          char text[CELL_BYTES])
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
static void cell_granules(const tsr_plan *plan, const tsr_plan_device *device, int class_id,
                          char text[CELL_BYTES])
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
    static const column by_granule[] = {{"share", cell_name, 0},
                                        {"requested", cell_requested, 0},
                                        {"attention", cell_granules, TSR_CLASS_ATTENTION},
                                        {"ffn", cell_granules, TSR_CLASS_FFN},
                                        {"output", cell_granules, TSR_CLASS_OUTPUT}};
    static const column by_layer[] = {{"share", cell_name, 0},
                                      {"requested", cell_requested, 0},
                                      {"layers", cell_layers, 0},
                                      {"attention", cell_achieved, TSR_CLASS_ATTENTION},
                                      {"ffn", cell_achieved, TSR_CLASS_FFN},
                                      {"output", cell_achieved, TSR_CLASS_OUTPUT}};
    if (p->plan->info.mode == TSR_SPLIT_MODE_TENSOR) {
        put_table(p, by_granule, COUNT(by_granule), p->plan->devices, p->plan->info.n_devices, NULL);
        put_granule_sizes(p);
    } else {
        put_table(p, by_layer, COUNT(by_layer), p->plan->devices, p->plan->info.n_devices, NULL);
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
    tsr_plan_put(
        p, "Split mode %s: %lld layer%s over %d of %d device%s, %d reduction%s and %d transfer%s per step\n",
        tsr_split_mode_name(info->mode), (long long)info->n_layers, tsr_plural(info->n_layers), n_used,
        info->n_devices, tsr_plural(info->n_devices), info->n_all_reduces, tsr_plural(info->n_all_reduces),
        info->n_transfers, tsr_plural(info->n_transfers));
    tsr_plan_put(
        p, "%lld token%s of context in %d sequence%s, KV in %s and %s, up to %d token%s computed at once\n",
        (long long)info->n_ctx, tsr_plural(info->n_ctx), info->n_seq_max, tsr_plural(info->n_seq_max),
        tsr_type_name(info->type_k), tsr_type_name(info->type_v), info->n_batch, tsr_plural(info->n_batch));
}

void tsr_plan_print(const tsr_plan *plan, tsr_write_fn write, void *user)
{
    tsr_plan_printer p = {.plan = plan, .write = write, .user = user};
    put_heading(&p);
    tsr_plan_put_memory(&p, plan->devices, plan->info.n_devices, false);
    if (plan->info.n_windowed > 0 && plan->info.n_windowed < plan->info.n_layers)
        put_kv(&p);
    if (plan->info.n_devices > 1)
        put_shares(&p);
    for (int i = 0; i < plan->n_notes; i++)
        tsr_plan_put(&p, "%sNote: %s\n", i ? "" : "\n", plan->notes[i]);
}
