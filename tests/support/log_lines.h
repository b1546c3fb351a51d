/* What a logger was told, all of it in one text. */
#ifndef TSR_TESTS_LOG_LINES_H
#define TSR_TESTS_LOG_LINES_H

#include <stdio.h>
#include <string.h>

#include <tsr/log.h>

typedef struct log_lines {
    int n;
    char text[4096]; /* each line with its '\n' */
} log_lines;

/* The function of a logger whose `user` is a log_lines. */
static inline void log_lines_note(tsr_log_level level, const char *line, void *user)
{
    log_lines *log = user;
    const size_t used = strlen(log->text);
    (void)level;
    log->n++;
    snprintf(log->text + used, sizeof log->text - used, "%s\n", line);
}

#endif
