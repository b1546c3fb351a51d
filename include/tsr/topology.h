/* What a machine looks like, as a plain value, and the devices that a --devices text asks for on it.
 *
 * A tsr_topology comes from this machine (tsr_topology_discover) or from a description of another one
 * (tsr_topology_load): a laptop can plan for a server. It is a struct of arrays, all in one logical order:
 * cores that share a package, NUMA node or cache are neighbours, so that everything is a range of cores.
 * Indices below always mean positions in these arrays; what the operating system calls a thing is in
 * os_index.
 *
 *     tsr_topology *topo = NULL;
 *     tsr_device_list *list = NULL;
 *     if (tsr_topology_discover(NULL, &topo) != TSR_OK ||
 *         tsr_device_list_create(topo, "host:2,mem=4GiB", NULL, &list) != TSR_OK)
 *         fprintf(stderr, "%s\n", tsr_last_error());
 *     else
 *         printf("%s has %d cores\n", list->devices[0].name, list->devices[0].n_cores);
 *     tsr_device_list_destroy(list);
 *     tsr_topology_destroy(topo);
 *
 * Both objects are read-only after creation (a caller who owns one may edit it): any number of threads may
 * read.
 */
#ifndef TSR_TOPOLOGY_H
#define TSR_TOPOLOGY_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <tsr/log.h>
#include <tsr/status.h>

TSR_BEGIN_DECLS

/* Most devices that one runtime, plan or device list may have. */
#define TSR_MAX_DEVICES 64

/* Most GPUs that a topology lists. */
#define TSR_MAX_GPUS 32

/* Cache levels 1 to 4 can be told apart. */
#define TSR_CACHE_LEVELS 4

typedef struct tsr_package {
    int os_index;   /* -1 if unknown */
    int first_core; /* its cores are [first_core, first_core + n_cores) */
    int n_cores;
    char cpu_model[96]; /* "" if unknown */
} tsr_package;

typedef struct tsr_numa_node {
    int os_index;
    int first_core;        /* cores to which this memory is local: [first_core, first_core + n_cores). */
    int n_cores;           /* 0: memory without cores (CXL, a GPU's memory). Two nodes may share cores
                              (DDR and HBM); core.numa_node tells which of them the cores count as theirs */
    uint64_t memory_bytes; /* 0 if unknown */
    char kind[16];         /* "" for ordinary memory, else as hwloc calls it ("HBM", "MCDRAM", "GPUMemory") */
} tsr_numa_node;

typedef struct tsr_core {
    int os_index;  /* -1 if unknown */
    int package;   /* index, -1 if unknown */
    int numa_node; /* index of the nearest node that has memory, -1 if unknown */
    int first_pu;  /* hardware threads: pus[first_pu .. first_pu + n_pus); more than 1 is SMT */
    int n_pus;
    int cache[TSR_CACHE_LEVELS]; /* index of its level 1..4 data or unified cache, -1 if none is known */
    int efficiency;              /* rank of its kind of core, 0 = slowest; -1 if all are alike or unknown */
} tsr_core;

/* A hardware thread: what the operating system schedules on. */
typedef struct tsr_pu {
    int os_index; /* the CPU number in /proc/cpuinfo, taskset, cgroups */
    int core;     /* index */
} tsr_pu;

/* A data or unified cache. Instruction caches are left out. */
typedef struct tsr_cache {
    int level;           /* 1..TSR_CACHE_LEVELS */
    int line_bytes;      /* 0 if unknown */
    uint64_t size_bytes; /* 0 if unknown */
    int first_core;      /* shared by cores [first_core, first_core + n_cores) */
    int n_cores;
} tsr_cache;

typedef struct tsr_pci_device {
    char bus_id[16]; /* "0000:17:00.0": domain, bus, device, function, in lower-case hexadecimal */
    char name[96];   /* vendor and model, "" if unknown */
    int class_id;    /* PCI class and subclass, e.g. 0x0302 = 3D controller */
    int vendor_id;   /* e.g. 0x10de */
    int device_id;
    int numa_node;           /* index of the nearest node, -1 if it is near several or unknown */
    double link_bytes_per_s; /* of its PCI link, one direction, as last seen (an idle link may be slower);
                                0 if unknown */
} tsr_pci_device;

/* A GPU that CUDA can use. */
typedef struct tsr_gpu {
    int ordinal;               /* CUDA's number, counted after CUDA_VISIBLE_DEVICES */
    char name[64];             /* as the driver calls it, "NVIDIA H200" */
    char bus_id[16];           /* as in tsr_pci_device */
    int numa_node;             /* index of the nearest node, -1 if unknown */
    int n_sms;                 /* streaming multiprocessors */
    int compute_capability;    /* 10 * major + minor */
    uint64_t memory_bytes;     /* all of it; some is the driver's */
    uint64_t commit_bytes;     /* unit in which growing memory is backed */
    double memory_bytes_per_s; /* peak, from clock and bus width; 0 if unknown */
} tsr_gpu;

typedef struct tsr_topology {
    char source[256];            /* "this machine", or what tsr_topology_load() was given, cut to fit */
    char machine_name[96];       /* vendor and product, "" if unknown */
    bool is_this_machine;        /* its PUs can be pinned to by this process */
    uint64_t memory_bytes;       /* of all NUMA nodes */
    uint64_t memory_limit_bytes; /* that this process's cgroups leave it (containers); 0 = no limit */

    int n_packages;
    int n_numa_nodes;
    int n_cores;
    int n_pus;
    int n_caches;
    int n_pci;
    tsr_package *packages;
    tsr_numa_node *numa_nodes;
    tsr_core *cores;
    tsr_pu *pus;
    tsr_cache *caches;
    tsr_pci_device *pci; /* storage, network, display and accelerator devices; no bridges */

    int n_gpus; /* only of this machine; descriptions of others have none */
    tsr_gpu gpus[TSR_MAX_GPUS];
    char gpu_note[160]; /* of this machine, if it has none: why, in a few words; else "" */
} tsr_topology;

typedef struct tsr_topology_config {
    size_t size;       /* sizeof(tsr_topology_config) */
    tsr_logger logger; /* silent by default */
} tsr_topology_config;

#define TSR_TOPOLOGY_CONFIG_INIT                     \
    {                                                \
        sizeof(tsr_topology_config), TSR_LOGGER_INIT \
    }

/* Describe this machine, as far as this process may use it: cores outside its cgroup's cpuset or its CPU
 * affinity are left out. `config` may be NULL. Takes milliseconds; the result is the caller's, freed with
 * tsr_topology_destroy(). hwloc's own environment variables (HWLOC_XMLFILE, HWLOC_SYNTHETIC, ...) work and
 * replace the machine. TSR_ERR_UNSUPPORTED if the operating system shows no processors, TSR_ERR_MEMORY. */
TSR_NODISCARD TSR_API tsr_status tsr_topology_discover(const tsr_topology_config *config,
                                                       tsr_topology **topo_out);

/* Describe another machine. `path` is an hwloc XML file (format 1 or 2, `lstopo machine.xml`), a directory
 * that holds copies of a Linux machine's /sys and /proc (hwloc-gather-topology), or "synthetic:" followed by
 * hwloc's synthetic description ("synthetic:pack:2 core:4 pu:2"). `config` may be NULL.
 *
 * The description is read in a short-lived child process (fork): hwloc crashes on some malformed files and
 * complains on stderr about others, and neither may reach the caller. The child is gone on return.
 * TSR_ERR_NOT_FOUND: no such path. TSR_ERR_FORMAT: not a description, or a broken one. TSR_ERR_UNSUPPORTED: a
 * known format that this build cannot read (hwloc 3 XML, NCCL XML). TSR_ERR_IO: read or fork refused.
 * TSR_ERR_TIMEOUT: not read within half a minute. TSR_ERR_MEMORY. */
TSR_NODISCARD TSR_API tsr_status tsr_topology_load(const char *path, const tsr_topology_config *config,
                                                   tsr_topology **topo_out);

/* NULL is fine. */
TSR_API void tsr_topology_destroy(tsr_topology *topo);

/* The machine as an indented tree, and its PCI devices, for people to read. */
TSR_API void tsr_topology_print(const tsr_topology *topo, tsr_write_fn write, void *user);

typedef enum tsr_device_kind {
    TSR_DEVICE_HOST = 0, /* a set of cores and the memory near them */
    TSR_DEVICE_CUDA = 1
} tsr_device_kind;

/* A device as asked for; nothing is allocated or started for it yet. */
typedef struct tsr_device_desc {
    char name[32]; /* "host0", "host1", ...; "cuda0", and "cuda0.1" for a second one on the same GPU */
    tsr_device_kind kind;
    int gpu;               /* index into topology.gpus; -1 for host devices */
    int numa_node;         /* index of the node that its cores count as theirs, -1 if there are several */
    uint64_t commit_bytes; /* unit in which its growing memory is backed; 0 for host devices: a page */
    uint64_t memory_total_bytes; /* of the GPU; or of that node, or of all nodes its cores belong to; not
                                    divided among devices on the same node; at most
                                    topology.memory_limit_bytes where that is set; 0 if unknown */
    uint64_t mem_cap_bytes;      /* most that the device may use, 0 = memory_total_bytes */
    int n_threads;               /* this and what follows: of host devices */
    int n_cores;
    int n_pus;
    const int *cores;      /* n_cores indices into topology.cores, ascending */
    const int *pus;        /* n_pus os indices: every hardware thread of those cores */
    const int *thread_pus; /* n_threads os indices: where to pin each thread; -1 = any of `pus`, for threads
                              beyond the number of hardware threads */
} tsr_device_desc;

typedef struct tsr_device_list {
    int n_devices;
    tsr_device_desc *devices;
} tsr_device_list;

/* The devices that `spec` asks for, in its order. NULL or "" means every GPU ("cuda") if there is one, else
 * "host". Grammar, blanks ignored:
 *
 *     spec   = item { "," item }
 *     item   = "host" [ ":" N ] { "," option }        N devices, 1..TSR_MAX_DEVICES
 *            | "cuda" [ ":" G ] { "," option }        GPU number G; without a number, every GPU
 *     option = "mem=" BYTES                           for each device of the item before it
 *            | "threads=" K                           the same; host devices only
 *     BYTES  = number with an optional B, KB MB GB TB (powers of 1000), KiB MiB GiB TiB or K M G T (of 1024)
 *
 * "host" alone is one device per NUMA node that has cores and memory. Otherwise the cores are cut, in their
 * order, into one contiguous set per device: a device with threads=K counts as K cores and one without as a
 * single core; cores left over go first to devices without threads=, and a cut that falls near the edge of a
 * NUMA node moves onto it. Threads sit on the first cores of their set, one each (default: one per core).
 * A GPU may be named several times: each is a device of its own ("virtual"), with its own memory cap, which
 * is an equal part of the GPU's memory unless mem= says otherwise.
 *
 * With more devices than cores, devices share cores; that, and more threads than cores, warns through
 * `logger` (NULL: silent) and works.
 *
 * `topo` is only read during the call. The result is the caller's, freed with tsr_device_list_destroy().
 * TSR_ERR_INVALID names the piece of `spec` that is wrong and what would be right; TSR_ERR_UNSUPPORTED:
 * GPUs where there are none that can be used. TSR_ERR_NOT_FOUND: a GPU number that does not exist.
 * TSR_ERR_MEMORY. */
TSR_NODISCARD TSR_API tsr_status tsr_device_list_create(const tsr_topology *topo, const char *spec,
                                                        const tsr_logger *logger, tsr_device_list **list_out);

/* NULL is fine. */
TSR_API void tsr_device_list_destroy(tsr_device_list *list);

/* "host" or "cuda". */
TSR_API const char *tsr_device_kind_name(tsr_device_kind kind);

/* A byte count as people write it ("200MiB", "1.5G", "4096"; the BYTES of the grammar above, fractions
 * allowed). TSR_ERR_INVALID names the text. */
TSR_NODISCARD TSR_API tsr_status tsr_bytes_parse(const char *text, uint64_t *bytes_out);

TSR_END_DECLS
#endif
