/* SPDX-License-Identifier: Apache-2.0 */
/* The instruments for FLOP/s and memory copies on one core. This file is compiled with -O3 and
 * contraction to fused multiply-add in every build type: a debug build must not report a slower
 * machine. The loops are written so that a compiler can neither drop nor shorten them, and use
 * the widest vectors that the processor has, chosen at run time. */
#include "comm/probe/compute.h"

#include <math.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
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

/* The compiler must not know where a chain starts: one that it sees to be constant would not be
 * computed. Each converges to 1, so no operand is ever denormal. */
static volatile const float origin = 2;

/* The same loop exists for each type of number and vector width, because the width is part of a
 * function's compilation. */
#define MULTIPLY_ADD(type, bytes, target)                                                          \
    typedef type type##bytes##_t __attribute__((vector_size(bytes)));                              \
    target static float type##_products_##bytes(void) /* NOLINT(bugprone-macro-parentheses) */     \
    {                                                                                              \
        const type factor = (type)0.75, addend = (type)0.25;                                       \
        type##bytes##_t chain[CHAINS], sum = {0};                                                  \
                                                                                                   \
        for (int c = 0; c < CHAINS; ++c) {                                                         \
            chain[c] = (type##bytes##_t){0} + ((type)origin + (type)c);                            \
        }                                                                                          \
        for (int round = 0; round < ROUNDS; ++round) {                                             \
            for (int c = 0; c < CHAINS; ++c) {                                                     \
                chain[c] = chain[c] * factor + addend;                                             \
            }                                                                                      \
        }                                                                                          \
        for (int c = 0; c < CHAINS; ++c) {                                                         \
            sum += chain[c];                                                                       \
        }                                                                                          \
        return (float)sum[0];                                                                      \
    }

MULTIPLY_ADD(float, 16, )
MULTIPLY_ADD(double, 16, )
#ifdef __x86_64__
MULTIPLY_ADD(float, 32, __attribute__((target("avx2,fma"))))
MULTIPLY_ADD(double, 32, __attribute__((target("avx2,fma"))))
MULTIPLY_ADD(float, 64, __attribute__((target("avx512f"))))
MULTIPLY_ADD(double, 64, __attribute__((target("avx512f"))))
#endif

/* Bytes of the widest vectors that this processor multiplies. */
static int vector_bytes(void)
{
#ifdef __x86_64__
    if (__builtin_cpu_supports("avx512f")) {
        return 64;
    }
    if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma")) {
        return 32;
    }
#endif
    return 16;
}

const char *xm_probe_flops_kind(void)
{
    int bytes = vector_bytes();

    return bytes == 64   ? "AVX-512 multiply-add"
           : bytes == 32 ? "AVX2 multiply-add"
                         : "128-bit multiply-add";
}

static xm_probe_kernel_t kernel_of(xm_number_t number)
{
    int bytes = vector_bytes();
    bool wide = number == XM_NUMBER_FLOAT64;

    if (number != XM_NUMBER_FLOAT32 && !wide) {
        return xm_probe_narrow_kernel(number);
    }
#ifdef __x86_64__
    if (bytes == 64) {
        return (xm_probe_kernel_t){wide ? double_products_64 : float_products_64, wide ? 8 : 16};
    }
    if (bytes == 32) {
        return (xm_probe_kernel_t){wide ? double_products_32 : float_products_32, wide ? 4 : 8};
    }
#endif
    return (xm_probe_kernel_t){wide ? double_products_16 : float_products_16, wide ? 2 : 4};
}

/* Runs @p run in samples that share the time evenly. The first call is not timed: it brings the
 * core to its working frequency. */
static xm_probe_figure_t rate_of(double (*run)(void *arg), void *arg, double seconds)
{
    enum { SAMPLES = 12 };
    double rates[SAMPLES], away[SAMPLES], median;

    (void)run(arg);
    for (int i = 0; i < SAMPLES; ++i) {
        double start = xm_clock_seconds(), elapsed, done = 0;

        do {
            done += run(arg);
            elapsed = xm_clock_seconds() - start;
        } while (elapsed < seconds / SAMPLES);
        rates[i] = done / elapsed;
    }
    median = xm_array_median(rates, SAMPLES);
    for (int i = 0; i < SAMPLES; ++i) {
        away[i] = fabs(rates[i] / median - 1.0);
    }
    /* Half of what lies evenly up to some distance lies up to half of it. */
    return (xm_probe_figure_t){median, xm_curve_spread(rates, SAMPLES),
                               2.0 * xm_array_median(away, SAMPLES)};
}

static double compute(void *arg)
{
    const xm_probe_kernel_t *kernel = arg;
    volatile float sink = kernel->run();

    (void)sink;
    return 2.0 * ROUNDS * CHAINS * kernel->lanes;
}

xm_probe_figure_t xm_probe_flops(xm_number_t number, double seconds)
{
    xm_probe_kernel_t kernel = kernel_of(number);

    return kernel.run != NULL ? rate_of(compute, &kernel, seconds) : (xm_probe_figure_t){0, 0, 0};
}

enum { COPY_PIECE = 256 << 10, LINE = 64 };

/* Programs see caches of neighbours in what sysconf() tells, and a virtual machine those of its
 * whole host. */
static size_t largest_cache(void)
{
    size_t most = 0;

    for (int i = 0; i < 8; ++i) {
        char path[80], text[32] = "";
        FILE *file;

        (void)snprintf(path, sizeof(path), "/sys/devices/system/cpu/cpu0/cache/index%d/size", i);
        file = fopen(path, "re");
        if (file != NULL) {
            size_t kilobytes =
                fgets(text, sizeof(text), file) != NULL ? strtoul(text, NULL, 10) : 0;

            most = kilobytes << 10 > most ? kilobytes << 10 : most;
            (void)fclose(file);
        }
    }
    return most;
}

/* Twice the cache, since what was used last is in it. A cache beyond what processors have is that
 * of all the machines that a virtual one lives on. */
size_t xm_probe_cold_bytes(int buffers, size_t least)
{
    const size_t most = 512 << 20;
    size_t bytes = LINE, cache = largest_cache();

    while (bytes < least || (bytes < most && bytes * (size_t)buffers < 2 * cache)) {
        bytes *= 2;
    }
    return bytes;
}

size_t xm_probe_place(size_t pool, size_t bytes, uint64_t index)
{
    size_t slot = LINE;

    while (slot < bytes) {
        slot *= 2;
    }
    /* An odd factor visits all places of a power of two once, in no order that a processor could
     * foresee. */
    return pool > slot ? (index * UINT64_C(0x9E3779B1) & (pool / slot - 1)) * slot : 0;
}

/* Compilers turn memory that is only cleared into memory that is not there yet, so the bytes are
 * written where no compiler sees where they come from. Whole pages, large ones where it is large:
 * how fast a copy is must not hang on where its ends begin. */
void *xm_probe_memory(size_t bytes)
{
    const size_t page = bytes < 2 << 20 ? 4096 : 2 << 20;
    unsigned char *memory = aligned_alloc(page, (bytes + page - 1) / page * page);

    __asm__ volatile("" : "+r"(memory) : : "memory");
    if (memory == NULL) {
        (void)xm_error_set(XM_ERR_NO_MEMORY, "probe: no memory for a buffer of %zu bytes", bytes);
        return NULL;
    }
    memset(memory, 1, bytes);
    return memory;
}

/* Copies in a way that the compiler can neither drop nor merge with the next copy. */
static void copy(void *to, const void *from, size_t bytes)
{
    memcpy(to, from, bytes);
    __asm__ volatile("" : : "r"(to), "r"(from) : "memory");
}

typedef struct {
    char *to;
    const char *from;
    size_t bytes, at;
} copying_t;

/* The clock is read after every piece, so that a rank that shares its core is not cut off in
 * mid-copy. Each byte is read and written, so it counts twice. */
static double copy_piece(void *arg)
{
    copying_t *job = arg;
    size_t piece = job->bytes < COPY_PIECE ? job->bytes : COPY_PIECE;

    copy(job->to + job->at, job->from + job->at, piece);
    job->at = job->at + 2 * piece <= job->bytes ? job->at + piece : 0;
    return 2 * (double)piece;
}

xm_probe_figure_t xm_probe_copy_bandwidth(void *to, const void *from, size_t bytes, double seconds)
{
    copying_t job = {.to = to, .from = from, .bytes = bytes};

    return rate_of(copy_piece, &job, seconds);
}

/* Doubles the batch until a sample is long enough for the clock, then takes the samples. */
double xm_probe_copy_seconds(unsigned char *to, const unsigned char *from, size_t pool,
                             size_t bytes, int repetitions, double *spread)
{
    enum { MAX_REPETITIONS = 64 };
    const double shortest = 50e-6; /* a thousand ticks of the clock */
    double times[MAX_REPETITIONS], median;
    uint64_t batch = 1, index = 0;
    int count = repetitions < MAX_REPETITIONS ? repetitions : MAX_REPETITIONS;

    for (int i = 0; i < count;) {
        double start = xm_clock_seconds(), elapsed;

        for (uint64_t n = 0; n < batch; ++n) {
            size_t at = xm_probe_place(pool, bytes, index++);

            copy(to + at, from + at, bytes);
        }
        elapsed = xm_clock_seconds() - start;
        if (elapsed < shortest && batch < UINT64_C(1) << 30) {
            batch *= 2;
            continue;
        }
        times[i++] = elapsed / (double)batch;
    }
    median = xm_array_median(times, count);
    *spread = xm_curve_spread(times, count);
    return median;
}
