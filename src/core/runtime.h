/* The part of a runtime that every layer may use: its devices, their communicator and the log sink. The
 * runtime is opened in src/runtime, the only folder that depends on the kinds of devices. */
#ifndef TSR_CORE_RUNTIME_H
#define TSR_CORE_RUNTIME_H

#include <tsr/log.h>
#include <tsr/rates.h>

#include "core/comm.h"
#include "core/device.h"
#include "core/track.h"
#include "core/processes.h"

struct tsr_runtime {
    int n_devices;
    tsr_device **devices; /* [n_devices], devices[i]->index == i */
    tsr_comm *comm;
    char collectives[16];     /* the name in the config; "": auto */
    tsr_processes *processes; /* NULL: single process */
    tsr_watch *watch;         /* over all waits for its threads; NULL where no_alloc */
    tsr_logger logger;
    tsr_device_rates *rates;  /* [n_devices] as described; NULL where no_alloc */
    tsr_links *links;         /* of several processes, as described; otherwise NULL */
    bool no_alloc;            /* planning: devices are descriptions, nothing is allocated on them */
    struct tsr_model *models; /* src/model keeps the list of open models here */
    void *buffer_types;       /* src/alloc keeps its cache here */
    void (*buffer_types_destroy)(void *buffer_types);
    tsr_tracked *tracked; /* the objects that exist on it */
};

#endif
