/** @file
 * Speeds of the links between devices, and the times of all-reduces over them.
 *
 * The machine is a graph of wires, each with bytes per second per direction: a GPU's PCIe link, the uplinks
 * of switches, the interconnect between sockets, NVLinks, ports of NVSwitches, host memory, and of several
 * machines the network adapters of each. Every ordered pair of devices has a route over them. Routes that
 * share a wire share its bandwidth, so four cards behind one uplink are slower together than each alone.
 * Rates come from the topology. Rates that it lacks are guessed and marked (the sources are in
 * src/topo/links/links.c). Measured values replace both.
 *
 *     tsr_links *links = NULL;
 *     tsr_link pair;
 *     if (tsr_links_create(topo, devices, &links) == TSR_OK) {
 *         tsr_links_pair(links, 0, 1, &pair);
 *         double ns = tsr_links_all_reduce_ns(links, 3, 4096 * sizeof(int64_t));
 *     }
 *     tsr_links_destroy(links);
 *
 * Measured values come from tsr_runtime_measure_links() (tsr/rates.h); the caller stores them, as `tsr bench
 * links` does. Only tsr_links_set_measured() changes a tsr_links; otherwise any number of threads may read it
 * at a time. */
#ifndef TSR_LINKS_H
#define TSR_LINKS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <tsr/device_list.h>
#include <tsr/status.h>
#include <tsr/topology.h>

TSR_BEGIN_DECLS

/** The links between the devices of a list. */
typedef struct tsr_links tsr_links;

/** The slowest part of a route, best first. */
typedef enum tsr_link_kind {
    TSR_LINK_SAME = 0, /**< one device, or two virtual ones on the same GPU: its memory */
    TSR_LINK_NVLINK,
    TSR_LINK_NVSWITCH,
    TSR_LINK_C2C,    /**< chip to chip, GPU and processor in one package */
    TSR_LINK_MEMORY, /**< host devices on one NUMA node */
    TSR_LINK_PCIE,   /**< GPUs that reach each other's memory over PCIe */
    TSR_LINK_SOCKET, /**< GPUs over PCIe, or host devices, across the interconnect of sockets */
    TSR_LINK_STAGED, /**< through host memory: no peer access, or one end is a host device */
    TSR_LINK_NETWORK /**< between machines */
} tsr_link_kind;

/** From one device to another. */
typedef struct tsr_link {
    tsr_link_kind kind; /**< of the slowest part of the route */
    double bytes_per_s; /**< in one direction, on an idle machine */
    double latency_ns;  /**< of a signal, until the other device sees it */
    bool guessed;       /**< some part of the route is not described by the topology */
    bool measured;      /**< rate and latency are measured; otherwise the latency is guessed */
} tsr_link;

/** The algorithm of an all-reduce. */
typedef enum tsr_all_reduce_algorithm {
    TSR_ALL_REDUCE_NONE = 0, /**< fewer than two devices */
    TSR_ALL_REDUCE_ONE_SHOT, /**< each device gets the partial sums of all others */
    TSR_ALL_REDUCE_TWO_SHOT, /**< each device sums up one part, then all read the sums */
    TSR_ALL_REDUCE_RING,     /**< NCCL's; GPUs only */
    TSR_ALL_REDUCE_MEASURED, /**< the time is measured; the algorithm is the one that ran */
    TSR_ALL_REDUCE_TREE,     /**< NCCL's between machines; GPUs only */
    /** each machine adds up its parts, then the machines exchange sums as MPI's all-reduce does, then all
     * devices read the sum */
    TSR_ALL_REDUCE_MACHINES
} tsr_all_reduce_algorithm;

/** The time of an all-reduce. */
typedef struct tsr_all_reduce_cost {
    double ns;         /**< from the arrival of the last device until the last device has the sum */
    double latency_ns; /**< the part of it that does not depend on the bytes; 0 if measured */
    tsr_all_reduce_algorithm algorithm; /**< the fastest that can be used */
    tsr_link_kind slowest;              /**< the worst kind of route */
    bool guessed;                       /**< some part of a route is not described by the topology */
} tsr_all_reduce_cost;

/** Find the links between the devices of a list. The arguments are only read during the call. Devices are
 * numbered as in the list. The caller owns the result and frees it with tsr_links_destroy().
 * TSR_ERR_UNSUPPORTED: a PCI tree too large to follow. TSR_ERR_MEMORY. */
TSR_NODISCARD TSR_API tsr_status tsr_links_create(const tsr_topology *topo, const tsr_device_list *devices,
                                                  tsr_links **links_out);

/** Copy `links` with its measured values. The copy belongs to the caller. TSR_ERR_MEMORY. */
TSR_NODISCARD TSR_API tsr_status tsr_links_copy(const tsr_links *links, tsr_links **copy_out);

/** NULL is fine. */
TSR_API void tsr_links_destroy(tsr_links *links);

/** The number of devices. */
TSR_API int tsr_links_n_devices(const tsr_links *links);

/** The route from device `from` to device `to`. TSR_ERR_INVALID: no such device. */
TSR_NODISCARD TSR_API tsr_status tsr_links_pair(const tsr_links *links, int from, int to, tsr_link *link_out);

/** "nvlink", "nvswitch", "c2c", "memory", "pcie", "socket", "staged", "network", "same". */
TSR_API const char *tsr_link_kind_name(tsr_link_kind kind);

/** "none", "one-shot", "two-shot", "ring", "measured", "tree", "machines". */
TSR_API const char *tsr_all_reduce_algorithm_name(tsr_all_reduce_algorithm algorithm);

/** Nanoseconds of a transfer of `bytes` from one device to another; 0 for from == to, and for numbers that
 * are no devices. */
TSR_API double tsr_links_copy_ns(const tsr_links *links, int from, int to, uint64_t bytes);

/** Nanoseconds of an all-reduce of `bytes` (on each device) over the devices whose bits are set, bit i being
 * device i; bits beyond the last device are ignored, and it is 0 for fewer than two devices. Measured values
 * of that set are interpolated; without any, it is the least of
 *
 *     one-shot   base + hop
 *                + max over wires of n_routes x bytes / bytes_per_s
 *     two-shot   base + 2 hop
 *                + max over wires of n_routes x (2 bytes / n) / bytes_per_s
 *     ring       ring_base + 2 (n - 1) hop
 *                + max over wires of n_ring_routes x 2 (n - 1) / n x bytes / bytes_per_s
 *
 * with n devices, hop the largest latency among the routes, n_routes the number of ordered pairs whose routes
 * cross the wire in that direction, ring only among GPUs, and two-shot not among GPUs of which some have no
 * peer access: these push whole parts through host memory. The ring's bandwidth term is that of Patarasuk
 * and Yuan, "Bandwidth optimal all-reduce algorithms for clusters of workstations" (2009); ring_base and the
 * ring's hops are NCCL's tuning constants.
 *
 * Where the devices of the list are on several machines, or those of a runtime in several processes, each
 * machine is a process. Sums inside a machine have the above; on m > 1 machines sums of GPUs only are NCCL's,
 * and others are added up inside each machine and then by MPI (docs/design/processes.md). With hop of the
 * routes inside machines, net of those between them, k the most devices of a machine, and the routes of each
 * machine's devices taken in turn, as NCCL's channels do,
 *
 *     ring       ring_base + 2 (n - m) hop + 2 (m - 1) net
 *                + max over wires of n_ring_routes x 2 (n - 1) / n x bytes / bytes_per_s
 *     tree       tree_base + 2 (k - 1) hop + 2 log2(m) net x 5.0 / 2.7
 *                + max over wires of n_tree_routes x bytes / bytes_per_s / 0.9
 *     machines   base + 2 hop + max over wires of n_routes x bytes / bytes_per_s
 *                + least of log2(m) (net + B), 2 log2(m) net + 2 (m - 1) / m B
 *
 * where each machine sends 2 (m - 1) / m of the bytes in trees, n_routes are those between a machine's first
 * device and its others, and B is the time of all bytes over the network. Latencies and factors of ring and
 * tree are NCCL's (src/graph/tuning.cc); two trees: Sanders, Speck and Traeff, "Two-tree algorithms for full
 * bandwidth broadcast, reduction and scan" (2009); MPI: recursive doubling, and Rabenseifner's algorithm, in
 * Thakur, Rabenseifner and Gropp, "Optimization of collective communication operations in MPICH" (2005).
 * No allocation, no lock: made for a planner's inner loop. */
TSR_API double tsr_links_all_reduce_ns(const tsr_links *links, uint64_t device_mask, uint64_t bytes);

/** Write the time of tsr_links_all_reduce_ns() together with its parts. */
TSR_API void tsr_links_all_reduce(const tsr_links *links, uint64_t device_mask, uint64_t bytes,
                                  tsr_all_reduce_cost *cost_out);

/** A measured time of an all-reduce, or of a transfer from one device to another. */
typedef struct tsr_links_value {
    int from; /**< the sender of a transfer; -1: an all-reduce */
    /** bit i for device i: the participants of an all-reduce, the receiver of a transfer */
    uint64_t devices;
    uint64_t bytes; /**< of the all-reduce on each device, or of the transfer */
    double ns;      /**< nanoseconds that it took */
} tsr_links_value;

/** Record a copy of a value. It replaces a value of the same devices and size. Recorded values replace the
 * prediction: sizes between two values are interpolated linearly, smaller sizes take the time of the smallest
 * value, larger sizes continue at the rate of the two largest values. tsr_links_pair() then gives the time of
 * the smallest transfer as latency, and the rate of the largest. TSR_ERR_INVALID: an all-reduce of fewer than
 * two devices, a transfer that is not from one device to another, or a time that is not positive.
 * TSR_ERR_MEMORY. */
TSR_NODISCARD TSR_API tsr_status tsr_links_set_measured(tsr_links *links, const tsr_links_value *value);

/** The number of values that were recorded. */
TSR_API int tsr_links_n_measured(const tsr_links *links);
/** A recorded value: all-reduces, then transfers, each in the order of devices and bytes. NULL: there is no
 * value with this index. The pointer is valid until the next value is recorded. */
TSR_API const tsr_links_value *tsr_links_measured(const tsr_links *links, int index);

TSR_END_DECLS
#endif
