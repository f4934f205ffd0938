/* SPDX-License-Identifier: Apache-2.0 */
#include "comm/base/text_file.h"

#include <fcntl.h>
#include <stdio.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include "xm_test.h"

static char folder[] = "/tmp/xm_test_text_file.XXXXXX";

static const char *in_folder(const char *name)
{
    static char paths[4][128];
    static int next;
    char *path = paths[next++ % 4];

    (void)snprintf(path, sizeof(paths[0]), "%s/%s", folder, name);
    return path;
}

static void write_text(const char *path, const char *text)
{
    FILE *file = fopen(path, "w");

    ck_assert_ptr_nonnull(file);
    (void)fputs(text, file);
    (void)fclose(file);
}

static void expect_text(const char *path, const char *expected)
{
    char *text;
    size_t length;

    ck_assert_xm_ok(xm_text_load(path, &text, &length));
    ck_assert_str_eq(text, expected);
    ck_assert_uint_eq(length, strlen(expected));
    free(text);
}

static void expect_refused(const char *path, xm_status_t status, const char *sentence)
{
    char *text;
    size_t length;

    ck_assert_xm_fails(xm_text_load(path, &text, &length), status, sentence);
}

START_TEST(files_are_read_to_their_end)
{
    static char longest[70000];
    const char *path = in_folder("a");

    write_text(path, "");
    expect_text(path, "");
    write_text(path, "a\nb");
    expect_text(path, "a\nb");
    memset(longest, 'x', sizeof(longest) - 1);
    write_text(path, longest);
    expect_text(path, longest);
    /* The kernel tells no size of this one. */
    expect_text("/proc/self/comm", "test_text_file\n");
}
END_TEST

/* None of these may be waited for: the test's own time limit would end it. */
START_TEST(what_is_no_regular_file_is_refused_at_once)
{
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    int fd = socket(AF_UNIX, SOCK_STREAM, 0);

    ck_assert_int_eq(mkfifo(in_folder("fifo"), 0600), 0);
    (void)snprintf(address.sun_path, sizeof(address.sun_path), "%s/socket", folder);
    ck_assert_int_eq(bind(fd, (struct sockaddr *)&address, sizeof(address)), 0);
    expect_refused(in_folder("fifo"), XM_ERR_INVALID_ARGUMENT, "/fifo: no regular file");
    expect_refused(in_folder("socket"), XM_ERR_INVALID_ARGUMENT, "/socket: no regular file");
    expect_refused("/dev/zero", XM_ERR_INVALID_ARGUMENT, "/dev/zero: no regular file");
    expect_refused(folder, XM_ERR_INVALID_ARGUMENT, "Is a directory");
    expect_refused(in_folder("none"), XM_ERR_NOT_FOUND, "/none: No such file");
    expect_refused(in_folder("fifo/x"), XM_ERR_INVALID_ARGUMENT, "Not a directory");
    (void)close(fd);
}
END_TEST

START_TEST(large_files_are_refused_unread)
{
    const char *path = in_folder("large");
    size_t size;
    int fd;

    write_text(path, "x");
    ck_assert_int_eq(truncate(path, (off_t)XM_TEXT_LARGEST + 1), 0);
    expect_refused(path, XM_ERR_UNSUPPORTED, "/large: larger than 256.00 MiB");
    ck_assert_xm_ok(xm_file_open(path, XM_FILE_LARGEST, &fd, &size));
    ck_assert_uint_eq(size, (size_t)XM_TEXT_LARGEST + 1);
    (void)close(fd);
    ck_assert_int_eq(truncate(path, (off_t)XM_FILE_LARGEST + 1), 0);
    ck_assert_xm_fails(xm_file_open(path, XM_FILE_LARGEST, &fd, &size), XM_ERR_UNSUPPORTED,
                       "larger than 4.00 GiB");
}
END_TEST

START_TEST(standard_input_may_be_a_pipe)
{
    int ends[2];

    ck_assert_int_eq(pipe(ends), 0);
    ck_assert_int_eq(write(ends[1], "through a pipe", 14), 14);
    (void)close(ends[1]);
    ck_assert_int_eq(dup2(ends[0], STDIN_FILENO), STDIN_FILENO);
    expect_text("/dev/stdin", "through a pipe");
    ck_assert_int_eq(fcntl(STDIN_FILENO, F_GETFL) & O_NONBLOCK, 0);
}
END_TEST

/* What lies where the new file is made, of a crash or of somebody who guessed the name, is neither
 * followed nor written to. */
START_TEST(links_beside_a_file_are_not_followed)
{
    const char *victim = in_folder("victim"), *path = in_folder("saved");
    char temporary[256];

    write_text(victim, "untouched");
    (void)snprintf(temporary, sizeof(temporary), "%s.%d.tmp", path, (int)getpid());
    ck_assert_int_eq(symlink(victim, temporary), 0);
    ck_assert_xm_ok(xm_text_save(path, "new"));
    expect_text(victim, "untouched");
    expect_text(path, "new\n");
    ck_assert_int_eq(access(temporary, F_OK), -1);
}
END_TEST

START_TEST(outputs_are_checked_and_left_alone)
{
    const char *path = in_folder("output");

    write_text(path, "kept");
    ck_assert_xm_ok(xm_file_check_output("-o", NULL));
    ck_assert_xm_ok(xm_file_check_output("-o", path));
    expect_text(path, "kept");
    ck_assert_xm_ok(xm_file_check_output("-o", "/dev/null"));
    ck_assert_xm_ok(xm_file_check_output("-o", in_folder("new")));
    ck_assert_int_eq(access(in_folder("new"), F_OK), -1);
    ck_assert_xm_fails(xm_file_check_output("-o", folder), XM_ERR_INVALID_ARGUMENT,
                       "-o: cannot write '/tmp/");
    ck_assert_xm_fails(xm_file_check_output("-o", "/proc/x"), XM_ERR_INVALID_ARGUMENT,
                       "-o: cannot write '/proc/x': No such file");
    ck_assert_xm_fails(xm_file_check_output("-o", ""), XM_ERR_INVALID_ARGUMENT, "cannot write ''");
}
END_TEST

static void set_up(void)
{
    ck_assert_ptr_nonnull(mkdtemp(folder));
}

static void tear_down(void)
{
    static const char *const names[] = {"a",      "fifo",  "socket", "large",
                                        "victim", "saved", "output"};

    for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); ++i) {
        (void)unlink(in_folder(names[i]));
    }
    (void)rmdir(folder);
}

int main(void)
{
    Suite *suite = suite_create("text_file");
    TCase *tcase = tcase_create("all");

    tcase_add_unchecked_fixture(tcase, set_up, tear_down);
    tcase_add_test(tcase, files_are_read_to_their_end);
    tcase_add_test(tcase, what_is_no_regular_file_is_refused_at_once);
    tcase_add_test(tcase, large_files_are_refused_unread);
    tcase_add_test(tcase, standard_input_may_be_a_pipe);
    tcase_add_test(tcase, links_beside_a_file_are_not_followed);
    tcase_add_test(tcase, outputs_are_checked_and_left_alone);
    suite_add_tcase(suite, tcase);
    return xm_test_run(suite);
}
