/* See child.h. */
#include "support/child.h"

#include <signal.h>
#include <sys/wait.h>
#include <time.h>

int child_result(void (*body)(void *argument), void *argument, int limit_s)
{
    enum { LOOKS_PER_S = 200, NS_PER_S = 1000000000 };
    const struct timespec nap = {0, NS_PER_S / LOOKS_PER_S};
    int result = 0;
    fflush(NULL);
    const pid_t pid = fork();
    if (pid == 0) {
        body(argument);
        _exit(0);
    }
    for (int i = 0; pid > 0 && i < limit_s * LOOKS_PER_S; i++) {
        if (waitpid(pid, &result, WNOHANG) == pid)
            return WIFEXITED(result) ? WEXITSTATUS(result) : -1;
        nanosleep(&nap, NULL);
    }
    if (pid > 0) {
        fprintf(stderr, "process %d hangs\n", (int)pid);
        kill(pid, SIGKILL);
        waitpid(pid, &result, 0);
    }
    return -1;
}

bool child_succeeds(void (*body)(void *argument), void *argument, int limit_s)
{
    return child_result(body, argument, limit_s) == 0;
}
