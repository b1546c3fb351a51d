/** @file
 * The devices that a --devices text makes of a topology.
 *
 *     tsr_device_list *list = NULL;
 *     if (tsr_device_list_create(topo, "host:2,mem=4GiB", NULL, &list) != TSR_OK)
 *         fprintf(stderr, "%s\n", tsr_last_error());
 *     else
 *         printf("%s has %d cores\n", list->devices[0].name, list->devices[0].n_cores);
 *     tsr_device_list_destroy(list);
 *
 * A list is read-only after its creation, so any number of threads may read it. Its owner may edit it.
 */
#ifndef TSR_DEVICE_LIST_H
#define TSR_DEVICE_LIST_H

#include <stdbool.h>
#include <stdint.h>

#include <tsr/log.h>
#include <tsr/split.h>
#include <tsr/status.h>
#include <tsr/topology.h>

TSR_BEGIN_DECLS

/** What a device is. */
typedef enum tsr_device_kind {
    TSR_DEVICE_HOST = 0, /**< a set of cores and the memory near them */
    TSR_DEVICE_CUDA = 1
} tsr_device_kind;

/** Of an instruction set's name ("avx512"), its end included. */
#define TSR_ISA_NAME_BYTES 16

/** A device that a text describes. Nothing is allocated or started for it. */
typedef struct tsr_device_desc {
    char name[32]; /**< "host0", "host1", ...; "cuda0", and "cuda0.1" for a second one on the same GPU; of
                        machine 1 of several "host0@1" */
    tsr_device_kind kind;  /**< host or CUDA */
    int gpu;               /**< index into topology.gpus; -1 for host devices */
    int numa_node;         /**< index of the node that its cores count as theirs, -1 if there are several */
    uint64_t commit_bytes; /**< unit in which its growing memory is backed; 0 for host devices: a page */
    uint64_t memory_total_bytes; /**< of the GPU; or of that node, or of all nodes its cores belong to; not
                                      divided among devices on the same node; at most
                                      topology.memory_limit_bytes where that is set; 0 if unknown */
    uint64_t mem_cap_bytes;      /**< most that the device may use, 0 = memory_total_bytes */
    /** of GPUs: what the device can count on, hence its cap in plans and when it is opened: of what was free
     * (of all, if unknown) less what the driver takes, its part, and at most mem_cap_bytes. 0 for host
     * devices */
    uint64_t memory_usable_bytes;
    /** of GPUs: no memory of its own but the host's, which it shares with host devices */
    bool integrated;
    bool managed; /**< managed=1 */
    bool wrap;    /**< wrap=1 */
    /** Peak rates, 0 where neither the machine nor a table of cards has them; of the whole GPU even where
     * several devices share it. */
    double memory_bytes_per_s;    /**< reading its memory; of a host device, the part that its cores have of
                                       their nodes' rates, never 0 (memory_rate_assumed) */
    double flops_per_s;           /**< F16 matrix products, operations */
    double link_bytes_per_s;      /**< to the host, one direction */
    int n_threads;                /**< of host devices; 0 for GPUs */
    char isa[TSR_ISA_NAME_BYTES]; /**< isa=, of host devices; "": the runtime's */
    int duty_percent;             /**< duty=, of host devices: 1..100 */
    int n_cores;                  /**< entries of `cores` */
    int n_pus;                    /**< entries of `pus` */
    const int *cores;      /**< n_cores indices into topology.cores, ascending; of a GPU: those near it, where
                                its host thread runs (0 if none are known to be) */
    const int *pus;        /**< n_pus os indices: hardware threads of those cores, of host devices all */
    const int *thread_pus; /**< n_threads os indices: where to pin each thread; -1 = any of `pus`, for threads
                                beyond the number of hardware threads; of host devices */
    bool memory_rate_assumed; /**< of host devices: the machine does not say how fast its memory is;
                                   memory_bytes_per_s follows from the processor's model, if that is known */
    double sm_cycles_per_s;   /**< of GPUs: clock cycles of all streaming multiprocessors; 0 if unknown */
    /** of host devices: topology.memory_available_bytes, at most memory_total_bytes; not divided among the
     * devices. Plans show it as free memory; it limits none */
    uint64_t memory_available_bytes;
    /** of GPUs: what the driver takes for a context when the process begins to use the GPU (an estimate),
     * once for all devices on it; 0 if the process has one already */
    uint64_t context_bytes;
} tsr_device_desc;

/** The devices that a --devices text makes of a topology. */
typedef struct tsr_device_list {
    int n_devices;            /**< entries of `devices` */
    tsr_device_desc *devices; /**< [n_devices], in the order of the text */
} tsr_device_list;

/** Make the devices of the text `spec`, in its order. NULL or "": every GPU ("cuda"), or "host" if there is
 * none. Grammar, blanks ignored:
 *
 *     spec   = item { "," item }
 *     item   = "host" [ ":" N ] { "," option }        N devices, 1..TSR_MAX_DEVICES
 *            | "cuda" [ ":" GPU ] { "," option }      one GPU; without a name, every GPU
 *     GPU    = its number | its UUID, or enough of it ("GPU-8a56") | its PCI bus id ("0000:65:00.0")
 *     option = "mem=" BYTES                           for each device of the item before it
 *            | "threads=" K                           for each; host devices only
 *            | "isa=" NAME                            for each; host devices only
 *            | "duty=" PERCENT [ "%" ]                for each; host devices only
 *            | "managed=" ( "0" | "1" )               for each; GPUs only
 *            | "wrap=" ( "0" | "1" )                  for each; GPUs only
 *            | "cpus=" LIST                           for each; GPUs only
 *     LIST   = CPU [ "-" CPU ] { "," CPU [ "-" CPU ] }   as the operating system numbers them
 *     BYTES  = number with an optional B, KB MB GB TB (powers of 1000), KiB MiB GiB TiB or K M G T (of 1024)
 *
 * "host" alone is one device per NUMA node that has cores and memory. Otherwise the cores are cut, in their
 * order, into one contiguous set per device: a device with threads=K counts as K cores and one without as a
 * single core; cores left over go first to devices without threads=, and a cut that falls near the edge of a
 * NUMA node moves onto it. Threads are pinned to the first cores of their set, one each (default: one per
 * core).
 *
 * A GPU may be named several times: each is a device of its own ("virtual"), with its own memory cap, which
 * is an equal part of what the GPU's others leave unless mem= says otherwise. The host thread of a GPU runs
 * on the cores of its NUMA node, or on cpus=; it shares them with host devices.
 *
 * isa=generic and the like take kernels of that instruction set for this host device instead of those that
 * the runtime is opened with. They change no bit of a result, only the speed: a way to have unequal devices.
 *
 * duty=50% makes the threads of a host device sleep as long as they work. The device has half the speed, for
 * tests of splits over unequal devices. Other devices do not become slower.
 *
 * managed=1 takes CUDA's managed memory, which may exceed the GPU's: mem= may then be more than the GPU has,
 * and what does not fit moves over the bus, page by page, whenever it is used. wrap=1 lets the GPU read the
 * weights in host memory, so that it holds KV and activations only: every token then waits for all weights to
 * cross the bus. The log reports the cost. Both are 0 by default; a GPU that shares the host's
 * memory reads weights in place anyway.
 *
 * Of several machines (topology.machines) each makes devices of the text, as each process of a run does:
 * "cuda:0" is the first GPU of every machine, and cpus= are numbers of its processors. Devices are in the
 * order of the machines and named like those of processes: "cuda0@1" is on machine 1.
 *
 * With more devices than cores, devices share cores; that, and more threads than cores, warns through
 * `logger` (NULL: silent) and works. So does a host device whose mem= is above its memory; of a GPU that is
 * an error. With `spec` NULL it warns where this machine has a GPU, or a driver for one, and none is usable.
 *
 * `topo` is only read during the call. The result is the caller's, freed with tsr_device_list_destroy().
 * TSR_ERR_INVALID names the piece of `spec` that is wrong and what would be right; TSR_ERR_UNSUPPORTED:
 * GPUs where there are none that can be used. TSR_ERR_NOT_FOUND: a GPU that does not exist; the message lists
 * those that exist. TSR_ERR_MEMORY. */
TSR_NODISCARD TSR_API tsr_status tsr_device_list_create(const tsr_topology *topo, const char *spec,
                                                        const tsr_logger *logger, tsr_device_list **list_out);

/** NULL is fine. */
TSR_API void tsr_device_list_destroy(tsr_device_list *list);

/** "host" or "cuda". */
TSR_API const char *tsr_device_kind_name(tsr_device_kind kind);

TSR_END_DECLS
#endif
