/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Copies inside a host that are compared with what they were made of. Both ends are in reach, so no
 * hash is needed; and a slice is compared while both its ends are in the nearest cache, and memory
 * brings those after the next one meanwhile. On one core of a Xeon, 64 MiB at a time, slices so
 * take 1.22 times as long as copying past the caches; with the source of the next one fetched
 * alone, and compared by memcmp(), 1.65. Between ranks that is up to 2 times, and memcpy() alone
 * takes as long: what is left is not the comparison, but that a target's lines are fetched.
 */
#include <inttypes.h>
#include <string.h>

#include "resharding/execute/execute_private.h"

enum { SLICE = 4 * 1024, AHEAD = 2, LINE = 64, MOST_COPIES = 11 };

/* For any processor, wherever it lies. */
typedef uint64_t words_t __attribute__((vector_size(16), aligned(1), may_alias));

/* The range in one piece, packed into the scratch memory if it has none in the tile. */
static const char *in_one_piece(const xm_view_t *view, const char *buffer, int64_t first,
                                int64_t count, char *scratch)
{
    int64_t offset;

    if (xm_view_contiguous(view, first, count, &offset)) {
        return buffer + offset;
    }
    xm_view_pack(view, buffer, first, count, scratch);
    return scratch;
}

/* True when they are. Fetches what lies at `next`, if it is not NULL, and has what lies at
 * `next_there` ready to be written, for a copy after this one. */
static bool are_equal(const char *one, const char *other, size_t bytes, const char *next,
                      const char *next_there)
{
    words_t differ = {0};
    size_t done = 0;

    for (; bytes - done >= LINE; done += LINE) {
        if (next != NULL) {
            __builtin_prefetch(next + done, 0, 2);
            __builtin_prefetch(next_there + done, 1, 2);
        }
        for (size_t at = done; at < done + LINE; at += sizeof(words_t)) {
            differ |= *(const words_t *)(one + at) ^ *(const words_t *)(other + at);
        }
    }
    return (differ[0] | differ[1]) == 0 && memcmp(one + done, other + done, bytes - done) == 0;
}

/* Where both ends of a range begin, if they lie in one piece each: asked once, and not for each of
 * its slices. */
typedef struct {
    const char *from; /* NULL when they do not */
    char *to;
    size_t left; /* bytes from there on */
} pieces_t;

static pieces_t pieces_of(const xm_view_t *from, const char *from_buffer, const xm_view_t *to,
                          char *to_buffer, int64_t first, int64_t count)
{
    int64_t offset, there;
    bool whole = xm_view_contiguous(from, first, count, &offset) &&
                 xm_view_contiguous(to, first, count, &there);

    return whole ? (pieces_t){from_buffer + offset, to_buffer + there,
                              (size_t)(count * from->element_size)}
                 : (pieces_t){0};
}

static bool copy_slice(const xm_view_t *from, const char *from_buffer, const xm_view_t *to,
                       char *to_buffer, int64_t first, int64_t count, pieces_t pieces)
{
    char scratch[2][SLICE]; /* longer ones are single elements, which are in one piece */
    size_t bytes = (size_t)(count * from->element_size);
    bool fetches = pieces.left >= (AHEAD + 1) * bytes;

    xm_view_copy(from, from_buffer, to, to_buffer, first, count);
    if (pieces.from != NULL) {
        return are_equal(pieces.from, pieces.to, bytes,
                         fetches ? pieces.from + AHEAD * bytes : NULL,
                         fetches ? pieces.to + AHEAD * bytes : NULL);
    }
    return are_equal(in_one_piece(from, from_buffer, first, count, scratch[0]),
                     in_one_piece(to, to_buffer, first, count, scratch[1]), bytes, NULL, NULL);
}

void xm_executor_copy(xm_executor_t *executor, const xm_view_t *from, const void *from_buffer,
                      const xm_view_t *to, void *to_buffer, int64_t first, int64_t count)
{
    int64_t most = SLICE / from->element_size > 0 ? SLICE / from->element_size : 1;
    pieces_t pieces;

    if (executor->verify != XM_VERIFY_CHUNK) {
        executor->copy(from, from_buffer, to, to_buffer, first, count);
        return;
    }
    pieces = pieces_of(from, from_buffer, to, to_buffer, first, count);
    for (int64_t end = first + count, part; first < end; first += part) {
        int copies = 1;

        part = min_of(end - first, most);
        while (!copy_slice(from, from_buffer, to, to_buffer, first, part, pieces) &&
               copies < MOST_COPIES) {
            xm_transport_count_resend(executor->transport);
            ++copies;
        }
        if (copies == MOST_COPIES) {
            xm_executor_fail(executor,
                             xm_error_set(XM_ERR_CORRUPT,
                                          "rank %d copied %" PRId64
                                          " bytes %d times, and they always differed from what "
                                          "they were copied from",
                                          executor->transport->rank, part * from->element_size,
                                          copies));
            return;
        }
        if (pieces.from != NULL) {
            pieces.from += part * from->element_size;
            pieces.to += part * from->element_size;
            pieces.left -= (size_t)(part * from->element_size);
        }
    }
}
