/* Memory of a runtime's devices; see memory.h.
 *
 * src/core/device.c keeps the accounting. This file reads the device's free memory; the difference between
 * the two is used by other programs. Several devices may share one memory (parts of a GPU, host devices of
 * one NUMA node), so their use is summed. */
#include "runtime/memory.h"

#include <stdio.h>
#include <string.h>

#include <tsr/bytes.h>
#include <tsr/runtime.h>

#include "core/mem.h"

/* -- reports -- */

static bool share_memory(const tsr_device *a, const tsr_device *b)
{
    if (a->process != b->process)
        return false;
    if (a->is_gpu == b->is_gpu)
        return a->place == b->place;
    const tsr_device *gpu = a->is_gpu ? a : b;
    return gpu->place == TSR_PLACE_HOST;
}

/* Bytes that this runtime uses of the memory that a device is in. */
static size_t taken_there(const tsr_runtime *rt, const tsr_device *device)
{
    size_t bytes = 0;
    for (int d = 0; d < rt->n_devices; d++)
        if (share_memory(rt->devices[d], device))
            bytes += rt->devices[d]->accounting.taken;
    return bytes;
}

tsr_status tsr_runtime_memory(const tsr_runtime *rt, int index, tsr_device_memory *memory_out)
{
    if (!rt || !memory_out || index < 0 || index >= rt->n_devices) {
        const tsr_status invalid = tsr_fail(TSR_ERR_INVALID, "device %d does not exist; the runtime has %d",
                                            index, rt ? rt->n_devices : 0);
        return rt ? tsr_processes_agree(rt->processes, invalid, "tsr_runtime_memory") : invalid;
    }
    tsr_device *device = rt->devices[index];
    const tsr_accounting *accounting = &device->accounting;
    tsr_device_memory m = {.cap = device->memory_cap,
                           .used_total = tsr_device_used(device),
                           .peak_total = accounting->peak_total,
                           .viewed = accounting->viewed,
                           .kv_committed = device->used[TSR_MEMORY_KV] - accounting->uncommitted,
                           .runtime = accounting->runtime,
                           .library = accounting->library,
                           .taken = accounting->taken,
                           .pinned = accounting->pinned,
                           .pinned_peak = accounting->pinned_peak,
                           .free_at_open = accounting->free_before};
    memcpy(m.name, device->name, sizeof m.name);
    memcpy(m.used, device->used, sizeof m.used);
    memcpy(m.peak, accounting->peak, sizeof m.peak);
    tsr_status status =
        tsr_processes_end(rt->processes, tsr_device_ask_memory(device, &m.device_free, &m.device_total));
    if (status != TSR_OK && status != TSR_ERR_UNSUPPORTED)
        return status;
    if (status == TSR_ERR_UNSUPPORTED) {
        tsr_fail_clear();
        m.device_free = m.device_total = 0;
    }
    size_t busy = m.device_total > m.device_free ? m.device_total - m.device_free : 0;
    size_t ours = taken_there(rt, device);
    m.elsewhere = busy > ours ? busy - ours : 0;
    *memory_out = m;
    return TSR_OK;
}

void tsr_runtime_reset_peaks(tsr_runtime *rt)
{
    for (int d = 0; d < rt->n_devices; d++) {
        tsr_device *device = rt->devices[d];
        memcpy(device->accounting.peak, device->used, sizeof device->used);
        device->accounting.peak_total = tsr_device_used(device);
        device->accounting.pinned_peak = device->accounting.pinned;
    }
}

static size_t name_object(const tsr_runtime *rt, const tsr_tracked *tracked, char *text, size_t size)
{
    size_t bytes = 0;
    int n = snprintf(text, size, "%s", tracked->kind->name);
    if (tracked->kind->describe && n > 0 && (size_t)n + 1 < size) {
        text[n] = ' ';
        tracked->kind->describe(tracked, text + n + 1, size - (size_t)n - 1);
    }
    for (int d = 0; tracked->kind->bytes && d < rt->n_devices; d++)
        bytes += tracked->kind->bytes(tracked, d);
    return bytes;
}

int tsr_runtime_objects(const tsr_runtime *rt, tsr_object_info *objects, int capacity)
{
    int n = 0;
    for (const tsr_tracked *tracked = rt->tracked; tracked; tracked = tracked->next, n++)
        if (n < capacity)
            objects[n].bytes = name_object(rt, tracked, objects[n].name, sizeof objects[n].name);
    return n;
}

/* -- leaks -- */

/* Objects that were not destroyed are caller bugs that would otherwise show much later, or never. */
static void tell_bytes(const tsr_runtime *rt)
{
    for (int d = 0; rt->devices && d < rt->n_devices; d++)
        for (tsr_memory_owner o = 0; o < TSR_MEMORY_COUNT && rt->devices[d]; o++) {
            char text[TSR_BYTES_TEXT];
            if (rt->devices[d]->used[o] > 0)
                tsr_log(&rt->logger, TSR_LOG_WARN,
                        "device %s: %s of %s are still in use when the runtime closes; destroy its sessions, "
                        "models and buffers first",
                        rt->devices[d]->name, tsr_bytes_text(rt->devices[d]->used[o], text),
                        tsr_memory_owner_name(o));
        }
}

void tsr_runtime_report_leaks(tsr_runtime *rt)
{
    while (rt->tracked) {
        char name[128], text[TSR_BYTES_TEXT];
        size_t bytes = name_object(rt, rt->tracked, name, sizeof name);
        tsr_log(&rt->logger, TSR_LOG_WARN, "not destroyed before the runtime closes: %s%s%s", name,
                bytes ? ", " : "", bytes ? tsr_bytes_text(bytes, text) : "");
        tsr_untrack(rt->tracked);
    }
    for (int d = 0; rt->devices && d < rt->n_devices; d++) {
        const tsr_device *device = rt->devices[d];
        const char *what = device && device->scratch_pool ? tsr_pool_in_use(device->scratch_pool) : NULL;
        if (what)
            tsr_log(&rt->logger, TSR_LOG_WARN,
                    "not destroyed before the runtime closes: scratch of device %s for %s", device->name,
                    what);
    }
    tell_bytes(rt);
}

/* -- use by other programs -- */

/* Smallest change that is reported: a 64th of the memory, which caps leave to the driver. Smaller changes
 * are noise. */
enum { NOISE_FRACTION = 64 };

void tsr_runtime_note_free(tsr_runtime *rt)
{
    for (int d = 0; d < rt->n_devices; d++) {
        tsr_device *device = rt->devices[d];
        size_t total;
        device->accounting.taken_before = taken_there(rt, device);
        if (tsr_device_ask_memory(device, &device->accounting.free_before, &total) != TSR_OK) {
            device->accounting.free_before = 0;
            tsr_fail_clear();
        }
    }
}

/* Of one memory: free bytes, bytes that would be free without other programs, and bytes wanted by all its
 * devices. */
typedef struct room {
    size_t now, expected, total, wanted;
} room;

static tsr_status measure_room(const tsr_runtime *rt, tsr_device *device, const size_t *wanted,
                               room *room_out)
{
    room r = {0};
    size_t taken = taken_there(rt, device), before = device->accounting.taken_before;
    tsr_status status = tsr_device_ask_memory(device, &r.now, &r.total);
    if (status != TSR_OK)
        return status;
    r.expected = device->accounting.free_before;
    if (taken > before)
        r.expected -= TSR_MIN(taken - before, r.expected);
    else
        r.expected += before - taken;
    for (int d = 0; d < rt->n_devices; d++)
        if (share_memory(rt->devices[d], device) && !tsr_add_size(r.wanted, wanted[d], &r.wanted))
            r.wanted = SIZE_MAX;
    *room_out = r;
    return TSR_OK;
}

static tsr_status judge(const tsr_runtime *rt, const tsr_device *device, const room *r)
{
    char wanted[TSR_BYTES_TEXT], then[TSR_BYTES_TEXT], now[TSR_BYTES_TEXT];
    bool dropped = r->now < r->expected && r->expected - r->now > r->total / NOISE_FRACTION;
    tsr_bytes_text(r->wanted, wanted);
    tsr_bytes_text(r->expected, then);
    tsr_bytes_text(r->now, now);
    if (r->wanted > r->now && r->wanted <= r->expected)
        return tsr_fail(TSR_ERR_MEMORY,
                        "device %s: the plan needs %s (%zu bytes) where %s were free when it was opened; %s "
                        "are free now, as other programs use the rest; end them, give the device a smaller "
                        "share, or fit the model to what is left",
                        device->name, wanted, r->wanted, then, now);
    if (r->wanted > r->now)
        tsr_log(&rt->logger, TSR_LOG_WARN,
                "device %s: the plan needs %s and %s are free; the system will swap or allocations will fail",
                device->name, wanted, now);
    else if (dropped)
        tsr_log(&rt->logger, TSR_LOG_WARN,
                "device %s: %s are free, not %s as when it was opened: another program uses its memory; the "
                "plan needs %s and still fits",
                device->name, now, then, wanted);
    return TSR_OK;
}

tsr_status tsr_runtime_check_free(tsr_runtime *rt, const size_t *wanted)
{
    for (int d = 0; d < rt->n_devices; d++) {
        tsr_device *device = rt->devices[d];
        room r;
        if (wanted[d] == 0 || device->may_exceed || device->accounting.free_before == 0)
            continue;
        tsr_status status = measure_room(rt, device, wanted, &r);
        if (status == TSR_ERR_UNSUPPORTED) {
            tsr_fail_clear();
            continue;
        }
        if (status == TSR_OK)
            status = judge(rt, device, &r);
        if (status != TSR_OK)
            return status;
    }
    return TSR_OK;
}
