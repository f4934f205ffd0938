/* SPDX-License-Identifier: Apache-2.0 */
/* The progress thread of sending pipes. A send that has ended may still have bytes in this
 * process, which leave only when somebody makes progress; and a runtime that is done with its
 * messages does not. So one thread for all pipes looks after those with unacknowledged
 * messages, more and more seldom while nothing changes, and sleeps when nothing is owed. It
 * only tries locks: a pipe that is being used makes progress anyway. `life` is taken before
 * `lock`, so that starting and ending the thread exclude each other without holding the lock
 * that the thread needs to end. */
#include "plugins/nccl/pipe/progress_thread.h"

#include <signal.h>
#include <stdatomic.h>
#include <string.h>
#include <time.h>

/* Between two looks, in nanoseconds: at first, and when nothing changes for long. */
static const int64_t first_ns = 2 * 1000000, last_ns = 50 * 1000000;

static struct {
    pthread_mutex_t life; /* taken first, to start the thread or to end it */
    pthread_mutex_t lock; /* of what follows, but `parked` */
    pthread_cond_t changed;
    pthread_t thread;
    xm_pipe_t *first;
    bool stop;
    atomic_bool parked; /* nothing is owed: the thread sleeps until it is woken */
} progress_thread = {.life = PTHREAD_MUTEX_INITIALIZER,
                     .lock = PTHREAD_MUTEX_INITIALIZER,
                     .changed = PTHREAD_COND_INITIALIZER};

/* Moves what the pipes owe, and returns how many messages all of them owe. A pipe whose lock is
 * taken is being used; it counts as owing, so that it is looked at again. */
static uint64_t look(void)
{
    uint64_t owed = 0;

    for (xm_pipe_t *pipe = progress_thread.first; pipe != NULL; pipe = pipe->kept_next) {
        if (pthread_mutex_trylock(&pipe->lock) != 0) {
            ++owed;
            continue;
        }
        if (pipe->fault_status == XM_OK && pipe->sent > pipe->acked) {
            xm_pipe_progress(pipe);
        }
        owed += pipe->fault_status == XM_OK ? pipe->sent - pipe->acked : 0;
        (void)pthread_mutex_unlock(&pipe->lock);
    }
    return owed;
}

/* Sleeps on the condition, so that a new send or the end wakes it early. */
static void nap(int64_t length_ns)
{
    struct timespec end;

    (void)clock_gettime(CLOCK_REALTIME, &end);
    end.tv_nsec += (long)length_ns;
    end.tv_sec += end.tv_nsec / 1000000000;
    end.tv_nsec %= 1000000000;
    (void)pthread_cond_timedwait(&progress_thread.changed, &progress_thread.lock, &end);
}

static void *keep(void *arg)
{
    uint64_t owed = 0;
    int64_t length_ns = first_ns;

    (void)pthread_mutex_lock(&progress_thread.lock);
    while (!progress_thread.stop) {
        uint64_t before = owed;

        /* A sender that comes after this look finds `parked` set and wakes the thread; one that
         * came before is seen by it. So no message is forgotten between the two. */
        atomic_store(&progress_thread.parked, true);
        owed = look();
        if (owed == 0) {
            (void)pthread_cond_wait(&progress_thread.changed, &progress_thread.lock);
            length_ns = first_ns;
            continue;
        }
        atomic_store(&progress_thread.parked, false);
        /* The pause doubles while nothing changes: a receiver that does not read must not cost
         * processor time. */
        length_ns = owed != before ? first_ns : 2 * length_ns < last_ns ? 2 * length_ns : last_ns;
        nap(length_ns);
    }
    (void)pthread_mutex_unlock(&progress_thread.lock);
    return arg;
}

/* Starts the thread with signals blocked, since they are for the program's own threads. */
static int start(void)
{
    sigset_t all, before;
    int error;

    (void)sigfillset(&all);
    (void)pthread_sigmask(SIG_BLOCK, &all, &before);
    error = pthread_create(&progress_thread.thread, NULL, keep, NULL);
    (void)pthread_sigmask(SIG_SETMASK, &before, NULL);
    return error;
}

/* The first pipe starts the thread, the last one that goes ends it. */
xm_status_t xm_pipe_progress_thread_add(xm_pipe_t *pipe)
{
    int error = 0;

    (void)pthread_mutex_lock(&progress_thread.life);
    (void)pthread_mutex_lock(&progress_thread.lock);
    if (progress_thread.first == NULL) {
        progress_thread.stop = false;
        error = start();
    }
    if (error == 0) {
        pipe->kept = true;
        pipe->kept_next = progress_thread.first;
        progress_thread.first = pipe;
    }
    (void)pthread_mutex_unlock(&progress_thread.lock);
    (void)pthread_mutex_unlock(&progress_thread.life);
    return error == 0 ? XM_OK
                      : xm_error_set(XM_ERR_NO_MEMORY, "no thread for pipes: %s", strerror(error));
}

/* The pipe's own lock must not be held: the thread may be inside that pipe, and is waited for. */
void xm_pipe_progress_thread_remove(xm_pipe_t *pipe)
{
    xm_pipe_t **link = &progress_thread.first;
    bool last;

    if (!pipe->kept) {
        return;
    }
    (void)pthread_mutex_lock(&progress_thread.life);
    (void)pthread_mutex_lock(&progress_thread.lock);
    while (*link != pipe) {
        link = &(*link)->kept_next;
    }
    *link = pipe->kept_next;
    pipe->kept = false;
    last = progress_thread.first == NULL;
    progress_thread.stop = last;
    (void)pthread_cond_signal(&progress_thread.changed);
    (void)pthread_mutex_unlock(&progress_thread.lock);
    if (last) {
        (void)pthread_join(progress_thread.thread, NULL);
    }
    (void)pthread_mutex_unlock(&progress_thread.life);
}

/* A relaxed test first: while the thread is awake a send costs nothing more. */
void xm_pipe_progress_thread_wake(void)
{
    if (atomic_load(&progress_thread.parked)) {
        (void)pthread_mutex_lock(&progress_thread.lock);
        (void)pthread_cond_signal(&progress_thread.changed);
        (void)pthread_mutex_unlock(&progress_thread.lock);
    }
}
