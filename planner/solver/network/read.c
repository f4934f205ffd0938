/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Reads the contest's JSON as a stream of events (yajl), piece by piece through zlib. Files can
 * have hundreds of megabytes of numbers; a document tree as a JSON library builds it would take
 * several times their memory, so the numbers go straight into flat arrays, and the only state is
 * where in the document the parser is.
 *
 * A number's place in the file is not kept. When a check refuses something, the file is read a
 * second time up to the node or edge concerned, and the parser's position there gives line and
 * column.
 */

#include "planner/solver/network/read.h"

#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <zlib.h>

#include "comm/base.h"
#include "planner/solver/network/read_events.h"

enum { PIECE = 1 << 18 }; /* bytes read at a time */

/* Moves the reader's line and column over @p length bytes. memchr() finds the newlines, so this
 * costs little beside the parsing. */
static void advance(ap_cfn_reader_t *reader, const unsigned char *text, size_t length)
{
    const unsigned char *newline;

    while ((newline = memchr(text, '\n', length)) != NULL) {
        ++reader->line;
        reader->column = 1;
        length -= (size_t)(newline - text) + 1;
        text = newline + 1;
    }
    reader->column += length;
}

/* Reports a complaint of ours, or else yajl's own message, with the line and column at which the
 * parser stopped. yajl's message goes on for several lines with an excerpt of the text; only its
 * first one is used. */
static xm_status_t fail_at(ap_cfn_reader_t *reader, yajl_handle parser, const unsigned char *text,
                           size_t length)
{
    char what[256] = "unexpected end";

    if (reader->complaint[0] != '\0') {
        (void)snprintf(what, sizeof(what), "%s", reader->complaint);
    } else {
        unsigned char *message = yajl_get_error(parser, 0, text, length);

        (void)snprintf(what, sizeof(what), "%s", message != NULL ? (char *)message : "");
        yajl_free_error(parser, message);
        what[strcspn(what, "\n")] = '\0';
    }
    if (text != NULL) {
        size_t consumed = yajl_get_bytes_consumed(parser);

        advance(reader, text, consumed < length ? consumed : length);
    }
    return xm_error_set(reader->out_of_memory ? XM_ERR_NO_MEMORY : XM_ERR_PARSE,
                        "line %zu, column %zu: %s", reader->line, reader->column, what);
}

static xm_status_t feed(ap_cfn_reader_t *reader, yajl_handle parser, const unsigned char *text,
                        size_t length)
{
    if (yajl_parse(parser, text, length) != yajl_status_ok) {
        return fail_at(reader, parser, text, length);
    }
    advance(reader, text, length);
    return XM_OK;
}

/* Hands a list's numbers over to the caller without a copy; an empty one becomes an array of one,
 * so that NULL means no memory. */
static int64_t *take(ap_cfn_numbers_t *list)
{
    int64_t *at = list->at != NULL ? list->at : calloc(1, sizeof(*at));

    list->at = NULL;
    return at;
}

/* The places where the lists of `place` begin, and the end of the last one: the form that ap_cfn_t
 * has, so that list k is [at[k], at[k + 1]). */
static size_t *take_begins(ap_cfn_reader_t *reader, ap_cfn_place_t place)
{
    const ap_cfn_numbers_t *begins = &reader->begins[place];
    size_t *at = malloc((begins->count + 1) * sizeof(*at));

    if (at != NULL) {
        for (size_t k = 0; k < begins->count; ++k) {
            at[k] = (size_t)begins->at[k];
        }
        at[begins->count] = reader->values[place].count;
    }
    return at;
}

/* Checks what the arrays alone can tell: every member is there, and all of them speak of the same
 * nodes and edges. ap_cfn_check_at() then relies on these shapes. The fault names the node as soon
 * as there is one, so that the second reading can find it. */
static xm_status_t check_shape(ap_cfn_reader_t *reader)
{
    static const char *const names[AP_CFN_PLACE_COUNT] = {[AP_CFN_PLACE_INTERVALS] =
                                                              "nodes.intervals",
                                                          [AP_CFN_PLACE_COSTS] = "nodes.costs",
                                                          [AP_CFN_PLACE_USAGES] = "nodes.usages",
                                                          [AP_CFN_PLACE_SCOPES] = "edges.nodes",
                                                          [AP_CFN_PLACE_CELLS] = "edges.costs"};
    const ap_cfn_numbers_t *begins = reader->begins;
    size_t nodes = begins[AP_CFN_PLACE_COSTS].count;

    /* The nodes' three lists must all be there; edges may be missing, as a problem without edges
     * is one. */
    for (int place = AP_CFN_PLACE_INTERVALS; place <= AP_CFN_PLACE_USAGES; ++place) {
        if (!reader->seen[place]) {
            return XM_MALFORMED("the problem has no \"%s\"", names[place]);
        }
        if (begins[place].count != nodes) {
            return XM_MALFORMED("nodes.costs has %zu nodes, %s %zu", nodes, names[place],
                                begins[place].count);
        }
    }
    if (begins[AP_CFN_PLACE_SCOPES].count != begins[AP_CFN_PLACE_CELLS].count) {
        return XM_MALFORMED("edges.nodes has %zu edges, edges.costs %zu",
                            begins[AP_CFN_PLACE_SCOPES].count, begins[AP_CFN_PLACE_CELLS].count);
    }
    /* Each node has two numbers of interval and as many costs as usages. */
    for (size_t node = 0; node < nodes; ++node) {
        size_t next = node + 1;
        size_t ends[3];

        reader->fault = (ap_cfn_fault_t){.part = AP_CFN_NODE, .index = node};
        for (int k = 0; k < 3; ++k) {
            const ap_cfn_numbers_t *list = &begins[AP_CFN_PLACE_INTERVALS + k];

            ends[k] = (next < nodes ? (size_t)list->at[next]
                                    : reader->values[AP_CFN_PLACE_INTERVALS + k].count) -
                      (size_t)list->at[node];
        }
        if (ends[0] != 2) {
            return XM_MALFORMED("nodes.intervals: node %zu has %zu numbers, not 2", node, ends[0]);
        }
        if (ends[1] != ends[2]) {
            return XM_MALFORMED("node %zu has %zu costs and %zu usages", node, ends[1], ends[2]);
        }
    }
    reader->fault.part = AP_CFN_WHOLE;
    return XM_OK;
}

/* Makes the object. Lists are moved, not copied, so the peak memory is that of the numbers. On
 * failure ap_cfn_destroy() frees what was moved, and close_reader() frees the rest. */
static xm_status_t finish(ap_cfn_reader_t *reader, ap_cfn_t **cfn)
{
    const ap_cfn_numbers_t *scopes = &reader->values[AP_CFN_PLACE_SCOPES];
    xm_status_t status = check_shape(reader);
    ap_cfn_t *made;

    if (status != XM_OK) {
        return status;
    }
    made = calloc(1, sizeof(*made));
    if (made == NULL) {
        return XM_NO_MEMORY("the problem");
    }
    /* From here on the object owns the lists that it took. */
    memcpy(made->name, reader->name, sizeof(made->name));
    made->nodes = reader->begins[AP_CFN_PLACE_COSTS].count;
    made->edges = reader->begins[AP_CFN_PLACE_SCOPES].count;
    made->limited = reader->seen[AP_CFN_PLACE_LIMIT];
    made->limit = reader->limit;
    made->node_at = take_begins(reader, AP_CFN_PLACE_COSTS);
    made->scope_at = take_begins(reader, AP_CFN_PLACE_SCOPES);
    made->cell_at = take_begins(reader, AP_CFN_PLACE_CELLS);
    made->scope = malloc((scopes->count + 1) * sizeof(*made->scope));
    made->costs = take(&reader->values[AP_CFN_PLACE_COSTS]);
    made->usages = take(&reader->values[AP_CFN_PLACE_USAGES]);
    made->interval = take(&reader->values[AP_CFN_PLACE_INTERVALS]);
    made->cells = take(&reader->values[AP_CFN_PLACE_CELLS]);
    if (made->node_at == NULL || made->scope_at == NULL || made->cell_at == NULL ||
        made->scope == NULL || made->costs == NULL || made->usages == NULL ||
        made->interval == NULL || made->cells == NULL) {
        status = XM_NO_MEMORY("%zu nodes", made->nodes);
    }
    /* A node's number beyond an int becomes -1, and the check refuses it with its sentence. */
    for (size_t k = 0; status == XM_OK && k < scopes->count; ++k) {
        made->scope[k] = scopes->at[k] <= INT32_MAX ? (int)scopes->at[k] : -1;
    }
    if (status == XM_OK) {
        status = ap_cfn_check_at(made, &reader->fault);
    }
    if (status != XM_OK) {
        ap_cfn_destroy(made);
        return status;
    }
    *cfn = made;
    return XM_OK;
}

static xm_status_t open_reader(ap_cfn_reader_t *reader, yajl_handle *parser)
{
    *reader = (ap_cfn_reader_t){.line = 1, .column = 1};
    *parser = yajl_alloc(&ap_cfn_read_events, NULL, reader);
    if (*parser == NULL) {
        return XM_NO_MEMORY("a JSON parser");
    }
    return XM_OK;
}

/* Ends a reading, whether it failed or not, and frees all that the reader still owns. */
static xm_status_t close_reader(ap_cfn_reader_t *reader, yajl_handle parser, xm_status_t status,
                                ap_cfn_t **cfn)
{
    if (status == XM_OK && yajl_complete_parse(parser) != yajl_status_ok) {
        status = fail_at(reader, parser, NULL, 0);
    }
    if (status == XM_OK) {
        status = finish(reader, cfn);
    }
    yajl_free(parser);
    for (int place = 0; place < AP_CFN_PLACE_COUNT; ++place) {
        free(reader->values[place].at);
        free(reader->begins[place].at);
    }
    return status;
}

/* Tells whether what was refused has a place in the document. If so, `again` is ready for a second
 * reading, which stops there with the first reading's sentence. Numbers are not kept with their
 * places, for there are many, and hardly ever is one wrong. */
static bool read_again(const ap_cfn_reader_t *reader, xm_status_t status, ap_cfn_reader_t *again,
                       yajl_handle *parser)
{
    static const ap_cfn_place_t places[] = {[AP_CFN_WHOLE] = AP_CFN_PLACE_OTHER,
                                            [AP_CFN_NODE] = AP_CFN_PLACE_COSTS,
                                            [AP_CFN_SCOPE] = AP_CFN_PLACE_SCOPES,
                                            [AP_CFN_CELLS] = AP_CFN_PLACE_CELLS};
    char sentence[sizeof(again->found)];

    if (!xm_status_is_caller(status) || reader->fault.part == AP_CFN_WHOLE) {
        return false;
    }
    /* The sentence is copied before open_reader() can set another one. */
    (void)snprintf(sentence, sizeof(sentence), "%s", xm_last_error());
    if (open_reader(again, parser) != XM_OK) {
        return false;
    }
    again->wanted = places[reader->fault.part];
    again->wanted_index = (int64_t)reader->fault.index;
    memcpy(again->found, sentence, sizeof(sentence));
    return true;
}

/* Reads text in memory as one piece; a second reading starts from the same text. */
xm_status_t ap_cfn_read_text(const char *text, size_t length, ap_cfn_t **cfn)
{
    ap_cfn_reader_t reader, again;
    yajl_handle parser;
    xm_status_t status = open_reader(&reader, &parser);

    if (status != XM_OK) {
        return status;
    }
    status = feed(&reader, parser, (const unsigned char *)text, length);
    status = close_reader(&reader, parser, status, cfn);
    if (read_again(&reader, status, &again, &parser)) {
        status = feed(&again, parser, (const unsigned char *)text, length);
        status = close_reader(&again, parser, status, cfn);
    }
    return status;
}

/* Reads a file piece by piece. Errors of the file system, of the compression and of the JSON are
 * told apart, because a user does something else about each. Every sentence begins with the
 * path. */
xm_status_t ap_cfn_read(const char *path, double seconds, ap_cfn_t **cfn)
{
    double end = seconds > 0.0 ? xm_clock_seconds() + seconds : HUGE_VAL;
    unsigned char *piece = NULL;
    gzFile file;
    ap_cfn_reader_t reader, again;
    yajl_handle parser = NULL;
    int length = 0, fd;
    size_t size;
    xm_status_t status = xm_file_open(path, XM_FILE_LARGEST, &fd, &size);

    if (status < 0) {
        return status;
    }
    file = gzdopen(fd, "rb"); /* reads plain text as well */
    piece = malloc(PIECE);
    if (file == NULL || piece == NULL) {
        status = XM_NO_MEMORY("reading a file");
        if (file == NULL) {
            (void)close(fd);
        }
        goto close;
    }
    (void)gzbuffer(file, PIECE);
    status = open_reader(&reader, &parser);
    if (status != XM_OK) {
        goto close;
    }
    /* The time is checked once per piece of 256 KiB, which is often enough and costs nothing. */
    while (status == XM_OK && (length = gzread(file, piece, PIECE)) > 0) {
        status = feed(&reader, parser, piece, (size_t)length);
        if (status == XM_OK && xm_clock_seconds() > end) {
            status = xm_error_set(XM_ERR_TIMEOUT, "not read within %g s", seconds);
        }
    }
    if (status == XM_OK && length < 0) {
        /* Damage in the compressed data is told apart from an error of the file system. */
        int code;
        const char *message = gzerror(file, &code);

        if (code == Z_ERRNO) {
            status = xm_error_set(XM_ERR_IO, "%s", strerror(errno));
        } else { /* its own sentence names the file, too */
            bool named = strncmp(message, path, strlen(path)) == 0;

            status = xm_error_set(code == Z_MEM_ERROR ? XM_ERR_NO_MEMORY : XM_ERR_PARSE,
                                  "line %zu, column %zu: the compressed data is damaged%s",
                                  reader.line, reader.column, named ? message + strlen(path) : "");
        }
    }
    status = close_reader(&reader, parser, status, cfn);
    if (read_again(&reader, status, &again, &parser)) {
        /* The second reading has no time limit: it ends at the place, which the first one has
         * passed. */
        status = gzrewind(file) == 0 ? XM_OK : XM_ERR_IO;
        while (status == XM_OK && (length = gzread(file, piece, PIECE)) > 0) {
            status = feed(&again, parser, piece, (size_t)length);
        }
        status = close_reader(&again, parser, status, cfn);
    }
    if (status != XM_OK) {
        status = xm_error_prefix(status, "%s", path);
    }
close:
    free(piece);
    if (file != NULL) {
        (void)gzclose_r(file);
    }
    return status;
}
