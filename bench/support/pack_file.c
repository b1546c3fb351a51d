/* See pack_file.h. The text is cut into lines and fields in place; fields end up as strings in it. */
#include "support/pack_file.h"

#include <ctype.h>
#include <errno.h>
#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

enum { COLUMN_ID, COLUMN_LOWER, COLUMN_UPPER, COLUMN_SIZE, COLUMN_ALIGNMENT, N_COLUMNS, MOST_FIELDS = 64 };
static const char *const column_names[N_COLUMNS] = {"id", "lower", "upper", "size", "alignment"};

/* What minimalloc called them before (its converter.cc);
 * its `end` is the last moment that a buffer lives in. */
static const struct {
    const char *name;
    int column;
    bool is_last;
} older_names[] = {{"buffer", COLUMN_ID, false},
                   {"buffer_id", COLUMN_ID, false},
                   {"start", COLUMN_LOWER, false},
                   {"begin", COLUMN_LOWER, false},
                   {"end", COLUMN_UPPER, true}};

typedef struct reader {
    char *at; /* rest of the text */
    int line; /* number of the line read last, from 1 */
    char *fields[MOST_FIELDS];
    int n_fields;         /* of that line */
    int index[N_COLUMNS]; /* which field holds a column, -1 = none */
    bool upper_is_last;   /* that column is `end` */
    char *message;
} reader;

static bool fail(reader *r, const char *format, ...) __attribute__((format(printf, 2, 3)));

static bool fail(reader *r, const char *format, ...)
{
    va_list args;
    va_start(args, format);
    vsnprintf(r->message, PACK_FILE_MESSAGE, format, args);
    va_end(args);
    return false;
}

/* -- lines and fields -- */

/* Without white space and quotes around it. */
static char *trim(char *text)
{
    char *end = text + strlen(text);
    while (end > text && (isspace((unsigned char)end[-1]) || end[-1] == '"'))
        *--end = '\0';
    while (isspace((unsigned char)*text) || *text == '"')
        text++;
    return text;
}

static void cut_fields(reader *r, char *line)
{
    r->n_fields = 0;
    while (line && r->n_fields < MOST_FIELDS) {
        char *comma = strchr(line, ',');
        if (comma)
            *comma = '\0';
        r->fields[r->n_fields++] = trim(line);
        line = comma ? comma + 1 : NULL;
    }
}

/* The next line that says something, as fields; false at the end. */
static bool next_line(reader *r)
{
    while (*r->at) {
        char *line = r->at, *end = strchr(line, '\n');
        r->line++;
        r->at = end ? end + 1 : line + strlen(line);
        if (end)
            *end = '\0';
        line = trim(line);
        if (*line && *line != '#') {
            cut_fields(r, line);
            return true;
        }
    }
    return false;
}

static bool is_number(const char *text)
{
    size_t sign = *text == '-' || *text == '+';
    return text[sign] && strspn(text + sign, "0123456789") == strlen(text + sign);
}

/* -- columns and buffers -- */

/* -1: a field of another name, which is passed over. */
static int column_of(reader *r, const char *name)
{
    for (int c = 0; c < N_COLUMNS; c++)
        if (strcasecmp(name, column_names[c]) == 0)
            return c;
    for (size_t i = 0; i < sizeof older_names / sizeof *older_names; i++)
        if (strcasecmp(name, older_names[i].name) == 0) {
            r->upper_is_last |= older_names[i].is_last;
            return older_names[i].column;
        }
    return -1;
}

static bool read_header(reader *r)
{
    for (int c = 0; c < N_COLUMNS; c++)
        r->index[c] = -1;
    for (int f = 0; f < r->n_fields; f++) {
        int c = column_of(r, r->fields[f]);
        if (c < 0)
            continue;
        if (r->index[c] >= 0)
            return fail(r, "line %d: there are two columns for %s", r->line, column_names[c]);
        r->index[c] = f;
    }
    for (int c = COLUMN_LOWER; c <= COLUMN_SIZE; c++)
        if (r->index[c] < 0)
            return fail(r, "line %d: the header names no column %s; it needs lower, upper and size", r->line,
                        column_names[c]);
    return true;
}

static bool read_number(reader *r, int column, int64_t least, int64_t *value_out)
{
    int f = r->index[column];
    char *end;
    if (f >= r->n_fields || !*r->fields[f])
        return fail(r, "line %d: there is no %s", r->line, column_names[column]);
    if (!is_number(r->fields[f]))
        return fail(r, "line %d: %s is '%.40s', which is no whole number", r->line, column_names[column],
                    r->fields[f]);
    errno = 0;
    *value_out = strtoll(r->fields[f], &end, 10);
    if (errno || *value_out < least)
        return fail(r, "line %d: %s %.40s is out of range", r->line, column_names[column], r->fields[f]);
    return true;
}

static bool read_item(reader *r, tsr_pack_item *item)
{
    int64_t size = 0, alignment = 1;
    int id = r->index[COLUMN_ID];
    *item = (tsr_pack_item){.fixed_offset = TSR_PACK_FREE};
    item->name = id >= 0 && id < r->n_fields ? r->fields[id] : "";
    if (!read_number(r, COLUMN_LOWER, INT64_MIN, &item->lower) ||
        !read_number(r, COLUMN_UPPER, INT64_MIN, &item->upper) || !read_number(r, COLUMN_SIZE, 0, &size) ||
        (r->index[COLUMN_ALIGNMENT] >= 0 && !read_number(r, COLUMN_ALIGNMENT, 0, &alignment)))
        return false;
    if (r->upper_is_last && item->upper < INT64_MAX)
        item->upper++;
    if (item->lower >= item->upper)
        return fail(r, "line %d: a buffer that lives in [%" PRId64 ", %" PRId64 ") never lives", r->line,
                    item->lower, item->upper);
    item->size = (size_t)size;
    item->alignment = (size_t)alignment;
    return true;
}

static bool add_item(reader *r, pack_file *file, int *capacity)
{
    if (file->n_items == *capacity) {
        int wanted = 2 * *capacity + 256;
        tsr_pack_item *grown = realloc(file->items, (size_t)wanted * sizeof *grown);
        if (!grown)
            return fail(r, "line %d: out of memory", r->line);
        file->items = grown;
        *capacity = wanted;
    }
    return read_item(r, &file->items[file->n_items++]);
}

static bool read_items(reader *r, pack_file *file)
{
    int capacity = 0;
    if (!next_line(r))
        return fail(r, "it is empty; a header with lower, upper and size is needed");
    if (is_number(r->fields[0]) && r->n_fields >= 4) {
        for (int c = 0; c < N_COLUMNS; c++)
            r->index[c] = c <= COLUMN_SIZE ? c : -1;
        if (!add_item(r, file, &capacity))
            return false;
    } else if (!read_header(r)) {
        return false;
    }
    while (next_line(r))
        if (!add_item(r, file, &capacity))
            return false;
    return true;
}

/* -- files -- */

/* All of a file (or of what is no file) as a string, NULL on failure. */
static char *read_text(const char *path, char *message)
{
    size_t used = 0, capacity = 0;
    char *text = NULL;
    FILE *file = fopen(path, "rb");
    if (!file) {
        snprintf(message, PACK_FILE_MESSAGE, "%s", strerror(errno));
        return NULL;
    }
    do {
        if (used + 1 >= capacity) {
            capacity = 2 * capacity + 65536;
            char *grown = realloc(text, capacity);
            if (!grown)
                break;
            text = grown;
        }
        used += fread(text + used, 1, capacity - used - 1, file);
    } while (!feof(file) && !ferror(file));
    bool good = feof(file) && !ferror(file);
    fclose(file);
    if (good && !memchr(text, '\0', used)) {
        text[used] = '\0';
        return text;
    }
    snprintf(message, PACK_FILE_MESSAGE, good ? "it is no text" : "it cannot be read");
    free(text);
    return NULL;
}

bool pack_file_read(const char *path, pack_file *file_out, char message[PACK_FILE_MESSAGE])
{
    static const char byte_order_mark[] = "\xef\xbb\xbf";
    pack_file file = {.text = read_text(path, message)};
    if (!file.text)
        return false;
    bool marked = strncmp(file.text, byte_order_mark, strlen(byte_order_mark)) == 0;
    reader r = {.at = file.text + (marked ? strlen(byte_order_mark) : 0), .message = message};
    if (!read_items(&r, &file)) {
        pack_file_free(&file);
        return false;
    }
    *file_out = file;
    return true;
}

void pack_file_free(pack_file *file)
{
    free(file->items);
    free(file->text);
    *file = (pack_file){0};
}

bool pack_file_write(const char *path, const pack_file *file, const tsr_pack_solution *s)
{
    bool chunks = s->n_chunks > 1;
    FILE *out = fopen(path, "w");
    if (!out)
        return false;
    fprintf(out, "id,lower,upper,size,offset%s\n", chunks ? ",chunk" : "");
    for (int i = 0; i < file->n_items; i++) {
        const tsr_pack_item *item = &file->items[i];
        if (*item->name)
            fprintf(out, "%s", item->name);
        else
            fprintf(out, "%d", i);
        fprintf(out, ",%" PRId64 ",%" PRId64 ",%zu,%zu", item->lower, item->upper, item->size,
                s->places[i].offset);
        if (chunks)
            fprintf(out, ",%d", s->places[i].chunk);
        fputc('\n', out);
    }
    bool good = !ferror(out);
    return !fclose(out) && good;
}
