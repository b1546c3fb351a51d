/* Times of a device's programs, for tsr_model_adapt(): events in its stream around every part of a program,
 * and around what waits for other devices inside it. The latter are in a graph of their own, which is
 * launched only where the clock says `timed`; the graph of ordinary steps has no events. */
#ifndef TSR_CUDA_DEVICE_TIMING_H
#define TSR_CUDA_DEVICE_TIMING_H

#include "cuda/context/context.h"

/* The events of a part, by number: its begin and its end, and then those around what waits. */
enum { TSR_CUDA_PART_BEGIN = 0, TSR_CUDA_PART_END = 1, TSR_CUDA_WAITS = 2 };

/* Make the events for parts with up to n_waits ops that wait. The device is current, here and below.
 * TSR_ERR_MEMORY, TSR_ERR_DEVICE. */
tsr_status tsr_cuda_timing_reserve(tsr_cuda_device *cuda, int n_waits);
void tsr_cuda_timing_close(tsr_cuda_device *cuda);

/* Whether an op waits for other devices in the stream, or for a sum that does. */
bool tsr_cuda_waits(const tsr_op *op);

/* Record an event in `stream`, or in the graph that is captured from it. */
tsr_status tsr_cuda_timing_record(tsr_cuda_device *cuda, int event);

/* Between these two calls tsr_cuda_timing_mark() records the next of the events around what waits; elsewhere
 * it does nothing. */
void tsr_cuda_timing_begin_marks(tsr_cuda_device *cuda);
void tsr_cuda_timing_end_marks(tsr_cuda_device *cuda);
tsr_status tsr_cuda_timing_mark(tsr_cuda_device *cuda);

/* Add a part with n_waits ops that wait, which has ended, to the device's clock. */
tsr_status tsr_cuda_timing_add(tsr_cuda_device *cuda, int n_waits);

#endif
