/* Inside src/topo: how a topology value is built, moved between processes, and filled from hwloc.
 *
 * A topology is one allocation: the struct, then its arrays. So it is freed at once, and it crosses a pipe as
 * its bytes (the arrays hold no pointers). */
#ifndef TSR_TOPO_TOPO_H
#define TSR_TOPO_TOPO_H

#include <tsr/topology.h>

#include "core/status.h"

/* More than any machine has; a description that claims more is broken. */
enum { TSR_TOPO_MAX_OBJECTS = 1 << 16 };

/* A zeroed topology with room for the counts that `shape` holds (its n_* fields; the rest is ignored).
 * TSR_ERR_FORMAT if a count is negative or above TSR_TOPO_MAX_OBJECTS. */
tsr_status tsr_topo_alloc(const tsr_topology *shape, tsr_topology **topo_out);

/* Bytes of the whole allocation, for counts that tsr_topo_alloc() has accepted. */
size_t tsr_topo_bytes(const tsr_topology *shape);

/* Put the array pointers where they belong after the struct's bytes were overwritten by another process's. */
void tsr_topo_link(tsr_topology *topo);

/* NULL, or a config of this version. */
tsr_status tsr_topo_check_config(const tsr_topology_config *config);

/* "0-3,8" for the ascending list[0..n), cut with "..." to fit `bytes`. */
void tsr_topo_format_list(const int *list, int n, char *text, size_t bytes);

/* The least memory limit among the cgroups that this process is in, versions 1 and 2; 0 if there is none.
 * `root` is "" for this machine; tests pass a directory with proc/ and sys/ inside. */
uint64_t tsr_topo_cgroup_memory_limit(const char *root);

struct hwloc_topology;

/* Types to keep and components to leave out, before hwloc_topology_load(). */
tsr_status tsr_topo_hwloc_configure(struct hwloc_topology *hw);

/* For this machine: where Linux shows its processors, asking each one through cpuid adds nothing, costs a
 * migration to every core, and prints under valgrind; where it does not (/sys not mounted), cpuid is all
 * there is, and hwloc's Linux part would print. So leave out one of them. */
void tsr_topo_hwloc_avoid_noise(struct hwloc_topology *hw);

/* hwloc_topology_load() of this machine: 0, or -1 and errno. One thread at a time, whoever calls: hwloc asks
 * libudev, which seeds its hash tables on first use without a lock. */
int tsr_topo_hwloc_load(struct hwloc_topology *hw);

/* What a loaded hwloc topology, whose PCI devices `topo` has already, says of NVIDIA's GPUs: model and memory
 * from the CUDA and NVML objects, NVLinks from the bandwidth matrix. At most TSR_MAX_GPUS. */
void tsr_topo_import_gpus(struct hwloc_topology *hw, tsr_topology *topo);

/* The value of a loaded hwloc topology; source is left empty. */
tsr_status tsr_topo_from_hwloc(struct hwloc_topology *hw, tsr_topology **topo_out);

/* What a child process reads for tsr_topo_read_in_child(). */
typedef enum tsr_topo_source_kind {
    TSR_TOPO_XML,       /* `text` is the whole file */
    TSR_TOPO_SYNTHETIC, /* `text` is hwloc's synthetic description */
    TSR_TOPO_ROOT_DIR   /* `text` is the path of a directory */
} tsr_topo_source_kind;

/* Read a description in a child process; see child.c. `bytes` counts text without its ending NUL. `name` is
 * what the messages call it. */
tsr_status tsr_topo_read_in_child(tsr_topo_source_kind kind, const char *text, size_t bytes, const char *name,
                                  tsr_topology **topo_out);

#endif
