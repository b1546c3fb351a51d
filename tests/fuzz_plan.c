/* A libFuzzer entry for planning from a header, built where the compiler is clang:
 *
 *     cmake -B build-fuzz -DCMAKE_C_COMPILER=clang -DTSR_SANITIZE=address,undefined,fuzzer-no-link
 *     cmake --build build-fuzz --target fuzz_plan
 *     mkdir corpus && head -c 4000 some-small.gguf >corpus/1 &&
 *         build-fuzz/tests/fuzz_plan -max_len=8192 corpus
 *
 * A plan needs no data, so nothing but the planner itself stands between a claim of a header and arithmetic
 * on it. The last byte chooses the machine, the split and the context. */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include <tsr/tsr.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes);

static void write_nothing(const char *text, void *user)
{
    *(size_t *)user += strlen(text);
}

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
    tsr_status status = tsr_plan_create(gguf, devices(choice >> 4 & 1), &config, &made);
    if (status == TSR_OK) {
        tsr_plan_print(made, write_nothing, &written);
        tsr_plan_explain(made, write_nothing, &written);
    } else if (!*tsr_last_error()) {
        abort();
    }
    tsr_plan_destroy(made);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes)
{
    char path[64];
    tsr_gguf *gguf = NULL;
    tsr_gguf_config header = tsr_gguf_config_default();
    int fd = memfd_create("fuzz_plan", MFD_CLOEXEC);
    if (fd < 0 || write(fd, data, bytes) != (ssize_t)bytes)
        abort(); /* the machine's fault, not the planner's: stop the run */
    snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
    header.header_only = true;
    if (tsr_gguf_open(path, &header, &gguf) == TSR_OK)
        plan(gguf, data[bytes - 1]);
    tsr_gguf_close(gguf);
    close(fd);
    return 0;
}
