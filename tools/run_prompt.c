/* Reading the prompt. */
#include "run.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

/* The contents of a stream; NULL and errno on failure. */
static char *read_all(FILE *file, size_t *bytes_out)
{
    char *text = NULL;
    size_t bytes = 0, capacity = 0;
    do {
        if (bytes == capacity) {
            char *grown = realloc(text, capacity = capacity ? 2 * capacity : 4096);
            if (!grown) {
                free(text);
                return NULL;
            }
            text = grown;
        }
        bytes += fread(text + bytes, 1, capacity - bytes, file);
    } while (!feof(file) && !ferror(file));
    if (ferror(file)) {
        free(text);
        return NULL;
    }
    *bytes_out = bytes;
    return text;
}

static int read_file(const char *path, char **text_out, size_t *bytes_out)
{
    bool from_stdin = strcmp(path, "-") == 0;
    FILE *file = from_stdin ? stdin : fopen(path, "re");
    char *text = file ? read_all(file, bytes_out) : NULL;
    if (!text)
        fprintf(stderr, "tsr run: cannot read the prompt from %s: %s\n", from_stdin ? "standard input" : path,
                strerror(errno));
    if (file && !from_stdin)
        fclose(file);
    if (!text)
        return TOOL_EXIT_FAILED;
    /* The final newline is added by editors; the text should continue on the last line. */
    if (*bytes_out && text[*bytes_out - 1] == '\n')
        (*bytes_out)--;
    *text_out = text;
    return TOOL_GO_ON;
}

int run_prompt_read(const run_options *options, char **text_out, size_t *bytes_out)
{
    if (!options->prompt_file && !options->prompt)
        return TOOL_GO_ON;
    if (options->prompt_file || strcmp(options->prompt, "-") == 0)
        return read_file(options->prompt_file ? options->prompt_file : "-", text_out, bytes_out);
    *text_out = strdup(options->prompt);
    *bytes_out = strlen(options->prompt);
    if (*text_out)
        return TOOL_GO_ON;
    fprintf(stderr, "tsr run: out of memory for the prompt\n");
    return TOOL_EXIT_FAILED;
}
