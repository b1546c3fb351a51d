/* The progress bar; see progress.h. */
#include "progress.h"

#include <math.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include "tsr.h"

enum { MOST_BAR = 40, COLUMNS = 80 };

static const double patience_s = 2, redraw_s = 0.2;

static const char erase[] = "\r\033[K"; /* ECMA-48: erase to the end of the line */

/* SA_RESETHAND: the second time, the signal ends the process. */
static void on_interrupt(int signal_number)
{
    ssize_t n = write(STDERR_FILENO, erase, sizeof erase - 1);
    (void)n;
    raise(signal_number);
}

/* Only in place of the default action: other handlers leave the process running, and the bar with it. */
static void replace_action(void (*from)(int), void (*to)(int))
{
    struct sigaction now, action = {.sa_handler = to, .sa_flags = (int)SA_RESETHAND};
    sigemptyset(&action.sa_mask);
    if (sigaction(SIGINT, NULL, &now) == 0 && now.sa_handler == from)
        sigaction(SIGINT, &action, NULL);
}

/* "1 h 5 min", "2 min 10 s" */
static void print_time(double seconds, char text[32])
{
    const long s = seconds < 1e8 ? lrint(seconds) : 100000000;
    if (s >= 3600)
        snprintf(text, 32, "%ld h %ld min", s / 3600, s % 3600 / 60);
    else if (s >= 60)
        snprintf(text, 32, "%ld min %ld s", s / 60, s % 60);
    else
        snprintf(text, 32, "%ld s", s);
}

static int columns(void)
{
    struct winsize size;
    return ioctl(STDERR_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_col > 0 ? size.ws_col : COLUMNS;
}

/* Never as wide as the terminal: a full line would be continued, and would stay. */
static void draw(const tool_progress *p, double fraction, double now_s)
{
    static const char done[] = "########################################";
    static const char left[] = "........................................";
    char time[32], end[80];
    print_time((now_s - p->start_s) * (1 - fraction) / (fraction - p->begin), time);
    const int n = snprintf(end, sizeof end, "%.0f %%, %s left", floor(100 * fraction), time);
    const int room = columns() - 1 - (int)strlen(p->what) - n - 4; /* 4: blanks and brackets */
    if (room >= 5) {
        const int width = room < MOST_BAR ? room : MOST_BAR, n_done = (int)(fraction * width);
        fprintf(stderr, "\r%s [%.*s%.*s] %s\033[K", p->what, n_done, done, width - n_done, left, end);
    } else if (room >= -3) {
        fprintf(stderr, "\r%s %s\033[K", p->what, end);
    }
    fflush(stderr);
}

bool tool_progress_is_on(const tool_progress *progress)
{
    return !progress->quiet && isatty(STDERR_FILENO);
}

void tool_progress_show(double fraction, void *progress)
{
    tool_progress *p = progress;
    if (!tool_progress_is_on(p))
        return;
    const double now_s = tool_clock();
    if (fraction >= 1) {
        tool_progress_end(p);
    } else if (!p->running) {
        p->running = true;
        p->start_s = now_s;
        p->begin = fraction;
    } else if (fraction > p->begin && now_s - p->start_s >= patience_s && now_s - p->drawn_s >= redraw_s) {
        replace_action(SIG_DFL, on_interrupt);
        draw(p, fraction, now_s);
        p->drawn = true;
        p->drawn_s = now_s;
    }
}

void tool_progress_end(tool_progress *progress)
{
    if (progress->drawn) {
        fputs(erase, stderr);
        fflush(stderr);
        replace_action(on_interrupt, SIG_DFL);
    }
    progress->running = progress->drawn = false;
}
