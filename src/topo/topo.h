/* Inside src/topo: a topology value is built, moved between processes, and filled from hwloc.
 *
 * A topology is one allocation: the struct, then its arrays. So one call frees it, and its bytes can be
 * sent through a pipe (the arrays hold no pointers). */
#ifndef TSR_TOPO_TOPO_H
#define TSR_TOPO_TOPO_H

#include <sys/types.h>

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

/* Machine `index` of topo->machines; without such entries the whole, as machine 0. */
tsr_machine tsr_topo_machine(const tsr_topology *topo, int index);

/* The machine of a GPU, and of a core: an index as above. */
int tsr_topo_machine_of_gpu(const tsr_topology *topo, int gpu);
int tsr_topo_machine_of_core(const tsr_topology *topo, int core);

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

/* Whether a tree shows processors the way hwloc's Linux part expects: a topology of CPU 0, and either no
 * folder of NUMA nodes or a node in it. hwloc 2.9 aborts where that folder is empty, as in containers that
 * cover it. `root` is "" for this machine; tests pass a directory with sys/ inside. */
bool tsr_topo_sysfs_shows_processors(const char *root);

/* This machine, or the one that hwloc's environment variables name, restricted to the processors that
 * process `pid` may use. */
tsr_status tsr_topo_load_this_machine(pid_t pid, tsr_topology **topo_out);

/* Import NVIDIA's GPUs from a loaded hwloc topology, whose PCI devices are in `topo` already: model and
 * memory from the CUDA and NVML objects, NVLinks from the bandwidth matrix. At most TSR_MAX_GPUS. */
void tsr_topo_import_gpus(struct hwloc_topology *hw, tsr_topology *topo);

/* The value of a loaded hwloc topology; source is left empty. */
tsr_status tsr_topo_from_hwloc(struct hwloc_topology *hw, tsr_topology **topo_out);

/* What tsr_topo_read_in_child() reads. */
typedef enum tsr_topo_source_kind {
    TSR_TOPO_XML,         /* `text` is the whole file */
    TSR_TOPO_SYNTHETIC,   /* `text` is hwloc's synthetic description */
    TSR_TOPO_ROOT_DIR,    /* `text` is the path of a directory */
    TSR_TOPO_ARCHIVE,     /* `text` is an empty directory, in which the archive `name` is unpacked */
    TSR_TOPO_THIS_MACHINE /* no text; tsr_topo_load_this_machine() of the caller */
} tsr_topo_source_kind;

typedef struct tsr_topo_source {
    tsr_topo_source_kind kind;
    const char *text;
    size_t bytes;     /* of text, without its ending NUL */
    const char *name; /* for messages */
    int deadline_ms;  /* 0: the default, half a minute */
} tsr_topo_source;

/* In a child process: leave the signals of a terminal, which reach the caller as well, to the caller. */
void tsr_topo_ignore_terminal(void);

/* Read a description in a child process; see child.c. */
tsr_status tsr_topo_read_in_child(const tsr_topo_source *source, tsr_topology **topo_out);

#endif
