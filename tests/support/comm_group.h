/* Host devices whose kernels are few and tiny, their communicator, and a program under construction for
 * each of them. */
#ifndef TSR_TESTS_COMM_GROUP_H
#define TSR_TESTS_COMM_GROUP_H

#include <stdint.h>

#include "core/comm.h"
#include "core/device.h"
#include "core/op.h"

enum { MAX_RANKS = 64, MAX_OPS = 64 };

typedef struct group {
    int n;
    tsr_comm *comm;
    tsr_device *devices[MAX_RANKS];
    tsr_device_program *programs[MAX_RANKS];
    tsr_op ops[MAX_RANKS][MAX_OPS];
    int n_ops[MAX_RANKS];
    tsr_collective *collectives[MAX_OPS];
    int n_collectives;
} group;

/* n devices with n_threads[i] threads each; NULL: one each. */
group *group_open(int n, const int *n_threads);

/* Destroys what the functions below made, too. */
void group_close(group *g);

tsr_collective *group_collective(group *g, const tsr_collective_desc *desc);

/* Append to a device's program. */
void group_op(group *g, int rank, tsr_op op);

/* Make the programs, after the last op. */
void group_compile(group *g);

/* Launch the programs of the devices whose bits are set in `ranks`. */
void group_launch(group *g, uint64_t ranks);

/* Wait for all, without a deadline; what fails fails the test. */
void group_synchronize(group *g);

/* Launch all, and wait for them. */
void group_run(group *g);

/* The lowest n bits. */
uint64_t all_of(int n);

#endif
