/* Reading the prompt. */
#include "run.h"

#include <stdlib.h>
#include <string.h>

#include "text_file.h"

static int read_prompt(const run_options *options, char **text_out, size_t *bytes_out)
{
    if (!options->prompt_file && !options->prompt)
        return TOOL_GO_ON;
    if (options->prompt_file || strcmp(options->prompt, "-") == 0) {
        const char *path = options->prompt_file ? options->prompt_file : "-";
        const int code = tool_text_read("run", "the prompt", path, text_out, bytes_out);
        /* The final newline is added by editors; the text should continue on the last line. */
        if (code == TOOL_GO_ON && *bytes_out && (*text_out)[*bytes_out - 1] == '\n')
            (*bytes_out)--;
        return code;
    }
    *text_out = strdup(options->prompt);
    *bytes_out = strlen(options->prompt);
    if (*text_out)
        return TOOL_GO_ON;
    fprintf(stderr, "tsr run: out of memory for the prompt\n");
    return TOOL_EXIT_FAILED;
}

int run_prompt_read(const run_options *options, const tool_processes *processes, char **text_out,
                    size_t *bytes_out)
{
    int code = TOOL_GO_ON;
    if (tool_processes_is_first(processes))
        code = read_prompt(options, text_out, bytes_out);
    return tool_processes_share_text(processes, &code, text_out, bytes_out) ? code : TOOL_EXIT_FAILED;
}
