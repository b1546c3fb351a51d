/* A libFuzzer entry for the readers of machine descriptions, built where the compiler is clang:
 *
 *     cmake -B build-fuzz -DCMAKE_C_COMPILER=clang -DTSR_SANITIZE=address,undefined,fuzzer-no-link
 *     cmake --build build-fuzz --target fuzz_machine
 *     mkdir corpus && cp machine.xml topo-m.txt corpus && build-fuzz/tests/fuzz_machine -max_len=16384 corpus
 *
 * The kind is found out as for files; what is none goes to the reader of --machine texts. hwloc's reader is
 * left out: it runs in a process of its own because it is known to crash. */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <tsr/links.h>

#include "topo/import/builder.h"
#include "topo/import/machine_file.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes);

static void write_nothing(const char *text, void *user)
{
    *(size_t *)user += strlen(text);
}

/* Everything that planning does next with a machine. */
static void use(tsr_topology *topo)
{
    size_t written = 0;
    tsr_device_list *devices = NULL;
    tsr_links *links = NULL;
    if (tsr_topo_complete(topo, NULL) != TSR_OK)
        return;
    tsr_topology_print(topo, write_nothing, &written);
    if (topo->n_gpus > 0 && tsr_topology_write_nccl_xml(topo, write_nothing, &written) != TSR_OK)
        abort();
    if (tsr_device_list_create(topo, NULL, NULL, &devices) == TSR_OK &&
        tsr_links_create(topo, devices, &links) == TSR_OK)
        if (!(tsr_links_all_reduce_ns(links, UINT64_MAX, 4096) >= 0))
            abort();
    tsr_links_destroy(links);
    tsr_device_list_destroy(devices);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes)
{
    tsr_topology *topo = NULL;
    tsr_status status;
    char *text = malloc(bytes + 1); /* of its exact size, so that reading past it is noticed */
    if (!text)
        abort();
    if (bytes)
        memcpy(text, data, bytes);
    text[bytes] = '\0';
    switch (tsr_machine_kind_of(text, bytes)) {
    case TSR_MACHINE_NCCL_XML:
        status = tsr_topo_read_nccl_xml(text, bytes, "fuzz", &topo);
        break;
    case TSR_MACHINE_NVIDIA_SMI:
        status = tsr_topo_read_nvidia_smi(text, bytes, "fuzz", &topo);
        break;
    case TSR_MACHINE_HWLOC_XML:
    case TSR_MACHINE_ARCHIVE:
        status = TSR_ERR_UNSUPPORTED;
        break;
    default:
        status = tsr_topo_read_machine_spec(text, &topo);
    }
    if (status == TSR_OK)
        use(topo);
    tsr_topology_destroy(topo);
    free(text);
    return 0;
}
