/* Random buffer types; random_buffer_type.h says what for. */
#include "support/random_buffer_type.h"

#include <tsr/split.h>

#include "core/runtime.h"
#include "support/random.h"

static void random_split(float *split, int n, uint64_t *seed)
{
    int n_zero = 0;
    for (int d = 0; d < n; d++) {
        uint64_t kind = random_below(seed, 4);
        split[d] = kind == 0 ? 0.0f : kind == 1 ? 1000.0f : (float)(1 + random_below(seed, 9)) / 3;
        n_zero += split[d] == 0;
    }
    if (n_zero == n)
        split[random_below(seed, (uint64_t)n)] = 1;
}

const tsr_buffer_type *random_buffer_type(tsr_runtime *rt, int64_t block_elems, uint64_t *seed)
{
    float split[TSR_MAX_DEVICES];
    tsr_split_buffer_config config = tsr_split_buffer_config_default();
    random_split(split, rt->n_devices, seed);
    config.tensor_split = split;
    config.n_tensor_split = rt->n_devices;
    config.main_device = (int)random_below(seed, (uint64_t)rt->n_devices);
    switch (random_below(seed, 5)) {
    case 0:
        return tsr_device_buffer_type(rt, config.main_device);
    case 1:
        return tsr_replicated_buffer_type(rt);
    case 2:
        return tsr_split_buffer_type(rt, config.main_device, split, rt->n_devices);
    case 3:
        config.axis = 1;
        config.granule = (int64_t)random_below(seed, 5);
        return tsr_split_buffer_type_ex(rt, &config);
    default:
        config.axis = 0;
        config.granule = block_elems * (int64_t)random_below(seed, 4);
        return tsr_split_buffer_type_ex(rt, &config);
    }
}
