/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The work of a pass: waiting, integer arithmetic or products of small matrices, in units
 * of known time. Real work shows what transfers cost the cores; waiting lets many ranks
 * share few cores.
 */
#include "bench/pipeline/compute.h"

#include <sched.h>
#include <stdlib.h>

#include "comm/base.h"

/*
 * ORDER is that of the matrices, which stay in a core's caches; SPINS is the steps of a
 * unit. Both make units of about a tenth of a millisecond, so that transfers are not kept
 * waiting.
 */
enum { ORDER = 64, SPINS = 100000, SAMPLES = 4096 };

static const int64_t calibration_ns = 100000000;

struct rb_compute {
    rb_compute_kind_t kind;
    double unit_ns;
    uint64_t state;
    float a[ORDER][ORDER], b[ORDER][ORDER], c[ORDER][ORDER];
};

static void spin(rb_compute_t *compute)
{
    uint64_t state = compute->state;

    for (int i = 0; i < SPINS; ++i) {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
    }
    compute->state = state;
}

/* c = (c + a b) / 2: the values keep their size, however often this is done. */
static void gemm(rb_compute_t *compute)
{
    for (int i = 0; i < ORDER; ++i) {
        float row[ORDER] = {0};

        for (int k = 0; k < ORDER; ++k) {
            float factor = compute->a[i][k];

            for (int j = 0; j < ORDER; ++j) {
                row[j] += factor * compute->b[k][j];
            }
        }
        for (int j = 0; j < ORDER; ++j) {
            compute->c[i][j] = 0.5F * (compute->c[i][j] + row[j]);
        }
    }
}

void rb_compute_unit(rb_compute_t *compute)
{
    if (compute->kind == RB_COMPUTE_SPIN) {
        spin(compute);
    } else if (compute->kind == RB_COMPUTE_GEMM) {
        gemm(compute);
    }
}

/* Takes the median of as many units as the time allows; a unit that the kernel
 * interrupted does not count. */
static void calibrate(rb_compute_t *compute)
{
    static int64_t samples[SAMPLES];
    int64_t start = xm_clock_ns(), last = start;
    int count = 0;

    rb_compute_unit(compute); /* caches and clocks */
    last = xm_clock_ns();
    do {
        int64_t now;

        rb_compute_unit(compute);
        now = xm_clock_ns();
        samples[count++] = now - last;
        last = now;
    } while (count < SAMPLES && last - start < calibration_ns);
    qsort(samples, (size_t)count, sizeof(samples[0]), xm_order_int64s);
    compute->unit_ns = (double)(samples[count / 2] > 0 ? samples[count / 2] : 1);
}

xm_status_t rb_compute_create(rb_compute_kind_t kind, rb_compute_t **result)
{
    rb_compute_t *compute = calloc(1, sizeof(*compute));

    XM_NEED_MEMORY(compute, "a rank's work");
    compute->kind = kind;
    compute->state = XM_GOLDEN;
    for (int i = 0; i < ORDER; ++i) {
        for (int j = 0; j < ORDER; ++j) {
            compute->a[i][j] = 1.0F / (float)(1 + (i + j) % ORDER);
            compute->b[i][j] = i == j ? 1.0F : 1.0F / ORDER;
        }
    }
    if (kind != RB_COMPUTE_WAIT) {
        calibrate(compute);
    }
    *result = compute;
    return XM_OK;
}

/* With more ranks than cores, the calibrated units would take longer than they say. */
xm_status_t rb_compute_check(rb_compute_kind_t kind, int ranks, const char *where)
{
    cpu_set_t set;

    CPU_ZERO(&set);
    if (kind == RB_COMPUTE_WAIT || sched_getaffinity(0, sizeof(set), &set) != 0 ||
        ranks <= CPU_COUNT(&set)) {
        return XM_OK;
    }
    return XM_INVALID("--compute %s needs a core for each rank; %s has %d ranks and %d cores",
                      rb_compute_name(kind), where, ranks, CPU_COUNT(&set));
}

rb_compute_kind_t rb_compute_kind(const rb_compute_t *compute)
{
    return compute->kind;
}

const char *rb_compute_name(rb_compute_kind_t kind)
{
    static const char *const names[] = {"wait", "spin", "gemm"};

    return names[kind];
}

/* Rounded to the nearest number of units. */
int64_t rb_compute_units(const rb_compute_t *compute, int64_t duration_ns)
{
    return compute->kind == RB_COMPUTE_WAIT
               ? 0
               : (int64_t)((double)duration_ns / compute->unit_ns + 0.5);
}

void rb_compute_destroy(rb_compute_t *compute)
{
    free(compute);
}
