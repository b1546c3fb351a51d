/* Moving KV pages from regions that divide heads one way to regions that divide them another way.
 *
 * A whole page (tsr_kv_page_get()) has the same order of heads under every split, and every part of a
 * device's page has an offset in the whole page. So each copy is an intersection of intervals: the bytes of a
 * layer's keys or values that both a new and an old device hold. In consecutive pages these bytes are one
 * page apart on both sides, so one 2-D copy moves them. Bytes that stay on a device are copied there. Bytes
 * that change devices pass through a buffer in host memory that is small enough for a processor's cache. */
#include "alloc/kv/region.h"

#include "core/mem.h"
#include "core/status.h"

enum { BOUNCE_BYTES = 1 << 20 };

typedef struct move {
    const tsr_kv_region *from, *to; /* [n_devices] */
    int n_devices;
    int first, n_pages; /* pages to move now */
    unsigned char *bounce;
    size_t bounce_bytes;
} move;

/* Keys or values of a layer: offset in the device's page, bytes, offset in a whole page. */
typedef struct stretch {
    size_t offset, bytes, whole;
} stretch;

static stretch stretch_of(const tsr_kv_region *region, int layer, bool values)
{
    const tsr_kv_part *part = &region->parts[layer];
    if (part->n_heads == 0)
        return (stretch){0};
    return values ? (stretch){part->v_offset, part->v_bytes, part->v_whole}
                  : (stretch){part->k_offset, part->k_bytes, part->k_whole};
}

static unsigned char *page_at(const tsr_kv_region *region, int page, size_t offset)
{
    return region->base + (size_t)page * region->page_bytes + offset;
}

/* Copy `width` bytes of every page from one device to another. */
static tsr_status carry(const move *m, const tsr_kv_region *to, size_t to_offset, const tsr_kv_region *from,
                        size_t from_offset, size_t width)
{
    tsr_status status = TSR_OK;
    int rows = (int)TSR_MAX(m->bounce_bytes / width, (size_t)1);
    if (to->device == from->device)
        return to->device->ops->copy(to->device, page_at(to, m->first, to_offset), to->page_bytes,
                                     page_at(from, m->first, from_offset), from->page_bytes, width,
                                     (size_t)m->n_pages);
    for (int page = m->first; page < m->first + m->n_pages; page += rows) {
        size_t n = (size_t)TSR_MIN(rows, m->first + m->n_pages - page);
        TSR_TRY(tsr_device_fetch(from->device, m->bounce, width, page_at(from, page, from_offset),
                                 from->page_bytes, width, n));
        TSR_TRY(to->device->ops->upload(to->device, page_at(to, page, to_offset), to->page_bytes, m->bounce,
                                        width, width, n));
    }
out:
    return status;
}

/* A region that holds byte `at` of a whole page: preferably on device `wanting`. */
static const tsr_kv_region *holder_of(const move *m, int wanting, int layer, bool values, size_t at,
                                      stretch *held_out)
{
    for (int i = 0; i < m->n_devices; i++) {
        const tsr_kv_region *region = &m->from[(wanting + i) % m->n_devices];
        stretch s = stretch_of(region, layer, values);
        if (at >= s.whole && at - s.whole < s.bytes) {
            *held_out = s;
            return region;
        }
    }
    return NULL;
}

static tsr_status fill(const move *m, int device, int layer, bool values)
{
    tsr_status status = TSR_OK;
    stretch want = stretch_of(&m->to[device], layer, values), held;
    for (size_t done = 0, width; done < want.bytes; done += width) {
        size_t at = want.whole + done;
        const tsr_kv_region *from = holder_of(m, device, layer, values, at, &held);
        if (!from)
            return tsr_fail(
                TSR_ERR_INVALID,
                "KV layer %d: the old split has no heads for device %s; both splits must have the same "
                "layers and heads",
                layer, m->to[device].device->name);
        width = TSR_MIN(want.bytes - done, held.whole + held.bytes - at);
        TSR_TRY(carry(m, &m->to[device], want.offset + done, from, held.offset + (at - held.whole), width));
    }
out:
    return status;
}

static tsr_status move_pages(const move *m)
{
    tsr_status status = TSR_OK;
    for (int d = 0; d < m->n_devices; d++)
        for (int l = 0; l < m->to[d].n_layers; l++) {
            TSR_TRY(fill(m, d, l, false));
            TSR_TRY(fill(m, d, l, true));
        }
out:
    return status;
}

static size_t largest_part(const move *m)
{
    size_t bytes = 1;
    for (int d = 0; d < m->n_devices; d++)
        for (int l = 0; l < m->to[d].n_layers; l++)
            bytes = TSR_MAX(bytes, TSR_MAX(m->to[d].parts[l].k_bytes, m->to[d].parts[l].v_bytes));
    return bytes;
}

tsr_status tsr_kv_regions_move(const tsr_kv_region *to, const tsr_kv_region *from, int n_devices,
                               const int32_t *references, int n_pages)
{
    tsr_status status = TSR_OK;
    move m = {.from = from, .to = to, .n_devices = n_devices};
    m.bounce_bytes = TSR_MAX((size_t)BOUNCE_BYTES, largest_part(&m));
    if (n_pages == 0)
        return TSR_OK;
    TSR_TRY(tsr_mem_array(m.bounce_bytes, 1, "moving KV pages", &m.bounce));
    for (int end; m.first < n_pages; m.first = end) {
        for (end = m.first; end < n_pages && references[end] > 0; end++)
            ;
        m.n_pages = end - m.first;
        if (m.n_pages > 0)
            TSR_TRY(move_pages(&m));
        else
            end++; /* a page that no sequence uses */
    }
out:
    tsr_mem_free(m.bounce);
    return status;
}
