/* How busy other processes keep the processors while something is measured. */
#ifndef TSR_TOOLS_LOAD_H
#define TSR_TOOLS_LOAD_H

#include <stdbool.h>

#include "processes.h"

/* A moment of the system's and this process's processor time. */
typedef struct tool_load {
    double all_s;  /* processor time of everything but idling; -1: the system does not tell */
    double own_s;  /* of this process */
    double wall_s; /* tool_clock() */
} tool_load;

tool_load tool_load_now(void);

/* The part of all processors' time since `start` that processes other than these took, 0 to 1; 0 where the
 * system does not tell. Of several machines the largest, the same in all processes, each of which calls this
 * (if they cannot be reached, 1 after an error message). */
double tool_load_of_others(const tool_processes *processes, const tool_load *start);

/* Whether so much load makes measured speeds wrong. */
bool tool_load_disturbs(double load);

#endif
