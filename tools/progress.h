/* A progress bar with the time left, in the last line of a terminal, for work that takes long. */
#ifndef TSR_TOOLS_PROGRESS_H
#define TSR_TOOLS_PROGRESS_H

#include <stdbool.h>

/* One kind of work, which may be done several times. The caller sets `what` and `quiet`, the rest is zero. */
typedef struct tool_progress {
    const char *what; /* "loading" */
    bool quiet;       /* never show anything */
    bool running, drawn;
    double start_s, drawn_s; /* by tool_clock() */
    double begin;            /* fraction at start_s */
} tool_progress;

/* The work is done to `fraction`, 0 to 1; `progress` is a tool_progress. Fits tsr_model_config.load.progress.
 * The first call begins the work. A bar is drawn on stderr if that is a terminal and two seconds have passed,
 * and is erased at 1. Ctrl-C erases it, too, where it would end the process. */
void tool_progress_show(double fraction, void *progress);

/* The work has ended, whether it is done or not. */
void tool_progress_end(tool_progress *progress);

/* Whether a bar may be drawn at all. */
bool tool_progress_is_on(const tool_progress *progress);

#endif
