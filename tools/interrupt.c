/* Handling of Ctrl-C; see interrupt.h. */
#include "interrupt.h"

#include <errno.h>
#include <poll.h>

volatile sig_atomic_t tool_interrupted, tool_interrupt_wanted;

static void on_interrupt(int signal_number)
{
    (void)signal_number;
    tool_interrupted = 1;
}

static void want_interrupt(int signal_number)
{
    (void)signal_number;
    tool_interrupt_wanted = 1;
}

static void hear(void (*handler)(int), int flags, struct sigaction *before_out)
{
    struct sigaction action = {.sa_handler = handler, .sa_flags = flags};
    sigemptyset(&action.sa_mask);
    sigaction(SIGINT, &action, before_out);
}

void tool_hear_interrupts(bool once, bool restart, struct sigaction *before_out)
{
    hear(on_interrupt, (once ? (int)SA_RESETHAND : 0) | (restart ? SA_RESTART : 0), before_out);
}

void tool_hear_interrupts_together(bool is_first, bool once, struct sigaction *before_out)
{
    tool_interrupt_wanted = 0;
    hear(is_first ? want_interrupt : SIG_IGN, (once ? (int)SA_RESETHAND : 0) | SA_RESTART, before_out);
}

bool tool_wait_to_read(int file)
{
    struct pollfd input = {.fd = file, .events = POLLIN};
    sigset_t interrupt, before;
    sigemptyset(&interrupt);
    sigaddset(&interrupt, SIGINT);
    sigprocmask(SIG_BLOCK, &interrupt, &before);
    /* The signal is let through inside ppoll() only, so none is lost between the test and the wait. Other
     * signals say that the window has another size, or that the process was stopped. */
    while (!tool_interrupted && ppoll(&input, 1, NULL, &before) < 0 && errno == EINTR)
        ;
    sigprocmask(SIG_SETMASK, &before, NULL);
    if (tool_interrupted)
        errno = EINTR;
    return !tool_interrupted;
}
