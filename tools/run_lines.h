/* Lines of standard input: edited and with a history on a terminal, if the tool was built with libedit; plain
 * lines otherwise. */
#ifndef TSR_TOOLS_RUN_LINES_H
#define TSR_TOOLS_RUN_LINES_H

#include <stdbool.h>
#include <stddef.h>

typedef struct run_lines run_lines;

typedef enum run_line { RUN_LINE, RUN_LINE_INTERRUPTED, RUN_LINE_END, RUN_LINE_NO_MEMORY } run_line;

/* `terminal`: show prompts, and edit lines. keep_history: lines of earlier calls can be recalled, and those
 * of this one are kept for the next. NULL when out of memory. */
run_lines *run_lines_open(bool terminal, bool keep_history);

/* NULL is fine. */
void run_lines_close(run_lines *lines);

/* Read a line after `prompt`. The text is valid until the next call, and has no line end. Ctrl-C drops the
 * line, after tool_hear_interrupts() without `restart`. */
run_line run_lines_read(run_lines *lines, const char *prompt, const char **text_out, size_t *bytes_out);

#endif
