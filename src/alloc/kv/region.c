/* One device's part of the KV region (alloc/kv/region.h).
 *
 * A page contains, for each layer of the device in order, K as [heads][page_tokens][k_dim], then V as
 * [heads][page_tokens][v_dim], unless V is in K. Each part starts at a multiple of 64 bytes (a cache line,
 * and the widest vector load). All layers of a group are in one page, so one commit or one copy handles a
 * whole page. */
#include "alloc/kv/region.h"

#include "core/mem.h"
#include "core/status.h"

/* Append one part of n_heads x page_tokens rows to the page; false on overflow. */
static bool add_part(size_t *page_bytes, int64_t n_heads, int64_t page_tokens, size_t row_bytes,
                     size_t *offset_out, size_t *bytes_out)
{
    size_t bytes, end;
    if (!tsr_mul_size((size_t)n_heads, (size_t)page_tokens, &bytes) ||
        !tsr_mul_size(bytes, row_bytes, &bytes) || !tsr_add_size(*page_bytes, bytes, &end) ||
        end > PTRDIFF_MAX - TSR_KV_PART_ALIGNMENT)
        return false;
    *offset_out = *page_bytes;
    *bytes_out = bytes;
    *page_bytes = tsr_align_up(end, TSR_KV_PART_ALIGNMENT);
    return true;
}

/* Append one part of all n_heads to the whole page, and find the offset of this device's heads, from `first`
 * on; false on overflow. */
static bool add_whole(size_t *whole_bytes, int64_t n_heads, int64_t first, int64_t page_tokens,
                      size_t row_bytes, size_t *offset_out)
{
    size_t head, bytes, end;
    if (!tsr_mul_size((size_t)page_tokens, row_bytes, &head) ||
        !tsr_mul_size((size_t)n_heads, head, &bytes) || !tsr_add_size(*whole_bytes, bytes, &end) ||
        end > PTRDIFF_MAX)
        return false;
    *offset_out = *whole_bytes + (size_t)first * head;
    *whole_bytes = end;
    return true;
}

static bool lay_out_layer(tsr_kv_region *region, const tsr_kv_spec *spec, const tsr_kv_layer *layer,
                          tsr_kv_part *part)
{
    int device = region->device->index;
    const tsr_kv_rows rows = tsr_kv_rows_of(layer, spec->type_k, spec->type_v);
    const int64_t first = layer->whole ? 0 : tsr_shard_map_first(layer->kv_heads, device);
    if (!add_whole(&region->whole_bytes, rows.n_heads, first, spec->page_tokens, rows.k_bytes,
                   &part->k_whole) ||
        !add_whole(&region->whole_bytes, rows.n_heads, first, spec->page_tokens, rows.v_bytes,
                   &part->v_whole))
        return false;
    part->n_heads = tsr_kv_heads_on(layer, device);
    if (part->n_heads == 0)
        return true;
    for (int d = 0; d < device && layer->whole; d++)
        part->repeated |= tsr_kv_heads_on(layer, d) > 0;
    return add_part(&region->page_bytes, part->n_heads, spec->page_tokens, rows.k_bytes, &part->k_offset,
                    &part->k_bytes) &&
           add_part(&region->page_bytes, part->n_heads, spec->page_tokens, rows.v_bytes, &part->v_offset,
                    &part->v_bytes);
}

static tsr_status lay_out_page(tsr_kv_region *region, const tsr_kv_spec *spec, const tsr_kv_layer *like)
{
    region->n_layers = spec->n_layers;
    for (int i = 0; i < spec->n_layers; i++)
        if (spec->layers[i].kv_heads && tsr_kv_alike(&spec->layers[i], like) &&
            !lay_out_layer(region, spec, &spec->layers[i], &region->parts[i]))
            return tsr_fail(TSR_ERR_INVALID,
                            "device %s: a KV page of %d tokens exceeds the address space; lower page_tokens",
                            region->device->name, spec->page_tokens);
    return TSR_OK;
}

tsr_status tsr_kv_region_open(tsr_kv_region *region, tsr_device *device, const tsr_kv_spec *spec,
                              const tsr_kv_layer *like, int n_pages)
{
    tsr_status status = TSR_OK;
    *region = (tsr_kv_region){.device = device};
    TSR_TRY(tsr_mem_array((size_t)spec->n_layers, sizeof *region->parts, "the layout of a KV page",
                          &region->parts));
    TSR_TRY(lay_out_page(region, spec, like));
    TSR_TRY(tsr_kv_region_reserve(region, n_pages, spec->no_alloc));
out:
    return status;
}

tsr_status tsr_kv_region_reserve(tsr_kv_region *region, int n_pages, bool no_alloc)
{
    tsr_status status = TSR_OK;
    tsr_device *device = region->device;
    size_t bytes;
    void *base = NULL;
    if (region->page_bytes == 0)
        goto out;
    if (!tsr_mul_size(region->page_bytes, (size_t)n_pages, &bytes) ||
        bytes > PTRDIFF_MAX - device->granularity) {
        status =
            tsr_fail(TSR_ERR_MEMORY,
                     "device %s: %d KV pages of %zu bytes exceed the address space; lower n_ctx or n_seq_max",
                     device->name, n_pages, region->page_bytes);
        goto out;
    }
    bytes = tsr_align_up(bytes, device->granularity);
    if (!no_alloc)
        TSR_TRY(tsr_device_reserve(device, TSR_MEMORY_KV, bytes, "the KV region", &base));
    region->base = base;
    region->reserved = bytes;
out:
    return status;
}

void tsr_kv_region_close(tsr_kv_region *region)
{
    if (region->base)
        tsr_device_release(region->device, TSR_MEMORY_KV, region->base, region->reserved, region->committed);
    tsr_mem_free(region->parts);
    *region = (tsr_kv_region){0};
}

tsr_status tsr_kv_region_commit(tsr_kv_region *region, int n_pages)
{
    tsr_status status = TSR_OK;
    tsr_device *device = region->device;
    if (!region->base)
        return TSR_OK;
    size_t wanted = tsr_align_up(region->page_bytes * (size_t)n_pages, device->granularity);
    if (wanted <= region->committed)
        return TSR_OK;
    TSR_TRY(tsr_device_commit(device, region->base, region->committed, wanted - region->committed));
    region->committed = wanted;
out:
    return status;
}

static tsr_status decommit_behind(tsr_kv_region *region, size_t kept)
{
    tsr_status status = TSR_OK;
    if (region->committed <= kept)
        return TSR_OK;
    TSR_TRY(tsr_device_decommit(region->device, region->base, kept, region->committed - kept));
    region->committed = kept;
out:
    return status;
}

void tsr_kv_region_shrink(tsr_kv_region *region, size_t committed)
{
    (void)!decommit_behind(region, committed);
}

tsr_status tsr_kv_region_trim(tsr_kv_region *region, int n_pages)
{
    if (!region->base)
        return TSR_OK;
    return decommit_behind(region,
                           tsr_align_up(region->page_bytes * (size_t)n_pages, region->device->granularity));
}

tsr_status tsr_kv_region_copy_page(tsr_kv_region *region, int dst, int src)
{
    if (!region->base)
        return TSR_OK;
    return tsr_device_copy(region->device, region->base + (size_t)dst * region->page_bytes,
                           region->base + (size_t)src * region->page_bytes, region->page_bytes);
}

tsr_status tsr_kv_region_get_page(const tsr_kv_region *region, int page, unsigned char *whole)
{
    tsr_status status = TSR_OK;
    tsr_device *device = region->device;
    if (!region->base) /* no head is on this device */
        return TSR_OK;
    const unsigned char *base = region->base + (size_t)page * region->page_bytes;
    for (int i = 0; i < region->n_layers; i++) {
        const tsr_kv_part *part = &region->parts[i];
        if (part->n_heads == 0 || part->repeated)
            continue;
        TSR_TRY(tsr_device_fetch(device, whole + part->k_whole, part->k_bytes, base + part->k_offset,
                                 part->k_bytes, part->k_bytes, 1));
        if (part->v_bytes > 0)
            TSR_TRY(tsr_device_fetch(device, whole + part->v_whole, part->v_bytes, base + part->v_offset,
                                     part->v_bytes, part->v_bytes, 1));
    }
out:
    return status;
}

tsr_status tsr_kv_region_put_page(tsr_kv_region *region, int page, const unsigned char *whole)
{
    tsr_status status = TSR_OK;
    tsr_device *device = region->device;
    if (!region->base) /* no head is on this device */
        return TSR_OK;
    unsigned char *base = region->base + (size_t)page * region->page_bytes;
    for (int i = 0; i < region->n_layers; i++) {
        const tsr_kv_part *part = &region->parts[i];
        if (part->n_heads == 0)
            continue;
        TSR_TRY(device->ops->upload(device, base + part->k_offset, part->k_bytes, whole + part->k_whole,
                                    part->k_bytes, part->k_bytes, 1));
        if (part->v_bytes > 0)
            TSR_TRY(device->ops->upload(device, base + part->v_offset, part->v_bytes, whole + part->v_whole,
                                        part->v_bytes, part->v_bytes, 1));
    }
out:
    return status;
}
