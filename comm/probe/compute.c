/* SPDX-License-Identifier: Apache-2.0 */
/* The instruments for FLOP/s and memory copies on one core. This file is compiled with -O3 and
 * contraction to fused multiply-add in every build type: a debug build must not report a slower
 * machine. The loops are written so that a compiler can neither drop nor shorten them, and use
 * the widest vectors that the processor has, chosen at run time. */
#include "comm/probe/compute.h"

#include <sched.h>
#include <stdio.h>
#include <string.h>
#include <xxhash.h>

#include "comm/base.h"
#include "comm/profile.h"

/* The boot id tells machines apart; emulated hosts on one machine have the same. */
uint64_t xm_probe_machine(void)
{
    char boot_id[64] = "";
    FILE *file = fopen("/proc/sys/kernel/random/boot_id", "re");

    if (file != NULL) {
        if (fgets(boot_id, sizeof(boot_id), file) == NULL) {
            boot_id[0] = '\0';
        }
        (void)fclose(file);
    }
    return XXH3_64bits(boot_id, strlen(boot_id));
}

/* Masks of the kernel with more processors than a set has bits are not read; then all count. */
int xm_probe_cores(void)
{
    cpu_set_t set;

    return sched_getaffinity(0, sizeof(set), &set) == 0 ? CPU_COUNT(&set) : CPU_SETSIZE;
}

/* Independent chains hide the latency of an operation (4 cycles, 2 per cycle on current cores)
 * and leave room for the two constants in 16 registers. */
enum { CHAINS = 10, ROUNDS = 20000 };

/* Each chain converges to 1, so no operand is ever denormal. The compiler must not know where
 * it starts: a chain that it sees to be constant would not be computed. */
static const float factor = 0.75F, addend = 0.25F;
static volatile const float origin = 2;

typedef float vector4_t __attribute__((vector_size(16)));

/* The same loop exists for each vector width, because the width is part of a function's
 * compilation. */
static float multiply_add_4(void)
{
    vector4_t chain[CHAINS], sum = {0};

    for (int c = 0; c < CHAINS; ++c) {
        chain[c] = (vector4_t){0} + (origin + (float)c);
    }
    for (int round = 0; round < ROUNDS; ++round) {
        for (int c = 0; c < CHAINS; ++c) {
            chain[c] = chain[c] * factor + addend;
        }
    }
    for (int c = 0; c < CHAINS; ++c) {
        sum += chain[c];
    }
    return sum[0];
}

#ifdef __x86_64__
typedef float vector8_t __attribute__((vector_size(32)));
typedef float vector16_t __attribute__((vector_size(64)));

__attribute__((target("avx2,fma"))) static float multiply_add_8(void)
{
    vector8_t chain[CHAINS], sum = {0};

    for (int c = 0; c < CHAINS; ++c) {
        chain[c] = (vector8_t){0} + (origin + (float)c);
    }
    for (int round = 0; round < ROUNDS; ++round) {
        for (int c = 0; c < CHAINS; ++c) {
            chain[c] = chain[c] * factor + addend;
        }
    }
    for (int c = 0; c < CHAINS; ++c) {
        sum += chain[c];
    }
    return sum[0];
}

__attribute__((target("avx512f"))) static float multiply_add_16(void)
{
    vector16_t chain[CHAINS], sum = {0};

    for (int c = 0; c < CHAINS; ++c) {
        chain[c] = (vector16_t){0} + (origin + (float)c);
    }
    for (int round = 0; round < ROUNDS; ++round) {
        for (int c = 0; c < CHAINS; ++c) {
            chain[c] = chain[c] * factor + addend;
        }
    }
    for (int c = 0; c < CHAINS; ++c) {
        sum += chain[c];
    }
    return sum[0];
}
#endif

typedef struct {
    float (*run)(void);
    int lanes;
    const char *name;
} kernel_t;

/* The widest kernel that this processor can run. */
static kernel_t best_kernel(void)
{
#ifdef __x86_64__
    if (__builtin_cpu_supports("avx512f")) {
        return (kernel_t){multiply_add_16, 16, "AVX-512 multiply-add"};
    }
    if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma")) {
        return (kernel_t){multiply_add_8, 8, "AVX2 multiply-add"};
    }
#endif
    return (kernel_t){multiply_add_4, 4, "128-bit multiply-add"};
}

const char *xm_probe_flops_kind(void)
{
    return best_kernel().name;
}

double xm_probe_calls(float (*run)(void), double seconds)
{
    volatile float sink = run();
    double start = xm_clock_seconds(), elapsed, runs = 0;

    do {
        sink = run();
        ++runs;
        elapsed = xm_clock_seconds() - start;
    } while (elapsed < seconds);
    (void)sink;
    return runs / elapsed;
}

double xm_probe_flops(double seconds)
{
    kernel_t kernel = best_kernel();

    return xm_probe_calls(kernel.run, seconds) * ROUNDS * CHAINS * kernel.lanes * 2;
}

enum { COPY_PIECE = 256 * 1024 };

/* Copies in a way that the compiler can neither drop nor merge with the next copy. */
static void copy(void *to, const void *from, size_t bytes)
{
    memcpy(to, from, bytes);
    __asm__ volatile("" : : "r"(to), "r"(from) : "memory");
}

double xm_probe_copy_bandwidth(void *to, const void *from, size_t bytes, double seconds)
{
    /* The clock is read after every piece, so that a rank that shares its core is not cut off
     * in mid-copy. */
    size_t piece = bytes < COPY_PIECE ? bytes : COPY_PIECE, at = 0;
    double start = xm_clock_seconds(), elapsed, copied = 0;

    do {
        copy((char *)to + at, (const char *)from + at, piece);
        copied += (double)piece;
        at = at + 2 * piece <= bytes ? at + piece : 0;
        elapsed = xm_clock_seconds() - start;
    } while (elapsed < seconds || copied < (double)bytes);
    /* Each byte is read and written, so it counts twice. */
    return 2 * copied / elapsed;
}

/* Doubles the batch until a sample is long enough for the clock, then takes the samples. */
double xm_probe_copy_seconds(void *to, const void *from, size_t bytes, int repetitions,
                             double *spread)
{
    enum { MAX_REPETITIONS = 64 };
    const double shortest = 50e-6; /* a thousand ticks of the clock */
    double times[MAX_REPETITIONS], median;
    long batch = 1;
    int count = repetitions < MAX_REPETITIONS ? repetitions : MAX_REPETITIONS;

    for (int i = 0; i < count;) {
        double start = xm_clock_seconds(), elapsed;

        for (long n = 0; n < batch; ++n) {
            copy(to, from, bytes);
        }
        elapsed = xm_clock_seconds() - start;
        if (elapsed < shortest && batch < 1L << 30) {
            batch *= 2;
            continue;
        }
        times[i++] = elapsed / (double)batch;
    }
    median = xm_array_median(times, count);
    *spread = xm_curve_spread(times, count);
    return median;
}
