/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Copies inside a host that are compared with what they were made of. Both ends are in reach, so no
 * hash is needed; and a slice is compared while both its ends are in the nearest cache, so that
 * costs little beside the copy.
 */
#include <inttypes.h>
#include <string.h>

#include "resharding/execute/execute_private.h"

enum { SLICE = 8 * 1024, MOST_COPIES = 11 };

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

static bool copy_slice(const xm_view_t *from, const void *from_buffer, const xm_view_t *to,
                       void *to_buffer, int64_t first, int64_t count)
{
    char scratch[2][SLICE]; /* longer ones are single elements, which are in one piece */

    xm_view_copy(from, from_buffer, to, to_buffer, first, count);
    return memcmp(in_one_piece(from, from_buffer, first, count, scratch[0]),
                  in_one_piece(to, to_buffer, first, count, scratch[1]),
                  (size_t)(count * from->element_size)) == 0;
}

void xm_executor_copy(xm_executor_t *executor, const xm_view_t *from, const void *from_buffer,
                      const xm_view_t *to, void *to_buffer, int64_t first, int64_t count)
{
    int64_t most = SLICE / from->element_size > 0 ? SLICE / from->element_size : 1;

    if (executor->verify != XM_VERIFY_CHUNK) {
        executor->copy(from, from_buffer, to, to_buffer, first, count);
        return;
    }
    for (int64_t end = first + count, part; first < end; first += part) {
        int copies = 1;

        part = min_of(end - first, most);
        while (!copy_slice(from, from_buffer, to, to_buffer, first, part) && copies < MOST_COPIES) {
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
    }
}
