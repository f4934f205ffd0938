/* Why a pipe cannot go on. */
#include <stdio.h>

#include "plugins/nccl/pipe/pipe_private.h"

void xm_pipe_condemn(xm_pipe_t *pipe, xm_status_t status)
{
    if (pipe->verdict == XM_OK) {
        pipe->verdict = status;
        (void)snprintf(pipe->sentence, sizeof(pipe->sentence), "%s", xm_last_error());
    }
}

xm_status_t xm_pipe_verdict(const xm_pipe_t *pipe)
{
    return xm_error_set(pipe->verdict, "%s", pipe->sentence);
}
