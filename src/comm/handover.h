/* A transfer from a device of one process to devices of others: through the transport once for each of these
 * processes, to its voice, the first receiver there; the others copy from the voice's memory. */
#ifndef TSR_COMM_HANDOVER_H
#define TSR_COMM_HANDOVER_H

#include "comm/barrier.h"
#include "core/comm.h"
#include "core/processes.h"

/* Of one process. The first members are the creator's, who keeps what they point to. */
typedef struct tsr_handover {
    const tsr_collective_desc *desc; /* a SEND */
    tsr_device_set here;             /* participants in this process */
    int voice;                       /* the first of them */
    tsr_device *const *devices;      /* all */
    tsr_processes *processes;
    tsr_barrier *barrier;   /* of the devices here; nothing else uses it */
    _Atomic bool *aborted;  /* of the barrier; set where the transport fails */
    const float *received;  /* in the voice's memory */
    _Atomic uint64_t begun; /* the phase whose values the voice receives, or has received */
} tsr_handover;

/* The sender's thread `me`: send to all other processes. False: aborted. */
bool tsr_handover_send(const tsr_handover *handover, const tsr_participant *me, const tsr_op_send *op);

/* A thread of a receiver in another process than the sender's. False: aborted. */
bool tsr_handover_receive(tsr_handover *handover, const tsr_participant *me, const tsr_op_recv *op);

/* The devices that device `index`, a participant here, waits for. Any thread. */
tsr_device_set tsr_handover_missing(const tsr_handover *handover, int index);

#endif
