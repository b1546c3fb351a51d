/* Completion scripts for shells, as `tsr completion SHELL` prints them: the frame, of which each command's
 * options, from its table, are a case (tool_help_print() with TOOL_HELP_BASH or TOOL_HELP_ZSH). The build
 * installs them where bash and zsh look for them. */
#ifndef TSR_TOOLS_COMPLETION_H
#define TSR_TOOLS_COMPLETION_H

#include <stdio.h>

#include "help.h"

/* A word that may follow `tsr`. */
typedef struct tool_completion_word {
    const char *name, *summary;
    const char *part;    /* a subcommand that may follow; NULL: none */
    const char *choices; /* of a command without a table: words that may follow, separated by blanks */
} tool_completion_word;

/* What comes before the cases of the commands, and after them. */
void tool_completion_begin(tool_help_form shell, const tool_completion_word *words, int n, FILE *out);
void tool_completion_end(tool_help_form shell, FILE *out);

/* The case of one command. */
void tool_completion_case(const tool_command *command, tool_help_form shell, FILE *out);

#endif
