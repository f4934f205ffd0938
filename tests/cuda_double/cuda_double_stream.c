/* SPDX-License-Identifier: Apache-2.0 */
/* Streams, each with a thread, and events. */
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "tests/cuda_double/cuda_double.h"

static int do_copy(const xm_cu_memcpy2d_t *copy)
{
    for (size_t row = 0; row < copy->height; ++row) {
        char *from = double_bytes(copy->src_device + row * copy->src_pitch, copy->width);
        char *to = double_bytes(copy->dst_device + row * copy->dst_pitch, copy->width);

        if (from == NULL || to == NULL) {
            return DOUBLE_ILLEGAL_ADDRESS;
        }
        memcpy(to, from, copy->width);
    }
    return XM_CU_SUCCESS;
}

static int do_step(const double_step_t *step)
{
    int fault = step->kind == DOUBLE_WAIT ? 0 : double_fault("step");

    if (step->kind == DOUBLE_CALL) {
        (void)pthread_mutex_unlock(&double_state.lock);
        step->function(step->arg);
        (void)pthread_mutex_lock(&double_state.lock);
    }
    if (double_state.lost != 0 || fault != 0) {
        return fault != 0 ? fault : double_state.lost;
    }
    switch (step->kind) {
    case DOUBLE_COPY:
        return do_copy(&step->copy);
    case DOUBLE_KERNEL:
        return double_kernel_run(step->kernel, step->args, step->threads);
    case DOUBLE_RECORD:
        if (step->event->done < step->version) {
            step->event->done = step->version;
        }
        return XM_CU_SUCCESS;
    case DOUBLE_WAIT:
        while (step->event->done < step->version && double_state.lost == 0) {
            (void)pthread_cond_wait(&double_state.changed, &double_state.lock);
        }
        return XM_CU_SUCCESS;
    case DOUBLE_CALL:
        return XM_CU_SUCCESS;
    }
    return XM_CU_INVALID_VALUE;
}

static void take_time(void)
{
    const char *delay = getenv("CUDA_DOUBLE_DELAY_US");

    (void)usleep(delay != NULL ? (useconds_t)atoi(delay) : 100);
}

static void *run_stream(void *arg)
{
    double_stream_t *stream = arg;

    (void)pthread_mutex_lock(&double_state.lock);
    for (;;) {
        double_step_t *step = stream->first;
        int result;

        if (step == NULL) {
            if (stream->stop) {
                break;
            }
            (void)pthread_cond_wait(&double_state.changed, &double_state.lock);
            continue;
        }
        stream->first = step->next;
        stream->busy = 1;
        (void)pthread_mutex_unlock(&double_state.lock);
        take_time();
        (void)pthread_mutex_lock(&double_state.lock);
        result = do_step(step);
        if (result != XM_CU_SUCCESS) {
            double_state.lost = result;
        }
        stream->busy = 0;
        free(step);
        (void)pthread_cond_broadcast(&double_state.changed);
    }
    (void)pthread_mutex_unlock(&double_state.lock);
    return NULL;
}

static int is_idle(const double_stream_t *stream)
{
    return stream->first == NULL && !stream->busy;
}

void double_settle(void)
{
    for (const double_stream_t *stream = double_state.streams; stream != NULL;) {
        if (is_idle(stream)) {
            stream = stream->next;
        } else {
            (void)pthread_cond_wait(&double_state.changed, &double_state.lock);
            stream = double_state.streams;
        }
    }
}

double_stream_t *double_stream_make(void)
{
    double_stream_t *stream = calloc(1, sizeof(*stream));

    if (stream == NULL || pthread_create(&stream->thread, NULL, run_stream, stream) != 0) {
        free(stream);
        return NULL;
    }
    stream->next = double_state.streams;
    double_state.streams = stream;
    return stream;
}

int double_put(void *given, const double_step_t *step)
{
    double_stream_t *stream = given;
    double_step_t *made = malloc(sizeof(*made));

    if (stream == NULL) {
        if (double_state.default_stream == NULL) {
            double_state.default_stream = double_stream_make();
        }
        stream = double_state.default_stream;
    }
    if (stream == NULL || made == NULL) {
        free(made);
        return XM_CU_OUT_OF_MEMORY;
    }
    *made = *step;
    made->next = NULL;
    if (stream->first == NULL) {
        stream->first = made;
    } else {
        stream->last->next = made;
    }
    stream->last = made;
    (void)pthread_cond_broadcast(&double_state.changed);
    return XM_CU_SUCCESS;
}

/* ---- calls ------------------------------------------------------------------------------------
 */

static int enter(const char *name, int needs_context)
{
    int fault;

    (void)pthread_mutex_lock(&double_state.lock);
    fault = double_fault(name);
    if (fault != 0) {
        return fault;
    }
    if (double_state.lost != 0) {
        return double_state.lost;
    }
    return needs_context && double_current() < 0 ? DOUBLE_INVALID_CONTEXT : XM_CU_SUCCESS;
}

static int leave(int result)
{
    (void)pthread_mutex_unlock(&double_state.lock);
    return result;
}

int cuStreamCreate(void **stream, unsigned flags)
{
    int result = enter("cuStreamCreate", 1);

    (void)flags;
    if (result == XM_CU_SUCCESS) {
        *stream = double_stream_make();
        result = *stream != NULL ? XM_CU_SUCCESS : XM_CU_OUT_OF_MEMORY;
    }
    return leave(result);
}

/* Works on a lost device as well, so that nothing leaks. */
int cuStreamDestroy_v2(void *given)
{
    double_stream_t *stream = given, **link = &double_state.streams;

    (void)pthread_mutex_lock(&double_state.lock);
    stream->stop = 1;
    (void)pthread_cond_broadcast(&double_state.changed);
    (void)pthread_mutex_unlock(&double_state.lock);
    (void)pthread_join(stream->thread, NULL);
    (void)pthread_mutex_lock(&double_state.lock);
    while (*link != stream) {
        link = &(*link)->next;
    }
    *link = stream->next;
    free(stream);
    return leave(double_state.lost);
}

int cuStreamSynchronize(void *given)
{
    const double_stream_t *stream = given;
    int result = enter("cuStreamSynchronize", 1);

    if (stream == NULL) {
        stream = double_state.default_stream;
    }
    while (result == XM_CU_SUCCESS && stream != NULL && !is_idle(stream)) {
        (void)pthread_cond_wait(&double_state.changed, &double_state.lock);
        result = double_state.lost;
    }
    return leave(result != XM_CU_SUCCESS ? result : double_state.lost);
}

int cuStreamWaitEvent(void *stream, void *event, unsigned flags)
{
    double_step_t step = {.kind = DOUBLE_WAIT, .event = event};
    int result = enter("cuStreamWaitEvent", 1);

    (void)flags;
    if (result == XM_CU_SUCCESS) {
        step.version = step.event->recorded;
        result = double_put(stream, &step);
    }
    return leave(result);
}

int cuLaunchHostFunc(void *stream, void (*function)(void *arg), void *arg)
{
    double_step_t step = {.kind = DOUBLE_CALL, .function = function, .arg = arg};
    int result = enter("cuLaunchHostFunc", 1);

    return leave(result == XM_CU_SUCCESS ? double_put(stream, &step) : result);
}

char *cuda_double_bytes(const void *address, size_t size)
{
    char *bytes;

    (void)pthread_mutex_lock(&double_state.lock);
    bytes = double_bytes((uint64_t)(uintptr_t)address, size);
    (void)pthread_mutex_unlock(&double_state.lock);
    return bytes;
}

int cuEventCreate(void **event, unsigned flags)
{
    int result = enter("cuEventCreate", 1);

    (void)flags;
    if (result == XM_CU_SUCCESS) {
        *event = calloc(1, sizeof(double_event_t));
        result = *event != NULL ? XM_CU_SUCCESS : XM_CU_OUT_OF_MEMORY;
    }
    return leave(result);
}

int cuEventDestroy_v2(void *event)
{
    (void)pthread_mutex_lock(&double_state.lock);
    double_settle();
    free(event);
    return leave(XM_CU_SUCCESS);
}

int cuEventRecord(void *given, void *stream)
{
    double_event_t *event = given;
    double_step_t step = {.kind = DOUBLE_RECORD, .event = event};
    int result = enter("cuEventRecord", 1);

    if (result == XM_CU_SUCCESS) {
        step.version = ++event->recorded;
        result = double_put(stream, &step);
    }
    return leave(result);
}

int cuEventQuery(void *given)
{
    const double_event_t *event = given;
    int result = enter("cuEventQuery", 1);

    if (result == XM_CU_SUCCESS && event->done < event->recorded) {
        result = XM_CU_NOT_READY;
    }
    (void)leave(result);
    if (result == XM_CU_NOT_READY) {
        (void)usleep(20); /* who polls all the time would keep the lock from the streams */
    }
    return result;
}
