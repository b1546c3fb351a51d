/* The small languages of options: device lists, splits, sizes, types, patterns of an offload. The first
 * byte chooses. */
#include "fuzz.h"

#include <tsr/tsr.h>

/* A machine with everything that a device text can name. */
static const tsr_topology *machine(void)
{
    static tsr_topology *topo;
    if (!topo && tsr_topology_parse("2x host 8 cores 64GiB, 2x rtx3090 nvlink, 1x rtx4060ti pcie4x8", NULL,
                                    &topo) != TSR_OK)
        abort();
    return topo;
}

static void device_list(const char *text)
{
    tsr_device_list *list = NULL;
    (void)fuzz_ok(tsr_device_list_create(machine(), text, NULL, &list));
    tsr_device_list_destroy(list);
}

static void split(const char *text)
{
    float shares[TSR_MAX_DEVICES];
    double sums[TSR_MAX_DEVICES], sum = 0;
    int n;
    if (!fuzz_ok(tsr_split_parse(text, shares, TSR_MAX_DEVICES, &n)) ||
        !fuzz_ok(tsr_split_check(shares, n, TSR_MAX_DEVICES, sums)))
        return;
    for (int i = 0; i < TSR_MAX_DEVICES; i++)
        sum += sums[i];
    if (!(sum > 0.999 && sum < 1.001))
        abort();
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes)
{
    uint64_t n_bytes;
    tsr_type type;
    tsr_split_mode mode;
    tsr_expert_split experts;
    if (bytes < 1)
        return 0;
    char *text = fuzz_string(data + 1, bytes - 1);
    switch (data[0] % 4) {
    case 0:
        device_list(text);
        break;
    case 1:
        split(text);
        break;
    case 2:
        (void)fuzz_ok(tsr_bytes_parse(text, &n_bytes));
        break;
    default:
        (void)fuzz_ok(tsr_type_parse(text, &type));
        (void)fuzz_ok(tsr_split_mode_parse(text, &mode));
        (void)fuzz_ok(tsr_expert_split_parse(text, &experts));
    }
    free(text);
    return 0;
}
