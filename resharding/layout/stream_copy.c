/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A copy for what is too long for any cache, by stores that go past the caches
 * (stream_copy.h has the measurements). Such stores need aligned targets and pay off for
 * whole lines only, so the ends of the range go through memcpy(). Other processors than
 * x86-64 use memcpy() for all of it.
 */
#include "resharding/layout/stream_copy.h"

#include <stdint.h>
#include <string.h>

#ifdef __SSE2__
#include <emmintrin.h>

enum { LINE = 64, PAGE = 4096 };

/* Copies one cache line to an address where a line starts; the source may lie anywhere. */
static inline void stream_line(char *to, const char *from)
{
    const __m128i *source = (const __m128i *)(const void *)from;
    __m128i *target = (__m128i *)(void *)to;
    __m128i first = _mm_loadu_si128(source), second = _mm_loadu_si128(source + 1);
    __m128i third = _mm_loadu_si128(source + 2), fourth = _mm_loadu_si128(source + 3);

    _mm_stream_si128(target, first);
    _mm_stream_si128(target + 1, second);
    _mm_stream_si128(target + 2, third);
    _mm_stream_si128(target + 3, fourth);
}

/* Has the page come into the caches: its loads are under way together, and while those before it
 * are stored. Loads between the stores of several pages would do the same, but where source and
 * target differ by whole pages such a load looks like one of what is being stored, and waits. */
static inline void fetch_page(const char *page)
{
    for (size_t line = 0; line < PAGE; line += LINE) {
        _mm_prefetch(page + line, _MM_HINT_T0);
    }
}

/* The target is aligned, as its stores are the expensive side. */
void xm_stream_copy(void *to, const void *from, size_t bytes)
{
    char *target = to;
    const char *source = from;
    size_t head = (LINE - (uintptr_t)target % LINE) % LINE, done;

    if (bytes < head + LINE) {
        memcpy(target, source, bytes);
        return;
    }
    memcpy(target, source, head);
    for (done = head; bytes - done >= LINE; done += LINE) {
        if ((done - head) % PAGE == 0 && bytes - done >= 2 * (size_t)PAGE) {
            fetch_page(source + done + PAGE);
        }
        stream_line(target + done, source + done);
    }
    memcpy(target + done, source + done, bytes - done);
    _mm_sfence(); /* streamed stores keep no order among others */
}
#else
void xm_stream_copy(void *to, const void *from, size_t bytes)
{
    memcpy(to, from, bytes);
}
#endif
