/* Shard maps: counts laid out in device order. */
#include <tsr/split.h>

#include <string.h>

#include "core/status.h"
#include "split/round.h"

tsr_status tsr_shard_map_init(int64_t extent, int64_t granule, int n_devices, const int64_t *counts,
                              tsr_shard_map *map_out)
{
    tsr_shard_map map = {.extent = extent, .granule = granule, .n_devices = n_devices};

    if (extent < 0 || granule < 1 || n_devices < 1 || n_devices > TSR_MAX_DEVICES || !counts || !map_out)
        return tsr_fail(
            TSR_ERR_INVALID,
            "shard map of %lld elements in granules of %lld over %d devices: extent must be >= 0, "
            "the granule positive, and the devices 1 to %d",
            (long long)extent, (long long)granule, n_devices, TSR_MAX_DEVICES);
    int64_t n_granules = extent / granule + (extent % granule != 0);
    for (int d = 0; d < n_devices; d++) {
        if (counts[d] < 0 || counts[d] > n_granules - map.begin[d])
            return tsr_fail(
                TSR_ERR_INVALID, "shard map: %lld granules for device %d, but %lld of %lld are left for it",
                (long long)counts[d], d, (long long)(n_granules - map.begin[d]), (long long)n_granules);
        map.begin[d + 1] = map.begin[d] + counts[d];
    }
    if (map.begin[n_devices] != n_granules)
        return tsr_fail(TSR_ERR_INVALID, "shard map: the counts hand out %lld of %lld granules",
                        (long long)map.begin[n_devices], (long long)n_granules);
    *map_out = map;
    return TSR_OK;
}

void tsr_shard_map_scale(const tsr_shard_map *like, int64_t extent, int64_t granule, tsr_shard_map *map_out)
{
    tsr_split_wide n = (tsr_split_wide)(extent / granule + (extent % granule > 0));
    tsr_split_wide all = (tsr_split_wide)tsr_shard_map_n_granules(like);
    *map_out = (tsr_shard_map){.extent = extent, .granule = granule, .n_devices = like->n_devices};
    for (int d = 0; all > 0 && d <= like->n_devices; d++) /* to the nearest */
        map_out->begin[d] = (int64_t)((2 * n * (tsr_split_wide)like->begin[d] + all) / (2 * all));
}

tsr_status tsr_split_layers(const double *shares, int n_devices, int64_t n_items, const int64_t *max_items,
                            tsr_shard_map *map_out)
{
    tsr_status status = TSR_OK;
    int64_t counts[TSR_MAX_DEVICES];

    TSR_TRY(tsr_split_round(shares, n_devices, n_items, max_items, counts));
    TSR_TRY(tsr_shard_map_init(n_items, 1, n_devices, counts, map_out));
out:
    return status;
}

bool tsr_shard_map_equal(const tsr_shard_map *a, const tsr_shard_map *b)
{
    return a->extent == b->extent && a->granule == b->granule && a->n_devices == b->n_devices &&
           !memcmp(a->begin, b->begin, (size_t)(a->n_devices + 1) * sizeof *a->begin);
}

int tsr_shard_map_device(const tsr_shard_map *map, int64_t index)
{
    if (index < 0 || index >= map->extent)
        return -1;
    int d = 0;
    while (map->begin[d + 1] <= index / map->granule)
        d++;
    return d;
}
