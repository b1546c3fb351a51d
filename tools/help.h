/* The output of --help, from a command's table of options: as text, as a section of docs/reference/cli.md,
 * as a manual page, or as a case of a shell's completions. */
#ifndef TSR_TOOLS_HELP_H
#define TSR_TOOLS_HELP_H

#include <stdio.h>

#include "options.h"

typedef enum tool_help_form {
    TOOL_HELP_TEXT,
    TOOL_HELP_MARKDOWN,
    TOOL_HELP_MAN,
    TOOL_HELP_BASH, /* from here on: completions */
    TOOL_HELP_ZSH
} tool_help_form;

/* The form named "text", "markdown", "man", "bash" or "zsh"; false for any other word. */
bool tool_help_form_parse(const char *name, tool_help_form *form_out);

/* For a manual page everything but its first line, which has version and date; for completions the case of
 * the command alone (completion.h). */
void tool_help_print(const tool_command *command, tool_help_form form, FILE *out);

/* "tsr-bench-links" for "bench links". */
const char *tool_help_page(const char *command, char name[32]);

#endif
