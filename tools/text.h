/* Texts of models, machines and users, made fit to be shown and written to JSON, XML and HTML. */
#ifndef TSR_TOOLS_TEXT_H
#define TSR_TOOLS_TEXT_H

#include <stdarg.h>
#include <stddef.h>

#include <jansson.h>

/* Copy `bytes` bytes as a string of valid UTF-8: bytes that are not UTF-8, and control characters, become
 * U+FFFD; a text that does not fit is cut between characters. */
void tool_text_copy(char *to, size_t capacity, const char *from, size_t bytes);

/* The same for a formatted text; empty when out of memory. */
void tool_text_print(char *to, size_t capacity, const char *format, ...)
    __attribute__((format(printf, 3, 4)));
void tool_text_vprint(char *to, size_t capacity, const char *format, va_list args)
    __attribute__((format(printf, 3, 0)));

/* The text as tool_text_copy() makes it; null for an empty text. A new reference. */
json_t *tool_text_json(const char *text);

#endif
