/* Reading a text; see text_file.h. */
#include "text_file.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "options.h"

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

int tool_text_read(const char *command, const char *what, const char *path, char **text_out,
                   size_t *bytes_out)
{
    const int from_stdin = strcmp(path, "-") == 0;
    FILE *file = from_stdin ? stdin : fopen(path, "re");
    char *text = file ? read_all(file, bytes_out) : NULL;
    if (!text)
        fprintf(stderr, "tsr %s: cannot read %s from %s: %s\n", command, what,
                from_stdin ? "standard input" : path, strerror(errno));
    if (file && !from_stdin)
        fclose(file);
    if (!text)
        return TOOL_EXIT_FAILED;
    *text_out = text;
    return TOOL_GO_ON;
}
