/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Encodings of changed ranges. A range's bits are first brought together, row by row of the box, as
 * a tile has bits for all of its elements; then every way of writing the positions down has a size
 * that can be computed, so the smallest is taken without trying. Values follow in the order of the
 * positions, gathered and scattered run by run.
 */
#include "resharding/delta/encoding.h"

#include <string.h>

#include "resharding/delta/positions.h"

enum { NOTHING = XM_POSITIONS_RUNS + 1, EVERYTHING, AHEAD = 16 /* words */ };

typedef struct {
    uint8_t kind, unused[3];
    uint32_t changed, runs;
} header_t;

size_t xm_encoding_limit(int64_t elements, int64_t element_size)
{
    return sizeof(header_t) + (size_t)(elements * element_size) + (size_t)(elements + 7) / 8 +
           XM_POSITIONS_SLACK;
}

size_t xm_encoding_scratch(int64_t elements)
{
    return (size_t)(elements + 63) / 64 * 8 + XM_POSITIONS_SLACK;
}

/* Up to 64 bits from bit `at` on. */
static inline uint64_t bits_at(const uint64_t *words, int64_t at, int64_t count)
{
    uint64_t bits = words[at / 64] >> (at % 64);

    if (at % 64 + count > 64) {
        bits |= words[at / 64 + 1] << (64 - at % 64);
    }
    return count < 64 ? bits & ((UINT64_C(1) << count) - 1) : bits;
}

/* Appends `count` bits of a tile, from bit `from` on, to those of a range. Whole words are moved
 * where the range's begin with one, as they do in all but short rows. */
static void append_bits(const uint64_t *changed, int64_t from, int64_t count, uint64_t *bits,
                        int64_t at)
{
    int64_t done = 0;

    if (at % 64 == 0) {
        const uint64_t *source = changed + from / 64;
        uint64_t *target = bits + at / 64;
        const int shift = (int)(from % 64);

        for (; done + 128 <= count; done += 64, ++source) {
            *target++ = shift == 0 ? *source : *source >> shift | source[1] << (64 - shift);
        }
    }
    for (; done < count; done += 64) {
        int64_t part = count - done < 64 ? count - done : 64, to = at + done;
        uint64_t word = bits_at(changed, from + done, part);

        bits[to / 64] |= word << (to % 64);
        if (to % 64 + part > 64) {
            bits[to / 64 + 1] |= word >> (64 - to % 64);
        }
    }
}

/* Counts the bits of a range, and the runs that they make. */
static inline void count_words(const uint64_t *bits, int64_t count, header_t *header)
{
    uint64_t before = 0; /* the last bit of the word before */

    header->changed = header->runs = 0;
    for (int64_t w = 0; w < (count + 63) / 64; ++w) {
        header->changed += (uint32_t)__builtin_popcountll(bits[w]);
        header->runs += (uint32_t)__builtin_popcountll(bits[w] & ~(bits[w] << 1 | before));
        before = bits[w] >> 63;
    }
}

#ifdef __x86_64__
/* Where the processor can count bits, by that. */
__attribute__((target("popcnt"))) static void count_fast(const uint64_t *bits, int64_t count,
                                                         header_t *header)
{
    count_words(bits, count, header);
}

static void count_bits(const uint64_t *bits, int64_t count, header_t *header)
{
    (__builtin_cpu_supports("popcnt") ? count_fast : count_words)(bits, count, header);
}
#else
static void count_bits(const uint64_t *bits, int64_t count, header_t *header)
{
    count_words(bits, count, header);
}
#endif

/* The bits of a range out of those of a tile. */
static void collect(const xm_view_t *view, const uint64_t *changed, int64_t first, int64_t count,
                    uint64_t *bits)
{
    xm_cursor_t cursor;

    memset(bits, 0, xm_encoding_scratch(count));
    xm_cursor_set(&cursor, view, first);
    for (int64_t done = 0, run; done < count; done += run) {
        run = xm_cursor_run(&cursor) < count - done ? xm_cursor_run(&cursor) : count - done;
        append_bits(changed, cursor.offset / view->element_size, run, bits, done);
        xm_cursor_advance(&cursor, run);
    }
}

/* The kind that takes the fewest bytes; `spare`: what all values would take more than the changed
 * ones. */
static uint8_t choose(const header_t *header, int64_t count, size_t spare)
{
    size_t least = spare;
    uint8_t kind = EVERYTHING;

    if (header->changed == 0) {
        return NOTHING;
    }
    for (int k = XM_POSITIONS_BITS; k <= XM_POSITIONS_RUNS; ++k) {
        size_t bytes =
            xm_positions_bytes((xm_positions_kind_t)k, count, header->changed, header->runs);

        if (bytes < least) {
            least = bytes;
            kind = (uint8_t)k;
        }
    }
    return kind;
}

/* Writes values to the positions of a tile. Positions ascend, so a run of the box is looked for
 * only when the one at hand has ended. False: a position is not in the range, or there are more
 * than `limit`, or fewer. */
static inline bool scatter(const xm_view_t *view, char *tile, int64_t first, int64_t count,
                           xm_positions_t *positions, const char *values, int64_t limit)
{
    const size_t size = (size_t)view->element_size;
    int64_t begin = 0, end = 0, at, length, done = 0;
    xm_cursor_t cursor = {.offset = 0};

    while (done < limit && xm_positions_next(positions, &at, &length)) {
        if (at < begin || length > count - at || length > limit - done) {
            return false;
        }
        for (int64_t part; length > 0; length -= part, at += part, done += part) {
            if (at >= end) {
                xm_cursor_set(&cursor, view, first + at);
                begin = at;
                end = at + xm_cursor_run(&cursor);
            }
            part = length < end - at ? length : end - at;
            xm_copy_run(tile + cursor.offset + (at - begin) * view->element_size,
                        values + (size_t)done * size, part * view->element_size);
        }
    }
    return done == limit;
}

/* The bits of a word that lie in [from, end). */
static inline uint64_t word_within(const uint64_t *bits, int64_t w, int64_t from, int64_t end)
{
    uint64_t word = bits[w];

    word &= w * 64 < from ? UINT64_MAX << (from % 64) : UINT64_MAX;
    return word & ((w + 1) * 64 > end ? UINT64_MAX >> ((w + 1) * 64 - end) : UINT64_MAX);
}

/* The values of a row whose bits begin at `from`, and where `sorted` is given their positions, too.
 * The row is read in places only, so what will be read is fetched ahead; where nothing is, what is
 * there already, since a branch would be mispredicted as often as a coin's. */
static inline char *gather_row(const uint64_t *bits, int64_t from, int64_t run, const char *row,
                               size_t size, xm_sorted_t *sorted, char *values)
{
    const int64_t end = from + run;

    for (int64_t w = from / 64; w * 64 < end; ++w) {
        if ((w + AHEAD + 1) * 64 <= end) {
            const char *ahead =
                bits[w + AHEAD] != 0 ? row + (size_t)((w + AHEAD) * 64 - from) * size : row;

            for (size_t line = 0; line < 64 * size; line += 64) {
                __builtin_prefetch(ahead + line);
            }
        }
        for (uint64_t word = word_within(bits, w, from, end); word != 0; word &= word - 1) {
            int64_t at = w * 64 + __builtin_ctzll(word);

            memcpy(values, row + (size_t)(at - from) * size, size);
            values += size;
            if (sorted != NULL) {
                xm_sorted_put(sorted, at);
            }
        }
    }
    return values;
}

/* Constants for the common sizes make loads and stores of the copies. */
static char *gather_any(const uint64_t *bits, int64_t from, int64_t run, const char *row,
                        size_t size, xm_sorted_t *sorted, char *values)
{
    return size == 1   ? gather_row(bits, from, run, row, 1, sorted, values)
           : size == 2 ? gather_row(bits, from, run, row, 2, sorted, values)
           : size == 4 ? gather_row(bits, from, run, row, 4, sorted, values)
                       : gather_row(bits, from, run, row, size, sorted, values);
}

/* The values of a range, and positions where they are sorted, row by row of the box. */
static void gather(const xm_view_t *view, const char *tile, int64_t first, int64_t count,
                   const uint64_t *bits, xm_sorted_t *sorted, char *values)
{
    xm_cursor_t cursor;

    xm_cursor_set(&cursor, view, first);
    for (int64_t done = 0, run; done < count; done += run) {
        run = xm_cursor_run(&cursor) < count - done ? xm_cursor_run(&cursor) : count - done;
        values = gather_any(bits, done, run, tile + cursor.offset, (size_t)view->element_size,
                            sorted, values);
        xm_cursor_advance(&cursor, run);
    }
}

/* Bytes between the header and the values. */
static size_t positions_bytes(const header_t *header, int64_t count)
{
    return header->kind >= NOTHING ? 0
                                   : xm_positions_bytes((xm_positions_kind_t)header->kind, count,
                                                        header->changed, header->runs);
}

size_t xm_encoding_bytes(int64_t elements, int64_t changed, int64_t runs, int64_t element_size)
{
    header_t header = {.changed = (uint32_t)changed, .runs = (uint32_t)runs};

    header.kind = choose(&header, elements, (size_t)((elements - changed) * element_size));
    return sizeof(header) + positions_bytes(&header, elements) +
           (size_t)((header.kind == EVERYTHING ? elements : changed) * element_size);
}

size_t xm_encoding_write(const xm_view_t *view, const void *tile, const uint64_t *changed,
                         int64_t first, int64_t count, void *scratch, void *bytes)
{
    header_t header = {.kind = EVERYTHING, .changed = (uint32_t)count, .runs = 1};
    char *at = (char *)bytes + sizeof(header);
    size_t length;

    if (changed != NULL) {
        collect(view, changed, first, count, scratch);
        count_bits(scratch, count, &header);
        header.kind =
            choose(&header, count, (size_t)(count - header.changed) * (size_t)view->element_size);
    }
    header.changed = header.kind == EVERYTHING ? (uint32_t)count : header.changed;
    length = positions_bytes(&header, count);
    if (header.kind == EVERYTHING) {
        xm_view_pack(view, tile, first, count, at);
    } else if (header.kind == XM_POSITIONS_SORTED) {
        xm_sorted_t sorted;

        xm_sorted_open(&sorted, at, header.changed, count);
        xm_sorted_start(&sorted);
        gather(view, tile, first, count, scratch, &sorted, at + length);
        xm_sorted_finish(&sorted);
    } else if (header.kind != NOTHING) {
        xm_positions_write((xm_positions_kind_t)header.kind, scratch, count, header.changed,
                           header.runs, at);
        gather(view, tile, first, count, scratch, NULL, at + length);
    }
    memcpy(bytes, &header, sizeof(header));
    return sizeof(header) + length + header.changed * (size_t)view->element_size;
}

/* Reads the header. False: it does not say what the length says. */
static bool read_header(const void *bytes, size_t length, int64_t count, int64_t element_size,
                        header_t *header)
{
    if (length < sizeof(*header)) {
        return false;
    }
    memcpy(header, bytes, sizeof(*header));
    return header->kind <= EVERYTHING && header->changed <= count &&
           header->runs <= header->changed && (header->changed > 0 || header->kind == NOTHING) &&
           (header->runs > 0 || header->kind == NOTHING) &&
           (header->kind != EVERYTHING || header->changed == count) &&
           (header->kind != NOTHING || header->changed == 0) &&
           length == sizeof(*header) + positions_bytes(header, count) +
                         header->changed * (size_t)element_size;
}

int64_t xm_encoding_changed(const void *bytes, size_t length, int64_t count, int64_t element_size)
{
    header_t header;

    return read_header(bytes, length, count, element_size, &header) ? (int64_t)header.changed : -1;
}

bool xm_encoding_apply(const xm_view_t *view, void *tile, int64_t first, int64_t count,
                       const void *bytes, size_t length)
{
    const char *at = (const char *)bytes + sizeof(header_t);
    header_t header;
    xm_positions_t positions;

    if (!read_header(bytes, length, count, view->element_size, &header)) {
        return false;
    }
    if (header.kind == EVERYTHING) {
        xm_view_unpack(view, tile, first, count, at);
        return true;
    }
    if (header.kind == NOTHING) {
        return true;
    }
    xm_positions_open(&positions, (xm_positions_kind_t)header.kind, at, count, header.changed,
                      header.runs);
    return scatter(view, tile, first, count, &positions, at + positions_bytes(&header, count),
                   header.changed);
}

/* The runs of an encoding, whatever its kind. */
typedef struct {
    header_t header;
    const char *values;
    xm_positions_t positions;
    int64_t count, end; /* of the range; behind the run before */
} walk_t;

static bool walk_open(walk_t *walk, const xm_encoded_range_t *range, int64_t element_size)
{
    const char *at = (const char *)range->bytes + sizeof(header_t);

    *walk = (walk_t){.count = range->count};
    if (!read_header(range->bytes, range->length, range->count, element_size, &walk->header)) {
        return false;
    }
    walk->values = at + positions_bytes(&walk->header, range->count);
    if (walk->header.kind < NOTHING) {
        xm_positions_open(&walk->positions, (xm_positions_kind_t)walk->header.kind, at,
                          range->count, walk->header.changed, walk->header.runs);
    }
    return true;
}

/* Only runs that lie in the range, each behind the one before. */
static bool walk_next(walk_t *walk, int64_t *at, int64_t *length)
{
    if (walk->header.kind == NOTHING || walk->end == walk->count) {
        return false;
    }
    if (walk->header.kind == EVERYTHING) {
        *at = 0;
        *length = walk->count;
    } else if (!xm_positions_next(&walk->positions, at, length) || *at < walk->end ||
               *length > walk->count - *at) {
        return false;
    }
    walk->end = *at + *length;
    return true;
}

static void set_bits(uint64_t *bits, int64_t first, int64_t end)
{
    static const uint64_t ones[] = {UINT64_MAX};

    for (int64_t i = first; i < end; i += 64) {
        append_bits(ones, 0, end - i < 64 ? end - i : 64, bits, i);
    }
}

void xm_encoding_mark(const xm_view_t *view, int64_t first, int64_t count, const void *bytes,
                      size_t length, uint64_t *bits)
{
    const xm_encoded_range_t range = {bytes, length, first, count};
    int64_t at, run, begin = 0, end = 0;
    xm_cursor_t cursor = {.offset = 0};
    walk_t walk;

    if (!walk_open(&walk, &range, view->element_size)) {
        return;
    }
    while (walk_next(&walk, &at, &run)) {
        for (int64_t part; run > 0; run -= part, at += part) {
            int64_t place;

            if (at >= end) {
                xm_cursor_set(&cursor, view, first + at);
                begin = at;
                end = at + xm_cursor_run(&cursor);
            }
            part = run < end - at ? run : end - at;
            place = cursor.offset / view->element_size + at - begin;
            set_bits(bits, place, place + part);
        }
    }
}

/* Goes through the changed elements of the ranges that lie in [first, first + count): sets their
 * bits where `values` is NULL, else appends their values. False: a range is no encoding. */
static bool walk_ranges(const xm_encoded_range_t *range, int64_t first, int64_t count, size_t size,
                        uint64_t *bits, char *values)
{
    for (; range->first < first + count; ++range) {
        int64_t at, length, done = 0, end = range->first + range->count;
        walk_t walk;

        if (!walk_open(&walk, range, (int64_t)size)) {
            return false;
        }
        for (; walk_next(&walk, &at, &length); done += length) {
            int64_t begin = range->first + at > first ? range->first + at : first;
            int64_t stop = range->first + at + length;

            if (length > walk.header.changed - done) {
                return false; /* it has fewer values than positions */
            }
            stop = stop < first + count ? stop : first + count;
            if (begin >= stop) {
                continue;
            }
            if (values == NULL) {
                set_bits(bits, begin - first, stop - first);
                continue;
            }
            memcpy(values, walk.values + (size_t)(done + begin - range->first - at) * size,
                   (size_t)(stop - begin) * size);
            values += (size_t)(stop - begin) * size;
        }
        if (end >= first + count) {
            break;
        }
    }
    return true;
}

/* Sorted positions without values. */
static void write_sorted(const uint64_t *bits, int64_t count, int64_t changed, void *bytes)
{
    xm_sorted_t sorted;

    xm_sorted_open(&sorted, bytes, changed, count);
    xm_sorted_start(&sorted);
    for (int64_t w = 0; w < (count + 63) / 64; ++w) {
        for (uint64_t word = bits[w]; word != 0; word &= word - 1) {
            xm_sorted_put(&sorted, w * 64 + __builtin_ctzll(word));
        }
    }
    xm_sorted_finish(&sorted);
}

size_t xm_encoding_cut(const xm_encoded_range_t *ranges, int64_t first, int64_t count,
                       int64_t element_size, void *scratch, void *bytes)
{
    const size_t size = (size_t)element_size;
    header_t header = {.kind = NOTHING};
    char *at = (char *)bytes + sizeof(header);
    size_t length;

    memset(scratch, 0, xm_encoding_scratch(count));
    if (!walk_ranges(ranges, first, count, size, scratch, NULL)) {
        return 0;
    }
    count_bits(scratch, count, &header);
    header.kind = choose(&header, count, header.changed == count ? 0 : SIZE_MAX);
    length = positions_bytes(&header, count);
    if (header.kind == XM_POSITIONS_SORTED) {
        write_sorted(scratch, count, header.changed, at);
    } else if (header.kind < NOTHING) {
        xm_positions_write((xm_positions_kind_t)header.kind, scratch, count, header.changed,
                           header.runs, at);
    }
    (void)walk_ranges(ranges, first, count, size, NULL, at + length);
    memcpy(bytes, &header, sizeof(header));
    return sizeof(header) + length + header.changed * size;
}
