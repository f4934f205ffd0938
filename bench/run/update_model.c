/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A commit is predicted as two agreements of all ranks, then what takes longer of finding with
 * encoding and of the plan's makespan for the bytes that are left, less what NICs let pass at once,
 * then applying. Ranks that share
 * processors take turns on them, so work is measured as processor time.
 */
#include "bench/run/update_model.h"

#include <math.h>
#include <stdlib.h>

#include "comm/base.h"
#include "resharding/delta.h"
#include "resharding/layout.h"
#include "resharding/plan.h"

enum { SAMPLE = 2 * 1024 * 1024, CHUNK = 256 * 1024, BLOCK = 128, AGREEMENTS = 8 };

/* What a rank has to do in a commit, in bytes of everything, and then in seconds. */
typedef struct {
    double found, encoded, applied;
} work_t;

static double chunk_bytes(int64_t count, int64_t size, int64_t unit, double density)
{
    int64_t changed = llrint((double)count * density);
    int64_t runs = llrint((double)changed / (double)unit * (1 - density));

    runs = runs < 1 ? 1 : runs;
    return (double)xm_encoding_bytes(count, changed, changed > 0 ? runs : 0, size);
}

/* Elements that follow each other in a box and change together. */
static int64_t unit_of(const xm_plan_t *plan, int64_t task, rb_changes_t pattern)
{
    int64_t row;
    xm_box_t box;

    xm_plan_task_box(plan, task, &box);
    row = box.dims > 0 ? box.hi[box.dims - 1] - box.lo[box.dims - 1] : 1;
    if (pattern == RB_CHANGES_UNIFORM) {
        return 1;
    }
    return pattern == RB_CHANGES_BLOCKS && row > BLOCK ? BLOCK : row;
}

double rb_update_share(const xm_plan_t *plan, rb_changes_t pattern, double density)
{
    double sent = 0, everything = 0;

    for (int64_t t = 0; t < xm_plan_transfer_count(plan); ++t) {
        const xm_transfer_t transfer = xm_plan_transfer(plan, t);
        const xm_route_t *route = xm_plan_route(plan, transfer.route);
        int64_t size = xm_plan_tensor_element_size(plan, xm_plan_task(plan, transfer.task).tensor);
        int64_t unit = unit_of(plan, transfer.task, pattern),
                elements = transfer.end - transfer.first;
        int64_t chunk = xm_plan_chunk_elements(plan, transfer.task), rest = elements % chunk;
        int64_t whole = elements / chunk;

        if (xm_transfer_is_copy(&transfer, route)) {
            continue;
        }
        sent += route->count * ((double)whole * chunk_bytes(chunk, size, unit, density) +
                                (rest > 0 ? chunk_bytes(rest, size, unit, density) : 0));
        everything += (double)(route->count * elements * size);
    }
    return everything > 0 ? sent / everything : 0;
}

/* Processor seconds of this rank for a byte of everything. */
static xm_status_t measure_work(double density, int64_t size, work_t *per_byte)
{
    const xm_view_t view = {.dims = 1, .extent = {SAMPLE}, .stride = {size}, .element_size = size};
    const double bytes = (double)(SAMPLE * size);
    char *now = calloc(SAMPLE, (size_t)size), *shadow = calloc(SAMPLE, (size_t)size);
    char *encoded = malloc(xm_encoding_limit(CHUNK, size));
    void *scratch = malloc(xm_encoding_scratch(CHUNK));
    uint64_t *bits = calloc(xm_changes_words(SAMPLE), sizeof(*bits));
    int64_t start;

    if (now == NULL || shadow == NULL || encoded == NULL || scratch == NULL || bits == NULL) {
        free(bits);
        free(scratch);
        free(encoded);
        free(shadow);
        free(now);
        return XM_NO_MEMORY("measuring what updates take");
    }
    *per_byte = (work_t){0};
    for (int pass = 0; pass < 2; ++pass) { /* the first brings pages in */
        for (int64_t i = 0; i < SAMPLE; ++i) {
            now[i * size] = (char)(now[i * size] +
                                   (xm_random_of((uint64_t)i) >> 1 < (uint64_t)(density * 0x1p63)));
        }
        *per_byte = (work_t){0};
        for (int64_t at = 0; at < SAMPLE; at += CHUNK) {
            size_t length;

            start = xm_clock_cpu_ns();
            (void)xm_changes_find(now + at * size, shadow + at * size, CHUNK, size,
                                  bits + xm_changes_words(at));
            per_byte->found += (double)(xm_clock_cpu_ns() - start) * 1e-9 / bytes;
            start = xm_clock_cpu_ns();
            length = xm_encoding_write(&view, now, bits, at, CHUNK, scratch, encoded);
            per_byte->encoded += (double)(xm_clock_cpu_ns() - start) * 1e-9 / bytes;
            start = xm_clock_cpu_ns();
            (void)xm_encoding_apply(&view, shadow, at, CHUNK, encoded, length);
            per_byte->applied += (double)(xm_clock_cpu_ns() - start) * 1e-9 / bytes;
        }
    }
    free(bits);
    free(scratch);
    free(encoded);
    free(shadow);
    free(now);
    return XM_OK;
}

/* Bytes of everything that this rank finds, encodes and applies. */
static work_t count_work(const xm_plan_t *plan, int rank)
{
    work_t work = {0};

    for (int t = 0; t < xm_plan_tensors(plan); ++t) {
        int64_t size = xm_plan_tensor_element_size(plan, t);

        work.found += (double)xm_layout_buffer_bytes(xm_plan_tensor_src(plan, t), rank, size);
        work.applied += (double)xm_layout_buffer_bytes(xm_plan_tensor_dst(plan, t), rank, size);
    }
    work.encoded = work.found;
    return work;
}

xm_status_t rb_update_predict(xm_worker_t *worker, const xm_plan_t *plan, rb_changes_t pattern,
                              double density, int cores, double head_start,
                              rb_update_model_t *model)
{
    int size = xm_worker_size(worker);
    work_t own = count_work(plan, xm_worker_rank(worker)), rate = {0}, *all;
    double before[2] = {0, 0}, after[2] = {0, 0}, wire; /* of the slowest, of all */
    xm_status_t status = measure_work(density, xm_plan_tensor_element_size(plan, 0), &rate);
    int64_t start;

    own.found = own.found * rate.found + own.encoded * rate.encoded;
    own.applied *= rate.applied;
    all = calloc((size_t)size, sizeof(*all));
    if (all == NULL || status < 0) {
        free(all);
        return status < 0 ? status : XM_NO_MEMORY("%d rates", size);
    }
    status = xm_worker_barrier(worker);
    start = xm_clock_ns();
    for (int i = 0; status == XM_OK && i < AGREEMENTS; ++i) {
        status = xm_worker_allgather(worker, &own, all, sizeof(own));
    }
    for (int r = 0; r < size; ++r) {
        before[0] = fmax(before[0], all[r].found);
        before[1] += all[r].found / cores;
        after[0] = fmax(after[0], all[r].applied);
        after[1] += all[r].applied / cores;
    }
    free(all);
    model->share = rb_update_share(plan, pattern, density);
    wire = fmax(0, (double)xm_plan_makespan_ns(plan) * 1e-9 * model->share - head_start);
    model->seconds = 2.0 / AGREEMENTS * (double)(xm_clock_ns() - start) * 1e-9 +
                     fmax(wire, fmax(before[0], before[1])) + fmax(after[0], after[1]);
    return status;
}
