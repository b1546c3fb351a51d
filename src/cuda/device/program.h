/* Programs of a CUDA device: op lists, captured into graphs and run by its host thread. */
#ifndef TSR_CUDA_DEVICE_PROGRAM_H
#define TSR_CUDA_DEVICE_PROGRAM_H

#include "core/device.h"

struct tsr_cuda_device;

/* The program functions of struct tsr_device_ops. */
tsr_status tsr_cuda_program_create(tsr_device *device, const tsr_op *ops, int n_ops,
                                   tsr_device_program **program_out);
void tsr_cuda_program_destroy(tsr_device *device, tsr_device_program *program);
tsr_status tsr_cuda_program_prepare(tsr_device *device, tsr_device_program *program);
void tsr_cuda_program_discard(tsr_device *device, tsr_device_program *program);
tsr_status tsr_cuda_program_launch(tsr_device *device, tsr_device_program *program);

/* program_wait.c */
tsr_status tsr_cuda_synchronize(tsr_device *device, uint64_t timeout_ns);
tsr_status tsr_cuda_wait_queue(tsr_device *device, int n_left, uint64_t timeout_ns);

/* For messages: the running program, or the op that the host thread takes part in, with its problem and the
 * devices that it waits for. */
enum { TSR_CUDA_RUNNING_BYTES = 512 };
void tsr_cuda_describe_running(const struct tsr_cuda_device *cuda, const char *problem,
                               char text[TSR_CUDA_RUNNING_BYTES]);

#endif
