#include "comm/log.h"

#include <stdio.h>
#include <unistd.h>

#include "xm_test.h"

START_TEST(lines_go_to_the_file_and_obey_the_level)
{
    char path[] = "/tmp/xm_test_log.XXXXXX", text[4096];
    int fd = mkstemp(path);
    FILE *file;
    size_t length;

    ck_assert_int_ge(fd, 0);
    ck_assert_int_eq(setenv("XM_LOG_FILE", path, 1), 0);
    ck_assert_int_eq(setenv("XM_LOG_LEVEL", "info", 1), 0);
    xm_log_info("seen %d", 1);
    xm_log_debug("hidden");
    ck_assert(xm_log_enabled(XM_LOG_INFO) && !xm_log_enabled(XM_LOG_DEBUG));
    file = fdopen(fd, "r");
    ck_assert_ptr_nonnull(file);
    length = fread(text, 1, sizeof(text) - 1, file);
    text[length] = '\0';
    (void)fclose(file);
    (void)unlink(path);
    ck_assert_ptr_nonnull(strstr(text, "INFO test_log.c:"));
    ck_assert_ptr_nonnull(strstr(text, "seen 1\n"));
    ck_assert_ptr_null(strstr(text, "hidden"));
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("log");
    TCase *tcase = tcase_create("all");

    tcase_add_test(tcase, lines_go_to_the_file_and_obey_the_level);
    suite_add_tcase(suite, tcase);
    return xm_test_run(suite);
}
