/* SPDX-License-Identifier: Apache-2.0 */
#include "comm/memory/shared_memory.h"

#include <endian.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "tests/comm/job/local_job.h"
#include "xm_test.h"

enum { KEY = XM_SHARED_MEMORY_KEY_SIZE, PAGES = 3, NOBODY = 65534 };

/* Where a key has what (shared_memory.h). */
enum { AT_PID, AT_FD = 4, AT_LENGTH = 8, AT_INODE = 16, AT_NAMESPACE = 24, AT_RANDOM = 32 };

static unsigned char pattern(uint64_t i)
{
    return (unsigned char)(i * 7 + (i >> 8) * 13 + 5);
}

static void fill(unsigned char *bytes, uint64_t length)
{
    for (uint64_t i = 0; i < length; ++i) {
        bytes[i] = pattern(i);
    }
}

static uint64_t wrong(const unsigned char *bytes, uint64_t length)
{
    uint64_t count = 0;

    for (uint64_t i = 0; i < length; ++i) {
        count += bytes[i] != pattern(i);
    }
    return count;
}

static void put_u32(unsigned char *bytes, uint32_t value)
{
    value = htole32(value);
    memcpy(bytes, &value, sizeof(value));
}

static void put_u64(unsigned char *bytes, uint64_t value)
{
    value = htole64(value);
    memcpy(bytes, &value, sizeof(value));
}

static uint64_t get_u64(const unsigned char *bytes)
{
    uint64_t value;

    memcpy(&value, bytes, sizeof(value));
    return le64toh(value);
}

static int fd_of(const unsigned char *key)
{
    uint32_t value;

    memcpy(&value, key + AT_FD, sizeof(value));
    return (int)le32toh(value);
}

/* Runs `act` in a child and returns how it ended, as waitpid() tells it. */
static int status_of_child(void (*act)(void *arg), void *arg)
{
    int status;
    pid_t child = fork();

    ck_assert_int_ge(child, 0);
    if (child == 0) {
        act(arg);
        _exit(0);
    }
    ck_assert_int_eq(waitpid(child, &status, 0), child);
    return status;
}

START_TEST(a_view_shows_what_the_owner_writes)
{
    static const uint64_t lengths[] = {1, 4095, 4096, 4097, 1 << 20};

    for (size_t i = 0; i < sizeof(lengths) / sizeof(lengths[0]); ++i) {
        xm_shared_memory_t *memory;
        xm_shared_view_t view;
        unsigned char key[KEY], *bytes;

        ck_assert_xm_ok(xm_shared_memory_create(lengths[i], &memory));
        bytes = xm_shared_memory_address(memory);
        ck_assert_uint_eq((uintptr_t)bytes % 4096, 0);
        ck_assert_uint_eq(bytes[lengths[i] - 1], 0);
        xm_shared_memory_key(memory, key);
        ck_assert_xm_ok(xm_shared_memory_attach(key, &view));
        ck_assert_uint_eq(view.length, lengths[i]);
        ck_assert_ptr_ne(view.address, bytes);
        fill(bytes, lengths[i]);
        ck_assert_uint_eq(wrong(view.address, view.length), 0);
        xm_shared_memory_destroy(memory);
        ck_assert_uint_eq(wrong(view.address, view.length), 0); /* outlives its owner's */
        ck_assert_int_lt(xm_shared_memory_attach(key, &view), 0);
        xm_shared_memory_detach(&view);
        ck_assert_ptr_null(view.address);
        xm_shared_memory_detach(&view);
    }
    xm_shared_memory_destroy(NULL);
}
END_TEST

START_TEST(impossible_lengths_are_refused)
{
    xm_shared_memory_t *memory;

    ck_assert_xm_fails(xm_shared_memory_create(0, &memory), XM_ERR_INVALID_ARGUMENT,
                       "a shared memory cannot have 0 bytes");
    ck_assert_xm_fails(xm_shared_memory_create(UINT64_MAX, &memory), XM_ERR_INVALID_ARGUMENT,
                       "18446744073709551615 bytes");
}
END_TEST

/* What the owner tells the test, in memory that both have anyway. */
typedef struct {
    unsigned char key[KEY];
    volatile bool ready;
} owner_t;

static pid_t start_owner(owner_t *owner, bool dumpable)
{
    pid_t child = fork(), parent = getpid();

    ck_assert_int_ge(child, 0);
    if (child == 0) {
        xm_shared_memory_t *memory;

        (void)prctl(PR_SET_PDEATHSIG, SIGKILL);
        if (getppid() != parent && !dumpable) {
            _exit(1);
        }
        local_expect_ok(xm_shared_memory_create(PAGES * 4096, &memory));
        fill(xm_shared_memory_address(memory), PAGES * 4096);
        xm_shared_memory_key(memory, owner->key);
        (void)prctl(PR_SET_DUMPABLE, dumpable);
        owner->ready = true;
        while (true) {
            (void)pause();
        }
    }
    for (double start = local_now(); !owner->ready;) {
        ck_assert_double_lt(local_now() - start, local_timeout(20));
        local_sleep(0.001);
    }
    return child;
}

static void end_owner(pid_t owner)
{
    (void)kill(owner, SIGKILL);
    ck_assert_int_eq(waitpid(owner, NULL, 0), owner);
}

START_TEST(a_view_outlives_a_killed_owner)
{
    owner_t *owner = local_shared(sizeof(*owner));
    pid_t pid = start_owner(owner, true);
    xm_shared_view_t view, second;

    ck_assert_xm_ok(xm_shared_memory_attach(owner->key, &view));
    end_owner(pid);
    ck_assert_uint_eq(wrong(view.address, view.length), 0);
    ck_assert_uint_eq(view.length, PAGES * 4096);
    ck_assert_xm_fails(xm_shared_memory_attach(owner->key, &second), XM_ERR_UNREACHABLE, "/proc/");
    xm_shared_memory_detach(&view);
}
END_TEST

static void attach_as_nobody(void *arg)
{
    xm_shared_view_t view;

    local_expect(setgid(NOBODY) == 0 && setuid(NOBODY) == 0, "cannot become nobody");
    local_expect_fails(xm_shared_memory_attach(arg, &view), XM_ERR_UNREACHABLE, "ermission denied");
}

/* Another user, and the same user when the owner may not be looked at. */
START_TEST(the_kernel_may_refuse)
{
    owner_t *owner = local_shared(sizeof(*owner));
    pid_t pid = start_owner(owner, geteuid() == 0);
    xm_shared_view_t view;

    if (geteuid() == 0) {
        ck_assert_int_eq(status_of_child(attach_as_nobody, owner->key), 0);
    } else {
        ck_assert_xm_fails(xm_shared_memory_attach(owner->key, &view), XM_ERR_UNREACHABLE,
                           "ermission denied");
    }
    end_owner(pid);
}
END_TEST

static bool is_thread_of_this_process(const unsigned char *pid)
{
    char path[64];
    uint32_t number;

    memcpy(&number, pid, sizeof(number));
    (void)snprintf(path, sizeof(path), "/proc/self/task/%u", le32toh(number));
    return access(path, F_OK) == 0;
}

START_TEST(a_key_that_is_not_quite_right_is_refused)
{
    xm_shared_memory_t *memory;
    xm_shared_view_t view = {0};
    unsigned char key[KEY], bad[KEY];

    ck_assert_xm_ok(xm_shared_memory_create(PAGES * 4096, &memory));
    xm_shared_memory_key(memory, key);
    for (int bit = 0; bit < 8 * KEY; ++bit) {
        memcpy(bad, key, KEY);
        bad[bit / 8] ^= (unsigned char)(1 << bit % 8);
        if (bit / 8 < AT_FD && is_thread_of_this_process(bad + AT_PID)) {
            continue; /* a sanitizer's thread: another name of the owner */
        }
        if (bit / 8 >= AT_LENGTH && bit / 8 < AT_INODE && bit < 8 * AT_LENGTH + 12) {
            continue; /* as many pages: the owner's word is taken */
        }
        ck_assert_msg(xm_shared_memory_attach(bad, &view) < 0, "bit %d", bit);
        ck_assert_ptr_null(view.address);
    }
    memcpy(bad, key, KEY);
    bad[AT_RANDOM + 15] ^= 128;
    ck_assert_xm_fails(xm_shared_memory_attach(bad, &view), XM_ERR_MISMATCH,
                       "has other random bytes: the shared memory of 12288 bytes is gone");
    memcpy(bad, key, KEY);
    put_u64(bad + AT_INODE, get_u64(key + AT_INODE) + 1);
    ck_assert_xm_fails(xm_shared_memory_attach(bad, &view), XM_ERR_MISMATCH, "is another one now");
    memcpy(bad, key, KEY);
    put_u64(bad + AT_NAMESPACE, 77);
    ck_assert_xm_fails(xm_shared_memory_attach(bad, &view), XM_ERR_UNREACHABLE,
                       "is in process-id namespace 77, this one in ");
    memset(bad, 0, KEY);
    ck_assert_xm_fails(xm_shared_memory_attach(bad, &view), XM_ERR_CORRUPT,
                       "no key of a shared memory: process 0");
    memset(bad, 255, KEY);
    ck_assert_xm_fails(xm_shared_memory_attach(bad, &view), XM_ERR_CORRUPT, "process 4294967295");
    xm_shared_memory_destroy(memory);
}
END_TEST

/* The number of the file belongs to something else now: another shared memory, or a pipe, whose
 * opening would wait for ever. */
START_TEST(reused_numbers_are_noticed)
{
    xm_shared_memory_t *first, *second;
    xm_shared_view_t view;
    unsigned char key[KEY], other[KEY];
    int ends[2];

    ck_assert_xm_ok(xm_shared_memory_create(4096, &first));
    xm_shared_memory_key(first, key);
    xm_shared_memory_destroy(first);
    ck_assert_xm_ok(xm_shared_memory_create(4096, &second));
    xm_shared_memory_key(second, other);
    ck_assert_int_eq(fd_of(key), fd_of(other));
    ck_assert_xm_fails(xm_shared_memory_attach(key, &view), XM_ERR_MISMATCH, "is another one now");
    put_u64(key + AT_INODE, get_u64(other + AT_INODE)); /* even the inode's number */
    ck_assert_xm_fails(xm_shared_memory_attach(key, &view), XM_ERR_MISMATCH,
                       "has other random bytes");
    xm_shared_memory_destroy(second);
    ck_assert_int_eq(pipe(ends), 0);
    ck_assert_int_eq(ends[0], fd_of(key));
    ck_assert_xm_fails(xm_shared_memory_attach(key, &view), XM_ERR_MISMATCH, "is another one now");
    (void)close(ends[0]);
    (void)close(ends[1]);
}
END_TEST

START_TEST(the_size_is_sealed)
{
    xm_shared_memory_t *memory;
    unsigned char key[KEY];

    ck_assert_xm_ok(xm_shared_memory_create(PAGES * 4096, &memory));
    xm_shared_memory_key(memory, key);
    ck_assert_int_ne(ftruncate(fd_of(key), 0), 0);
    ck_assert_int_ne(ftruncate(fd_of(key), 100 * 4096), 0);
    xm_shared_memory_destroy(memory);
}
END_TEST

/* A file that is right in everything but may be cut short under its readers. */
START_TEST(a_file_that_may_shrink_is_refused)
{
    xm_shared_memory_t *memory;
    xm_shared_view_t view;
    struct stat info;
    unsigned char key[KEY];
    int fd = memfd_create("unsealed", MFD_CLOEXEC | MFD_ALLOW_SEALING);

    ck_assert_int_ge(fd, 0);
    ck_assert_xm_ok(xm_shared_memory_create(4096, &memory));
    xm_shared_memory_key(memory, key);
    ck_assert_int_eq(ftruncate(fd, 2 * 4096), 0);
    ck_assert_int_eq(pwrite(fd, key + AT_RANDOM, 16, 4096), 16);
    ck_assert_int_eq(fstat(fd, &info), 0);
    put_u32(key + AT_FD, (uint32_t)fd);
    put_u64(key + AT_INODE, (uint64_t)info.st_ino);
    ck_assert_xm_fails(xm_shared_memory_attach(key, &view), XM_ERR_MISMATCH, "may change its size");
    ck_assert_int_eq(fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL), 0);
    ck_assert_xm_ok(xm_shared_memory_attach(key, &view)); /* that was all */
    xm_shared_memory_detach(&view);
    xm_shared_memory_destroy(memory);
    (void)close(fd);
}
END_TEST

/* Whether an address belongs to a shared memory, and where it is in it. */
static void expect_found(const char *address, uint64_t length, const unsigned char *key,
                         uint64_t offset)
{
    unsigned char found[KEY];
    uint64_t at;

    ck_assert(xm_shared_memory_find(address, length, found, &at));
    ck_assert_mem_eq(found, key, KEY);
    ck_assert_uint_eq(at, offset);
}

static void expect_lost(const char *address, uint64_t length)
{
    unsigned char found[KEY];
    uint64_t at;

    ck_assert(!xm_shared_memory_find(address, length, found, &at));
}

START_TEST(addresses_are_found)
{
    xm_shared_memory_t *memory[3];
    unsigned char key[3][KEY];
    const char *start[3];
    static char elsewhere[16];

    for (int i = 0; i < 3; ++i) {
        ck_assert_xm_ok(xm_shared_memory_create(10000, &memory[i]));
        xm_shared_memory_key(memory[i], key[i]);
        start[i] = xm_shared_memory_address(memory[i]);
    }
    for (int i = 0; i < 3; ++i) {
        expect_found(start[i], 10000, key[i], 0);
        expect_found(start[i] + 9999, 1, key[i], 9999);
        expect_found(start[i] + 64, 9936, key[i], 64);
        expect_lost(start[i], 10001);
        expect_lost(start[i] + 1, 10000);
        expect_lost(start[i] + 10000, 1); /* in its last page, but behind it */
        expect_lost(start[i] + 5000, UINT64_MAX - 100);
    }
    expect_lost(elsewhere, 1);
    expect_lost(NULL, 0);
    xm_shared_memory_destroy(memory[1]);
    expect_found(start[0], 1, key[0], 0);
    expect_lost(start[1], 1);
    expect_found(start[2], 1, key[2], 0);
    xm_shared_memory_destroy(memory[0]);
    xm_shared_memory_destroy(memory[2]);
    expect_lost(start[2], 1);
}
END_TEST

/* A child has its parent's memories under its own name. */
static void share_again(void *arg)
{
    const char *address = arg;
    unsigned char key[KEY];
    xm_shared_view_t view;
    uint64_t offset;

    local_expect(xm_shared_memory_find(address, 4096, key, &offset), "not found");
    local_expect_ok(xm_shared_memory_attach(key, &view));
    local_expect(wrong(view.address, view.length) == 0, "other bytes");
    xm_shared_memory_detach(&view);
}

START_TEST(a_child_shares_its_parents_memory)
{
    xm_shared_memory_t *memory;

    ck_assert_xm_ok(xm_shared_memory_create(4096, &memory));
    fill(xm_shared_memory_address(memory), 4096);
    ck_assert_int_eq(status_of_child(share_again, xm_shared_memory_address(memory)), 0);
    xm_shared_memory_destroy(memory);
}
END_TEST

/* Asks the kernel to write, which refuses with EFAULT where a plain store would end the process:
 * UCX and the sanitizers hold on to the handlers of such signals and would print their traces. */
static void write_into(void *arg)
{
    int ends[2];

    if (pipe(ends) != 0 || write(ends[1], "\1", 1) != 1)
        _exit(0);
    _exit(read(ends[0], arg, 1) == 1 ? 0 : 1);
}

START_TEST(views_and_the_page_behind_cannot_be_written)
{
    xm_shared_memory_t *memory;
    xm_shared_view_t view;
    unsigned char key[KEY];
    char *bytes;

    ck_assert_xm_ok(xm_shared_memory_create(4096, &memory));
    bytes = xm_shared_memory_address(memory);
    xm_shared_memory_key(memory, key);
    ck_assert_xm_ok(xm_shared_memory_attach(key, &view));
    ck_assert_int_ne(status_of_child(write_into, (void *)(uintptr_t)view.address), 0);
    ck_assert_int_ne(status_of_child(write_into, bytes + 4096), 0);
    ck_assert_int_eq(status_of_child(write_into, bytes + 4095), 0);
    ck_assert_int_eq(((const char *)view.address)[4095], 1);
    xm_shared_memory_detach(&view);
    xm_shared_memory_destroy(memory);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("shared_memory");
    TCase *tcase = tcase_create("shared_memory");

    tcase_set_timeout(tcase, 30);
    tcase_add_test(tcase, a_view_shows_what_the_owner_writes);
    tcase_add_test(tcase, impossible_lengths_are_refused);
    tcase_add_test(tcase, a_view_outlives_a_killed_owner);
    tcase_add_test(tcase, the_kernel_may_refuse);
    tcase_add_test(tcase, a_key_that_is_not_quite_right_is_refused);
    tcase_add_test(tcase, reused_numbers_are_noticed);
    tcase_add_test(tcase, the_size_is_sealed);
    tcase_add_test(tcase, a_file_that_may_shrink_is_refused);
    tcase_add_test(tcase, addresses_are_found);
    tcase_add_test(tcase, a_child_shares_its_parents_memory);
    tcase_add_test(tcase, views_and_the_page_behind_cannot_be_written);
    suite_add_tcase(suite, tcase);
    return xm_test_run(suite);
}
