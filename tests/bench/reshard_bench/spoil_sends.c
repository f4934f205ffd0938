/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A library to be preloaded: flips one bit in some of the long pieces of data that a process gives
 * to its sockets, as a NIC with bad memory does behind the checksums. SPOIL_ONE_IN: of so many
 * segments of 64 KiB. The user's buffer is left as it is, and so is UCX's own header in front.
 */
#include <dlfcn.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

enum { LEAST = 32 * 1024, SEGMENT = 64 * 1024, HEADER = 64 };

/* One thread sends: a rank's own. */
static unsigned state;

static unsigned draw(void)
{
    if (state == 0) {
        state = (unsigned)getpid() * 2654435761U | 1;
    }
    state ^= state << 13;
    state ^= state >> 17;
    state ^= state << 5;
    return state;
}

static int is_hit(size_t length)
{
    const char *one_in = getenv("SPOIL_ONE_IN");
    unsigned segments = (unsigned)(length / SEGMENT) + 1;

    return one_in != NULL && length >= LEAST && draw() % (unsigned)atoi(one_in) < segments;
}

__attribute__((visibility("default"))) ssize_t send(int fd, const void *buffer, size_t length,
                                                    int flags)
{
    static ssize_t (*next)(int, const void *, size_t, int);
    char *spoiled;
    ssize_t sent;

    if (next == NULL) {
        *(void **)&next = dlsym(RTLD_NEXT, "send");
    }
    spoiled = is_hit(length) ? malloc(length) : NULL;
    if (spoiled == NULL) {
        return next(fd, buffer, length, flags);
    }
    memcpy(spoiled, buffer, length);
    spoiled[HEADER + draw() % (length - HEADER)] ^= 0x10;
    sent = next(fd, spoiled, length, flags);
    free(spoiled);
    return sent;
}
