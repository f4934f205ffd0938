/* SPDX-License-Identifier: Apache-2.0 */
/* Why a pipe cannot go on: the first failure with its sentence, which every later call repeats.
 * Noting is all that happens here, so that it can be done from callbacks; the pipe's own calls draw
 * the conclusions. */
#include <stdio.h>

#include "plugins/nccl/pipe/pipe_private.h"

void xm_pipe_mark_failed(xm_pipe_t *pipe, xm_status_t status)
{
    if (pipe->fault_status == XM_OK) {
        pipe->fault_status = status;
        (void)snprintf(pipe->sentence, sizeof(pipe->sentence), "%s", xm_last_error());
    }
}

xm_status_t xm_pipe_fault_status(const xm_pipe_t *pipe)
{
    return xm_error_set(pipe->fault_status, "%s", pipe->sentence);
}
