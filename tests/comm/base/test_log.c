/* SPDX-License-Identifier: Apache-2.0 */
#include "comm/base/log.h"

#include <stdio.h>
#include <sys/stat.h>
#include <unistd.h>

#include "comm/base/log_filter.h"
#include "comm/base/path_pattern.h"
#include "xm_test.h"

static void read_text(const char *path, char *text, size_t size)
{
    FILE *file = fopen(path, "r");
    size_t length;

    ck_assert_ptr_nonnull(file);
    length = fread(text, 1, size - 1, file);
    text[length] = '\0';
    (void)fclose(file);
}

START_TEST(lines_go_to_the_file_and_obey_the_level)
{
    char path[] = "/tmp/xm_test_log.XXXXXX", text[4096];
    int fd = mkstemp(path);

    ck_assert_int_ge(fd, 0);
    (void)close(fd);
    ck_assert_int_eq(setenv("XM_LOG_FILE", path, 1), 0);
    ck_assert_int_eq(setenv("XM_LOG", "info", 1), 0);
    xm_log_info("seen %d", 1);
    xm_log_debug("hidden");
    xm_log_trace("hidden");
    ck_assert(xm_log_enabled(XM_LOG_INFO) && !xm_log_enabled(XM_LOG_DEBUG));
    read_text(path, text, sizeof(text));
    (void)unlink(path);
    ck_assert_ptr_nonnull(strstr(text, "INFO base/test_log.c:"));
    ck_assert_ptr_nonnull(strstr(text, "seen 1\n"));
    ck_assert_ptr_null(strstr(text, "hidden"));
}
END_TEST

/* Somebody's link at a name that can be foreseen does not get our lines into its target. */
START_TEST(links_are_not_followed)
{
    char victim[] = "/tmp/xm_test_log.XXXXXX", errors[] = "/tmp/xm_test_log.XXXXXX";
    char path[64], text[4096];
    int fd = mkstemp(victim), said = mkstemp(errors);

    ck_assert_int_ge(fd, 0);
    (void)close(fd);
    ck_assert_int_eq(dup2(said, STDERR_FILENO), STDERR_FILENO);
    (void)snprintf(path, sizeof(path), "%s.link", victim);
    ck_assert_int_eq(symlink(victim, path), 0);
    ck_assert_int_eq(setenv("XM_LOG_FILE", path, 1), 0);
    ck_assert_int_eq(setenv("XM_LOG", "info", 1), 0);
    xm_log_info("to standard error");
    read_text(victim, text, sizeof(text));
    ck_assert_str_eq(text, "");
    read_text(errors, text, sizeof(text));
    ck_assert_ptr_nonnull(
        strstr(text, ".link cannot be opened: Too many levels of symbolic links\n"));
    ck_assert_ptr_nonnull(strstr(text, "to standard error\n"));
    (void)unlink(errors);
    (void)unlink(path);
    (void)unlink(victim);
}
END_TEST

START_TEST(subjects_have_levels_of_their_own)
{
    char path[] = "/tmp/xm_test_log.XXXXXX", text[4096];
    int fd = mkstemp(path);

    ck_assert_int_ge(fd, 0);
    (void)close(fd);
    ck_assert_int_eq(setenv("XM_LOG_FILE", path, 1), 0);
    ck_assert_int_eq(setenv("XM_LOG", "error,verbs=trace,other=info", 1), 0);
    xm_log_write(XM_LOG_TRACE, "/x/comm/transport/verbs/lane.c", 1, "lane");
    xm_log_write(XM_LOG_WARN, "comm/transport/ucx/ucx.c", 1, "rail");
    xm_log_info("other");
    read_text(path, text, sizeof(text));
    (void)unlink(path);
    ck_assert_ptr_nonnull(strstr(text, " TRACE verbs/lane.c:1 lane\n"));
    ck_assert_ptr_null(strstr(text, "rail"));
    ck_assert_ptr_nonnull(strstr(text, " INFO base/test_log.c:"));
}
END_TEST

/* The rank is the launcher's until a worker knows better; then the file is another one. */
START_TEST(each_rank_has_its_file)
{
    char directory[] = "/tmp/xm_test_log.XXXXXX", pattern[64], path[64], text[4096];

    ck_assert_ptr_nonnull(mkdtemp(directory));
    (void)snprintf(pattern, sizeof(pattern), "%s/%%h-%%r%%%%", directory);
    ck_assert_int_eq(setenv("XM_LOG_FILE", pattern, 1), 0);
    ck_assert_int_eq(setenv("XM_LOG", "info", 1), 0);
    ck_assert_int_eq(setenv("XM_HOST", "node/7", 1), 0);
    ck_assert_int_eq(setenv("RANK", "3", 1), 0);
    xm_log_info("first");
    xm_log_set_rank(3);
    xm_log_info("second");
    xm_log_set_rank(5);
    xm_log_info("third");
    (void)snprintf(path, sizeof(path), "%s/node_7-3%%", directory);
    read_text(path, text, sizeof(text));
    ck_assert_ptr_nonnull(strstr(text, " node/7:"));
    ck_assert_ptr_nonnull(strstr(text, " rank 3 INFO base/test_log.c:"));
    ck_assert(strstr(text, "first\n") != NULL && strstr(text, "second\n") != NULL);
    ck_assert_ptr_null(strstr(text, "third"));
    ck_assert_int_eq(unlink(path), 0);
    (void)snprintf(path, sizeof(path), "%s/node_7-5%%", directory);
    read_text(path, text, sizeof(text));
    ck_assert_ptr_nonnull(strstr(text, " rank 5 INFO base/test_log.c:"));
    ck_assert_ptr_nonnull(strstr(text, "third\n"));
    ck_assert_int_eq(unlink(path), 0);
    ck_assert_int_eq(rmdir(directory), 0);
}
END_TEST

START_TEST(files_belong_to_subjects)
{
    static const struct {
        const char *file, *subject;
    } cases[] = {{"comm/worker/nics.c", "topology"},
                 {"comm/worker/worker.c", "worker"},
                 {"worker.c", "other"},
                 {"/src/comm/topology/nic_choice.c", "topology"},
                 {"/src/comm/fault/heartbeat.c", "peers"},
                 {"comm/transport/ucx/rail.c", "ucx"},
                 {"comm/transport/counters.c", "operations"},
                 {"resharding/execute/carrier/direct_offer.c", "memory"},
                 {"/a/resharding/execute/reshard.c", "resharding"},
                 {"/a/resharding-old/reshard.c", "other"},
                 {"bench/reshard_bench/job.c", "other"},
                 {"", "other"}};

    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); ++i) {
        ck_assert_str_eq(xm_log_subject_name(xm_log_subject_of(cases[i].file)), cases[i].subject);
    }
}
END_TEST

START_TEST(malformed_filters_are_found)
{
    static const struct {
        const char *text, *bad;
    } cases[] = {{"", ""},
                 {"loud", "loud"},
                 {"info,", ""},
                 {"info,verb=debug", "verb=debug"},
                 {"verbs=", "verbs="},
                 {"warn,ucx=Info,info", "ucx=Info"},
                 {"=info", "=info"}};
    xm_log_filter_t filter;
    const char *bad;
    int length;

    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); ++i) {
        ck_assert_msg(!xm_log_filter_parse(cases[i].text, &filter, &bad, &length), "'%s'",
                      cases[i].text);
        ck_assert_int_eq(length, (int)strlen(cases[i].bad));
        ck_assert(strncmp(bad, cases[i].bad, (size_t)length) == 0);
        ck_assert_int_eq(filter.level[XM_LOG_UCX], XM_LOG_WARN);
    }
    ck_assert(xm_log_filter_parse("ucx=trace,info", &filter, &bad, &length));
    ck_assert_int_eq(filter.level[XM_LOG_UCX], XM_LOG_TRACE);
    ck_assert_int_eq(filter.level[XM_LOG_OTHER], XM_LOG_INFO);
}
END_TEST

START_TEST(patterns_are_filled_in)
{
    char path[32];

    ck_assert(xm_path_pattern_expand("/a/%h.%r%%", 12, "x/y", path, sizeof(path)));
    ck_assert_str_eq(path, "/a/x_y.12%");
    ck_assert(xm_path_pattern_expand("%r", -1, "", path, sizeof(path)));
    ck_assert_str_eq(path, "none");
    ck_assert(!xm_path_pattern_expand("%d", 1, "", path, sizeof(path)));
    ck_assert(!xm_path_pattern_expand("100%", 1, "", path, sizeof(path)));
    ck_assert(!xm_path_pattern_expand("%h", 1, "a-name-that-does-not-fit-there-at-all", path,
                                      sizeof(path)));
    ck_assert(xm_path_pattern_has("a%rb", 'r') && !xm_path_pattern_has("a%%rb", 'r'));
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("log");
    TCase *tcase = tcase_create("all");

    tcase_add_test(tcase, lines_go_to_the_file_and_obey_the_level);
    tcase_add_test(tcase, links_are_not_followed);
    tcase_add_test(tcase, subjects_have_levels_of_their_own);
    tcase_add_test(tcase, each_rank_has_its_file);
    tcase_add_test(tcase, files_belong_to_subjects);
    tcase_add_test(tcase, malformed_filters_are_found);
    tcase_add_test(tcase, patterns_are_filled_in);
    suite_add_tcase(suite, tcase);
    return xm_test_run(suite);
}
