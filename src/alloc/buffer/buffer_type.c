/* Buffer types: rules for spreading tensors, made once per runtime and compared by pointer.
 *
 * A type is normalised when it is made (shares that sum to 1, the main device among those with a share), so
 * 3,1 and 6,2 are one type. The cache is a list: a runtime has a handful. */
#include "alloc/buffer/buffer.h"

#include <string.h>

#include "core/config.h"
#include "core/mem.h"
#include "core/status.h"
#include "split/request.h"

static void buffer_types_destroy(void *types)
{
    tsr_buffer_type *type = types;
    while (type) {
        tsr_buffer_type *next = type->next;
        tsr_mem_free(type);
        type = next;
    }
}

static bool same_rule(const tsr_buffer_type *a, const tsr_buffer_type *b)
{
    if (a->sharding != b->sharding || a->axis != b->axis || a->granule != b->granule ||
        a->main_device != b->main_device || a->devices != b->devices)
        return false;
    for (int d = 0; d < a->rt->n_devices; d++)
        if (a->shares[d] != b->shares[d])
            return false;
    return true;
}

/* The cached type that equals *wanted, added if missing; NULL: out of memory. */
static const tsr_buffer_type *intern(const tsr_buffer_type *wanted)
{
    tsr_runtime *rt = wanted->rt;
    tsr_buffer_type *type = NULL;

    for (type = rt->buffer_types; type; type = type->next)
        if (same_rule(type, wanted))
            return type;
    if (TSR_NEW(&type, "a buffer type") != TSR_OK)
        return NULL;
    *type = *wanted;
    type->next = rt->buffer_types;
    rt->buffer_types = type;
    rt->buffer_types_destroy = buffer_types_destroy;
    return type;
}

static bool has_runtime(const tsr_runtime *rt)
{
    if (!rt)
        tsr_fail(TSR_ERR_INVALID, "a buffer type needs a runtime; was its creation checked?");
    return rt != NULL;
}

static bool has_device(const tsr_runtime *rt, int device)
{
    if (device >= 0 && device < rt->n_devices)
        return true;
    tsr_fail(TSR_ERR_INVALID, "a buffer type on device %d: the runtime's devices are 0 to %d", device,
             rt->n_devices - 1);
    return false;
}

const tsr_buffer_type *tsr_device_buffer_type(tsr_runtime *rt, int device)
{
    if (!has_runtime(rt) || !has_device(rt, device))
        return NULL;
    tsr_buffer_type type = {.rt = rt,
                            .sharding = TSR_SHARDING_REPLICATED,
                            .main_device = device,
                            .devices = tsr_device_set_one(device)};
    type.shares[device] = 1;
    return intern(&type);
}

const tsr_buffer_type *tsr_replicated_buffer_type(tsr_runtime *rt)
{
    if (!has_runtime(rt))
        return NULL;
    tsr_buffer_type type = {.rt = rt, .sharding = TSR_SHARDING_REPLICATED};
    for (int d = 0; d < rt->n_devices; d++) {
        type.devices |= tsr_device_set_one(d);
        type.shares[d] = 1;
    }
    return intern(&type);
}

size_t tsr_split_buffer_config_init(tsr_split_buffer_config *config_out, size_t size)
{
    const tsr_split_buffer_config defaults = {.axis = 1};
    return tsr_config_write(&defaults, sizeof defaults, config_out, size);
}

const tsr_buffer_type *tsr_split_buffer_type(tsr_runtime *rt, int main_device, const float *tensor_split,
                                             int n)
{
    tsr_split_buffer_config config = tsr_split_buffer_config_default();
    config.main_device = main_device;
    config.tensor_split = tensor_split;
    config.n_tensor_split = n;
    return tsr_split_buffer_type_ex(rt, &config);
}

const tsr_buffer_type *tsr_split_buffer_type_ex(tsr_runtime *rt, const tsr_split_buffer_config *config)
{
    tsr_split_buffer_config c = tsr_split_buffer_config_default();

    if (!has_runtime(rt))
        return NULL;
    if (tsr_config_read("tsr_split_buffer_config", config, offsetof(tsr_split_buffer_config, main_device), &c,
                        sizeof c) != TSR_OK)
        return NULL;
    if (!has_device(rt, c.main_device))
        return NULL;
    if ((c.axis != 0 && c.axis != 1) || c.granule < 0) {
        tsr_fail(
            TSR_ERR_INVALID,
            "split buffer type: axis %d and granule %lld; the axis is 1 (rows) or 0 (columns), the granule "
            "0 or more of them",
            c.axis, (long long)c.granule);
        return NULL;
    }
    tsr_buffer_type type = {.rt = rt, .sharding = TSR_SHARDING_SPLIT, .axis = c.axis, .granule = c.granule};
    tsr_split_request request;
    if (tsr_split_request_read(c.tensor_split, c.n_tensor_split, rt->n_devices, &request) != TSR_OK)
        return NULL;
    memcpy(type.shares, request.share, (size_t)rt->n_devices * sizeof *type.shares);
    for (int d = 0; d < rt->n_devices; d++)
        if (type.shares[d] > 0)
            type.devices |= tsr_device_set_one(d);
    bool has_share = tsr_device_set_has(type.devices, c.main_device);
    type.main_device = has_share ? c.main_device : tsr_device_set_first(type.devices);
    return intern(&type);
}
