/* The progress bar; see progress.h. */
#include "progress.h"

#include <stdio.h>
#include <unistd.h>

enum { BAR_WIDTH = 40 };

void tool_progress(double fraction, void *user)
{
    if (!isatty(STDERR_FILENO))
        return;
    if (fraction >= 1) {
        fprintf(stderr, "\r\033[K"); /* ECMA-48: erase to the end of the line */
        return;
    }
    int done = (int)(fraction * BAR_WIDTH);
    fprintf(stderr, "\r%s [", (const char *)user);
    for (int i = 0; i < BAR_WIDTH; i++)
        fputc(i < done ? '#' : '.', stderr);
    fprintf(stderr, "] %3.0f %%", 100 * fraction);
}
