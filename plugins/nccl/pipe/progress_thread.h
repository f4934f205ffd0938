/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file plugins/nccl/pipe/progress_thread.h
 * Keeps senders moving that nobody tests. Internal.
 *
 * A send may have ended while its bytes are still in buffers of this process: of UCX, when the
 * kernel takes no more, or of a transport that keeps short messages until they are answered. They
 * leave when the pipe is used again; but a runtime that is done does not use it again. So one
 * thread looks, every few milliseconds, after the senders whose messages have not all been
 * acknowledged, as long as there are such; otherwise it sleeps. Without senders there is no thread.
 */
#pragma once

#include "plugins/nccl/pipe/pipe_private.h"

/** Takes a sender into care, once it is open. */
xm_status_t xm_pipe_progress_thread_add(xm_pipe_t *pipe);

/** Lets go of it; does nothing for others. The caller does not hold the pipe's lock. */
void xm_pipe_progress_thread_remove(xm_pipe_t *pipe);

/** Says that a sender has sent something. */
void xm_pipe_progress_thread_wake(void);
