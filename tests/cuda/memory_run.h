/* CUDA devices of simulated machines: machines of several kinds, the log of a device, allocations and a
 * kernel that uses them, and a mapped file. */
#ifndef TSR_TESTS_MEMORY_RUN_H
#define TSR_TESTS_MEMORY_RUN_H

#include <string.h>
#include <sys/mman.h>

#include "cuda/device/device.h"
#include "cuda/simulated.h"
#include "support/log_lines.h"

enum { MIB = 1 << 20, GRANULE = 64 << 10, PAGE = 4096 };

static inline void plain_machine(int n_devices)
{
    cudasim_config config = CUDASIM_CONFIG_INIT;
    config.n_devices = n_devices;
    config.memory = 64 * MIB;
    cudasim_configure(&config);
}

static inline void machine_that_wraps(int n_devices, bool registers, bool read_only)
{
    cudasim_config config = CUDASIM_CONFIG_INIT;
    config.n_devices = n_devices;
    config.integrated = true;
    config.registers = registers;
    config.register_read_only = read_only;
    cudasim_configure(&config);
}

/* `config` has what the test is about; names are cuda0, cuda1... */
static inline tsr_device *open_with(int ordinal, int index, tsr_cuda_device_config config, log_lines *log)
{
    char name[16];
    tsr_logger logger = {.fn = log_lines_note, .user = log, .max_level = TSR_LOG_DEBUG};
    tsr_device *device = NULL;
    snprintf(name, sizeof name, "cuda%d", index);
    config.name = name;
    config.ordinal = ordinal;
    config.index = index;
    config.logger = log ? &logger : NULL;
    ok(tsr_cuda_device_create(&config, &device));
    return device;
}

static inline tsr_device *open_device(int ordinal, int index)
{
    return open_with(ordinal, index, (tsr_cuda_device_config){0}, NULL);
}

static inline void *alloc(tsr_device *device, size_t bytes)
{
    void *pointer = NULL;
    ok(tsr_device_alloc(device, TSR_MEMORY_COMM, bytes, "a test", &pointer));
    return pointer;
}

static inline void drop(tsr_device *device, void *pointer, size_t bytes)
{
    tsr_device_free(device, TSR_MEMORY_COMM, pointer, bytes);
}

/* y = 2 x by a kernel of `device`. */
static inline tsr_status double_it(tsr_device *device, const float *x, float *y, int n)
{
    tsr_status status = TSR_OK;
    tsr_device_program *program = NULL;
    const tsr_op op = {.kind = TSR_OP_SCALE, .name = "doubled", .scale = {x, y, n, 2.0f}};
    TSR_TRY(device->ops->program_create(device, &op, 1, &program));
    TSR_TRY(device->ops->launch(device, program));
    TSR_TRY(device->ops->synchronize(device, 0));
out:
    device->ops->program_destroy(device, program);
    return status;
}

/* A file's pages, as if it were mapped for reading; `bytes` of it count up from 1. */
static inline float *map_file(size_t bytes)
{
    float *file = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    assert_true(file != MAP_FAILED);
    for (size_t i = 0; i < bytes / 4; i++)
        file[i] = (float)(i + 1);
    assert_int_equal(mprotect(file, bytes, PROT_READ), 0);
    return file;
}

#endif
