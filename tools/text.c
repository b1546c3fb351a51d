/* Valid UTF-8 from any bytes; see text.h. */
#include "text.h"

#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/input/utf8.h"

static const char replacement[] = "\xEF\xBF\xBD"; /* U+FFFD */

void tool_text_copy(char *to, size_t capacity, const char *from, size_t bytes)
{
    size_t used = 0;
    for (size_t at = 0; at < bytes;) {
        size_t length = tsr_utf8_sequence(from + at, bytes - at, NULL);
        bool shown = length > 0 && !tsr_utf8_is_control(from + at);
        const char *character = shown ? from + at : replacement;
        size_t n = shown ? length : sizeof replacement - 1;
        if (used + n >= capacity)
            break;
        memcpy(to + used, character, n);
        used += n;
        at += length ? length : 1;
    }
    to[used] = '\0';
}

void tool_text_vprint(char *to, size_t capacity, const char *format, va_list args)
{
    char *text = NULL;
    int n = vasprintf(&text, format, args);
    tool_text_copy(to, capacity, n < 0 ? "" : text, n < 0 ? 0 : (size_t)n);
    if (n >= 0)
        free(text);
}

void tool_text_print(char *to, size_t capacity, const char *format, ...)
{
    va_list args;
    va_start(args, format);
    tool_text_vprint(to, capacity, format, args);
    va_end(args);
}

json_t *tool_text_json(const char *text)
{
    size_t bytes = strlen(text), capacity = bytes * (sizeof replacement - 1) + 1;
    char *valid = bytes ? malloc(capacity) : NULL;
    if (!valid)
        return json_null();
    tool_text_copy(valid, capacity, text, bytes);
    json_t *string = json_string(valid);
    free(valid);
    return string;
}
