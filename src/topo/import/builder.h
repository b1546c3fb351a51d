/* A machine while it is being read from a description of ours (NCCL XML, nvidia-smi's matrix, a --machine
 * text): nodes with sets of processors, the PCI tree and GPUs, in growing arrays. tsr_topo_build() makes
 * the topology of it; tsr_topo_complete() then fills in what no description says. hwloc's descriptions skip
 * the builder and are completed like the others. */
#ifndef TSR_TOPO_IMPORT_DRAFT_H
#define TSR_TOPO_IMPORT_DRAFT_H

#include "topo/topo.h"

enum { TSR_DRAFT_MAX_NODES = 64, TSR_DRAFT_MAX_PUS = 4096, TSR_DRAFT_MAX_PCI = 4096 };

/* A NUMA node, and the processors near it. */
typedef struct tsr_builder_node {
    int os_index; /* -1 if unknown */
    bool own_package;
    uint64_t memory_bytes;
    double bytes_per_s;
    char cpu_model[96];
    uint64_t pus[TSR_DRAFT_MAX_PUS / 64]; /* bit i: processor i */
} tsr_builder_node;

typedef struct tsr_topo_builder {
    const char *name; /* what messages call the description; borrowed */
    int n_nodes, n_bridges, n_pci, n_gpus;
    tsr_builder_node *nodes;
    tsr_pci_bridge *bridges;
    tsr_pci_device *pci;
    tsr_gpu *gpus; /* candidates: NVIDIA GPUs of known model or not, at most TSR_MAX_GPUS */
    tsr_gpu_pair (*pairs)[TSR_MAX_GPUS]; /* what the description itself says of pairs; else zeros */
    char notes[512];
} tsr_topo_builder;

/* Empty; freed with tsr_builder_free(), NULL is fine. */
tsr_status tsr_builder_create(const char *name, tsr_topo_builder **builder_out);
void tsr_builder_free(tsr_topo_builder *builder);

/* Append a zeroed element, with the indices that point elsewhere -1. TSR_ERR_FORMAT beyond the bounds. The
 * pointers last until the next one is added. */
tsr_status tsr_builder_add_node(tsr_topo_builder *builder, tsr_builder_node **node_out);
tsr_status tsr_builder_add_bridge(tsr_topo_builder *builder, tsr_pci_bridge **bridge_out);
tsr_status tsr_builder_add_pci(tsr_topo_builder *builder, tsr_pci_device **pci_out);
tsr_status tsr_builder_add_gpu(tsr_topo_builder *builder, tsr_gpu **gpu_out);

/* The topology: a core per processor, a node that names no processor gets one of its own. `builder` stays the
 * caller's. */
tsr_status tsr_topo_build(const tsr_topo_builder *builder, tsr_topology **topo_out);

/* Append a sentence to notes of the given size, once; what does not fit is left out. */
void tsr_topo_note(char *notes, size_t bytes, const char *format, ...) TSR_PRINTF(3, 4);

/* The path of two GPUs by the PCI tree. A reader whose description would have shown NVLinks states it in
 * gpu_pairs: then none are guessed. */
tsr_gpu_path tsr_topo_path_between(const tsr_topology *topo, int gpu_a, int gpu_b);

/* Fill what descriptions leave out: `cards` (tsr_topology_config.cards) and the card table complete the GPUs,
 * unknown ones are dropped and gpu_note says so, PCIe speeds of idle links are replaced, and gpu_pairs is
 * worked out where it is not known. Everything taken from elsewhere is marked or noted. Errors name
 * `cards`: TSR_ERR_INVALID. */
tsr_status tsr_topo_complete(tsr_topology *topo, const char *cards);

/* "17:00.0", "0000:17:00.0", "00000000:17:00.0" as tsr_pci_device has it. False if it is no bus id, as the
 * placeholders of switches in NCCL's files are not. */
bool tsr_bus_id_parse(const char *text, char bus_id[16]);

#endif
