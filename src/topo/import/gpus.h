/* What a machine's GPUs mean for each other and for its tree, worked out from what is known of each. */
#ifndef TSR_TOPO_IMPORT_GPUS_H
#define TSR_TOPO_IMPORT_GPUS_H

#include <tsr/topology.h>

/* From bus ids: which GPU each NVLink end is (tsr_nvlink_end.gpu, and kind where it was unknown); from the
 * ends: n_nvlinks and nvlink_bytes_per_s of every pair. Two GPUs with links to switches reach each other
 * through them with as many links as the one that has fewer. */
void tsr_topo_gpus_link(tsr_topology *topo);

/* Complete what is unknown of this machine's GPUs: their NUMA nodes by topo->pci or sysfs, their PCIe links
 * and the paths between them by sysfs, the driver's version by /proc. `root` is "" for this machine; tests
 * pass a directory with sys/ and proc/ inside. */
void tsr_topo_gpus_locate(tsr_topology *topo, const char *root);

/* pcie_bytes_per_s; tensor_flops, which nobody but the table of cards knows; and memory_bytes_per_s, where
 * only the table knows it, as a guess. */
void tsr_topo_gpus_rate(tsr_topology *topo);

/* Where two PCI devices meet, in the words of nvidia-smi and NCCL: `common` bridges are above both, the host
 * bridge included, and below_a, below_b further ones above each alone; nodes are indices, -1 unknown. */
tsr_gpu_path tsr_topo_gpu_path(int common, int below_a, int below_b, int node_a, int node_b);

/* "NV18", "PIX", "SYS", ...: the word of `nvidia-smi topo -m` for how a reaches b, "X" for itself, "?" if
 * unknown. */
const char *tsr_topo_gpu_pair_word(const tsr_topology *topo, int a, int b, char word[16]);

#endif
