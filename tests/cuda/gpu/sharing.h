/* Devices of a described machine on a real one with fewer GPUs: those that are missing share the others.
 *
 * The programs are linked with --wrap=tsr_runtime_open, so no test has to know: GPU i of the description is
 * GPU i modulo n_real, and "cuda" stands for all that are described. */
#ifndef TSR_TESTS_GPU_SHARING_H
#define TSR_TESTS_GPU_SHARING_H

#include <stddef.h>

enum { GPU_SHARING_TEXT = 1024 };

typedef struct gpu_sharing_state {
    int n_described, n_real; /* n_real >= n_described: nothing is shared */
} gpu_sharing_state;

extern gpu_sharing_state gpu_sharing;

/* The devices of a text in the form of tsr_runtime_config as they are here. */
const char *gpu_sharing_devices(const gpu_sharing_state *state, const char *devices,
                                char text[GPU_SHARING_TEXT]);

#endif
