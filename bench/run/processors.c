/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The kernel counts for every thread how long it was ready and did not run. That says whether
 * processors held a run up, whoever had them: other ranks, or other programs.
 */
#include "bench/run/processors.h"

#include <fcntl.h>
#include <stdlib.h>
#include <unistd.h>

#include "comm/probe.h"

typedef struct {
    uint64_t machine;
    int64_t cores, machine_cores;
} place_t;

/* The ranks of the machine of `own`. Launchers may bind each to processors of its own, and together
 * they have no more than there are. */
static rb_processors_t count(const place_t *places, int ranks, const place_t *own)
{
    rb_processors_t found = {0};
    int64_t cores = 0;

    for (int r = 0; r < ranks; ++r) {
        if (places[r].machine == own->machine) {
            ++found.ranks;
            cores += places[r].cores;
        }
    }
    found.cores = (int)(cores < own->machine_cores ? cores : own->machine_cores);
    return found;
}

xm_status_t rb_processors_gather(xm_worker_t *worker, rb_processors_t *fewest)
{
    place_t own = {xm_probe_machine(), xm_probe_cores(), sysconf(_SC_NPROCESSORS_ONLN)};
    int ranks = xm_worker_size(worker);
    place_t *places = malloc((size_t)ranks * sizeof(*places));
    xm_status_t status;

    XM_NEED_MEMORY(places, "the processors of %d ranks", ranks);
    status = xm_worker_allgather(worker, &own, places, sizeof(own));
    for (int r = 0; status == XM_OK && r < ranks; ++r) {
        rb_processors_t next = count(places, ranks, &places[r]);

        if (r == 0 || (int64_t)next.ranks * fewest->cores > (int64_t)fewest->ranks * next.cores) {
            *fewest = next;
        }
    }
    free(places);
    return status;
}

int rb_processors_open(void)
{
    return open("/proc/thread-self/schedstat", O_RDONLY | O_CLOEXEC);
}

/* The file has the time on processors, the time of waiting for one, and a count. */
int64_t rb_processors_waited_ns(int file)
{
    char text[128], *end;
    ssize_t length = file >= 0 ? pread(file, text, sizeof(text) - 1, 0) : -1;
    long long waited;

    if (length <= 0) {
        return -1;
    }
    text[length] = '\0';
    (void)strtoll(text, &end, 10);
    waited = strtoll(end, &end, 10);
    return waited;
}
