/* Inside src/topo: a topology value is built, moved between processes, and filled from hwloc.
 *
 * A topology is one allocation: the struct, then its arrays. So one call frees it, and its bytes can be
 * sent through a pipe (the arrays hold no pointers). */
#ifndef TSR_TOPO_TOPO_H
#define TSR_TOPO_TOPO_H

#include <tsr/topology.h>

#include "core/status.h"

/* More than any machine has; a description with more is malformed. */
enum { TSR_TOPO_MAX_OBJECTS = 1 << 16 };

/* A zeroed topology with room for the counts in `shape` (its n_* fields; other fields are ignored).
 * TSR_ERR_FORMAT if a count is negative or above TSR_TOPO_MAX_OBJECTS. */
tsr_status tsr_topo_alloc(const tsr_topology *shape, tsr_topology **topo_out);

/* Bytes of the whole allocation, for counts that tsr_topo_alloc() has accepted. */
size_t tsr_topo_bytes(const tsr_topology *shape);

/* Set the array pointers after the struct's bytes were overwritten by another process's. */
void tsr_topo_link(tsr_topology *topo);

/* NULL, or a config of this version. */
tsr_status tsr_topo_config_read(const tsr_topology_config *config, tsr_topology_config *config_out);

/* "0-3,8" for the ascending list[0..n), cut with "..." to fit `bytes`. */
void tsr_topo_format_list(const int *list, int n, char *text, size_t bytes);

/* The least memory limit of the cgroups that this process is in, versions 1 and 2; 0 if there is none.
 * `root` is "" for this machine; tests pass a directory with proc/ and sys/ inside. */
uint64_t tsr_topo_cgroup_memory_limit(const char *root);

/* Bytes per second that all cores of a NUMA node (-1: unknown) read from its memory: as the machine says,
 * otherwise assumed from the model of the processor. */
double tsr_topo_memory_rate(const tsr_topology *topo, int node, bool *assumed_out);

struct hwloc_topology;

/* Sets object types to keep and components to skip, before hwloc_topology_load(). */
tsr_status tsr_topo_hwloc_configure(struct hwloc_topology *hw);

/* For this machine: skip one of two components. Where Linux shows its processors, cpuid on each processor
 * adds nothing, costs a migration to every core, and prints under valgrind. Where it does not (/sys not
 * mounted), cpuid is the only source, and hwloc's Linux part would print. */
void tsr_topo_hwloc_avoid_noise(struct hwloc_topology *hw);

/* hwloc_topology_load() of this machine: 0, or -1 and errno. Serialised over all callers: hwloc uses
 * libudev, which seeds its hash tables on first use without a lock. */
int tsr_topo_hwloc_load(struct hwloc_topology *hw);

/* Import NVIDIA's GPUs from a loaded hwloc topology, whose PCI devices are in `topo` already: model and
 * memory from the CUDA and NVML objects, NVLinks from the bandwidth matrix. At most TSR_MAX_GPUS. */
void tsr_topo_import_gpus(struct hwloc_topology *hw, tsr_topology *topo);

/* The value of a loaded hwloc topology; source is left empty. */
tsr_status tsr_topo_from_hwloc(struct hwloc_topology *hw, tsr_topology **topo_out);

/* Input of the child process of tsr_topo_read_in_child(). */
typedef enum tsr_topo_source_kind {
    TSR_TOPO_XML,       /* `text` is the whole file */
    TSR_TOPO_SYNTHETIC, /* `text` is hwloc's synthetic description */
    TSR_TOPO_ROOT_DIR   /* `text` is the path of a directory */
} tsr_topo_source_kind;

/* Read a description in a child process; see child.c. `bytes` counts text without its ending NUL. `name`
 * is used in messages. */
tsr_status tsr_topo_read_in_child(tsr_topo_source_kind kind, const char *text, size_t bytes, const char *name,
                                  tsr_topology **topo_out);

#endif
