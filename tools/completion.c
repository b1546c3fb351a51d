/* Completion scripts; see completion.h. Both are one function `_tsr`, which is a `case` over the commands.
 * File names are completed where a table calls the argument FILE, and words where it has choices. */
#include "completion.h"

#include <string.h>

/* Text inside single quotes of a shell, with a backslash before each of `special`. */
static void print_quoted(const char *text, const char *special, FILE *out)
{
    for (; *text; text++) {
        if (*text == '\'')
            fputs("'\\'", out);
        else if (strchr(special, *text))
            fputc('\\', out);
        fputc(*text, out);
    }
}

static bool is_file(const tool_option *option)
{
    return option->argument && strcmp(option->argument, "FILE") == 0;
}

/* "-m | --model". */
static void print_names(const tool_option *option, const char *separator, FILE *out)
{
    const bool both = option->short_name && option->long_name;
    fprintf(out, "%s%s%s", option->short_name ? option->short_name : "", both ? separator : "",
            option->long_name ? option->long_name : "");
}

/* -- bash -- */

static void begin_bash(const tool_completion_word *words, int n, FILE *out)
{
    fputs("# bash completion of the tsr command, made by `tsr completion bash`.\n"
          "_tsr_files() {\n"
          "    compopt -o filenames 2>/dev/null\n"
          "    mapfile -t COMPREPLY < <(compgen -f -- \"$1\")\n"
          "}\n\n"
          "_tsr() {\n"
          "    local word=${COMP_WORDS[COMP_CWORD]} previous=${COMP_WORDS[COMP_CWORD - 1]}\n"
          "    local command=${COMP_WORDS[1]} part= words=\n"
          "    COMPREPLY=()\n"
          "    # bash takes the = of --name=value for a word of its own.\n"
          "    if [ \"$word\" = = ]; then\n"
          "        word=\n"
          "    elif [ \"$previous\" = = ]; then\n"
          "        previous=${COMP_WORDS[COMP_CWORD - 2]}\n"
          "    fi\n"
          "    if [ \"$COMP_CWORD\" = 1 ]; then\n"
          "        command=\n"
          "    fi\n"
          "    case $command in\n",
          out);
    for (int i = 0; i < n; i++)
        if (words[i].part)
            fprintf(out, "    %s) part='%s' ;;\n", words[i].name, words[i].part);
    fputs("    esac\n"
          "    if [ -n \"$part\" ] && [ \"$COMP_CWORD\" -gt 2 ]; then\n"
          "        if [ \"${COMP_WORDS[2]}\" = \"$part\" ]; then\n"
          "            command=\"$command $part\"\n"
          "        fi\n"
          "        part=\n"
          "    fi\n"
          "    case $command in\n"
          "    '') words='",
          out);
    for (int i = 0; i < n; i++)
        fprintf(out, i ? " %s" : "%s", words[i].name);
    fputs("' ;;\n", out);
    for (int i = 0; i < n; i++)
        if (words[i].choices)
            fprintf(out, "    %s) words='%s' ;;\n", words[i].name, words[i].choices);
}

static void end_bash(FILE *out)
{
    fputs("    esac\n"
          "    mapfile -t COMPREPLY < <(compgen -W \"$part $words\" -- \"$word\")\n"
          "}\n\n"
          "complete -F _tsr tsr\n",
          out);
}

static void case_bash(const tool_command *command, FILE *out)
{
    fprintf(out, "    '%s')\n        case $previous in\n", command->name);
    for (int i = 0; i < command->n_options; i++) {
        const tool_option *option = &command->options[i];
        if (option->kind == TOOL_HEADING || option->kind == TOOL_FLAG)
            continue;
        fputs("        ", out);
        print_names(option, " | ", out);
        if (option->choices)
            fprintf(out, ") words='%s' ;;\n", option->choices);
        else
            fprintf(out, ") %sreturn ;;\n", is_file(option) ? "_tsr_files \"$word\"; " : "");
    }
    fputs("        *)\n            words='", out);
    for (int i = 0; i < command->n_options; i++)
        if (command->options[i].kind != TOOL_HEADING) {
            print_names(&command->options[i], " ", out);
            fputc(' ', out);
        }
    fputs("-h --help'\n", out);
    if (command->operand)
        fputs("            if [[ $word != -* ]]; then\n"
              "                _tsr_files \"$word\"\n"
              "                return\n"
              "            fi\n",
              out);
    fputs("            ;;\n"
          "        esac\n"
          "        ;;\n",
          out);
}

/* -- zsh -- */

static void begin_zsh(const tool_completion_word *words, int n, FILE *out)
{
    fputs("#compdef tsr\n"
          "# zsh completion of the tsr command, made by `tsr completion zsh`.\n"
          "_tsr() {\n"
          "    local command=$words[2]\n"
          "    local -a commands=(\n",
          out);
    for (int i = 0; i < n; i++) {
        fprintf(out, "        '%s:", words[i].name);
        print_quoted(words[i].summary, "\\:", out);
        fputs("'\n", out);
    }
    fputs("    )\n"
          "    if (( CURRENT == 2 )); then\n"
          "        _describe command commands\n"
          "        return\n"
          "    fi\n"
          "    shift words\n"
          "    (( CURRENT-- ))\n",
          out);
    for (int i = 0; i < n; i++)
        if (words[i].part)
            fprintf(out,
                    "    if [[ $command == %s ]]; then\n"
                    "        if (( CURRENT == 2 )); then\n"
                    "            compadd %s\n"
                    "        elif [[ $words[2] == %s ]]; then\n"
                    "            command='%s %s'\n"
                    "            shift words\n"
                    "            (( CURRENT-- ))\n"
                    "        fi\n"
                    "    fi\n",
                    words[i].name, words[i].part, words[i].part, words[i].name, words[i].part);
    fputs("    case $command in\n", out);
    for (int i = 0; i < n; i++)
        if (words[i].choices)
            fprintf(out, "    %s) compadd %s ;;\n", words[i].name, words[i].choices);
}

/* The function is read from a file named _tsr on its first call, or by `source`. */
static void end_zsh(FILE *out)
{
    fputs("    esac\n"
          "}\n\n"
          "if [[ $funcstack[1] == _tsr ]]; then\n"
          "    _tsr \"$@\"\n"
          "else\n"
          "    compdef _tsr tsr\n"
          "fi\n",
          out);
}

/* A specification of _arguments: '(-m --model)'{-m,--model=}'[help]:FILE:_files'. */
static void print_spec_zsh(const tool_option *option, FILE *out)
{
    const bool both = option->short_name && option->long_name, takes_value = option->kind != TOOL_FLAG;
    fputs("            ", out);
    if (option->kind == TOOL_LIST)
        fputs("'*'", out);
    else if (both)
        fprintf(out, "'(%s %s)'", option->short_name, option->long_name);
    fprintf(out, "%s%s%s%s%s%s", both ? "{" : "", option->short_name ? option->short_name : "",
            both ? "," : "", option->long_name ? option->long_name : "",
            option->long_name && takes_value ? "=" : "", both ? "}" : "");
    fputs("'[", out);
    print_quoted(option->help, "\\[]", out);
    fputc(']', out);
    if (takes_value) {
        fputc(':', out);
        print_quoted(option->argument, "\\:", out);
        fprintf(out, ":%s%s%s", option->choices ? "(" : "",
                option->choices   ? option->choices
                : is_file(option) ? "_files"
                                  : " ",
                option->choices ? ")" : "");
    }
    fputs("' \\\n", out);
}

static void case_zsh(const tool_command *command, FILE *out)
{
    fprintf(out, "    '%s')\n        _arguments \\\n", command->name);
    for (int i = 0; i < command->n_options; i++)
        if (command->options[i].kind != TOOL_HEADING)
            print_spec_zsh(&command->options[i], out);
    if (command->operand)
        fputs("            '*:FILE:_files' \\\n", out);
    fputs("            '(- *)'{-h,--help}'[print the options of the command]'\n"
          "        ;;\n",
          out);
}

/* -- both -- */

void tool_completion_begin(tool_help_form shell, const tool_completion_word *words, int n, FILE *out)
{
    (shell == TOOL_HELP_BASH ? begin_bash : begin_zsh)(words, n, out);
}

void tool_completion_end(tool_help_form shell, FILE *out)
{
    (shell == TOOL_HELP_BASH ? end_bash : end_zsh)(out);
}

void tool_completion_case(const tool_command *command, tool_help_form shell, FILE *out)
{
    (shell == TOOL_HELP_BASH ? case_bash : case_zsh)(command, out);
}
