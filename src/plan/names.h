/* Names of devices in texts: "cuda0-3" for devices whose names count up; workloads and times. */
#ifndef TSR_PLAN_NAMES_H
#define TSR_PLAN_NAMES_H

#include <tsr/plan.h>

enum { TSR_PLAN_RANGE_BYTES = 64 };

/* Whether b is the name after a: "cuda1" after "cuda0", "cuda1@2" after "cuda0@2". */
bool tsr_plan_names_follow(const char *a, const char *b);

/* "cuda0-3" of "cuda0" and "cuda3", "cuda0-3@1" of "cuda0@1" and a text that ends in "cuda3@1". */
void tsr_plan_range_text(const char *first, const char *last, char text[TSR_PLAN_RANGE_BYTES]);

/* The same of n devices with names that follow each other; of one its name. */
void tsr_plan_name_range(const tsr_plan_device *devices, int n, char text[TSR_PLAN_RANGE_BYTES]);

/* Append the ranges of the devices in `set` to text[size]: "cuda0-3, cuda6" with ", " between them. */
void tsr_plan_append_names(const tsr_plan_device *devices, int n_devices, uint64_t set, const char *separator,
                           char *text, size_t size);

enum { TSR_PLAN_WORKLOAD_BYTES = 96, TSR_PLAN_TIME_BYTES = 24 };

/* "1.17 s", "8.62 ms", "99.8 us". */
const char *tsr_plan_time_text(double ns, char text[TSR_PLAN_TIME_BYTES]);

/* "512 tokens in and 128 out", "8 sequences of 128 tokens out": the workload of a plan. */
void tsr_plan_name_workload(const tsr_plan_info *info, char text[TSR_PLAN_WORKLOAD_BYTES]);

#endif
