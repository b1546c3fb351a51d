#include "support/weights_case.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include <cmocka.h>

#include "core/mem.h"
#include "support/random.h"
#include "support/weight_types.h"

static const tsr_type types[] = {WEIGHT_TYPES};

void weights_random_map(int64_t extent, int64_t granule, int n_devices, uint64_t *seed, tsr_shard_map *map)
{
    int64_t counts[TSR_MAX_DEVICES], left = (extent + granule - 1) / granule;
    for (int d = 0; d < n_devices; d++) {
        counts[d] = d == n_devices - 1 ? left : (int64_t)random_below(seed, (uint64_t)left + 1);
        left -= counts[d];
    }
    assert_int_equal(tsr_shard_map_init(extent, granule, n_devices, counts, map), TSR_OK);
}

void weights_random(weights *w, tsr_runtime *rt, uint64_t *seed)
{
    memset(w, 0, sizeof *w);
    w->n = 1 + (int)random_below(seed, MAX_WEIGHTS);
    for (int i = 0; i < w->n; i++) {
        tsr_type type = types[random_below(seed, sizeof types / sizeof *types)];
        int64_t block = tsr_type_block_elems(type);
        const int64_t ne[4] = {block * (int64_t)(1 + random_below(seed, 9)),
                               1 + (int64_t)random_below(seed, 30), 1, 1};
        tsr_placement *p = &w->placements[i];
        assert_int_equal(tsr_tensor_init(&w->tensors[i], rt, type, ne, "weight"), TSR_OK);
        w->pointers[i] = &w->tensors[i];
        w->file_bytes += tsr_align_up(tsr_tensor_bytes(&w->tensors[i]), 32);
        p->devices = (UINT64_C(1) << rt->n_devices) - 1;
        p->axis = (int)random_below(seed, 2);
        if (random_below(seed, 4) == 0) {
            p->sharding = TSR_SHARDING_REPLICATED;
            p->devices = 1 + random_below(seed, p->devices); /* any mask but none */
            continue;
        }
        p->sharding = TSR_SHARDING_SPLIT;
        p->map = &w->maps[i];
        weights_random_map(ne[p->axis], p->axis == 0 ? block * (int64_t)(1 + random_below(seed, 2)) : 1,
                           rt->n_devices, seed, &w->maps[i]);
    }
}

void weights_map_file(weights *w, int protection, uint64_t *seed)
{
    w->file = mmap(NULL, w->file_bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    assert_true(w->file != MAP_FAILED);
    for (size_t i = 0; protection != PROT_NONE && i < w->file_bytes; i++)
        w->file[i] = (unsigned char)random_u64(seed);
    assert_int_equal(mprotect(w->file, w->file_bytes, protection), 0);
    size_t at = 0;
    for (int i = 0; i < w->n; i++) {
        w->sources[i] = w->file + at;
        at += tsr_align_up(tsr_tensor_bytes(&w->tensors[i]), 32);
    }
}

tsr_status weights_load(tsr_runtime *rt, weights *w, bool copy, tsr_buffer **buffer_out)
{
    const tsr_buffer_load_config config = {.flags = copy, .owner = TSR_MEMORY_WEIGHTS};
    return tsr_buffer_load(rt, w->pointers, w->placements, w->sources, w->n, &config, buffer_out);
}

void weights_check_contents(const weights *w)
{
    for (int i = 0; i < w->n; i++) {
        size_t bytes = tsr_tensor_bytes(&w->tensors[i]);
        unsigned char *got = malloc(bytes);
        assert_int_equal(tsr_tensor_get(&w->tensors[i], got, 0, bytes), TSR_OK);
        assert_memory_equal(got, w->sources[i], bytes);
        free(got);
    }
}
