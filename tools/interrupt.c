/* Handling of Ctrl-C; see interrupt.h. */
#include "interrupt.h"

volatile sig_atomic_t tool_interrupted;

static void on_interrupt(int signal_number)
{
    (void)signal_number;
    tool_interrupted = 1;
}

void tool_hear_interrupts(bool once, bool restart, struct sigaction *before_out)
{
    struct sigaction action = {.sa_handler = on_interrupt,
                               .sa_flags = (once ? (int)SA_RESETHAND : 0) | (restart ? SA_RESTART : 0)};
    sigemptyset(&action.sa_mask);
    sigaction(SIGINT, &action, before_out);
}
