/* The runtime: the devices that a program runs on, and everything that belongs to them.
 *
 * All state of the library hangs off a runtime; several may coexist. It is opened first and closed last:
 * models, sessions, contexts, buffers and programs must be gone before tsr_runtime_close().
 *
 *     tsr_runtime_config config = TSR_RUNTIME_CONFIG_INIT;
 *     config.devices = "host:2,threads=1";
 *     tsr_runtime *rt;
 *     if (tsr_runtime_open(&config, &rt) != TSR_OK) ...
 *
 * Threads: a runtime and what belongs to it are used by one thread at a time.
 */
#ifndef TSR_RUNTIME_H
#define TSR_RUNTIME_H

#include <stddef.h>
#include <stdint.h>

#include <tsr/log.h>
#include <tsr/memory.h>
#include <tsr/tensor.h>
#include <tsr/topology.h>

TSR_BEGIN_DECLS

typedef struct tsr_runtime_config {
    size_t size;         /* sizeof(tsr_runtime_config) */
    const char *devices; /* what tsr_device_list_create() takes, e.g. "host:2,mem=4GiB,threads=1"; NULL: one
                            host device per NUMA node */
    const char *isa;     /* host kernels: "generic", "avx2", "avx512"; NULL: the best this machine has */
    const tsr_topology *topology; /* of this machine, only read during the call; NULL: discovered */
    tsr_logger logger;            /* silent by default */
} tsr_runtime_config;

#define TSR_RUNTIME_CONFIG_INIT                                       \
    {                                                                 \
        sizeof(tsr_runtime_config), NULL, NULL, NULL, TSR_LOGGER_INIT \
    }

/* Open the devices and start their threads. `config` may be NULL. TSR_ERR_INVALID for a bad device text,
 * TSR_ERR_UNSUPPORTED for a kind of device that this build or an instruction set that this machine lacks,
 * TSR_ERR_MEMORY. */
TSR_NODISCARD TSR_API tsr_status tsr_runtime_open(const tsr_runtime_config *config, tsr_runtime **rt_out);

/* Stop the devices' threads and free everything; nothing may run or exist on it any more. NULL is fine. */
TSR_API void tsr_runtime_close(tsr_runtime *rt);

TSR_API int tsr_runtime_n_devices(const tsr_runtime *rt);

typedef struct tsr_device_info {
    char name[32];
    tsr_device_kind kind;
    char isa[16];      /* host devices: the kernels in use */
    int n_threads;     /* host devices */
    size_t memory_cap; /* most that may be used: mem=, else the memory near it; SIZE_MAX = no cap */
    size_t used[TSR_MEMORY_COUNT]; /* bytes by owner, now */
} tsr_device_info;

/* TSR_ERR_INVALID if there is no such device. */
TSR_NODISCARD TSR_API tsr_status tsr_runtime_device(const tsr_runtime *rt, int device,
                                                    tsr_device_info *info_out);

TSR_END_DECLS
#endif
