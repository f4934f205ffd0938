#include "resharding/execute_private.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* What a rank intends to do, as the lines that are compared. Order: most telling first. */
enum { FIELD_COUNT = 11, FIELD_SIZE = 4096 };

typedef struct {
    const char *name;
    char text[FIELD_SIZE];
} field_t;

static void describe_layout(const xm_layout_t *layout, field_t *fields)
{
    const xm_mesh_t *mesh = xm_layout_mesh(layout);

    (void)xm_mesh_format_shape(mesh, fields[0].text, FIELD_SIZE);
    (void)xm_mesh_format_ranks(mesh, fields[1].text, FIELD_SIZE);
    (void)xm_spec_format(xm_layout_spec(layout), fields[2].text);
    (void)xm_layout_format_partition(layout, fields[3].text, FIELD_SIZE);
}

static void describe(const xm_plan_t *plan, const char *dtype, field_t *fields)
{
    static const char *const names[FIELD_COUNT] = {"dtype",
                                                   "shape",
                                                   "source mesh",
                                                   "source ranks",
                                                   "source spec",
                                                   "source partition",
                                                   "destination mesh",
                                                   "destination ranks",
                                                   "destination spec",
                                                   "destination partition",
                                                   "plan digest"};

    for (int i = 0; i < FIELD_COUNT; ++i) {
        fields[i].name = names[i];
    }
    (void)snprintf(fields[0].text, FIELD_SIZE, "%s (%" PRId64 " bytes)", dtype,
                   xm_plan_element_size(plan));
    (void)xm_shape_format(xm_layout_dims(xm_plan_src(plan)), xm_layout_shape(xm_plan_src(plan)),
                          fields[1].text, FIELD_SIZE);
    describe_layout(xm_plan_src(plan), fields + 2);
    describe_layout(xm_plan_dst(plan), fields + 6);
    (void)snprintf(fields[10].text, FIELD_SIZE, "%s", xm_plan_digest(plan));
}

/* For shapes of equal rank, which dimension differs; "" otherwise. */
static void explain_shape(const char *reference, const char *other, char *text, size_t size)
{
    int64_t a[XM_MAX_DIMS], b[XM_MAX_DIMS];
    int dims_a, dims_b;

    text[0] = '\0';
    if (xm_shape_parse(reference, &dims_a, a) < 0 || xm_shape_parse(other, &dims_b, b) < 0) {
        return;
    }
    if (dims_a != dims_b) {
        (void)snprintf(text, size, ": %d dimensions, not %d", dims_b, dims_a);
        return;
    }
    for (int d = 0; d < dims_a; ++d) {
        if (a[d] != b[d]) {
            (void)snprintf(text, size, ": dimension %d has %" PRId64 " elements, not %" PRId64, d,
                           b[d], a[d]);
            return;
        }
    }
}

static xm_status_t compare(const char *mine, const char *reference, int rank, const field_t *fields)
{
    const char *a = reference, *b = mine;

    for (int i = 0; i < FIELD_COUNT; ++i) {
        char detail[128] = "";

        if (strcmp(a, b) != 0) {
            if (strcmp(fields[i].name, "shape") == 0) {
                explain_shape(a, b, detail, sizeof(detail));
            }
            if (i == FIELD_COUNT - 1) {
                return xm_error_set(XM_ERR_MISMATCH,
                                    "rank %d made plan %s and rank 0 plan %s of the same layouts: "
                                    "their strategy, scheduler, chunk size or profile differ",
                                    rank, b, a);
            }
            return xm_error_set(XM_ERR_MISMATCH, "rank %d has %s %s where rank 0 has %s%s", rank,
                                fields[i].name, b, a, detail);
        }
        a += strlen(a) + 1;
        b += strlen(b) + 1;
    }
    return XM_OK;
}

xm_status_t xm_reshard_agree(xm_worker_t *worker, const xm_plan_t *plan, const char *dtype)
{
    field_t *fields = calloc(FIELD_COUNT, sizeof(*fields));
    char *packed = calloc(FIELD_COUNT, FIELD_SIZE);
    char *gathered = NULL;
    size_t *offsets = NULL, length = 0;
    xm_status_t status;

    if (fields == NULL || packed == NULL) {
        status = xm_error_set(XM_ERR_NO_MEMORY, "no memory to compare plans");
        goto free_all;
    }
    describe(plan, dtype, fields);
    for (int i = 0; i < FIELD_COUNT; ++i) {
        memcpy(packed + length, fields[i].text, strlen(fields[i].text) + 1);
        length += strlen(fields[i].text) + 1;
    }
    status = xm_bootstrap_allgatherv(xm_worker_bootstrap(worker), packed, length,
                                     (void **)&gathered, &offsets, xm_worker_timeout(worker));
    for (int r = 1; status == XM_OK && r < xm_worker_size(worker); ++r) {
        /* Every description holds FIELD_COUNT strings, or comparing would run past its end. */
        int strings = 0;

        for (size_t c = offsets[r]; c < offsets[r + 1]; ++c) {
            strings += gathered[c] == '\0';
        }
        status =
            strings == FIELD_COUNT
                ? compare(gathered + offsets[r], gathered, r, fields)
                : xm_error_set(XM_ERR_MISMATCH, "rank %d runs another version of crossmesh", r);
    }

free_all:
    free(offsets);
    free(gathered);
    free(packed);
    free(fields);
    return status;
}

char *xm_executor_describe_wait(const xm_executor_t *executor, char *buffer, size_t size)
{
    (void)snprintf(buffer, size, "has nothing in flight");
    for (int i = 0; i < executor->lane_count; ++i) {
        const lane_t *lane = &executor->lanes[i];
        const slot_t *slot = &lane->slots[lane->oldest];

        if (lane->in_flight > 0) {
            (void)snprintf(buffer, size,
                           "waits for chunk %" PRId64 " of %" PRId64 " of transfer %" PRId64
                           " %s rank %d",
                           slot->chunk - slot->local->first_chunk + 1,
                           slot->local->end_chunk - slot->local->first_chunk, slot->local->transfer,
                           lane->outgoing ? "to" : "from", lane->peer);
            if (!lane->outgoing) {
                break; /* a missing arrival says more than a blocked departure */
            }
        }
    }
    return buffer;
}

/*
 * An operation failed. When the reason is a dead rank, possibly far away (a neighbour that gave up
 * because of it takes back what it had offered), the fault channel names it: give it a moment to
 * speak.
 */
static xm_status_t name_culprit(xm_worker_t *worker, xm_status_t status)
{
    int64_t deadline = xm_worker_now(worker) + INT64_C(2000000000);
    char sentence[1024];
    xm_status_t verdict = XM_OK;

    (void)snprintf(sentence, sizeof(sentence), "%s", xm_last_error());
    while (verdict == XM_OK) {
        verdict = xm_worker_wait(worker, deadline);
    }
    if (verdict == XM_ERR_TIMEOUT) {
        return xm_error_set(status, "%s", sentence);
    }
    return verdict;
}

xm_status_t xm_reshard_run(xm_worker_t *worker, xm_executor_t *executor, int64_t deadline)
{
    xm_status_t status = xm_executor_post(executor), waited = XM_OK;
    int64_t start = xm_worker_now(worker);
    char sentence[1024], waits[256];

    if (status < 0) {
        return status;
    }
    while ((status = xm_executor_advance(executor)) == XM_IN_PROGRESS) {
        waited = xm_executor_may_sleep(executor) ? xm_worker_wait(worker, deadline)
                                                 : xm_worker_progress(worker);
        if (waited == XM_OK && xm_worker_now(worker) > deadline) {
            waited = XM_ERR_TIMEOUT;
        }
        if (waited == XM_OK) {
            continue;
        }
        if (waited == XM_ERR_TIMEOUT) {
            (void)snprintf(sentence, sizeof(sentence), "rank %d %s after %.1f s",
                           xm_worker_rank(worker),
                           xm_executor_describe_wait(executor, waits, sizeof(waits)),
                           (double)(xm_worker_now(worker) - start) * 1e-9);
        } else {
            (void)snprintf(sentence, sizeof(sentence), "%s", xm_last_error());
        }
        xm_executor_abandon(executor);
        return xm_error_set(waited, "%s", sentence);
    }
    return status < 0 && status != XM_ERR_CANCELED ? name_culprit(worker, status) : status;
}
