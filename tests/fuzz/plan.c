/* Planning from a header. A plan needs no data, so the planner alone stands between a claim of a header and
 * the arithmetic on it. The last byte chooses the machine, the split and the context. */
#include "fuzz.h"

#include <tsr/tsr.h>

/* Host devices, or unequal GPUs with a host device beside them; made once. */
static const tsr_device_list *devices(int which)
{
    static const char *const machines[2] = {"2x host 8 cores 64GiB",
                                            "2x rtx3090 nvlink, 1x rtx4060ti pcie4x8, 1x host"};
    static const char *const specs[2] = {"host:3", "cuda,host:1"};
    static tsr_device_list *lists[2];
    tsr_topology *topo = NULL;
    if (!lists[which] && (tsr_topology_parse(machines[which], NULL, &topo) != TSR_OK ||
                          tsr_device_list_create(topo, specs[which], NULL, &lists[which]) != TSR_OK))
        abort();
    tsr_topology_destroy(topo);
    return lists[which];
}

static void plan(const tsr_gguf *gguf, unsigned choice)
{
    static const float split[] = {1, 2, 0};
    tsr_model_config config = tsr_model_config_default();
    tsr_plan *made = NULL;
    size_t written = 0;
    if (choice & 1) {
        config.split.tensor_split = split;
        config.split.n_tensor_split = 3;
    }
    config.split.mode = (tsr_split_mode)(choice >> 1 & 3);
    config.session.n_ctx = choice & 8 ? 512 : 0;
    if (fuzz_ok(tsr_plan_create(gguf, devices(choice >> 4 & 1), &config, &made))) {
        tsr_plan_print(made, fuzz_discard, &written);
        tsr_plan_explain(made, fuzz_discard, &written);
    }
    tsr_plan_destroy(made);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes)
{
    char path[64];
    tsr_gguf *gguf = NULL;
    tsr_gguf_config header = tsr_gguf_config_default();
    int fd = fuzz_file(data, bytes, path);
    header.header_only = true;
    if (fuzz_ok(tsr_gguf_open(path, &header, &gguf)))
        plan(gguf, data[bytes - 1]);
    tsr_gguf_close(gguf);
    close(fd);
    return 0;
}
