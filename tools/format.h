/* Aligned tables for a terminal. */
#ifndef TSR_TOOLS_FORMAT_H
#define TSR_TOOLS_FORMAT_H

#include <stdio.h>

/* A table that is as wide as its content. Columns whose cells all begin with a digit or a sign are
 * right-aligned.
 *
 *     tool_table table = {0};
 *     tool_table_header(&table, 2, (const char *[]){"device", "weights"});
 *     tool_table_cell(&table, "%s", name);
 *     tool_table_cell(&table, "%s", tsr_bytes_text(bytes, text));
 *     tool_table_print(&table, stdout);
 *     tool_table_free(&table);
 *
 * When out of memory, cells are omitted. */
typedef struct tool_table {
    int n_columns;
    int n_cells; /* headers included; a row is n_columns cells */
    char **cells;
} tool_table;

void tool_table_header(tool_table *table, int n_columns, const char *const *headers);

/* The next cell, row by row. Control characters are replaced (tsr_clean_text()). */
void tool_table_cell(tool_table *table, const char *format, ...) __attribute__((format(printf, 2, 3)));

void tool_table_print(const tool_table *table, FILE *out);
void tool_table_free(tool_table *table);

/* Print text[length] as a paragraph of lines of at most `columns` characters, all but the first one
 * indented. The first one follows `begin` characters that were printed before. Lines end at blanks; a longer
 * word has a line of its own. */
void tool_print_wrapped(const char *text, int length, int columns, int begin, int indent, FILE *out);

#endif
