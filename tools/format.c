/* Aligned tables and paragraphs; see format.h. */
#include "format.h"

#include <ctype.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include <tsr/log.h>

/* Takes ownership of `text`, which may be NULL. */
static void add_cell(tool_table *table, char *text)
{
    char **cells = realloc(table->cells, ((size_t)table->n_cells + 1) * sizeof *cells);
    if (!cells) {
        free(text);
        return;
    }
    cells[table->n_cells++] = text;
    table->cells = cells;
}

void tool_table_header(tool_table *table, int n_columns, const char *const *headers)
{
    table->n_columns = n_columns;
    for (int i = 0; i < n_columns; i++)
        add_cell(table, strdup(headers[i]));
}

void tool_table_cell(tool_table *table, const char *format, ...)
{
    char *text = NULL;
    va_list args;
    va_start(args, format);
    if (vasprintf(&text, format, args) < 0)
        text = NULL;
    va_end(args);
    if (text)
        tsr_clean_text(text, strlen(text), "");
    add_cell(table, text);
}

static const char *cell_text(const tool_table *table, int cell)
{
    return table->cells[cell] ? table->cells[cell] : "";
}

/* Characters on screen: bytes that begin a UTF-8 character. */
static int shown_width(const char *text)
{
    int width = 0;
    for (; *text; text++)
        width += ((unsigned char)*text & 0xC0) != 0x80;
    return width;
}

static bool is_numeric(const char *text)
{
    return isdigit((unsigned char)text[0]) || text[0] == '\0' || strcmp(text, "-") == 0 ||
           ((text[0] == '+' || text[0] == '-') && isdigit((unsigned char)text[1]));
}

static void measure(const tool_table *table, int column, int *width_out, bool *right_out)
{
    *width_out = 0;
    *right_out = true;
    for (int cell = column; cell < table->n_cells; cell += table->n_columns) {
        int width = shown_width(cell_text(table, cell));
        *width_out = width > *width_out ? width : *width_out;
        *right_out = *right_out && (cell < table->n_columns || is_numeric(cell_text(table, cell)));
    }
}

void tool_table_print(const tool_table *table, FILE *out)
{
    struct {
        int width;
        bool right;
    } *columns = calloc((size_t)table->n_columns, sizeof *columns);
    for (int column = 0; column < table->n_columns && columns; column++)
        measure(table, column, &columns[column].width, &columns[column].right);
    for (int row = 0; row < table->n_cells && columns; row += table->n_columns) {
        for (int column = 0; column < table->n_columns && row + column < table->n_cells; column++) {
            const char *text = cell_text(table, row + column);
            int pad = columns[column].width - shown_width(text);
            bool right = columns[column].right, last = column + 1 == table->n_columns;
            fprintf(out, "%s%*s%s%*s", column ? "  " : "", right ? pad : 0, "", text, right || last ? 0 : pad,
                    "");
        }
        fputc('\n', out);
    }
    free(columns);
}

void tool_table_free(tool_table *table)
{
    for (int i = 0; i < table->n_cells; i++)
        free(table->cells[i]);
    free(table->cells);
    *table = (tool_table){0};
}

void tool_print_wrapped(const char *text, int length, int columns, int begin, int indent, FILE *out)
{
    int column = begin;
    bool first = true; /* of its line */
    for (int at = 0, word; at < length; at += word + 1) {
        word = (int)strcspn(text + at, " ");
        if (at + word > length)
            word = length - at;
        if (!first && column + 1 + word > columns) {
            fprintf(out, "\n%*s", indent, "");
            column = indent;
            first = true;
        }
        fprintf(out, "%s%.*s", first ? "" : " ", word, text + at);
        column += (first ? 0 : 1) + word;
        first = false;
    }
    fputc('\n', out);
}
