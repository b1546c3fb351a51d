/* A tensor_split after it was read. Code that takes a request never interprets the caller's array again. */
#ifndef TSR_SPLIT_REQUEST_H
#define TSR_SPLIT_REQUEST_H

#include <tsr/split.h>

typedef struct tsr_split_request {
    bool automatic;                /* no device was given a share: the planner may choose */
    int n;                         /* devices */
    double share[TSR_MAX_DEVICES]; /* [n], sum 1; even shares if `automatic` */
} tsr_split_request;

/* Read tensor_split[n] for n_devices devices. NULL, n == 0 or all zeros is an automatic request. Errors are
 * those of tsr_split_check(). */
tsr_status tsr_split_request_read(const float *tensor_split, int n, int n_devices,
                                  tsr_split_request *request_out);

#endif
