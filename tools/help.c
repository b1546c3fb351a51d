/* Help texts from tables of options; see help.h. */
#include "help.h"

#include "completion.h"
#include "format.h"

#include <ctype.h>
#include <string.h>

enum { OPTION_COLUMN = 34, TEXT_COLUMNS = 80, MARKDOWN_COLUMNS = 120 };

static const tool_option help_row = {"-h", "--help", TOOL_FLAG, NULL, NULL, "print this text", 0, 0};

bool tool_help_form_parse(const char *name, tool_help_form *form_out)
{
    static const char *const names[] = {"text", "markdown", "man", "bash", "zsh"};
    for (int i = 0; i < TOOL_COUNT(names); i++)
        if (strcmp(name, names[i]) == 0) {
            *form_out = (tool_help_form)i;
            return true;
        }
    return false;
}

const char *tool_help_page(const char *command, char name[32])
{
    snprintf(name, 32, *command ? "tsr-%s" : "tsr", command);
    for (char *c = name; *c; c++)
        *c = *c == ' ' ? '-' : *c;
    return name;
}

/* The next line, or paragraph, of a text: up to `separator`; NULL after the last. */
static const char *next_part(const char *text, const char *separator, int *length)
{
    const char *end = strstr(text, separator);
    *length = end ? (int)(end - text) : (int)strlen(text);
    return end ? end + strlen(separator) : NULL;
}

static int count_lines(const char *text)
{
    int n = 1;
    for (; *text; text++)
        n += *text == '\n';
    return n;
}

/* The command's name in a usage line. */
static const char *name_of(const tool_command *command)
{
    return *command->name ? command->name : "COMMAND";
}

/* -- text -- */

static void print_option_text(const tool_option *option, FILE *out)
{
    int width = fprintf(out, "  %s%s%s", option->short_name ? option->short_name : "",
                        option->short_name && option->long_name ? ", " : "",
                        option->long_name ? option->long_name : "");
    if (option->argument)
        width += fprintf(out, " %s", option->argument);
    if (width >= OPTION_COLUMN - 1)
        width = fprintf(out, "\n") - 1;
    fprintf(out, "%*s", OPTION_COLUMN - width, "");
    tool_print_wrapped(option->help, (int)strlen(option->help), TEXT_COLUMNS, OPTION_COLUMN, OPTION_COLUMN,
                       out);
}

static void print_text(const tool_command *command, FILE *out)
{
    int length;
    fprintf(out, "usage: tsr %s [options]\n\n%s\n", name_of(command), command->summary);
    if (command->n_options == 0 || command->options[0].kind != TOOL_HEADING)
        fprintf(out, "\noptions:\n");
    for (int i = 0; i < command->n_options; i++)
        if (command->options[i].kind == TOOL_HEADING)
            fprintf(out, "\n%s:\n", command->options[i].help);
        else
            print_option_text(&command->options[i], out);
    if (*command->name)
        print_option_text(&help_row, out);
    for (const char *text = command->description; text;) {
        const char *paragraph = text;
        text = next_part(text, "\n\n", &length);
        fprintf(out, "\n");
        tool_print_wrapped(paragraph, length, TEXT_COLUMNS, 0, 0, out);
    }
    if (command->examples)
        fprintf(out, "\n%s:\n", count_lines(command->examples) > 1 ? "examples" : "example");
    for (const char *text = command->examples; text;) {
        const char *line = text;
        text = next_part(text, "\n", &length);
        fprintf(out, "  %.*s\n", length, line);
    }
}

/* -- Markdown -- */

/* A summary or heading with a capital letter. */
static void print_capital(const char *text, FILE *out)
{
    fprintf(out, "%c%s", toupper((unsigned char)*text), text + 1);
}

static void print_option_markdown(const tool_option *option, FILE *out)
{
    const char *argument = option->argument ? option->argument : "";
    fprintf(out, "| ");
    if (option->short_name)
        fprintf(out, "`%s%s%s`%s", option->short_name, !option->long_name && *argument ? " " : "",
                option->long_name ? "" : argument, option->long_name ? ", " : "");
    if (option->long_name)
        fprintf(out, "`%s%s%s`", option->long_name, *argument ? " " : "", argument);
    fprintf(out, " | ");
    for (const char *c = option->help; *c; c++)
        fprintf(out, *c == '|' ? "\\%c" : "%c", *c);
    fprintf(out, " |\n");
}

static void print_pages_markdown(const char *pages, FILE *out)
{
    int length;
    fprintf(out, "\nMore:");
    for (const char *text = pages; text;) {
        const char *page = text;
        text = next_part(text, " ", &length);
        fprintf(out, " [%.*s](%.*s.md)%s", length, page, length, page, text ? "," : "\n");
    }
}

static void print_markdown(const tool_command *command, FILE *out)
{
    int length;
    bool is_open = false;
    if (*command->name)
        fprintf(out, "\n## tsr %s\n\n", command->name);
    print_capital(command->summary, out);
    fprintf(out, ".\n\n    tsr %s [options]\n", name_of(command));
    for (const char *text = command->description; text;) {
        const char *paragraph = text;
        text = next_part(text, "\n\n", &length);
        fprintf(out, "\n");
        tool_print_wrapped(paragraph, length, MARKDOWN_COLUMNS, 0, 0, out);
    }
    for (int i = 0; i < command->n_options; i++) {
        const tool_option *option = &command->options[i];
        if (option->kind == TOOL_HEADING || !is_open) {
            fprintf(out, "\n| ");
            print_capital(option->kind == TOOL_HEADING ? option->help : "options", out);
            fprintf(out, " | |\n| --- | --- |\n");
            is_open = true;
        }
        if (option->kind != TOOL_HEADING)
            print_option_markdown(option, out);
    }
    if (*command->name)
        print_option_markdown(&help_row, out);
    if (command->examples)
        fprintf(out, "\n%s:\n\n", count_lines(command->examples) > 1 ? "Examples" : "Example");
    for (const char *text = command->examples; text;) {
        const char *line = text;
        text = next_part(text, "\n", &length);
        fprintf(out, "    %.*s\n", length, line);
    }
    if (command->pages)
        print_pages_markdown(command->pages, out);
}

/* -- manual pages, in the macros of man(7) -- */

static const char *roff_of(char c)
{
    static const struct {
        char c;
        const char *roff;
    } escapes[] = {{'\\', "\\e"}, {'-', "\\-"}, {'\'', "\\(aq"}, {'~', "\\(ti"}, {'^', "\\(ha"}};
    for (int i = 0; i < TOOL_COUNT(escapes); i++)
        if (escapes[i].c == c)
            return escapes[i].roff;
    return NULL;
}

static void print_roff(const char *text, int length, FILE *out)
{
    bool is_code = false;
    for (int i = 0; i < length; i++) {
        const char *roff = roff_of(text[i]);
        if (text[i] == '`') {
            is_code = !is_code;
            roff = is_code ? "\\fB" : "\\fR";
        }
        if (roff)
            fputs(roff, out);
        else
            fputc(text[i], out);
    }
}

/* After a zero-width character, so that a dot or quote at the beginning is not a request. */
static void print_roff_line(const char *text, int length, FILE *out)
{
    fputs("\\&", out);
    print_roff(text, length, out);
    fputc('\n', out);
}

static void print_heading_man(const char *macro, const char *text, bool in_capitals, FILE *out)
{
    fprintf(out, "%s \"", macro);
    for (const char *c = text; *c; c++)
        fputc(in_capitals || c == text ? toupper((unsigned char)*c) : *c, out);
    fprintf(out, "\"\n");
}

static void print_option_man(const tool_option *option, FILE *out)
{
    const char *names[] = {option->short_name, option->long_name};
    fputs(".TP\n", out);
    for (int i = 0; i < 2; i++)
        if (names[i]) {
            fputs(i > 0 && names[0] ? ", \\fB" : "\\fB", out);
            print_roff(names[i], (int)strlen(names[i]), out);
            fputs("\\fR", out);
        }
    if (option->argument)
        fprintf(out, " \\fI%s\\fR", option->argument);
    fputc('\n', out);
    print_roff_line(option->help, (int)strlen(option->help), out);
}

static void print_see_also_man(const tool_command *command, FILE *out)
{
    int length;
    fprintf(out, ".SH \"SEE ALSO\"\n");
    if (*command->name)
        fprintf(out, ".BR tsr (1)\n.PP\n");
    fprintf(out, "In the documentation, docs/reference of the source or share/doc/tsr/docs/reference\n"
                 "where it is installed:\n");
    for (const char *text = command->pages; text;) {
        const char *page = text;
        text = next_part(text, " ", &length);
        fprintf(out, "%.*s.md%s\n", length, page, text ? "," : ".");
    }
}

static void print_man(const tool_command *command, FILE *out)
{
    char page[32];
    int length;
    bool is_command = *command->name;
    tool_help_page(command->name, page);
    fprintf(out, ".SH NAME\n");
    print_roff(page, (int)strlen(page), out);
    fprintf(out, " \\- ");
    print_roff(command->summary, (int)strlen(command->summary), out);
    fprintf(out, "\n.SH SYNOPSIS\n.B tsr %s\n.RI [ options ]\n", name_of(command));
    if (command->description)
        fprintf(out, ".SH DESCRIPTION\n");
    for (const char *text = command->description; text;) {
        const char *paragraph = text;
        text = next_part(text, "\n\n", &length);
        print_roff_line(paragraph, length, out);
        if (text)
            fprintf(out, ".PP\n");
    }
    if (is_command)
        fprintf(out, ".SH OPTIONS\n");
    for (int i = 0; i < command->n_options; i++)
        if (command->options[i].kind == TOOL_HEADING)
            print_heading_man(is_command ? ".SS" : ".SH", command->options[i].help, !is_command, out);
        else
            print_option_man(&command->options[i], out);
    if (is_command)
        print_option_man(&help_row, out);
    if (command->examples)
        fprintf(out, ".SH EXAMPLES\n.nf\n");
    for (const char *text = command->examples; text;) {
        const char *line = text;
        text = next_part(text, "\n", &length);
        print_roff_line(line, length, out);
    }
    if (command->examples)
        fprintf(out, ".fi\n");
    print_see_also_man(command, out);
}

void tool_help_print(const tool_command *command, tool_help_form form, FILE *out)
{
    if (form >= TOOL_HELP_BASH)
        tool_completion_case(command, form, out);
    else
        (form == TOOL_HELP_MAN        ? print_man
         : form == TOOL_HELP_MARKDOWN ? print_markdown
                                      : print_text)(command, out);
}
