/* SPDX-License-Identifier: Apache-2.0 */
#include "comm/memory/memory.h"

#include <stdio.h>
#include <sys/wait.h>
#include <unistd.h>

#include "comm/memory/strided.h"
#include "tests/comm/memory/cuda_case.h"
#include "xm_test.h"

enum { ROUNDS = 200, MAX_DIMS = 5, LARGE = 200, WIDE = 20000, PAINT = 0x5a };

/* ---- random copies ----------------------------------------------------------------------------
 */

static uint64_t state;

static int64_t any(int64_t low, int64_t high)
{
    state = state * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
    return low + (int64_t)((state >> 33) % (uint64_t)(high - low + 1));
}

static void fill(unsigned char *bytes, size_t count)
{
    for (size_t i = 0; i < count; ++i) {
        bytes[i] = (unsigned char)any(0, 255);
    }
}

/* Strides of a box inside a row-major tile at least as large; returns the tile's bytes and the
 * offset of the box. */
static size_t random_tile(const int64_t *extent, int dims, int64_t element, bool dense,
                          int64_t *stride, size_t *offset)
{
    int64_t step = element;

    *offset = 0;
    for (int d = dims - 1; d >= 0; --d) {
        int64_t room = dense || step > WIDE || any(0, 2) == 0 ? 0 : any(1, 5);
        int64_t before = any(0, room);

        stride[d] = step;
        *offset += (size_t)(before * step);
        step *= extent[d] + room;
    }
    return (size_t)step;
}

/* A copy between places in two tiles that begin at address 0. */
static void random_copy(xm_strided_copy_t *copy, size_t *from_bytes, size_t *to_bytes)
{
    static const int64_t elements[] = {1, 2, 4, 8, 16, 12};
    size_t from, to;
    int64_t volume = 1;

    *copy = (xm_strided_copy_t){.dims = (int)any(1, MAX_DIMS), .element_size = elements[any(0, 5)]};
    for (int d = 0; d < copy->dims; ++d) {
        copy->extent[d] =
            any(0, 3) == 0 || volume > LARGE ? 1 : any(1, 9) * (any(0, 2) == 0 ? 4 : 1);
        volume *= copy->extent[d];
    }
    *from_bytes = random_tile(copy->extent, copy->dims, copy->element_size, any(0, 2) == 0,
                              copy->from_stride, &from);
    *to_bytes = random_tile(copy->extent, copy->dims, copy->element_size, any(0, 2) == 0,
                            copy->to_stride, &to);
    copy->from = from;
    copy->to = to;
    copy->first = any(0, 1) == 0 ? 0 : any(0, volume - 1);
    copy->count = any(0, 1) == 0 ? volume - copy->first : any(1, volume - copy->first);
}

/* Element by element. */
static void reference(const xm_strided_copy_t *copy, const unsigned char *from, unsigned char *to)
{
    for (int64_t e = copy->first; e < copy->first + copy->count; ++e) {
        int64_t left = e, source = (int64_t)copy->from, target = (int64_t)copy->to;

        for (int d = copy->dims - 1; d >= 0; --d) {
            source += left % copy->extent[d] * copy->from_stride[d];
            target += left % copy->extent[d] * copy->to_stride[d];
            left /= copy->extent[d];
        }
        memcpy(to + target, from + source, (size_t)copy->element_size);
    }
}

static void finish(xm_memory_queue_t *queue, xm_memory_mark_t *mark)
{
    xm_status_t status;

    ck_assert_xm_ok(xm_memory_mark_set(mark, queue));
    do {
        status = xm_memory_mark_test(mark);
    } while (status == XM_IN_PROGRESS);
    ck_assert_xm_ok(status);
}

static void check_copy(xm_memory_space_t *space, xm_memory_queue_t *queue, xm_memory_mark_t *mark)
{
    xm_strided_copy_t copy, placed;
    size_t from_bytes, to_bytes;
    unsigned char *from, *to, *found;
    void *source, *target;

    random_copy(&copy, &from_bytes, &to_bytes);
    from = malloc(from_bytes);
    to = malloc(to_bytes);
    found = malloc(to_bytes);
    fill(from, from_bytes);
    memset(to, PAINT, to_bytes);
    ck_assert_xm_ok(xm_memory_allocate(space, from_bytes, &source));
    ck_assert_xm_ok(xm_memory_allocate(space, to_bytes, &target));
    ck_assert_xm_ok(xm_memory_copy(space, source, from, from_bytes));
    ck_assert_xm_ok(xm_memory_copy(space, target, to, to_bytes));
    placed = copy;
    placed.from += (uint64_t)(uintptr_t)source;
    placed.to += (uint64_t)(uintptr_t)target;
    ck_assert_xm_ok(xm_memory_queue_copy(queue, &placed));
    finish(queue, mark);
    ck_assert_xm_ok(xm_memory_copy(space, found, target, to_bytes));
    reference(&copy, from, to);
    for (size_t i = 0; i < to_bytes; ++i) {
        ck_assert_msg(found[i] == to[i], "byte %zu of %zu: %02x, not %02x", i, to_bytes, found[i],
                      to[i]);
    }
    xm_memory_release(space, target);
    xm_memory_release(space, source);
    free(found);
    free(to);
    free(from);
}

static void check_copies(xm_memory_space_t *space, int rounds)
{
    xm_memory_queue_t *queue;
    xm_memory_mark_t *mark;

    ck_assert_xm_ok(xm_memory_queue_create(space, &queue));
    ck_assert_xm_ok(xm_memory_mark_create(space, &mark));
    for (int i = 0; i < rounds; ++i) {
        state = (uint64_t)i + 1;
        check_copy(space, queue, mark);
    }
    xm_memory_mark_destroy(mark);
    xm_memory_queue_destroy(queue);
}

/* ---- the host ---------------------------------------------------------------------------------
 */

START_TEST(host_copies_are_right)
{
    xm_memory_space_t *space;

    ck_assert_xm_ok(xm_memory_host_create(&space));
    check_copies(space, xm_test_rounds(2 * ROUNDS));
    xm_memory_space_destroy(space);
}
END_TEST

START_TEST(units_divide_everything)
{
    for (int i = 0; i < xm_test_rounds(2 * ROUNDS); ++i) {
        xm_strided_copy_t copy;
        size_t from_bytes, to_bytes;
        int64_t unit;
        bool larger = true;

        state = (uint64_t)i + 1;
        random_copy(&copy, &from_bytes, &to_bytes);
        xm_strided_merge(&copy);
        unit = xm_strided_unit(&copy);
        for (int64_t u = unit; u <= 2 * unit; u += unit) {
            bool divides = (int64_t)copy.from % u == 0 && (int64_t)copy.to % u == 0 &&
                           copy.extent[copy.dims - 1] * copy.element_size % u == 0 &&
                           copy.first * copy.element_size % u == 0 &&
                           copy.count * copy.element_size % u == 0;

            for (int d = 0; d < copy.dims - 1; ++d) {
                divides = divides && copy.from_stride[d] % u == 0 && copy.to_stride[d] % u == 0;
            }
            larger = u == unit ? divides : larger && (!divides || unit == 16);
        }
        ck_assert_msg(larger, "copy %d: %d is not the largest unit", i, (int)unit);
    }
}
END_TEST

START_TEST(host_memory_is_recognised)
{
    static char global;
    char local;
    xm_memory_place_t places[3];
    const void *const addresses[] = {NULL, &global, &local};

    xm_memory_recognise(addresses, 3, places);
    for (size_t i = 0; i < 3; ++i) {
        ck_assert_int_eq(places[i].kind, XM_MEMORY_HOST);
        ck_assert_int_eq(places[i].device, -1);
    }
}
END_TEST

/* Where there is no driver: one sentence, and host memory as ever. */
START_TEST(no_driver_is_no_failure)
{
    xm_memory_space_t *space;
    int count;

    if (xm_memory_cuda_count(&count) == XM_OK) {
        (void)printf("there is a CUDA driver\n");
        return;
    }
    ck_assert_xm_fails(xm_memory_cuda_create(0, &space), XM_ERR_UNSUPPORTED, "no CUDA: ");
}
END_TEST

/* ---- a device ---------------------------------------------------------------------------------
 */

static xm_memory_space_t *open_device(void)
{
    xm_memory_space_t *space;

    ck_assert_xm_ok(xm_memory_cuda_create(0, &space));
    return space;
}

START_TEST(device_copies_are_right)
{
    xm_memory_space_t *space = open_device();

    check_copies(space, xm_test_rounds(ROUNDS));
    xm_memory_space_destroy(space);
}
END_TEST

/* Long rows, more units than one grid has threads, and rows that no launch could take at once. */
START_TEST(large_boxes_are_copied)
{
    enum { ROWS = 700, ROW = 6000, PART = 4003 };
    xm_memory_space_t *space = open_device();
    xm_memory_queue_t *queue;
    xm_memory_mark_t *mark;
    unsigned char *from = malloc((size_t)ROWS * ROW), *found = malloc((size_t)ROWS * PART);
    void *source, *target;
    xm_strided_copy_t copy = {.dims = 2,
                              .extent = {ROWS, PART},
                              .from_stride = {ROW, 1},
                              .to_stride = {PART, 1},
                              .element_size = 1,
                              .count = (int64_t)ROWS * PART};

    state = 7;
    fill(from, (size_t)ROWS * ROW);
    ck_assert_xm_ok(xm_memory_queue_create(space, &queue));
    ck_assert_xm_ok(xm_memory_mark_create(space, &mark));
    ck_assert_xm_ok(xm_memory_allocate(space, (size_t)ROWS * ROW, &source));
    ck_assert_xm_ok(xm_memory_allocate_pinned(space, (size_t)ROWS * PART, &target));
    ck_assert_xm_ok(xm_memory_copy(space, source, from, (size_t)ROWS * ROW));
    copy.from = (uint64_t)(uintptr_t)source + 1000;
    copy.to = (uint64_t)(uintptr_t)target;
    ck_assert_xm_ok(xm_memory_queue_copy(queue, &copy));
    finish(queue, mark);
    memcpy(found, target, (size_t)ROWS * PART);
    for (size_t r = 0; r < ROWS; ++r) {
        ck_assert_int_eq(memcmp(found + r * PART, from + r * ROW + 1000, PART), 0);
    }
    xm_memory_release_pinned(space, target);
    xm_memory_release(space, source);
    xm_memory_mark_destroy(mark);
    xm_memory_queue_destroy(queue);
    xm_memory_space_destroy(space);
    free(found);
    free(from);
}
END_TEST

START_TEST(device_memory_is_recognised)
{
    xm_memory_space_t *space = open_device();
    xm_memory_place_t places[3];
    const void *addresses[3];
    void *device, *pinned;

    ck_assert_xm_ok(xm_memory_allocate(space, 1000, &device));
    ck_assert_xm_ok(xm_memory_allocate_pinned(space, 1000, &pinned));
    addresses[0] = (char *)device + 999;
    addresses[1] = pinned;
    addresses[2] = &device;
    xm_memory_recognise(addresses, 3, places);
    ck_assert_int_eq(places[0].kind, XM_MEMORY_CUDA);
    ck_assert_int_eq(places[0].device, 0);
    ck_assert(!places[0].managed);
    ck_assert_int_eq(places[1].kind, XM_MEMORY_HOST);
    ck_assert_int_eq(places[2].kind, XM_MEMORY_HOST);
    xm_memory_release_pinned(space, pinned);
    xm_memory_release(space, device);
    xm_memory_space_destroy(space);
}
END_TEST

/* What follows a mark in another queue finds what came before the mark. */
START_TEST(queues_wait_for_marks)
{
    enum { BYTES = 1 << 20, STEPS = 8 };
    xm_memory_space_t *space = open_device();
    xm_memory_queue_t *queues[2];
    xm_memory_mark_t *marks[2];
    unsigned char *bytes = malloc(BYTES), *found;
    void *memory[STEPS + 1], *last;
    xm_strided_copy_t copy = {.dims = 1,
                              .extent = {BYTES},
                              .from_stride = {1},
                              .to_stride = {1},
                              .element_size = 1,
                              .count = BYTES};

    for (int q = 0; q < 2; ++q) {
        ck_assert_xm_ok(xm_memory_queue_create(space, &queues[q]));
        ck_assert_xm_ok(xm_memory_mark_create(space, &marks[q]));
    }
    state = 3;
    fill(bytes, BYTES);
    for (int i = 0; i <= STEPS; ++i) {
        ck_assert_xm_ok(xm_memory_allocate(space, BYTES, &memory[i]));
    }
    ck_assert_xm_ok(xm_memory_copy(space, memory[0], bytes, BYTES));
    for (int i = 0; i < STEPS; ++i) {
        copy.from = (uint64_t)(uintptr_t)memory[i];
        copy.to = (uint64_t)(uintptr_t)memory[i + 1];
        ck_assert_xm_ok(xm_memory_queue_copy(queues[i % 2], &copy));
        ck_assert_xm_ok(xm_memory_mark_set(marks[i % 2], queues[i % 2]));
        ck_assert_xm_ok(xm_memory_queue_await(queues[(i + 1) % 2], marks[i % 2]));
    }
    ck_assert_xm_ok(xm_memory_allocate_pinned(space, BYTES, &last));
    copy.from = (uint64_t)(uintptr_t)memory[STEPS];
    copy.to = (uint64_t)(uintptr_t)last;
    ck_assert_xm_ok(xm_memory_queue_copy(queues[STEPS % 2], &copy));
    finish(queues[STEPS % 2], marks[0]);
    found = last;
    ck_assert_int_eq(memcmp(found, bytes, BYTES), 0);
    xm_memory_release_pinned(space, last);
    for (int i = 0; i <= STEPS; ++i) {
        xm_memory_release(space, memory[i]);
    }
    for (int q = 0; q < 2; ++q) {
        xm_memory_mark_destroy(marks[q]);
        xm_memory_queue_destroy(queues[q]);
    }
    xm_memory_space_destroy(space);
    free(bytes);
}
END_TEST

/* ---- another process's memory -----------------------------------------------------------------
 */

enum { SHARED = 100000, OFFSET = 4321 };

/* Owns memory, shares a place in it, and looks at it when the other process is done. */
static int share_memory(int to, int from)
{
    unsigned char *bytes = malloc(SHARED), *found = malloc(SHARED), go;
    xm_memory_space_t *space = open_device();
    xm_memory_share_t share;
    void *memory;
    bool right;

    state = 11;
    fill(bytes, SHARED);
    ck_assert_xm_ok(xm_memory_allocate(space, SHARED, &memory));
    ck_assert_xm_ok(xm_memory_copy(space, memory, bytes, SHARED));
    ck_assert_xm_ok(xm_memory_share(space, (char *)memory + OFFSET, &share));
    ck_assert_int_eq(write(to, &share, sizeof(share)), (ssize_t)sizeof(share));
    ck_assert_int_eq(read(from, &go, 1), 1);
    ck_assert_xm_ok(xm_memory_copy(space, found, memory, SHARED));
    right = memcmp(found, bytes, OFFSET) == 0;
    for (size_t i = OFFSET; i < SHARED; ++i) {
        right = right && found[i] == (unsigned char)~bytes[i];
    }
    xm_memory_release(space, memory);
    xm_memory_space_destroy(space);
    free(found);
    free(bytes);
    return right ? 0 : 1;
}

/* A process that is wrong about its offset. */
static void refuse_what_lies_outside(xm_memory_space_t *space, xm_memory_share_t share)
{
    void *opened;

    ck_assert_xm_fails(xm_memory_open(space, &share, SHARED - OFFSET + 1, &opened),
                       XM_ERR_INVALID_ARGUMENT, "are said to be shared");
    share.offset = UINT64_MAX - 7;
    ck_assert_int_lt(xm_memory_open(space, &share, SHARED, &opened), 0);
}

START_TEST(other_processes_memory_is_opened_once)
{
    int there[2], back[2], status;
    unsigned char *bytes = malloc(SHARED), *found = malloc(SHARED);
    xm_memory_space_t *space;
    xm_memory_share_t share;
    void *opened, *again;
    pid_t child;

    ck_assert_int_eq(pipe(there), 0);
    ck_assert_int_eq(pipe(back), 0);
    child = fork();
    if (child == 0) {
        _exit(share_memory(there[1], back[0]));
    }
    ck_assert_int_eq(read(there[0], &share, sizeof(share)), (ssize_t)sizeof(share));
    space = open_device();
    ck_assert_xm_ok(xm_memory_open(space, &share, SHARED - OFFSET, &opened));
    ck_assert_xm_ok(xm_memory_open(space, &share, SHARED - OFFSET, &again));
    ck_assert_ptr_eq(opened, again);
    refuse_what_lies_outside(space, share);
    state = 11;
    fill(bytes, SHARED);
    ck_assert_xm_ok(xm_memory_copy(space, found, opened, SHARED - OFFSET));
    ck_assert_int_eq(memcmp(found, bytes + OFFSET, SHARED - OFFSET), 0);
    for (size_t i = 0; i < SHARED - OFFSET; ++i) {
        found[i] = (unsigned char)~found[i];
    }
    ck_assert_xm_ok(xm_memory_copy(space, opened, found, SHARED - OFFSET));
    ck_assert_int_eq(write(back[1], "", 1), 1);
    ck_assert_int_eq(waitpid(child, &status, 0), child);
    ck_assert_int_eq(status, 0);
    xm_memory_space_destroy(space);
    free(found);
    free(bytes);
}
END_TEST

START_TEST(own_memory_is_opened_as_it_is)
{
    xm_memory_space_t *space = open_device();
    xm_memory_share_t share;
    void *memory, *opened;

    ck_assert_xm_ok(xm_memory_allocate(space, 100, &memory));
    ck_assert_xm_ok(xm_memory_share(space, (char *)memory + 10, &share));
    ck_assert_xm_ok(xm_memory_open(space, &share, 90, &opened));
    ck_assert_ptr_eq(opened, (char *)memory + 10);
    ck_assert_xm_fails(xm_memory_open(space, &share, 91, &opened), XM_ERR_INVALID_ARGUMENT,
                       "91 bytes are said to be shared where there are 100");
    xm_memory_release(space, memory);
    xm_memory_space_destroy(space);
}
END_TEST

/* ---- faults, with the stand-in only -----------------------------------------------------------
 */

START_TEST(an_unusable_driver_is_no_cuda)
{
    xm_memory_space_t *space;
    xm_memory_place_t place;
    const void *address = &place;

    cuda_log();
    cuda_fail("cuInit=34"); /* what the library for linking says */
    ck_assert_xm_fails(xm_memory_cuda_create(0, &space), XM_ERR_UNSUPPORTED,
                       "no CUDA: driver: cuInit");
    ck_assert(cuda_logged("cuInit: unknown result (34"));
    xm_memory_recognise(&address, 1, &place);
    ck_assert_int_eq(place.kind, XM_MEMORY_HOST);
}
END_TEST

START_TEST(a_device_that_is_not_there_is_named)
{
    xm_memory_space_t *space;

    ck_assert_xm_fails(xm_memory_cuda_create(5, &space), XM_ERR_NOT_FOUND,
                       "CUDA device 5 does not exist, there are 2");
}
END_TEST

START_TEST(full_memory_is_told_with_the_size)
{
    xm_memory_space_t *space = open_device();
    void *memory;

    cuda_fail("cuMemAlloc_v2=2,cuMemHostAlloc=2");
    ck_assert_xm_fails(xm_memory_allocate(space, 12345, &memory), XM_ERR_NO_MEMORY,
                       "CUDA device 0: cuMemAlloc of 12345 bytes: CUDA_ERROR_OUT_OF_MEMORY (2, out "
                       "of memory)");
    ck_assert_xm_fails(xm_memory_allocate_pinned(space, 77, &memory), XM_ERR_NO_MEMORY,
                       "cuMemHostAlloc of 77 bytes");
    xm_memory_space_destroy(space);
}
END_TEST

/* Without kernels the bytes are the same. */
static void check_without_kernels(const char *faults, const char *line)
{
    xm_memory_space_t *space;

    cuda_log();
    cuda_fail(faults);
    space = open_device();
    check_copies(space, ROUNDS); /* not all need kernels */
    ck_assert(!space->kernels);
    ck_assert(line == NULL || cuda_logged(line) || cuda_logged("built without clang"));
    xm_memory_space_destroy(space);
}

START_TEST(kernels_that_do_not_load_are_done_without)
{
    check_without_kernels("cuModuleLoadData=209", "cuModuleLoadData: unknown result (209");
}
END_TEST

START_TEST(kernels_that_do_not_start_are_done_without)
{
    check_without_kernels("cuLaunchKernel=701@50", "cuLaunchKernel: unknown result (701");
}
END_TEST

START_TEST(a_lost_device_is_told)
{
    xm_memory_space_t *space = open_device();
    xm_memory_queue_t *queue;
    xm_memory_mark_t *mark;
    xm_status_t status;

    ck_assert_xm_ok(xm_memory_queue_create(space, &queue));
    ck_assert_xm_ok(xm_memory_mark_create(space, &mark));
    cuda_fail("step=700");
    ck_assert_xm_ok(xm_memory_mark_set(mark, queue));
    do {
        status = xm_memory_mark_test(mark);
    } while (status == XM_IN_PROGRESS);
    ck_assert_int_eq(status, XM_ERR_IO);
    ck_assert_ptr_nonnull(strstr(xm_last_error(), "CUDA_ERROR_ILLEGAL_ADDRESS (700"));
    xm_memory_mark_destroy(mark);
    xm_memory_queue_destroy(queue);
    xm_memory_space_destroy(space);
}
END_TEST

START_TEST(memory_that_cannot_be_shared_or_opened_is_told)
{
    xm_memory_space_t *space = open_device();
    xm_memory_share_t share;
    void *memory, *opened;

    ck_assert_xm_ok(xm_memory_allocate(space, 100, &memory));
    ck_assert_xm_ok(xm_memory_share(space, memory, &share));
    ++share.process[0];
    cuda_fail("cuIpcOpenMemHandle_v2=201");
    ck_assert_xm_fails(xm_memory_open(space, &share, 100, &opened), XM_ERR_IO,
                       "cuIpcOpenMemHandle");
    cuda_fail("cuIpcGetMemHandle=801");
    ck_assert_xm_fails(xm_memory_share(space, memory, &share), XM_ERR_UNSUPPORTED,
                       "cuIpcGetMemHandle");
    xm_memory_release(space, memory);
    xm_memory_space_destroy(space);
}
END_TEST

/* The programs that run on any machine, and on one with a device, are the same. */
static bool lacks_device(void)
{
    const char *chosen = getenv("CK_RUN_CASE");

    return chosen != NULL && strcmp(chosen, "cuda") == 0 && !cuda_is_there();
}

int main(void)
{
    Suite *suite;
    TCase *host, *cuda, *fault;

    if (lacks_device()) {
        return CUDA_SKIPPED;
    }
    suite = suite_create("memory");
    host = tcase_create("host");
    cuda = tcase_create("cuda");
    fault = tcase_create("fault");
    tcase_set_timeout(host, 60);
    tcase_add_test(host, host_copies_are_right);
    tcase_add_test(host, units_divide_everything);
    tcase_add_test(host, host_memory_is_recognised);
    tcase_add_test(host, no_driver_is_no_failure);
    tcase_set_timeout(cuda, 60);
    tcase_add_test(cuda, device_copies_are_right);
    tcase_add_test(cuda, large_boxes_are_copied);
    tcase_add_test(cuda, device_memory_is_recognised);
    tcase_add_test(cuda, queues_wait_for_marks);
    tcase_add_test(cuda, other_processes_memory_is_opened_once);
    tcase_add_test(cuda, own_memory_is_opened_as_it_is);
    tcase_set_timeout(fault, 60);
    tcase_add_test(fault, an_unusable_driver_is_no_cuda);
    tcase_add_test(fault, a_device_that_is_not_there_is_named);
    tcase_add_test(fault, full_memory_is_told_with_the_size);
    tcase_add_test(fault, kernels_that_do_not_load_are_done_without);
    tcase_add_test(fault, kernels_that_do_not_start_are_done_without);
    tcase_add_test(fault, a_lost_device_is_told);
    tcase_add_test(fault, memory_that_cannot_be_shared_or_opened_is_told);
    suite_add_tcase(suite, host);
    suite_add_tcase(suite, cuda);
    suite_add_tcase(suite, fault);
    return xm_test_run(suite);
}
