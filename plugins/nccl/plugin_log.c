/*
 * Messages through NCCL's logger, and statuses as NCCL's results. The logger may be
 * called from any thread, so the pointer to it is atomic; before NCCL gives one, messages
 * are dropped.
 */
#include "plugins/nccl/plugin_log.h"

#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>

static _Atomic(nccl_log_t) log_function;

void plugin_log_set(nccl_log_t log)
{
    atomic_store(&log_function, log);
}

void plugin_log_write(int level, unsigned long subjects, const char *file, int line,
                      const char *format, ...)
{
    nccl_log_t log = atomic_load(&log_function);
    char text[1024];
    va_list arguments;

    if (log == NULL) {
        return;
    }
    va_start(arguments, format);
    (void)vsnprintf(text, sizeof(text), format, arguments);
    va_end(arguments);
    log(level, subjects, file, line, "%s", text);
}

/* NCCL has a result of its own for faults of the other side, and the caller's mistakes
 * are invalid arguments. */
static nccl_result_t result_of(xm_status_t status)
{
    switch (status) {
    case XM_OK:
        return NCCL_OK;
    case XM_ERR_PEER_DIED:
    case XM_ERR_CANCELED:
        return NCCL_REMOTE;
    case XM_ERR_NO_MEMORY:
    case XM_ERR_IO:
    case XM_ERR_UNREACHABLE:
    case XM_ERR_TIMEOUT:
        return NCCL_SYSTEM;
    default:
        return xm_status_is_caller(status) ? NCCL_INVALID_ARGUMENT : NCCL_INTERNAL;
    }
}

/* Logs the sentence and returns the result, so that every failure has been logged once. */
nccl_result_t plugin_fail(xm_status_t status, const char *what)
{
    plugin_warn(NCCL_SUBJECT_NET, "NET/crossmesh: %s: %s", what, xm_last_error());
    return result_of(status);
}
