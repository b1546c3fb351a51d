/* A set of devices: bit d of the integer is device d of the runtime, so public headers can show a set as a
 * uint64_t. Union, intersection and difference are |, & and & ~; 0 is the empty set.
 *
 *     tsr_device_set holders = tsr_device_set_one(2) | tsr_device_set_one(5);
 *     TSR_FOR_DEVICES(d, holders)
 *         bytes += device_bytes[d]; */
#ifndef TSR_CORE_DEVICE_SET_H
#define TSR_CORE_DEVICE_SET_H

#include <stdbool.h>
#include <stdint.h>

typedef uint64_t tsr_device_set;

enum { TSR_DEVICE_SET_SIZE = 64 }; /* devices 0 to 63 */

static inline bool tsr_device_set_has(tsr_device_set set, int device)
{
    return set >> device & 1;
}

/* Only this device. */
static inline tsr_device_set tsr_device_set_one(int device)
{
    return UINT64_C(1) << device;
}

/* Devices 0 to n_devices - 1. */
static inline tsr_device_set tsr_device_set_all(int n_devices)
{
    return n_devices >= TSR_DEVICE_SET_SIZE ? UINT64_MAX : (UINT64_C(1) << n_devices) - 1;
}

static inline int tsr_device_set_count(tsr_device_set set)
{
    return __builtin_popcountll(set);
}

/* The device with the smallest number. The set is not empty. */
static inline int tsr_device_set_first(tsr_device_set set)
{
    return __builtin_ctzll(set);
}

/* How many devices of the set come before `device`: its place in an array with an item per device of the
 * set. */
static inline int tsr_device_set_place(tsr_device_set set, int device)
{
    return tsr_device_set_count(set & tsr_device_set_all(device));
}

/* The first device of the set from `device` on; TSR_DEVICE_SET_SIZE if there is none. */
static inline int tsr_device_set_next(tsr_device_set set, int device)
{
    set &= ~tsr_device_set_all(device);
    return set ? tsr_device_set_first(set) : TSR_DEVICE_SET_SIZE;
}

/* For every device of the set, in ascending order. `set` is evaluated anew for each of them. */
#define TSR_FOR_DEVICES(device, set)                                             \
    for (int device = tsr_device_set_next(set, 0); device < TSR_DEVICE_SET_SIZE; \
         device = tsr_device_set_next(set, device + 1))

#endif
