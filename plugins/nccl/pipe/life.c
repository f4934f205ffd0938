/* SPDX-License-Identifier: Apache-2.0 */
/* The beginning and the end of a pipe. Ending is the harder part: a sender has to wait until
 * its last messages have been taken, a receiver to acknowledge what it has, and the last byte
 * over the TCP connection tells the other whether this was an orderly end. All waits have a
 * limit, and after xm_pipe_destroy() no memory of the caller is touched. */
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "comm/base.h"
#include "plugins/nccl/pipe/progress_thread.h"
#include "plugins/nccl/pipe/pipe_private.h"

/* How long a sender that closes waits for the receiver to take what was sent. */
static const int64_t linger_ns = 2000 * 1000000LL;

xm_status_t xm_pipe_create(bool sender, const char *nics, double timeout, xm_pipe_t **pipe)
{
    xm_pipe_t *self = calloc(1, sizeof(*self));

    XM_NEED_MEMORY(self, "a pipe");
    self->sender = sender;
    self->fd = -1;
    self->timeout = timeout > 0 ? timeout : xm_config_seconds(XM_CONFIG_TIMEOUT);
    self->nics = strdup(nics != NULL ? nics : "");
    self->last_posted = &self->posted;
    if (self->nics == NULL || pthread_mutex_init(&self->lock, NULL) != 0) {
        free(self->nics);
        free(self);
        return XM_NO_MEMORY("a pipe");
    }
    *pipe = self;
    return XM_OK;
}

/* Waits for acknowledgements: what was sent and has ended well may still be on its way. */
static void linger(xm_pipe_t *pipe)
{
    int64_t end = xm_transport_now(pipe->transport) + linger_ns;

    while (pipe->fault_status == XM_OK && pipe->unfinished == 0 && pipe->acked < pipe->sent &&
           xm_transport_now(pipe->transport) < end) {
        xm_pipe_progress(pipe);
        (void)poll(NULL, 0, pipe->acked < pipe->sent);
    }
}

/* Lets go of what is in flight. Returns the word that is to be said last; ' ': it has been said. */
static char leave(xm_pipe_t *pipe)
{
    if (pipe->sender) {
        linger(pipe);
    } else if (pipe->fault_status == XM_OK) {
        (void)xm_pipe_acknowledge(pipe, true);
    }
    if (pipe->fault_status != XM_OK) {
        return ' ';
    }
    if (pipe->unfinished == 0 && (!pipe->sender || pipe->acked == pipe->sent)) {
        return XM_PIPE_FIN; /* when the transport has sent off its last answers */
    }
    xm_pipe_say_word(pipe, XM_PIPE_STOP);
    if (pipe->unfinished > 0) {
        xm_pipe_mark_failed(pipe, xm_error_set(XM_ERR_CANCELED, "this end has closed the pipe"));
        xm_pipe_settle(pipe);
    }
    return ' ';
}

/* The transport ends before the last word is said, because its end still sends answers, and the
 * other one stops listening at that word. */
void xm_pipe_destroy(xm_pipe_t *pipe)
{
    char word = ' ';

    if (pipe == NULL) {
        return;
    }
    xm_pipe_progress_thread_remove(pipe);
    if (pipe->stage == XM_PIPE_STAGE_OPEN) {
        word = leave(pipe);
    }
    xm_transport_destroy(pipe->transport);
    if (word != ' ') {
        xm_pipe_say_word(pipe, (xm_pipe_word_t)word);
    }
    xm_counters_destroy(pipe->counters);
    if (pipe->fd >= 0) {
        (void)close(pipe->fd);
    }
    (void)pthread_mutex_destroy(&pipe->lock);
    free(pipe->receiver);
    free(pipe->requests);
    free(pipe->nics);
    free(pipe->out);
    free(pipe->in);
    free(pipe->blob);
    free(pipe);
}
