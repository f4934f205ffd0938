/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/comm/job/relay_table.h"

#include <check.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <signal.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

static bool read_all(int fd, void *bytes, size_t length)
{
    return length == 0 || recv(fd, bytes, length, MSG_WAITALL) == (ssize_t)length;
}

static bool write_all(int fd, const void *bytes, size_t length)
{
    size_t sent = 0;

    while (sent < length) {
        ssize_t written = send(fd, (const char *)bytes + sent, length - sent, MSG_NOSIGNAL);

        if (written < 0 && errno != EINTR) {
            return false;
        }
        sent += written > 0 ? (size_t)written : 0;
    }
    return true;
}

/* One allgather; false when a rank has left. */
static bool serve(const int *fds, int size)
{
    size_t length = 0, own;
    char *all = NULL;
    bool served = true;

    for (int rank = 0; rank < size && served; ++rank) {
        served = read_all(fds[rank], &own, sizeof(own)) && (rank == 0 || own == length);
        if (served && rank == 0) {
            length = own;
            all = malloc(length * (size_t)size);
            served = all != NULL;
        }
        served = served && read_all(fds[rank], all + (size_t)rank * length, length);
    }
    for (int rank = 0; rank < size && served; ++rank) {
        served = write_all(fds[rank], all, length * (size_t)size);
    }
    free(all);
    return served;
}

void relay_start(relay_t *relay, int size)
{
    int fds[LOCAL_JOB_MAX];

    relay->size = size;
    for (int rank = 0; rank < size; ++rank) {
        int pair[2];

        ck_assert_int_eq(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair), 0);
        relay->ranks[rank] = pair[0];
        fds[rank] = pair[1];
    }
    relay->pid = fork();
    ck_assert_int_ge(relay->pid, 0);
    if (relay->pid == 0) {
        (void)prctl(PR_SET_PDEATHSIG, SIGKILL);
        for (int rank = 0; rank < size; ++rank) {
            (void)close(relay->ranks[rank]);
        }
        while (serve(fds, size)) {
            continue;
        }
        _exit(0);
    }
    for (int rank = 0; rank < size; ++rank) {
        (void)close(fds[rank]);
    }
}

void relay_end(relay_t *relay)
{
    int status = -1;

    for (int rank = 0; rank < relay->size; ++rank) {
        (void)close(relay->ranks[rank]);
    }
    ck_assert_int_eq(waitpid(relay->pid, &status, 0), relay->pid);
    ck_assert_int_eq(status, 0);
}

static xm_status_t post(void *context, const void *bytes, void *receive, size_t length,
                        void **request)
{
    relay_slot_t *slot = context;

    if (!write_all(slot->fd, &length, sizeof(length)) || !write_all(slot->fd, bytes, length)) {
        return xm_error_set(XM_ERR_IO, "the relay is gone");
    }
    slot->receive = receive;
    slot->expected = length * (size_t)slot->size;
    slot->have = 0;
    ++slot->posts;
    *request = slot;
    return XM_OK;
}

static xm_status_t test(void *request)
{
    relay_slot_t *slot = request;
    ssize_t got =
        recv(slot->fd, slot->receive + slot->have, slot->expected - slot->have, MSG_DONTWAIT);

    if (got == 0 || (got < 0 && errno != EAGAIN && errno != EINTR)) {
        return XM_ERR_IO;
    }
    slot->have += got > 0 ? (size_t)got : 0;
    return slot->have == slot->expected ? XM_OK : XM_IN_PROGRESS;
}

static void release(void *request)
{
    ++((relay_slot_t *)request)->frees;
}

xm_oob_t relay_table(const relay_t *relay, int rank, relay_slot_t *slot)
{
    *slot = (relay_slot_t){.fd = relay->ranks[rank], .size = relay->size};
    for (int other = 0; other < relay->size; ++other) {
        if (other != rank) {
            (void)close(relay->ranks[other]);
        }
    }
    return (xm_oob_t){.struct_size = sizeof(xm_oob_t),
                      .rank = rank,
                      .size = relay->size,
                      .context = slot,
                      .allgather_post = post,
                      .allgather_test = test,
                      .allgather_free = release};
}
