/** @file
 * A machine as a plain value.
 *
 * A tsr_topology comes from this machine (tsr_topology_discover) or from a description of another one
 * (tsr_topology_load): a laptop can plan for a server. It is a struct of arrays, all in one logical order:
 * cores that share a package, NUMA node or cache are neighbours, so that everything is a range of cores.
 * An index is always a position in one of these arrays; os_index is the operating system's number.
 *
 *     tsr_topology *topo = NULL;
 *     if (tsr_topology_discover(NULL, &topo) != TSR_OK)
 *         fprintf(stderr, "%s\n", tsr_last_error());
 *     else
 *         printf("%d cores, %d GPUs\n", topo->n_cores, topo->n_gpus);
 *     tsr_topology_destroy(topo);
 *
 * tsr/machine.h makes a topology of a line of text; tsr/device_list.h makes devices of a topology.
 *
 * A topology is read-only after its creation, so any number of threads may read it. Its owner may edit it.
 */
#ifndef TSR_TOPOLOGY_H
#define TSR_TOPOLOGY_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <tsr/log.h>
#include <tsr/status.h>

TSR_BEGIN_DECLS

/** Most GPUs that a topology lists. */
#define TSR_MAX_GPUS 32

/** Cache levels 1 to 4 can be told apart. */
#define TSR_CACHE_LEVELS 4

/** A socket: a processor as it is bought. */
typedef struct tsr_package {
    int os_index;       /**< -1 if unknown */
    int first_core;     /**< its cores are [first_core, first_core + n_cores) */
    int n_cores;        /**< 0 if it has none that may be used */
    char cpu_model[96]; /**< "" if unknown */
} tsr_package;

/** Memory, and the cores that are nearest to it. */
typedef struct tsr_numa_node {
    int os_index;          /**< the system's number */
    int first_core;        /**< cores to which this memory is local: [first_core, first_core + n_cores). */
    int n_cores;           /**< 0: memory without cores (CXL, a GPU's memory). Two nodes may share cores
                                (DDR and HBM); core.numa_node tells which of them the cores count as theirs */
    uint64_t memory_bytes; /**< 0 if unknown */
    double bytes_per_s;    /**< of reading it with all its cores; 0 if unknown */
    /** "" for ordinary memory, otherwise hwloc's name ("HBM", "MCDRAM", "GPUMemory") */
    char kind[16];
    bool rate_guessed; /**< bytes_per_s was assumed, since the description does not state it */
} tsr_numa_node;

/** A core. */
typedef struct tsr_core {
    int os_index;  /**< -1 if unknown */
    int package;   /**< index, -1 if unknown */
    int numa_node; /**< index of the nearest node that has memory, -1 if unknown */
    int first_pu;  /**< hardware threads: pus[first_pu .. first_pu + n_pus); more than 1 is SMT */
    int n_pus;     /**< hardware threads of the core */
    int cache[TSR_CACHE_LEVELS]; /**< index of its level 1..4 data or unified cache, -1 if none is known */
    int efficiency;              /**< rank of its kind of core, 0 = slowest; -1 if all are alike or unknown */
} tsr_core;

/** A hardware thread: what the operating system schedules on. */
typedef struct tsr_pu {
    int os_index; /**< the CPU number in /proc/cpuinfo, taskset, cgroups */
    int core;     /**< index */
} tsr_pu;

/** A data or unified cache. Instruction caches are left out. */
typedef struct tsr_cache {
    int level;           /**< 1..TSR_CACHE_LEVELS */
    int line_bytes;      /**< 0 if unknown */
    uint64_t size_bytes; /**< 0 if unknown */
    int first_core;      /**< shared by cores [first_core, first_core + n_cores) */
    int n_cores;         /**< cores that share it */
} tsr_cache;

/** A host bridge, or a port of a PCIe switch: where the links of the devices below it come together. */
typedef struct tsr_pci_bridge {
    char bus_id[16];         /**< as in tsr_pci_device; "" for most host bridges */
    int parent;              /**< index of the bridge above, always smaller; -1 for a host bridge */
    int numa_node;           /**< as in tsr_pci_device */
    double link_bytes_per_s; /**< of its link, one direction; 0 for host bridges, or if unknown */
} tsr_pci_bridge;

/** A PCI device. */
typedef struct tsr_pci_device {
    char bus_id[16];         /**< "0000:17:00.0": domain, bus, device, function, in lower-case hexadecimal */
    char name[96];           /**< vendor and model, "" if unknown */
    int class_id;            /**< PCI class and subclass, e.g. 0x0302 = 3D controller */
    int vendor_id;           /**< e.g. 0x10de */
    int device_id;           /**< as the vendor numbers it */
    int numa_node;           /**< index of the nearest node, -1 if it is near several or unknown */
    int bridge;              /**< index of the bridge that it hangs off, -1 if unknown */
    double link_bytes_per_s; /**< of its PCI link, one direction, as last seen (an idle link may be slower);
                                  0 if unknown */
} tsr_pci_device;

/** A PCIe link. 0: unknown. Generation 3 carries 8 GT/s per lane, 4 16 GT/s, 5 32 GT/s (PCI Express Base
 * Specification). */
typedef struct tsr_pcie_link {
    int generation; /**< 1..7 */
    int width;      /**< lanes, 1..32 */
} tsr_pcie_link;

/** Most different ends that the NVLinks of one GPU lead to; an H100 or B200 has 18 links. */
#define TSR_MAX_NVLINK_ENDS 18

/** What NVLinks of a GPU lead to. */
typedef enum tsr_nvlink_end_kind {
    TSR_NVLINK_END_UNKNOWN = 0,
    TSR_NVLINK_END_GPU,
    TSR_NVLINK_END_SWITCH, /**< NVSwitch: on to every other GPU that has links to one */
    TSR_NVLINK_END_CPU     /**< NVLink or C2C to a processor: POWER9, Grace */
} tsr_nvlink_end_kind;

/** The NVLinks of a GPU that lead to the same place. */
typedef struct tsr_nvlink_end {
    tsr_nvlink_end_kind kind; /**< what the other end is */
    int gpu;            /**< index into topology.gpus; -1 for other kinds, or a GPU that is not listed */
    char bus_id[16];    /**< of the other end, as in tsr_pci_device; "" if unknown */
    int n_links;        /**< active ones */
    int version;        /**< NVLink generation; 0 if unknown */
    double bytes_per_s; /**< of all of them together, one direction; 0 if unknown */
} tsr_nvlink_end;

/** Facts of a GPU that a description may lack, and that are then completed from a table of cards. */
typedef enum tsr_gpu_fact {
    TSR_GPU_MEMORY = 1 << 0,    /**< memory_bytes */
    TSR_GPU_BANDWIDTH = 1 << 1, /**< memory_bytes_per_s */
    TSR_GPU_COMPUTE = 1 << 2,   /**< n_sms, compute_capability, clocks, tensor_flops */
    TSR_GPU_PCIE = 1 << 3,      /**< pcie, pcie_max, pcie_bytes_per_s */
    TSR_GPU_NVLINK = 1 << 4     /**< nvlinks, and their part of gpu_pairs */
} tsr_gpu_fact;

/** A GPU that CUDA can use. Unknown numbers are 0, unknown texts "". */
typedef struct tsr_gpu {
    /** N of "cuda:N": CUDA's number, counted after CUDA_VISIBLE_DEVICES; in the description of another
     * machine the index */
    int ordinal;
    char name[64];          /**< as the driver calls it, "NVIDIA H200" */
    char uuid[48];          /**< "GPU-8a56a4bc-...", "MIG-..." for a MIG instance */
    char bus_id[16];        /**< as in tsr_pci_device */
    int numa_node;          /**< index of the nearest node, -1 if unknown */
    bool is_mig;            /**< a MIG instance; the fields below are those of the instance */
    bool integrated;        /**< has no memory of its own but the host's */
    bool pageable_access;   /**< reads any host memory of the process without copies (coherent or ATS) */
    int n_sms;              /**< streaming multiprocessors */
    int compute_capability; /**< 10 * major + minor */
    int sm_clock_khz;       /**< most that they run at */
    /** dense F16 matrix rate, accumulating in F32, operations/s, by a table of cards */
    double tensor_flops;
    uint64_t memory_bytes;      /**< all memory, the driver's part included */
    uint64_t memory_free_bytes; /**< at the time of discovery; integrated: available, caches included */
    /** this process had a context on the GPU at the time of discovery: memory_free_bytes is without it */
    bool has_context;
    uint64_t commit_bytes;     /**< unit in which growing memory is backed */
    int memory_clock_khz;      /**< most that the memory runs at */
    int memory_bus_bits;       /**< width of the memory bus */
    double memory_bytes_per_s; /**< peak: 2 x clock x bus width / 8, or the maker's figure */
    int power_limit_mw;        /**< milliwatts that the card may take now */
    tsr_pcie_link pcie;        /**< as it runs now: an idle GPU lowers the generation to save power */
    tsr_pcie_link pcie_max;    /**< the most that card and slot have in common */
    double pcie_bytes_per_s;   /**< one direction, under load: generation of pcie_max, lanes of pcie; line
                                     code subtracted, packet overhead not */
    int n_nvlink_ends;         /**< entries of nvlink_ends */
    tsr_nvlink_end nvlink_ends[TSR_MAX_NVLINK_ENDS]; /**< one for each end */
    unsigned guessed; /**< tsr_gpu_fact bits: unknown to the machine, taken from a table of cards */
} tsr_gpu;

/** The PCIe path between two GPUs, in the words of `nvidia-smi topo -m`. */
typedef enum tsr_gpu_path {
    TSR_GPU_PATH_UNKNOWN = 0,
    TSR_GPU_PATH_SAME,  /**< one GPU, or two MIG instances of one */
    TSR_GPU_PATH_BOARD, /**< a bridge on a card with two GPUs */
    TSR_GPU_PATH_PIX,   /**< one PCIe bridge or switch */
    TSR_GPU_PATH_PXB,   /**< several PCIe switches, no host bridge */
    TSR_GPU_PATH_PHB,   /**< a host bridge (root complex) */
    TSR_GPU_PATH_NODE,  /**< several host bridges of one NUMA node */
    TSR_GPU_PATH_SYS,   /**< the interconnect between NUMA nodes or sockets */
    TSR_GPU_PATH_NET    /**< the network between machines; "NET", which nvidia-smi does not have */
} tsr_gpu_path;

/** Yes, no, or unknown. */
typedef enum tsr_tristate { TSR_UNKNOWN = 0, TSR_NO, TSR_YES } tsr_tristate;

/** How GPU a reaches GPU b, in topology.gpu_pairs[a][b]. */
typedef struct tsr_gpu_pair {
    tsr_gpu_path path;         /**< by PCIe */
    int n_nvlinks;             /**< that serve the pair, directly or through NVSwitches: NV# of nvidia-smi */
    double nvlink_bytes_per_s; /**< by these, one direction; 0 if none or unknown */
    tsr_tristate peer_access;  /**< the driver offers a access to b's memory; TSR_YES for a itself */
    tsr_tristate native_atomics; /**< atomic operations on it are done by hardware */
    int performance_rank;        /**< of the access, the driver's: 0 is best; -1 if unknown */
} tsr_gpu_pair;

/** What joins machines. */
typedef enum tsr_network_kind {
    TSR_NETWORK_NONE = 0, /**< nothing is known of a network */
    TSR_NETWORK_INFINIBAND,
    TSR_NETWORK_ROCE,    /**< remote direct memory access over Ethernet */
    TSR_NETWORK_ETHERNET /**< sockets over TCP */
} tsr_network_kind;

/** One of the machines of a topology: ranges of its arrays, and its adapters of the network. The operating
 * system's numbers and those of GPUs are the machine's own; bus ids differ between machines. */
typedef struct tsr_machine {
    int first_package;          /**< its packages are [first_package, first_package + n_packages) */
    int n_packages;             /**< of the machine */
    int first_numa_node;        /**< its NUMA nodes, in the same way */
    int n_numa_nodes;           /**< of the machine */
    int first_core;             /**< its cores */
    int n_cores;                /**< of the machine */
    int first_gpu;              /**< its GPUs */
    int n_gpus;                 /**< of the machine */
    tsr_network_kind network;   /**< the same of all machines */
    int n_adapters;             /**< of the network */
    double network_bytes_per_s; /**< nominal, of all adapters together, one direction */
    double network_latency_ns;  /**< of a short message from one machine's memory to another's */
    bool latency_guessed;       /**< network_latency_ns is usual for the kind of network */
} tsr_machine;

/** A machine, or several that a network joins; a plain value. */
typedef struct tsr_topology {
    char source[256];            /**< "this machine", or the path given to tsr_topology_load(), cut to fit */
    char machine_name[96];       /**< vendor and product, "" if unknown */
    bool is_this_machine;        /**< its PUs can be pinned to by this process */
    uint64_t memory_bytes;       /**< of all NUMA nodes */
    uint64_t memory_limit_bytes; /**< that this process's cgroups leave it (containers); 0 = no limit */

    int n_packages;            /**< entries of `packages` */
    int n_numa_nodes;          /**< entries of `numa_nodes` */
    int n_cores;               /**< entries of `cores` */
    int n_pus;                 /**< entries of `pus` */
    int n_caches;              /**< entries of `caches` */
    int n_bridges;             /**< entries of `bridges` */
    int n_pci;                 /**< entries of `pci` */
    tsr_package *packages;     /**< [n_packages] */
    tsr_numa_node *numa_nodes; /**< [n_numa_nodes] */
    tsr_core *cores;           /**< [n_cores] */
    tsr_pu *pus;               /**< [n_pus] */
    tsr_cache *caches;         /**< [n_caches], data and unified ones */
    tsr_pci_bridge *bridges;   /**< with a device of `pci` below them, outermost first */
    tsr_pci_device *pci;       /**< storage, network, display and accelerator devices, NVSwitches */

    int n_gpus;                                         /**< entries of `gpus` */
    tsr_gpu gpus[TSR_MAX_GPUS];                         /**< [n_gpus] */
    tsr_gpu_pair gpu_pairs[TSR_MAX_GPUS][TSR_MAX_GPUS]; /**< [n_gpus][n_gpus] */
    char gpu_note[256]; /**< of this machine: why it has no GPU, or why one is left out; of a description:
                                that the models, and so the memory, of GPUs are unknown; otherwise "" */
    char driver_version[24]; /**< of the GPUs, "580.65.06"; "" if unknown */
    /** newest CUDA that the driver knows, 1000 * major + 10 * minor; 0 if unknown */
    int cuda_driver_version;
    int cuda_version; /**< of the CUDA runtime in this build, in the same form; 0 if there is none */
    char notes[512];  /**< facts that a description lacks or contradicts, and the values taken instead:
                           sentences separated by newlines; "" if none */
    /** of this machine: MemAvailable of the kernel when the machine was read, at most memory_limit_bytes; 0
     * if unknown, and for descriptions */
    uint64_t memory_available_bytes;
    int n_machines;        /**< entries of `machines`; 0: one machine, and nothing is known of a network */
    tsr_machine *machines; /**< [n_machines], each of the other arrays in their order */
} tsr_topology;

/** How a machine is read. */
typedef struct tsr_topology_config {
    size_t size;       /**< sizeof(tsr_topology_config) */
    tsr_logger logger; /**< silent by default */
    /** of a description: which cards its GPUs are, "0=rtx3090,1-3=a100" or "all=t4"; numbers count its NVIDIA
     * GPUs from 0, and a bus id may stand for one. Overrides the description. NULL: as it says */
    const char *cards;
} tsr_topology_config;

/** Write the defaults to a struct of `size` bytes, the program's sizeof. Returns the bytes that the struct
 * has in this library. */
TSR_API size_t tsr_topology_config_init(tsr_topology_config *config_out, size_t size);

/** The defaults: no log, cards as described. */
static inline tsr_topology_config tsr_topology_config_default(void)
{
    tsr_topology_config config;
    tsr_topology_config_init(&config, sizeof config);
    return config;
}

/** Describe the part of this machine that this process may use: cores outside its cgroup's cpuset or its CPU
 * affinity are left out. `config` may be NULL. Takes milliseconds; the result is the caller's, freed with
 * tsr_topology_destroy(). hwloc's own environment variables (HWLOC_XMLFILE, HWLOC_SYNTHETIC, ...) work and
 * replace the machine.
 *
 * The kernel's /sys is read in the calling process. Where another file system covers parts of it, as in some
 * containers, or those variables name a machine, a short-lived child process reads it as in
 * tsr_topology_load(), and a crash of hwloc is TSR_ERR_FORMAT. TSR_ERR_UNSUPPORTED if the operating system
 * shows no processors, TSR_ERR_IO, TSR_ERR_TIMEOUT, TSR_ERR_MEMORY. */
TSR_NODISCARD TSR_API tsr_status tsr_topology_discover(const tsr_topology_config *config,
                                                       tsr_topology **topo_out);

/** Describe another machine. The kind of description at `path` is found by its content:
 *
 *   hwloc XML          format 1 or 2, `lstopo machine.xml`
 *   NCCL XML           NCCL_TOPO_DUMP_FILE=machine.xml, or the topology file of a cloud's machine type
 *   nvidia-smi text    `nvidia-smi topo -m >machine.txt`
 *   a directory        with copies of a Linux machine's /sys and /proc (hwloc-gather-topology), or a tar
 *                      archive of one, plain or compressed (gzip, bzip2, xz, zstd)
 *   "synthetic:..."    no file: hwloc's synthetic description ("synthetic:pack:2 core:4 pu:2")
 *
 * Facts of a GPU that the description lacks are taken from a table of common cards and marked in
 * tsr_gpu.guessed. If neither has the memory of a GPU (an unknown model, a laptop's or a virtual GPU),
 * memory_bytes is 0, gpu_note names the GPU, and tsr_device_list_create() refuses to make a device on the GPU
 * until config->cards names its card. `config` may be NULL.
 *
 * hwloc's descriptions are read in a short-lived child process (fork): hwloc crashes on some malformed files
 * and complains on stderr about others, and neither may reach the caller. The child is gone on return, and
 * dies with the caller. Of an archive of at most 256 MiB and 200000 entries, sys/ and proc/ are unpacked into
 * a temporary folder, which is removed even if the caller is killed.
 * TSR_ERR_NOT_FOUND: no such path. TSR_ERR_FORMAT: not a description, or a broken one. TSR_ERR_UNSUPPORTED: a
 * known format that cannot be read here (hwloc 3 XML, no such decompressor). TSR_ERR_INVALID: config->cards
 * is wrong. TSR_ERR_IO: read or fork refused. TSR_ERR_TIMEOUT: not read within half a minute,
 * an archive within two. TSR_ERR_MEMORY. */
TSR_NODISCARD TSR_API tsr_status tsr_topology_load(const char *path, const tsr_topology_config *config,
                                                   tsr_topology **topo_out);

/** Write the machine as NCCL's XML (version 1), as NCCL_TOPO_FILE takes it: NUMA nodes, the PCI tree above
 * GPUs and network cards, NVLinks. The format has no memory and no rates; these come from the table of cards
 * when the file is loaded. TSR_ERR_UNSUPPORTED: the machine has no GPU, or there are several machines, of
 * which each has a file of its own. TSR_ERR_MEMORY. */
TSR_NODISCARD TSR_API tsr_status tsr_topology_write_nccl_xml(const tsr_topology *topo, tsr_write_fn write,
                                                             void *user);

/** NULL is fine. */
TSR_API void tsr_topology_destroy(tsr_topology *topo);

/** Print the machine as an indented tree, and its PCI devices, for people to read. */
TSR_API void tsr_topology_print(const tsr_topology *topo, tsr_write_fn write, void *user);

/** "PIX", "SYS", ... as in `nvidia-smi topo -m`; "same", "board", "NET" or "?" for paths without a word
 * there; never NULL. */
TSR_API const char *tsr_gpu_path_name(tsr_gpu_path path);

/** "ib", "roce", "ethernet", as in the text of tsr_topology_parse(); "none". */
TSR_API const char *tsr_network_kind_name(tsr_network_kind kind);

TSR_END_DECLS
#endif
