/* The simulated machine's management library, NVML: what there is of it and what it says. It counts among
 * cudasim_calls(), and cudasim_fail_call() and cudasim_fail_named() work on it. */
#ifndef CUDASIM_NVML_H
#define CUDASIM_NVML_H

#include <stdbool.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef enum cudasim_fabric {
    CUDASIM_NO_NVLINK,
    CUDASIM_NVLINK_PAIRS, /* GPUs 2i and 2i + 1 are joined */
    CUDASIM_NVLINK_MESH,  /* every GPU with every other */
    CUDASIM_NVSWITCH      /* every GPU with four switches */
} cudasim_fabric;

typedef struct cudasim_nvml_config {
    bool installed;
    const char *lacks; /* a function that this version has not; NULL: none */
    cudasim_fabric fabric;
    int n_links;      /* of each GPU; a whole number per other end */
    bool is_mig;      /* every GPU is an instance with half the memory of its card */
    bool knows_uuids; /* false: only bus ids */
} cudasim_nvml_config;

#define CUDASIM_NVML_CONFIG_INIT                                                                   \
    {                                                                                              \
        .installed = true, .lacks = 0, .fabric = CUDASIM_NO_NVLINK, .n_links = 0, .is_mig = false, \
        .knows_uuids = true                                                                        \
    }

/* It is not installed until this is called; NULL takes it away again. cudasim_configure() leaves it. */
void cudasim_nvml_configure(const cudasim_nvml_config *config);

/* How often it was started and not yet shut down. */
int cudasim_nvml_started(void);

/* The address of one of its functions; NULL where it is not installed or has no such function. */
void *cudasim_nvml_symbol(const char *name);

#ifdef __cplusplus
}
#endif

#endif
