/* The readers of machine descriptions. The kind is found out as for files; what is none goes to the reader
 * of --machine texts. hwloc's reader is left out: it runs in a process of its own because it is known to
 * crash. */
#include "fuzz.h"

#include <tsr/links.h>

#include "topo/import/builder.h"
#include "topo/import/machine_file.h"

/* Everything that planning does next with a machine. */
static void use(tsr_topology *topo)
{
    size_t written = 0;
    tsr_device_list *devices = NULL;
    tsr_links *links = NULL;
    if (tsr_topo_complete(topo, NULL) != TSR_OK)
        return;
    tsr_topology_print(topo, fuzz_discard, &written);
    if (topo->n_gpus > 0 && topo->n_machines < 2 &&
        tsr_topology_write_nccl_xml(topo, fuzz_discard, &written) != TSR_OK)
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
    char *text = fuzz_string(data, bytes);
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
    if (fuzz_ok(status))
        use(topo);
    tsr_topology_destroy(topo);
    free(text);
    return 0;
}
