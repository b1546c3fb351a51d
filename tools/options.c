/* Parsing of options; see options.h. */
#include "options.h"

#include <errno.h>
#include <limits.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include <tsr/bytes.h>
#include <tsr/topology.h>

#include "foreign_options.h"
#include "help.h"

enum { LONGEST_WORD = 40 };

static int least(int a, int b)
{
    return a < b ? a : b;
}

/* Edits that turn a into b: a character inserted, deleted or replaced, or two neighbours exchanged. Words are
 * cut at LONGEST_WORD. */
static int edit_distance(const char *a, const char *b)
{
    int rows[3][LONGEST_WORD + 1];
    const int m = (int)strnlen(a, LONGEST_WORD), n = (int)strnlen(b, LONGEST_WORD);
    for (int j = 0; j <= n; j++)
        rows[0][j] = j;
    for (int i = 1; i <= m; i++) {
        int *row = rows[i % 3];
        const int *above = rows[(i - 1) % 3], *two_above = rows[(i + 1) % 3];
        row[0] = i;
        for (int j = 1; j <= n; j++) {
            row[j] = least(above[j - 1] + (a[i - 1] != b[j - 1]), 1 + least(above[j], row[j - 1]));
            if (i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1])
                row[j] = least(row[j], two_above[j - 2] + 1);
        }
    }
    return rows[m % 3][n];
}

static const char *without_dashes(const char *word)
{
    return word + strspn(word, "-");
}

/* Of short words every other one is near, so they get no edits. */
const char *tool_closest(const char *word, const char *const *candidates, int n)
{
    const char *best = NULL;
    int best_distance = ((int)strlen(without_dashes(word)) + 1) / 4 + 1;
    for (int i = 0; i < n; i++) {
        int distance =
            candidates[i] ? edit_distance(without_dashes(word), without_dashes(candidates[i])) : INT_MAX;
        if (distance < best_distance) {
            best = candidates[i];
            best_distance = distance;
        }
    }
    return best;
}

static bool is_name(const char *name, const char *text, size_t length)
{
    return name && strlen(name) == length && strncmp(name, text, length) == 0;
}

static const tool_option *find_option(const tool_command *command, const char *text, size_t length)
{
    for (int i = 0; i < command->n_options; i++)
        if (is_name(command->options[i].short_name, text, length) ||
            is_name(command->options[i].long_name, text, length))
            return &command->options[i];
    return NULL;
}

static int complain_unknown(const tool_command *command, const char *text, FILE *err)
{
    if (text[0] != '-' || text[1] == '\0') {
        fprintf(err, "tsr %s: '%s' is not an option; see `tsr %s --help`\n", command->name, text,
                command->name);
        return TOOL_EXIT_USAGE;
    }
    int n = 0;
    const char *names[256];
    for (int i = 0; i < command->n_options && n + 2 <= TOOL_COUNT(names); i++) {
        names[n++] = command->options[i].long_name;
        names[n++] = command->options[i].short_name;
    }
    char word[LONGEST_WORD + 1];
    snprintf(word, sizeof word, "%.*s", (int)strcspn(text, "="), text);
    const char *answer = tool_foreign_option(word), *close = tool_closest(word, names, n);
    if (answer)
        fprintf(err, "tsr %s: %s: %s\n", command->name, word, answer);
    else if (close)
        fprintf(err, "tsr %s: unknown option '%s'; did you mean '%s'?\n", command->name, text, close);
    else
        fprintf(err, "tsr %s: unknown option '%s'; see `tsr %s --help`\n", command->name, text,
                command->name);
    return TOOL_EXIT_USAGE;
}

static bool in_range(const tool_option *option, double value)
{
    return (option->min == 0 && option->max == 0) || (value >= option->min && value <= option->max);
}

/* Convert the whole text to a number; false if it is not a number or outside the range of the type or the
 * table. */
static bool read_value(const tool_option *option, const char *text)
{
    char *end = (char *)text;
    errno = 0;
    switch (option->kind) {
    case TOOL_INT: {
        long value = strtol(text, &end, 10);
        if (end == text || *end || errno || value < INT_MIN || value > INT_MAX ||
            !in_range(option, (double)value))
            return false;
        *(int *)option->value = (int)value;
        return true;
    }
    case TOOL_U64: {
        unsigned long long value = strtoull(text, &end, 10);
        if (end == text || *end || errno || strchr(text, '-') || !in_range(option, (double)value))
            return false;
        *(uint64_t *)option->value = value;
        return true;
    }
    case TOOL_FLOAT: {
        float value = strtof(text, &end);
        if (end == text || *end || !isfinite(value) || !in_range(option, (double)value))
            return false;
        *(float *)option->value = value;
        return true;
    }
    case TOOL_BYTES: {
        uint64_t value;
        if (tsr_bytes_parse(text, &value) != TSR_OK || !in_range(option, (double)value))
            return false;
        *(uint64_t *)option->value = value;
        return true;
    }
    case TOOL_STRING:
        *(const char **)option->value = text;
        return true;
    case TOOL_LIST: {
        tool_list *list = option->value;
        if (list->n == TOOL_COUNT(list->items))
            return false;
        list->items[list->n++] = text;
        return true;
    }
    case TOOL_FLAG:
    case TOOL_HEADING:
        break;
    }
    return false;
}

static int complain_value(const tool_command *command, const tool_option *option, const char *name,
                          const char *text, FILE *err)
{
    const char *what = option->kind == TOOL_BYTES   ? "a byte count such as 200MiB"
                       : option->kind == TOOL_FLOAT ? "a number"
                       : option->kind == TOOL_LIST  ? "at most 32 values"
                                                    : "a whole number";
    fprintf(err, "tsr %s: %s takes %s", command->name, name, what);
    if (option->min != 0 || option->max != 0)
        fprintf(err, " from %.10g to %.10g", option->min, option->max);
    fprintf(err, ", not '%s'\n", text);
    return TOOL_EXIT_USAGE;
}

/* Parse the option at argv[*at], and its argument; *at is set to the last one used. */
static int parse_one(const tool_command *command, int argc, char **argv, int *at, FILE *err)
{
    const char *text = argv[*at];
    size_t length = strncmp(text, "--", 2) == 0 ? strcspn(text, "=") : strlen(text);
    const tool_option *option = find_option(command, text, length);
    if (!option && command->operand && text[0] != '-') {
        option = find_option(command, command->operand, strlen(command->operand));
        return read_value(option, text) ? TOOL_GO_ON
                                        : complain_value(command, option, command->operand, text, err);
    }
    if (!option)
        return complain_unknown(command, text, err);

    char name[LONGEST_WORD + 1];
    snprintf(name, sizeof name, "%.*s", (int)length, text);
    const char *value = text[length] == '=' ? text + length + 1 : NULL;
    if (option->kind == TOOL_FLAG) {
        if (value) {
            fprintf(err, "tsr %s: %s takes no value, remove '=%s'\n", command->name, name, value);
            return TOOL_EXIT_USAGE;
        }
        *(bool *)option->value = true;
        return TOOL_GO_ON;
    }
    if (!value && *at + 1 < argc && !find_option(command, argv[*at + 1], strlen(argv[*at + 1])))
        value = argv[++*at];
    if (!value) {
        fprintf(err, "tsr %s: %s needs a value: %s %s\n", command->name, name, name, option->argument);
        return TOOL_EXIT_USAGE;
    }
    return read_value(option, value) ? TOOL_GO_ON : complain_value(command, option, name, value, err);
}

/* "-h", "--help" or "--help=FORM". */
static bool is_help(const char *text, tool_help_form *form_out)
{
    *form_out = TOOL_HELP_TEXT;
    if (strcmp(text, "-h") == 0 || strcmp(text, "--help") == 0)
        return true;
    return strncmp(text, "--help=", 7) == 0 && tool_help_form_parse(text + 7, form_out);
}

int tool_options_parse(const tool_command *command, int argc, char **argv, FILE *out, FILE *err)
{
    int code = TOOL_GO_ON;
    tool_help_form form;
    for (int at = 1; at < argc && code == TOOL_GO_ON; at++) {
        if (is_help(argv[at], &form)) {
            tool_help_print(command, form, out);
            return TOOL_EXIT_OK;
        }
        code = parse_one(command, argc, argv, &at, err);
    }
    return code;
}
