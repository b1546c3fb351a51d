/* Command-line options of the tsr command: one table per command has name, kind, range and help of each
 * option; parsing, error messages, --help, docs/reference/cli.md, the manual pages and the completions of
 * shells are derived from it.
 *
 *     int n_ctx = 4096;
 *     const char *model = NULL;
 *     const tool_option options[] = {
 *         {"-m", "--model", TOOL_STRING, &model, "FILE", "GGUF model to open", 0, 0},
 *         {"-c", "--ctx-size", TOOL_INT, &n_ctx, "N", "tokens of context (default 4096)", 1, 1 << 20},
 *     };
 *     const tool_command command = {.name = "run",
 *                                   .summary = "generate text",
 *                                   .options = options,
 *                                   .n_options = TOOL_COUNT(options)};
 *     int code = tool_options_parse(&command, argc, argv, stdout, stderr);
 *     if (code != TOOL_GO_ON)
 *         return code;
 *
 * Names are matched as a whole, since some short names have several letters ("-ts"). "--name value" and
 * "--name=value" both work; a later option overrides an earlier one (but for lists). "-h" and "--help"
 * need no entry; "--help=markdown", "--help=man" and the like print it in another form (help.h). */
#ifndef TSR_TOOLS_OPTIONS_H
#define TSR_TOOLS_OPTIONS_H

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>

#define TOOL_COUNT(array) ((int)(sizeof(array) / sizeof *(array)))

/* All exit codes of the tool; main.c has their meanings for --help. TOOL_GO_ON is none of them: functions
 * that end a command with an exit code return it where the command goes on. */
enum {
    TOOL_GO_ON = -1,
    TOOL_EXIT_OK = 0,
    TOOL_EXIT_FAILED = 1,
    TOOL_EXIT_USAGE = 2,
    TOOL_EXIT_NO_ROOM = 3,      /* the model does not fit into the memory */
    TOOL_EXIT_INTERRUPTED = 130 /* 128 + SIGINT, as in shells */
};

/* The comment is the type that tool_option.value points to. Its value is unchanged if the option is not
 * given. */
typedef enum tool_option_kind {
    TOOL_FLAG,   /* bool, set to true; takes no argument */
    TOOL_STRING, /* const char *, points into argv */
    TOOL_LIST,   /* tool_list, which gets an item every time the option is given */
    TOOL_INT,    /* int */
    TOOL_U64,    /* uint64_t */
    TOOL_FLOAT,  /* float, finite */
    TOOL_BYTES,  /* uint64_t, parsed by tsr_bytes_parse() */
    TOOL_HEADING /* not an option: `help` is the title of the next ones */
} tool_option_kind;

enum { TOOL_LIST_LENGTH = 32 };

/* Texts in the order of the command line; they point into argv. */
typedef struct tool_list {
    const char *items[TOOL_LIST_LENGTH];
    int n;
} tool_list;

typedef struct tool_option {
    const char *short_name; /* "-m", NULL if there is none */
    const char *long_name;  /* "--model" */
    tool_option_kind kind;
    void *value;
    const char *argument; /* name of the argument in --help; NULL for flags; "FILE" is completed by shells */
    const char *help;     /* one line; default values in brackets at its end */
    double min, max;      /* of numbers, inclusive; both 0: the range of the type */
    const char
        *choices; /* for completion: words that the argument may be, separated by blanks; NULL: others */
} tool_option;

#define TOOL_HEADING_ROW(title)                           \
    {                                                     \
        NULL, NULL, TOOL_HEADING, NULL, NULL, title, 0, 0 \
    }

typedef struct tool_command {
    const char *name;    /* "run"; "" for the tool itself */
    const char *summary; /* one line, lower case, no full stop */
    const tool_option *options;
    int n_options;
    const char *operand;     /* long name of the option that a word without a dash stands for; NULL: none */
    const char *description; /* paragraphs, separated by empty lines and otherwise unbroken; `code` is in
                              * backquotes; NULL: none */
    const char *examples;    /* commands, separated by newlines; NULL: none */
    const char *pages;       /* of docs/reference, separated by blanks: "devices json"; NULL: none */
} tool_command;

/* Read argv[1..argc); argv[0] is the command's name. Returns TOOL_GO_ON, TOOL_EXIT_OK after printing help
 * to `out`, or TOOL_EXIT_USAGE after one line on `err` that names the option and the remedy. */
int tool_options_parse(const tool_command *command, int argc, char **argv, FILE *out, FILE *err);

/* The candidate of `n` most similar to `word`, whatever dashes they begin with; NULL if none is within a few
 * edits, about one per four letters: for "did you mean". */
const char *tool_closest(const char *word, const char *const *candidates, int n);

#endif
