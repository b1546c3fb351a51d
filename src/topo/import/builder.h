/* A machine under construction, from NCCL XML, nvidia-smi's matrix or a --machine text: nodes with sets of
 * processors, the PCI tree and GPUs, in growing arrays. tsr_topo_build() converts it to a topology;
 * tsr_topo_complete() then fills in missing facts. hwloc's descriptions are imported without the builder
 * and completed in the same way. */
#ifndef TSR_TOPO_IMPORT_BUILDER_H
#define TSR_TOPO_IMPORT_BUILDER_H

#include "topo/topo.h"

enum { TSR_DRAFT_MAX_NODES = 64, TSR_DRAFT_MAX_PUS = 4096, TSR_DRAFT_MAX_PCI = 4096 };

/* A NUMA node, and the processors near it. */
typedef struct tsr_builder_node {
    int os_index; /* -1 if unknown */
    bool own_package;
    uint64_t memory_bytes;
    double bytes_per_s;
    bool rate_guessed; /* as in tsr_numa_node */
    char cpu_model[96];
    uint64_t pus[TSR_DRAFT_MAX_PUS / 64]; /* bit i: processor i */
} tsr_builder_node;

typedef struct tsr_topo_builder {
    const char *name; /* name of the description in messages; borrowed */
    int n_nodes, n_bridges, n_pci, n_gpus, n_machines;
    tsr_builder_node *nodes;
    tsr_pci_bridge *bridges;
    tsr_pci_device *pci;
    tsr_gpu *gpus;                       /* NVIDIA GPUs, also of unknown model, at most TSR_MAX_GPUS */
    tsr_gpu_pair (*pairs)[TSR_MAX_GPUS]; /* facts about pairs that the description states; otherwise zeros */
    tsr_machine *machines;               /* without cores and packages, which follow from the nodes */
    char notes[512];
} tsr_topo_builder;

/* An empty builder; freed with tsr_builder_free(), NULL is fine. */
tsr_status tsr_builder_create(const char *name, tsr_topo_builder **builder_out);
void tsr_builder_free(tsr_topo_builder *builder);

/* Append a zeroed element whose indices of other elements are -1. TSR_ERR_FORMAT beyond the bounds. The
 * pointers are valid until the next element is added. */
tsr_status tsr_builder_add_node(tsr_topo_builder *builder, tsr_builder_node **node_out);
tsr_status tsr_builder_add_bridge(tsr_topo_builder *builder, tsr_pci_bridge **bridge_out);
tsr_status tsr_builder_add_pci(tsr_topo_builder *builder, tsr_pci_device **pci_out);
tsr_status tsr_builder_add_gpu(tsr_topo_builder *builder, tsr_gpu **gpu_out);
tsr_status tsr_builder_add_machine(tsr_topo_builder *builder, tsr_machine **machine_out);

/* Build the topology: a core per processor; a node without processors gets one of its own. The caller
 * keeps `builder`. */
tsr_status tsr_topo_build(const tsr_topo_builder *builder, tsr_topology **topo_out);

/* Append a sentence to notes of the given size, once; omitted if it does not fit. */
void tsr_topo_note(char *notes, size_t bytes, const char *format, ...) TSR_PRINTF(3, 4);

/* The path between two GPUs by the PCI tree. A reader of a format that would show NVLinks stores it in
 * gpu_pairs, so that no NVLinks are guessed. */
tsr_gpu_path tsr_topo_path_between(const tsr_topology *topo, int gpu_a, int gpu_b);

/* Fill facts that descriptions lack: `cards` (tsr_topology_config.cards) and the card table complete the
 * GPUs, unknown GPUs are reported in gpu_note, PCIe speeds of idle links are replaced, and unknown gpu_pairs
 * are derived. All filled values are marked or noted. Errors name `cards`:
 * TSR_ERR_INVALID. */
tsr_status tsr_topo_complete(tsr_topology *topo, const char *cards);

/* Parse "17:00.0", "0000:17:00.0" or "00000000:17:00.0" into the form of tsr_pci_device. False if the text is
 * not a bus id, such as the placeholders of switches in NCCL's files. */
bool tsr_bus_id_parse(const char *text, char bus_id[16]);

#endif
