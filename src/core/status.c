/* Version, status names, the per-thread error sentence (the library's only mutable global), log lines, and
 * the removal of control characters, and paragraphs. Sentences quote names from files, which may have been
 * made to steer the terminal they are printed on; so each sentence is cleaned where it is stored, and no
 * caller has to. */
#include "core/status.h"

#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>

#include <tsr/version.h>

#include "core/input/utf8.h"

enum { MESSAGE_BYTES = 1024 };

static _Thread_local char last_message[MESSAGE_BYTES];

const char *tsr_version(void)
{
    return TSR_VERSION_STRING;
}

const char *tsr_status_name(tsr_status status)
{
    switch (status) {
    case TSR_OK:
        return "OK";
    case TSR_ERR_INVALID:
        return "ERR_INVALID";
    case TSR_ERR_MEMORY:
        return "ERR_MEMORY";
    case TSR_ERR_IO:
        return "ERR_IO";
    case TSR_ERR_FORMAT:
        return "ERR_FORMAT";
    case TSR_ERR_UNSUPPORTED:
        return "ERR_UNSUPPORTED";
    case TSR_ERR_NOT_FOUND:
        return "ERR_NOT_FOUND";
    case TSR_ERR_FULL:
        return "ERR_FULL";
    case TSR_ERR_RANGE:
        return "ERR_RANGE";
    case TSR_ERR_TIMEOUT:
        return "ERR_TIMEOUT";
    case TSR_ERR_DEVICE:
        return "ERR_DEVICE";
    case TSR_ERR_DEVICE_LOST:
        return "ERR_DEVICE_LOST";
    case TSR_ERR_CANCELLED:
        return "ERR_CANCELLED";
    }
    return "unknown status";
}

const char *tsr_last_error(void)
{
    return last_message;
}

/* A byte from 0x80 to 0x9f that belongs to no character is a control character to a terminal of 8 bits. */
void tsr_clean_text(char *text, size_t bytes, const char *keep)
{
    for (size_t at = 0, n; at < bytes; at += n) {
        const size_t length = tsr_utf8_sequence(text + at, bytes - at, NULL);
        const bool control = length ? tsr_utf8_is_control(text + at) : (unsigned char)text[at] < 0xa0;
        n = length ? length : 1;
        if (control && (text[at] == '\0' || !strchr(keep, text[at])))
            memset(text + at, '?', n);
    }
}

static void clean_sentence(char *text)
{
    tsr_clean_text(text, strlen(text), "");
}

void tsr_fail_store(const char *format, ...)
{
    /* Formatted into a copy first: an argument may be the old message. */
    char text[MESSAGE_BYTES];
    va_list args;
    va_start(args, format);
    vsnprintf(text, sizeof text, format, args);
    va_end(args);
    clean_sentence(text);
    memcpy(last_message, text, sizeof text);
}

void tsr_fail_prefix(const char *format, ...)
{
    char text[2 * MESSAGE_BYTES + 2]; /* holds both sentences; the end is cut off when they are stored */
    va_list args;
    va_start(args, format);
    int used = vsnprintf(text, MESSAGE_BYTES, format, args);
    va_end(args);
    if (used >= 0 && used < MESSAGE_BYTES)
        snprintf(text + used, sizeof text - (size_t)used, ": %s", last_message);
    memcpy(last_message, text, MESSAGE_BYTES);
    last_message[MESSAGE_BYTES - 1] = '\0';
    clean_sentence(last_message);
}

void tsr_fail_clear(void)
{
    last_message[0] = '\0';
}

void tsr_log(const tsr_logger *logger, tsr_log_level level, const char *format, ...)
{
    if (!logger || !logger->fn || level > logger->max_level)
        return;
    char text[MESSAGE_BYTES];
    va_list args;
    va_start(args, format);
    vsnprintf(text, sizeof text, format, args);
    va_end(args);
    clean_sentence(text);
    logger->fn(level, text, logger->user);
}

/* Bytes of `text` that go into a line of `room` columns: up to the last blank, to the last comma of a list
 * unless that leaves half of the line empty, or the whole first word. */
static size_t line_length(const char *text, size_t room, bool is_list)
{
    size_t n = strlen(text), end = 0, comma = 0;
    if (n <= room)
        return n;
    for (size_t i = 0; i <= room; i++) {
        end = text[i] == ' ' ? i : end;
        comma = text[i] == ' ' && i > room / 2 && text[i - 1] == ',' ? i : comma;
    }
    return is_list && comma ? comma : end ? end : strcspn(text, " ");
}

void tsr_put_paragraph(char *text, bool is_list, tsr_write_fn write, void *user)
{
    char blanks[TSR_PRINT_COLUMNS];
    size_t indent = strspn(text, " "), more = 0;
    for (char *at = text + indent; *at; more = 2) {
        size_t n = line_length(at, TSR_PRINT_COLUMNS - indent - more, is_list);
        const char next = at[n];
        snprintf(blanks, sizeof blanks, "%*s", (int)(indent + more), "");
        write(blanks, user);
        at[n] = '\0';
        write(at, user);
        write("\n", user);
        at[n] = next;
        at += n;
        at += strspn(at, " ");
    }
}
