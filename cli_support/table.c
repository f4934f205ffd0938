/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Tables for people, for scripts that split lines at blanks, and as CSV. Every cell is a text in
 * the end, so that the three differ in one place only.
 */
#include "cli_support/table.h"

#include <math.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

enum { CELL = 320 };

/* Quotes only what would be read as several cells otherwise. */
static void put_csv(FILE *file, const char *text)
{
    if (strpbrk(text, ",\"\n") == NULL) {
        (void)fputs(text, file);
        return;
    }
    (void)fputc('"', file);
    for (; *text != '\0'; ++text) {
        (void)fputs(*text == '"' ? "\"" : "", file);
        (void)fputc(*text, file);
    }
    (void)fputc('"', file);
}

/* Numbers are never cut: a wrong one is worse than a column out of place. */
static void put_aligned(const xm_table_t *table, int width, const char *text, bool last)
{
    size_t room = (size_t)abs(width), length = strlen(text);

    if (width < 0 && length > room && !table->wide) {
        (void)fprintf(table->file, " %.*s…", (int)room - 1, text);
    } else if (width < 0 && last) {
        (void)fprintf(table->file, "%s%s", length > 0 ? " " : "", text);
    } else {
        (void)fprintf(table->file, " %*s", width, text);
    }
}

/* Prints one cell and what stands before the first and behind the last. */
static void put(xm_table_t *table, char start, const char *text)
{
    const xm_table_column_t *column = &table->columns[table->next];
    bool first = table->next == 0, last = table->next + 1 == table->count;

    if (table->csv) {
        (void)fputs(first ? "" : ",", table->file);
        put_csv(table->file, text);
    } else if (!column->wide || table->wide) {
        if (first) {
            (void)fputc(start, table->file);
        }
        put_aligned(table, column->width, text, last);
    }
    table->next = last ? 0 : table->next + 1;
    if (last) {
        (void)fputc('\n', table->file);
    }
}

static void put_units(xm_table_t *table)
{
    for (int c = 0; c < table->count; ++c) {
        char unit[CELL] = "";

        if (table->columns[c].unit[0] != '\0') {
            (void)snprintf(unit, sizeof(unit), "(%s)", table->columns[c].unit);
        }
        put(table, '#', unit);
    }
}

void xm_table_head(xm_table_t *table)
{
    bool units = false;

    for (int c = 0; c < table->count; ++c) {
        const xm_table_column_t *column = &table->columns[c];
        char name[CELL];

        units = units || column->unit[0] != '\0';
        (void)snprintf(name, sizeof(name), table->csv && column->unit[0] != '\0' ? "%s (%s)" : "%s",
                       column->name, column->unit);
        put(table, '#', name);
    }
    if (units && !table->csv) {
        put_units(table);
    }
    (void)fflush(table->file);
}

void xm_table_text(xm_table_t *table, const char *format, ...)
{
    char text[CELL];
    va_list args;

    va_start(args, format);
    (void)vsnprintf(text, sizeof(text), format, args);
    va_end(args);
    put(table, table->start != 0 ? table->start : ' ', text);
}

void xm_table_number(xm_table_t *table, int digits, double value)
{
    if (isnan(value)) {
        xm_table_text(table, "%s", table->csv ? "" : "-");
    } else {
        xm_table_text(table, "%.*f", digits, value);
    }
}
