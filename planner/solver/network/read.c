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
#include <yajl/yajl_parse.h>
#include <zlib.h>

#include "comm/base.h"

/* Bytes read at a time, and the nesting that is accepted. Skipped members may nest, and their depth
 * is the file's choice, so it has a limit. */
enum { PIECE = 1 << 18, DEPTH_MAX = 64 };

/* A list of numbers, or of the places where lists of numbers begin. */
typedef struct numbers {
    int64_t *at;
    size_t count, capacity;
} numbers_t;

/* Where in the document the reader is: which list the next number belongs to. */
typedef enum place {
    PLACE_OTHER, /* skipped */
    PLACE_NAME,
    PLACE_LIMIT,
    PLACE_INTERVALS,
    PLACE_COSTS,
    PLACE_USAGES,
    PLACE_SCOPES,
    PLACE_CELLS,
    PLACE_COUNT
} place_t;

/* The objects around the place: the document, its "problem", and "nodes" or "edges" in that. */
enum { LEVEL_TOP, LEVEL_PROBLEM, LEVEL_MEMBER }; /* objects around the place */

typedef struct reader {
    int depth;     /* brackets and braces that are open */
    int skip;      /* depth at which a skipped value began; 0: none */
    int object;    /* LEVEL_… of the innermost object, when it is one of ours */
    bool in_edges; /* of the members of LEVEL_MEMBER */
    place_t place;
    int list;               /* lists open at `place`: 0, 1, 2; -1: an object must follow */
    bool seen[PLACE_COUNT]; /* members that came */
    numbers_t values[PLACE_COUNT], begins[PLACE_COUNT];
    int64_t limit;
    char name[256];
    bool out_of_memory;
    char complaint[256];
    size_t line, column;  /* of the piece's first byte, from 1 */
    ap_cfn_fault_t fault; /* what was refused once all was read */
    place_t wanted;       /* in a second reading: the list to stop at, `found` the sentence */
    int64_t wanted_index;
    char found[256];
} reader_t;

/* Yajl's callbacks return 0 to stop the parser; the complaint is what it stopped for. */
static int complain(reader_t *reader, const char *sentence)
{
    (void)snprintf(reader->complaint, sizeof(reader->complaint), "%s", sentence);
    return 0;
}

/* Lists grow by half, not by doubling: with gigabytes of numbers the slack of a doubled list
 * counts. */
static int append(reader_t *reader, numbers_t *list, int64_t value)
{
    if (list->count == list->capacity) {
        size_t capacity = list->capacity > 0 ? list->capacity + list->capacity / 2 : 1024;
        int64_t *grown = realloc(list->at, capacity * sizeof(*grown));

        if (grown == NULL) {
            reader->out_of_memory = true;
            return complain(reader, "out of memory");
        }
        list->at = grown;
        list->capacity = capacity;
    }
    list->at[list->count++] = value;
    return 1;
}

/* Takes a number as text, since yajl's own conversion would make doubles of fractions and
 * exponents. Only digits pass, so signs, fractions and exponents are refused by one test. 19
 * digits always fit into 64 bits without a sign, so the sum cannot overflow before it is
 * compared. */
static int on_number(void *context, const char *text, size_t length)
{
    reader_t *reader = context;
    uint64_t value = 0;

    if (reader->list == -1) {
        return complain(reader, "an object is expected");
    }
    if (reader->skip > 0 || reader->place == PLACE_OTHER) {
        return 1;
    }
    /* Numbers are in lists of lists only. */
    if (reader->place != PLACE_LIMIT && reader->list != 2) {
        return complain(reader, "a number where a list of lists is expected");
    }
    if (reader->place == PLACE_NAME) {
        return complain(reader, "\"name\" must be a string");
    }
    /* Nothing longer can be below 2^63. */
    if (length > 19) {
        return complain(reader, "a number that is not an integer of 0 to 2^63 - 1");
    }
    for (size_t k = 0; k < length; ++k) {
        if (text[k] < '0' || text[k] > '9') {
            return complain(reader, "a number that is not an integer of 0 to 2^63 - 1");
        }
        value = 10 * value + (uint64_t)(text[k] - '0');
    }
    if (value > INT64_MAX) {
        return complain(reader, "a number that is not an integer of 0 to 2^63 - 1");
    }
    if (reader->place == PLACE_LIMIT) {
        reader->limit = (int64_t)value;
        reader->place = PLACE_OTHER;
        return 1;
    }
    return append(reader, &reader->values[reader->place], (int64_t)value);
}

/* Takes a value that is neither number, list nor object. Inside members that the format does not
 * know, any value is fine. */
static int on_scalar(reader_t *reader)
{
    if (reader->list == -1) {
        return complain(reader, "an object is expected");
    }
    if (reader->skip > 0 || (reader->place == PLACE_OTHER && reader->depth > 0)) {
        return 1;
    }
    if (reader->depth == 0) {
        return complain(reader, "an object with the member \"problem\" is expected");
    }
    return complain(reader, "an integer is expected");
}

/* Null is a value only as the limit. */
static int on_null(void *context)
{
    reader_t *reader = context;

    if (reader->place == PLACE_LIMIT && reader->skip == 0) { /* no limit */
        reader->seen[PLACE_LIMIT] = false;
        reader->place = PLACE_OTHER;
        return 1;
    }
    return on_scalar(reader);
}

static int on_boolean(void *context, int value)
{
    (void)value;
    return on_scalar(context);
}

/* A string is a value only as the name. */
static int on_string(void *context, const unsigned char *text, size_t length)
{
    reader_t *reader = context;

    /* A longer name is cut off: it serves messages only. */
    if (reader->place == PLACE_NAME && reader->skip == 0) {
        length = length < sizeof(reader->name) ? length : sizeof(reader->name) - 1;
        memcpy(reader->name, text, length);
        reader->name[length] = '\0';
        reader->place = PLACE_OTHER;
        return 1;
    }
    return on_scalar(reader);
}

/* Keys come without a terminating zero. */
static bool is_key(const unsigned char *text, size_t length, const char *key)
{
    return length == strlen(key) && memcmp(text, key, length) == 0;
}

/* Finds the place that a key announces. "costs" and "nodes" each have two meanings, so the object
 * around the key decides. A member that comes twice is refused; the lists of both would run
 * together. */
static int on_key(void *context, const unsigned char *text, size_t length)
{
    static const struct {
        const char *key;
        int level;
        bool edges;
        place_t place;
    } keys[] = {
        {"name", LEVEL_PROBLEM, false, PLACE_NAME},
        {"usage_limit", LEVEL_PROBLEM, false, PLACE_LIMIT},
        {"intervals", LEVEL_MEMBER, false, PLACE_INTERVALS},
        {"costs", LEVEL_MEMBER, false, PLACE_COSTS},
        {"usages", LEVEL_MEMBER, false, PLACE_USAGES},
        {"nodes", LEVEL_MEMBER, true, PLACE_SCOPES},
        {"costs", LEVEL_MEMBER, true, PLACE_CELLS},
    };
    reader_t *reader = context;

    if (reader->skip > 0) {
        return 1;
    }
    reader->place = PLACE_OTHER;
    for (size_t k = 0; k < sizeof(keys) / sizeof(keys[0]); ++k) {
        if (keys[k].level == reader->object &&
            (reader->object == LEVEL_PROBLEM || keys[k].edges == reader->in_edges) &&
            is_key(text, length, keys[k].key)) {
            if (reader->seen[keys[k].place]) {
                return complain(reader, "this member came before");
            }
            reader->place = keys[k].place;
            reader->seen[keys[k].place] = true;
            return 1;
        }
    }
    /* A key that announces an object is marked by list = -1, which on_open() turns into a level;
     * everything else is skipped. */
    if (reader->object == LEVEL_TOP && is_key(text, length, "problem")) {
        reader->list = -1;
    } else if (reader->object == LEVEL_PROBLEM && is_key(text, length, "nodes")) {
        reader->list = -1;
        reader->in_edges = false;
    } else if (reader->object == LEVEL_PROBLEM && is_key(text, length, "edges")) {
        reader->list = -1;
        reader->in_edges = true;
    }
    return 1;
}

/* Opens a list or an object. Three things can be open: an object of ours, a list of numbers at a
 * known place (two levels deep), and something unknown, which is skipped until its own bracket
 * closes. */
static int on_open(reader_t *reader, bool object)
{
    if (++reader->depth > DEPTH_MAX) {
        return complain(reader, "lists are nested too deep");
    }
    if (reader->skip > 0) {
        return 1;
    }
    /* The document itself must be an object. */
    if (reader->depth == 1) {
        reader->object = LEVEL_TOP;
        return object ? 1 : complain(reader, "an object with the member \"problem\" is expected");
    }
    /* The announced object opens: one level down. */
    if (reader->list == -1) {
        reader->list = 0;
        if (!object) {
            return complain(reader, "an object is expected");
        }
        ++reader->object;
        return 1;
    }
    if (reader->place == PLACE_OTHER) {
        reader->skip = reader->depth;
        return 1;
    }
    if (object || reader->place == PLACE_LIMIT || reader->place == PLACE_NAME ||
        reader->list == 2) {
        return complain(reader, object ? "an object where numbers are expected"
                                       : "a list where a number is expected");
    }
    /* An inner list begins a node's or an edge's numbers, so the count of numbers so far is where
     * they start. In a second reading, this is also where the search for a refused node or edge
     * ends. */
    if (++reader->list == 2) {
        if (reader->place == reader->wanted &&
            (int64_t)reader->begins[reader->place].count == reader->wanted_index) {
            return complain(reader, reader->found);
        }
        return append(reader, &reader->begins[reader->place],
                      (int64_t)reader->values[reader->place].count);
    }
    return 1;
}

/* The closing bracket of a skipped value ends the skipping; its depth tells which one that is. */
static int on_close(void *context)
{
    reader_t *reader = context;
    int depth = reader->depth--;

    if (reader->skip > 0) {
        reader->skip = reader->skip == depth ? 0 : reader->skip;
        return 1;
    }
    if (reader->list > 0) {
        --reader->list;
    } else if (reader->object > LEVEL_TOP) {
        --reader->object;
        reader->place = PLACE_OTHER;
    }
    return 1;
}

static int on_start_map(void *context)
{
    return on_open(context, true);
}
static int on_start_array(void *context)
{
    return on_open(context, false);
}

static const yajl_callbacks callbacks = {
    .yajl_null = on_null,
    .yajl_boolean = on_boolean,
    .yajl_number = on_number,
    .yajl_string = on_string,
    .yajl_start_map = on_start_map,
    .yajl_map_key = on_key,
    .yajl_end_map = on_close,
    .yajl_start_array = on_start_array,
    .yajl_end_array = on_close,
};

/* Moves the reader's line and column over @p length bytes. memchr() finds the newlines, so this
 * costs little beside the parsing. */
static void advance(reader_t *reader, const unsigned char *text, size_t length)
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
static xm_status_t fail_at(reader_t *reader, yajl_handle parser, const unsigned char *text,
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

static xm_status_t feed(reader_t *reader, yajl_handle parser, const unsigned char *text,
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
static int64_t *take(numbers_t *list)
{
    int64_t *at = list->at != NULL ? list->at : calloc(1, sizeof(*at));

    list->at = NULL;
    return at;
}

/* The places where the lists of `place` begin, and the end of the last one: the form that ap_cfn_t
 * has, so that list k is [at[k], at[k + 1]). */
static size_t *take_begins(reader_t *reader, place_t place)
{
    const numbers_t *begins = &reader->begins[place];
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
static xm_status_t check_shape(reader_t *reader)
{
    static const char *const names[PLACE_COUNT] = {[PLACE_INTERVALS] = "nodes.intervals",
                                                   [PLACE_COSTS] = "nodes.costs",
                                                   [PLACE_USAGES] = "nodes.usages",
                                                   [PLACE_SCOPES] = "edges.nodes",
                                                   [PLACE_CELLS] = "edges.costs"};
    const numbers_t *begins = reader->begins;
    size_t nodes = begins[PLACE_COSTS].count;

    /* The nodes' three lists must all be there; edges may be missing, as a problem without edges
     * is one. */
    for (int place = PLACE_INTERVALS; place <= PLACE_USAGES; ++place) {
        if (!reader->seen[place]) {
            return XM_MALFORMED("the problem has no \"%s\"", names[place]);
        }
        if (begins[place].count != nodes) {
            return XM_MALFORMED("nodes.costs has %zu nodes, %s %zu", nodes, names[place],
                                begins[place].count);
        }
    }
    if (begins[PLACE_SCOPES].count != begins[PLACE_CELLS].count) {
        return XM_MALFORMED("edges.nodes has %zu edges, edges.costs %zu",
                            begins[PLACE_SCOPES].count, begins[PLACE_CELLS].count);
    }
    /* Each node has two numbers of interval and as many costs as usages. */
    for (size_t node = 0; node < nodes; ++node) {
        size_t next = node + 1;
        size_t ends[3];

        reader->fault = (ap_cfn_fault_t){.part = AP_CFN_NODE, .index = node};
        for (int k = 0; k < 3; ++k) {
            const numbers_t *list = &begins[PLACE_INTERVALS + k];

            ends[k] = (next < nodes ? (size_t)list->at[next]
                                    : reader->values[PLACE_INTERVALS + k].count) -
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
static xm_status_t finish(reader_t *reader, ap_cfn_t **cfn)
{
    const numbers_t *scopes = &reader->values[PLACE_SCOPES];
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
    made->nodes = reader->begins[PLACE_COSTS].count;
    made->edges = reader->begins[PLACE_SCOPES].count;
    made->limited = reader->seen[PLACE_LIMIT];
    made->limit = reader->limit;
    made->node_at = take_begins(reader, PLACE_COSTS);
    made->scope_at = take_begins(reader, PLACE_SCOPES);
    made->cell_at = take_begins(reader, PLACE_CELLS);
    made->scope = malloc((scopes->count + 1) * sizeof(*made->scope));
    made->costs = take(&reader->values[PLACE_COSTS]);
    made->usages = take(&reader->values[PLACE_USAGES]);
    made->interval = take(&reader->values[PLACE_INTERVALS]);
    made->cells = take(&reader->values[PLACE_CELLS]);
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

static xm_status_t open_reader(reader_t *reader, yajl_handle *parser)
{
    *reader = (reader_t){.line = 1, .column = 1};
    *parser = yajl_alloc(&callbacks, NULL, reader);
    if (*parser == NULL) {
        return XM_NO_MEMORY("a JSON parser");
    }
    return XM_OK;
}

/* Ends a reading, whether it failed or not, and frees all that the reader still owns. */
static xm_status_t close_reader(reader_t *reader, yajl_handle parser, xm_status_t status,
                                ap_cfn_t **cfn)
{
    if (status == XM_OK && yajl_complete_parse(parser) != yajl_status_ok) {
        status = fail_at(reader, parser, NULL, 0);
    }
    if (status == XM_OK) {
        status = finish(reader, cfn);
    }
    yajl_free(parser);
    for (int place = 0; place < PLACE_COUNT; ++place) {
        free(reader->values[place].at);
        free(reader->begins[place].at);
    }
    return status;
}

/* Tells whether what was refused has a place in the document. If so, `again` is ready for a second
 * reading, which stops there with the first reading's sentence. Numbers are not kept with their
 * places, for there are many, and hardly ever is one wrong. */
static bool read_again(const reader_t *reader, xm_status_t status, reader_t *again,
                       yajl_handle *parser)
{
    static const place_t places[] = {[AP_CFN_WHOLE] = PLACE_OTHER,
                                     [AP_CFN_NODE] = PLACE_COSTS,
                                     [AP_CFN_SCOPE] = PLACE_SCOPES,
                                     [AP_CFN_CELLS] = PLACE_CELLS};
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
    reader_t reader, again;
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
    reader_t reader, again;
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
