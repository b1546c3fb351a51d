/* Devices for tests of the memory side: ordinary host memory behind struct tsr_device_ops, with limits,
 * counters and calls that fail on demand. Memory is poisoned when it is handed out; every access through the
 * table is checked against what the device handed out (a stray one fails the running test), and so is every
 * free. Programs are accepted, launching them is TSR_ERR_UNSUPPORTED.
 *
 *     fake_runtime fake;
 *     fake_runtime_open(&fake, 3, NULL);
 *     fake_device_fail(fake.rt.devices[1], FAKE_COMMIT, 2);        (the second commit from now)
 *     ... tests with &fake.rt ...
 *     fake_runtime_close(&fake);                         (asserts that nothing is left on any device)
 */
#ifndef TSR_TESTS_FAKE_DEVICE_H
#define TSR_TESTS_FAKE_DEVICE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <tsr/split.h>

#include "core/runtime.h"

typedef struct fake_device_config {
    size_t memory_cap, alignment, max_alloc;
    size_t granularity; /* of commits: a multiple of the system's page */
    bool refuses_wrap;  /* as a discrete GPU does */
} fake_device_config;

/* No limits, alignment 64, granularity 4096. */
fake_device_config fake_device_defaults(void);

/* Calls that can be counted and made to fail. Allocating ones fail with TSR_ERR_MEMORY, others with
 * TSR_ERR_DEVICE. */
typedef enum fake_call {
    FAKE_ALLOC,
    FAKE_RESERVE,
    FAKE_COMMIT,
    FAKE_DECOMMIT,
    FAKE_WRAP,
    FAKE_UPLOAD,
    FAKE_DOWNLOAD,
    FAKE_COPY,
    FAKE_CALL_COUNT
} fake_call;

tsr_device *fake_device_create(int index, const fake_device_config *config);

/* Let the n-th call of a kind from now on (1 = the next) fail, once; 0 = none. */
void fake_device_fail(tsr_device *device, fake_call call, int64_t n);

/* The device has `memory` bytes (at first: as many as its cap), of which others have taken some. */
void fake_device_others(tsr_device *device, size_t memory, size_t others);

/* Let the n-th upload from now on (1 = the next) change the last bit that it writes, once; 0 = none. */
void fake_device_corrupt(tsr_device *device, int64_t n);

/* Calls of a kind since the device was created, failed ones included. */
int64_t fake_device_calls(const tsr_device *device, fake_call call);

/* Bytes allocated, reserved or wrapped and not given back; and those committed of the reserved ones. */
size_t fake_device_live_bytes(const tsr_device *device);
size_t fake_device_committed_bytes(const tsr_device *device);

typedef struct fake_runtime {
    tsr_runtime rt;
    tsr_device *devices[TSR_MAX_DEVICES];
} fake_runtime;

/* n devices; configs[n], or NULL for defaults. */
void fake_runtime_open(fake_runtime *fake, int n_devices, const fake_device_config *configs);

/* A runtime of measuring devices with the same limits, as planning has. */
void fake_runtime_open_dry(fake_runtime *fake, int n_devices, const fake_device_config *configs);

/* Destroy buffer types and devices; asserts that no byte is allocated or charged any more. */
void fake_runtime_close(fake_runtime *fake);

#endif
