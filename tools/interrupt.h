/* Ctrl-C as a flag, which long operations test between their steps so that partial results are kept. */
#ifndef TSR_TOOLS_INTERRUPT_H
#define TSR_TOOLS_INTERRUPT_H

#include <signal.h>
#include <stdbool.h>

/* Set by Ctrl-C after tool_hear_interrupts(); to be cleared by code that continues after an interrupt. */
extern volatile sig_atomic_t tool_interrupted;

/* `once`: a second Ctrl-C ends the process. `restart`: reading continues after Ctrl-C instead of failing
 * with EINTR. The previous action is stored in *before_out, if that is not NULL, and can be restored with
 * sigaction(). */
void tool_hear_interrupts(bool once, bool restart, struct sigaction *before_out);

/* Of several processes only the first hears Ctrl-C, and not as above, since all must end at the same step: it
 * sets this, and the caller has all processes set tool_interrupted together. */
extern volatile sig_atomic_t tool_interrupt_wanted;
void tool_hear_interrupts_together(bool is_first, bool once, struct sigaction *before_out);

/* Wait until there is something to read, or the end. False with errno EINTR after Ctrl-C, even if that came
 * before the call: read() alone would then wait for the next key. */
bool tool_wait_to_read(int file);

#endif
