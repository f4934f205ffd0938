/* SPDX-License-Identifier: Apache-2.0 */
/* Reading the tables that nccl-tests and the OSU benchmarks print. They are texts for people
 * whose columns depend on version and options, so the head of the table says where the time is,
 * and units and wrong results are checked: a table that is read by guess would make wrong
 * plans. Errors name the line. */
#include "comm/profile/collective_table.h"

#include <stdlib.h>
#include <string.h>

#include "comm/base.h"

enum { MAX_WORDS = 40, WORD_SIZE = 32 };

/* One line of a text, and its words, none of which is copied. */
typedef struct {
    const char *next, *end; /* what is not read yet */
    const char *line;
    size_t length;
    int number;
    const char *words[MAX_WORDS];
    size_t lengths[MAX_WORDS];
    int count; /* MAX_WORDS: perhaps more */
} reader_t;

static bool is_blank(char c)
{
    return c == ' ' || c == '\t' || c == '\r';
}

/* Reads the next line and cuts it into words; false at the end of the text. */
static bool next_line(reader_t *reader)
{
    const char *end;

    if (reader->next == reader->end) {
        return false;
    }
    reader->line = reader->next;
    end = memchr(reader->line, '\n', (size_t)(reader->end - reader->line));
    reader->next = end != NULL ? end + 1 : reader->end;
    end = end != NULL ? end : reader->end;
    reader->length = (size_t)(end - reader->line);
    ++reader->number;
    reader->count = 0;
    for (const char *at = reader->line; at < end && reader->count < MAX_WORDS;) {
        const char *start;

        while (at < end && is_blank(*at)) {
            ++at;
        }
        for (start = at; at < end && !is_blank(*at);) {
            ++at;
        }
        if (at > start) {
            reader->words[reader->count] = start;
            reader->lengths[reader->count++] = (size_t)(at - start);
        }
    }
    return true;
}

static bool is_word(const reader_t *reader, int index, const char *word)
{
    return index < reader->count && reader->lengths[index] == strlen(word) &&
           memcmp(reader->words[index], word, reader->lengths[index]) == 0;
}

static bool is_comment(const reader_t *reader)
{
    return reader->count > 0 && reader->words[0][0] == '#';
}

/* Copies a word as a text of its own; one that is too long for a number is cut, which makes no
 * number of it. */
static char *word_at(const reader_t *reader, int index, char *buffer)
{
    size_t length =
        reader->lengths[index] < WORD_SIZE ? reader->lengths[index] : (size_t)WORD_SIZE - 1;

    memcpy(buffer, reader->words[index], length);
    buffer[length] = '\0';
    if (reader->lengths[index] >= WORD_SIZE) {
        buffer[0] = '?';
    }
    return buffer;
}

static xm_status_t at_line(const reader_t *reader, xm_status_t status)
{
    return status < 0 ? xm_error_prefix(status, "line %d", reader->number) : XM_OK;
}

/* Reads a row's size in column 0 and its time in @p time_column. */
static xm_status_t read_row(const reader_t *reader, int time_column, xm_collective_table_t *table)
{
    char word[WORD_SIZE];
    int64_t size = 0;
    double microseconds = 0;
    xm_status_t status =
        xm_text_parse_int("the size", word_at(reader, 0, word), 0, INT64_MAX, &size);

    XM_THEN(status, xm_text_parse_double("the time", word_at(reader, time_column, word), 0, 1e15,
                                         &microseconds));
    XM_THEN(status, xm_table_add_row(table, (uint64_t)size, microseconds));
    return at_line(reader, status);
}

/* Reads "#  Rank  0 Group  0 Pid 1655 on HOST device  0 [0000:06:00] …". */
static xm_status_t read_rank(const reader_t *reader, xm_collective_table_t *table)
{
    char word[WORD_SIZE];
    int64_t group = 0;
    xm_status_t status;

    if (reader->count < 10 || !is_word(reader, 3, "Group") || !is_word(reader, 5, "Pid") ||
        !is_word(reader, 7, "on") || !is_word(reader, 9, "device")) {
        return at_line(reader,
                       XM_MALFORMED("a rank must be '#  Rank R Group G Pid P on HOST device D …'"));
    }
    status = xm_text_parse_int("the group", word_at(reader, 4, word), 0, INT32_MAX, &group);
    XM_THEN(status, xm_table_add_rank(table, (int)group, reader->words[8], reader->lengths[8]));
    return at_line(reader, status);
}

/* Reads what nccl-tests says above its table: ranks, program, version. One file is one test; a
 * second one would mix two curves. */
static xm_status_t read_nccl_comment(const reader_t *reader, xm_collective_table_t *table)
{
    static const char library[] = "nccl-library=";

    if (is_word(reader, 1, "Rank")) {
        return read_rank(reader, table);
    }
    if (is_word(reader, 1, "Collective") && is_word(reader, 3, "starting:") && reader->count > 4) {
        if (table->kind >= 0) {
            return at_line(reader, XM_MALFORMED("a second test begins; one file is one test"));
        }
        table->kind = xm_table_nccl_kind(reader->words[4], reader->lengths[4]);
        if (table->kind < 0) {
            return at_line(reader,
                           XM_UNSUPPORTED("'%.*s' is none of all_gather_perf, all_reduce_perf, "
                                          "reduce_scatter_perf, alltoall_perf",
                                          (int)(reader->lengths[4] & 0xff), reader->words[4]));
        }
    }
    for (int i = 1; i < reader->count; ++i) {
        if (reader->lengths[i] >= sizeof(library) - 1 &&
            memcmp(reader->words[i], library, sizeof(library) - 1) == 0) {
            char word[WORD_SIZE];

            xm_table_nccl_version(table,
                                  strtol(word_at(reader, i, word) + sizeof(library) - 1, NULL, 10));
        }
    }
    return XM_OK;
}

/* The columns of a table: how many, the first time, and its column of wrong elements. */
typedef struct {
    int count, time, wrong;
} columns_t;

/* Reads the head, "# size count type redop root time algbw busbw #wrong time …". The first
 * columns of a name count, which are those of out-of-place runs. */
static bool read_nccl_head(const reader_t *reader, columns_t *columns)
{
    if (!is_word(reader, 0, "#") || !is_word(reader, 1, "size") || !is_word(reader, 2, "count")) {
        return false;
    }
    *columns = (columns_t){.count = reader->count - 1, .time = -1, .wrong = -1};
    for (int i = reader->count - 1; i > 0; --i) {
        if (is_word(reader, i, "time")) {
            columns->time = i - 1;
        }
        if (is_word(reader, i, "#wrong")) {
            columns->wrong = i - 1;
        }
    }
    return true;
}

/* A row with another number of columns is none, and one with wrong elements is refused. */
static xm_status_t read_nccl_row(const reader_t *reader, const columns_t *columns,
                                 xm_collective_table_t *table)
{
    if (reader->count != columns->count) {
        return at_line(reader, XM_MALFORMED("%d words; a row of this table has %d columns",
                                            reader->count, columns->count));
    }
    if (columns->wrong >= 0 && !is_word(reader, columns->wrong, "0") &&
        !is_word(reader, columns->wrong, "N/A")) {
        char word[WORD_SIZE];

        return at_line(reader,
                       XM_MALFORMED("%s wrong elements; a run with wrong results is not imported",
                                    word_at(reader, columns->wrong, word)));
    }
    return read_row(reader, columns->time, table);
}

/* Checks the line below the head, which has the units. */
static xm_status_t check_nccl_units(reader_t *reader, const columns_t *columns)
{
    if (columns->time < 0) {
        return at_line(reader, XM_MALFORMED("the table has no column 'time'"));
    }
    if (next_line(reader) && is_comment(reader)) {
        for (int i = 0; i < reader->count; ++i) {
            if (is_word(reader, i, "(us)")) {
                return XM_OK;
            }
        }
    }
    return at_line(reader,
                   XM_MALFORMED("below the head of the table must be a line of units with (us)"));
}

/* Reads the whole text; lines before the head that are no comments are a program's own output. */
xm_status_t xm_table_read_nccl_text(const char *text, size_t length, xm_collective_table_t *table)
{
    reader_t reader = {.next = text, .end = text + length};
    columns_t columns = {0};
    bool head = false;
    xm_status_t status = XM_OK;

    while (status == XM_OK && next_line(&reader)) {
        if (is_comment(&reader) && !head && read_nccl_head(&reader, &columns)) {
            head = true;
            status = check_nccl_units(&reader, &columns);
        } else if (is_comment(&reader)) {
            status = read_nccl_comment(&reader, table);
        } else if (head && reader.count > 0) {
            status = read_nccl_row(&reader, &columns, table);
        }
    }
    if (status == XM_OK && !head) {
        return XM_MALFORMED("neither the table of nccl-tests ('# size count type …') nor of an OSU "
                            "benchmark ('# OSU …') nor JSON");
    }
    return status;
}

/* Recognises "# OSU MPI Allreduce Latency Test v7.5": the collective, or -1. */
static int osu_kind(const reader_t *reader)
{
    static const struct {
        const char *words[3];
        xm_collective_t kind;
    } titles[] = {{{"Allgather", "Latency", NULL}, XM_ALL_GATHER},
                  {{"Allreduce", "Latency", NULL}, XM_ALL_REDUCE},
                  {{"Reduce_scatter", "Latency", NULL}, XM_REDUCE_SCATTER},
                  {{"All-to-All", "Personalized", "Exchange"}, XM_ALL_TO_ALL}};

    for (size_t i = 0; i < sizeof(titles) / sizeof(titles[0]); ++i) {
        /* The words are: "#", "OSU", "MPI…", then the title. */
        if (is_word(reader, 3, titles[i].words[0]) && is_word(reader, 4, titles[i].words[1]) &&
            (titles[i].words[2] == NULL || is_word(reader, 5, titles[i].words[2]))) {
            return (int)titles[i].kind;
        }
    }
    return -1;
}

static xm_status_t read_osu_title(const reader_t *reader, xm_collective_table_t *table)
{
    if (table->kind >= 0) {
        return at_line(reader,
                       XM_MALFORMED("a second benchmark begins; one file is one benchmark"));
    }
    table->kind = osu_kind(reader);
    if (table->kind < 0) {
        return at_line(
            reader,
            XM_UNSUPPORTED(
                "'%.*s' is none of osu_allgather, osu_allreduce, osu_reduce_scatter, osu_alltoall",
                (int)(reader->length < 80 ? reader->length : 80), reader->line));
    }
    return XM_OK;
}

/* Checks the head "# Size       Avg Latency(us)", behind which there may be more columns. */
static xm_status_t check_osu_head(const reader_t *reader)
{
    if (is_word(reader, 2, "Avg") && is_word(reader, 3, "Latency(us)")) {
        return XM_OK;
    }
    return at_line(reader, XM_MALFORMED("the second column must be 'Avg Latency(us)'"));
}

/* OSU's rows begin with the size, then the average time. */
xm_status_t xm_table_read_osu_text(const char *text, size_t length, xm_collective_table_t *table)
{
    reader_t reader = {.next = text, .end = text + length};
    bool head = false;
    xm_status_t status = XM_OK;

    while (status == XM_OK && next_line(&reader)) {
        if (is_word(&reader, 0, "#") && is_word(&reader, 1, "OSU")) {
            status = read_osu_title(&reader, table);
        } else if (is_word(&reader, 0, "#") && is_word(&reader, 1, "Size") && table->kind >= 0) {
            head = true;
            status = check_osu_head(&reader);
        } else if (head && reader.count > 0 && !is_comment(&reader)) {
            status = reader.count >= 2
                         ? read_row(&reader, 1, table)
                         : at_line(&reader, XM_MALFORMED("one word; a row has a size and a time"));
        }
    }
    if (status == XM_OK && !head) {
        return XM_MALFORMED("the OSU benchmark has no table ('# Size …')");
    }
    return status;
}
