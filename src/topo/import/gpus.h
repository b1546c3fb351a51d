/* Derives the links and places of a machine's GPUs from the facts known of each. */
#ifndef TSR_TOPO_IMPORT_GPUS_H
#define TSR_TOPO_IMPORT_GPUS_H

#include <tsr/topology.h>

/* From bus ids: the GPU of each NVLink end (tsr_nvlink_end.gpu, and kind where it was unknown); from the
 * ends: n_nvlinks and nvlink_bytes_per_s of every pair. Two GPUs with links to switches reach each other
 * through them with as many links as the GPU with fewer. */
void tsr_topo_gpus_link(tsr_topology *topo);

/* Complete unknown facts of this machine's GPUs: their NUMA nodes by topo->pci or sysfs, their PCIe links
 * and the paths between them by sysfs, the driver's version by /proc. `root` is "" for this machine; tests
 * pass a directory with sys/ and proc/ inside. */
void tsr_topo_gpus_locate(tsr_topology *topo, const char *root);

/* Set pcie_bytes_per_s; tensor_flops, which only the table of cards has; and memory_bytes_per_s, where
 * only the table has it, as a guess. */
void tsr_topo_gpus_rate(tsr_topology *topo);

/* The path of two PCI devices, in the words of nvidia-smi and NCCL: `common` bridges are above both, the
 * host bridge included, and below_a, below_b further ones above each alone; nodes are indices, -1 unknown. */
tsr_gpu_path tsr_topo_gpu_path(int common, int below_a, int below_b, int node_a, int node_b);

/* "NV18", "PIX", "SYS", ...: the word of `nvidia-smi topo -m` for the path from a to b, "X" for itself,
 * "?" if unknown. */
const char *tsr_topo_gpu_pair_word(const tsr_topology *topo, int a, int b, char word[16]);

#endif
