#include "tests/comm/job/hub_table.h"

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

void hub_start(hub_t *hub, int size)
{
    int fds[LOCAL_JOB_MAX];

    hub->size = size;
    for (int rank = 0; rank < size; ++rank) {
        int pair[2];

        ck_assert_int_eq(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair), 0);
        hub->ranks[rank] = pair[0];
        fds[rank] = pair[1];
    }
    hub->pid = fork();
    ck_assert_int_ge(hub->pid, 0);
    if (hub->pid == 0) {
        (void)prctl(PR_SET_PDEATHSIG, SIGKILL);
        for (int rank = 0; rank < size; ++rank) {
            (void)close(hub->ranks[rank]);
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

void hub_end(hub_t *hub)
{
    int status = -1;

    for (int rank = 0; rank < hub->size; ++rank) {
        (void)close(hub->ranks[rank]);
    }
    ck_assert_int_eq(waitpid(hub->pid, &status, 0), hub->pid);
    ck_assert_int_eq(status, 0);
}

static xm_status_t post(void *context, const void *bytes, void *receive, size_t length,
                        void **request)
{
    hub_seat_t *seat = context;

    if (!write_all(seat->fd, &length, sizeof(length)) || !write_all(seat->fd, bytes, length)) {
        return xm_error_set(XM_ERR_IO, "the hub is gone");
    }
    seat->receive = receive;
    seat->expected = length * (size_t)seat->size;
    seat->have = 0;
    ++seat->posts;
    *request = seat;
    return XM_OK;
}

static xm_status_t test(void *request)
{
    hub_seat_t *seat = request;
    ssize_t got =
        recv(seat->fd, seat->receive + seat->have, seat->expected - seat->have, MSG_DONTWAIT);

    if (got == 0 || (got < 0 && errno != EAGAIN && errno != EINTR)) {
        return XM_ERR_IO;
    }
    seat->have += got > 0 ? (size_t)got : 0;
    return seat->have == seat->expected ? XM_OK : XM_IN_PROGRESS;
}

static void release(void *request)
{
    ++((hub_seat_t *)request)->frees;
}

xm_oob_t hub_table(const hub_t *hub, int rank, hub_seat_t *seat)
{
    *seat = (hub_seat_t){.fd = hub->ranks[rank], .size = hub->size};
    for (int other = 0; other < hub->size; ++other) {
        if (other != rank) {
            (void)close(hub->ranks[other]);
        }
    }
    return (xm_oob_t){.struct_size = sizeof(xm_oob_t),
                      .rank = rank,
                      .size = hub->size,
                      .context = seat,
                      .allgather_post = post,
                      .allgather_test = test,
                      .allgather_free = release};
}
