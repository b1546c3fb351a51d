/* Valid UTF-8 from any bytes; see text.h. */
#include "text.h"

#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char replacement[] = "\xEF\xBF\xBD"; /* U+FFFD */

/* Bytes of the character at text[n]; 0 if the first byte begins none. By RFC 3629: no overlong forms, no
 * surrogates, at most U+10FFFF. Control characters (U+0000 to U+001F, U+007F to U+009F) count as invalid. */
static size_t character_bytes(const unsigned char *text, size_t n)
{
    unsigned char first = text[0];
    if (first < 0x80)
        return first >= ' ' && first != 0x7F;
    size_t length = first < 0xC2 ? 0 : first < 0xE0 ? 2 : first < 0xF0 ? 3 : first < 0xF5 ? 4 : 0;
    unsigned char low = first == 0xC2 || first == 0xE0 ? 0xA0 : first == 0xF0 ? 0x90 : 0x80;
    unsigned char high = first == 0xED ? 0x9F : first == 0xF4 ? 0x8F : 0xBF;
    if (length > n)
        return 0;
    for (size_t i = 1; i < length; i++) {
        if (text[i] < low || text[i] > high)
            return 0;
        low = 0x80;
        high = 0xBF;
    }
    return length;
}

void tool_text_copy(char *to, size_t capacity, const char *from, size_t bytes)
{
    size_t used = 0;
    for (size_t at = 0; at < bytes;) {
        size_t length = character_bytes((const unsigned char *)from + at, bytes - at);
        const char *character = length ? from + at : replacement;
        size_t n = length ? length : sizeof replacement - 1;
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
