/* Ctrl-C as something that long work asks about between its steps,
 * so that what there is by then is not lost. */
#ifndef TSR_TOOLS_INTERRUPT_H
#define TSR_TOOLS_INTERRUPT_H

#include <signal.h>
#include <stdbool.h>

/* Set by Ctrl-C from tool_hear_interrupts() on; whoever goes on after it clears it. */
extern volatile sig_atomic_t tool_interrupted;

/* `once`: a second Ctrl-C ends the process. `restart`: reading goes on after it instead of failing with
 * EINTR. What was in force before goes to *before_out, if that is not NULL, for sigaction() to put back. */
void tool_hear_interrupts(bool once, bool restart, struct sigaction *before_out);

#endif
