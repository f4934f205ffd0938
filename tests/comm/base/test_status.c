/* SPDX-License-Identifier: Apache-2.0 */
#include "comm/base/status.h"

#include <pthread.h>
#include <stdio.h>

#include "xm_test.h"

START_TEST(sentence_is_set_and_prefixed)
{
    ck_assert_int_eq(xm_error_set(XM_ERR_PARSE, "line %d", 7), XM_ERR_PARSE);
    ck_assert_str_eq(xm_last_error(), "line 7");
    ck_assert_int_eq(xm_error_prefix(XM_ERR_PARSE, "file %s", "a.json"), XM_ERR_PARSE);
    ck_assert_str_eq(xm_last_error(), "file a.json: line 7");
}
END_TEST

START_TEST(sentence_may_quote_the_previous_one)
{
    (void)xm_error_set(XM_ERR_IO, "first");
    (void)xm_error_set(XM_ERR_IO, "second after %s", xm_last_error());
    ck_assert_str_eq(xm_last_error(), "second after first");
}
END_TEST

START_TEST(long_sentences_are_cut)
{
    char text[3000];

    memset(text, 'x', sizeof(text));
    text[sizeof(text) - 1] = '\0';
    (void)xm_error_set(XM_ERR_IO, "%s", text);
    ck_assert_uint_eq(strlen(xm_last_error()), 1023);
    (void)xm_error_prefix(XM_ERR_IO, "%s", text);
    ck_assert_uint_eq(strlen(xm_last_error()), 1023);
}
END_TEST

/* What quotes hold is cut at 80 characters, wherever it came from and however long it is, and no
 * character is cut in two. */
START_TEST(quoted_input_is_cut)
{
    static const char *const letters[] = {"x", "é", "€", "😀", "'"};
    static char given[500000], kept[400];

    for (size_t i = 0; i < sizeof(letters) / sizeof(letters[0]); ++i) {
        size_t length = strlen(letters[i]);

        for (size_t at = 0; at < 100000; ++at) {
            memcpy(given + at * length, letters[i], length + 1);
        }
        (void)snprintf(kept, sizeof(kept), "shape '%.*s…': no", (int)(78 * length), given);
        if (i + 1 < sizeof(letters) / sizeof(letters[0])) {
            (void)xm_error_set(XM_ERR_PARSE, "shape '%s': no", given);
            ck_assert_str_eq(xm_last_error(), kept);
            (void)xm_error_set(XM_ERR_PARSE, "%s", xm_last_error());
            ck_assert_str_eq(xm_last_error(), kept);
        }
        (void)xm_error_set(XM_ERR_PARSE, "a%s", given);
        ck_assert_uint_gt(strlen(xm_last_error()), 1023 - length);
        ck_assert_str_eq(xm_last_error() + strlen(xm_last_error()) - 3, "…");
        ck_assert_uint_eq((strlen(xm_last_error()) - 1 - 3) % length, 0);
    }
    (void)xm_error_set(XM_ERR_PARSE, "rank 1's 'it isn't' and '%.80s'", letters[0]);
    ck_assert_str_eq(xm_last_error(), "rank 1's 'it isn't' and 'x'");
    memset(given, 'y', 81);
    given[81] = '\0';
    (void)xm_error_prefix(XM_ERR_PARSE, "%s '%s…'", "é", given);
    ck_assert(strncmp(xm_last_error(), "é 'yyy", 7) == 0);
    ck_assert_ptr_nonnull(strstr(xm_last_error(), "y…': rank 1's 'it isn't'"));
    ck_assert_uint_eq(strspn(xm_last_error() + 4, "y"), 78);
    given[80] = '\0';
    (void)xm_error_set(XM_ERR_PARSE, "'%s'", given);
    ck_assert_uint_eq(strlen(xm_last_error()), 82);
}
END_TEST

static xm_status_t clean_up(void)
{
    return xm_error_set(XM_ERR_PEER_DIED, "rank 3 died meanwhile");
}

START_TEST(saved_error_survives_others)
{
    xm_error_t error;

    xm_error_save(&error, xm_error_set(XM_ERR_IO, "100%% of disk %s are in use", "sda"));
    ck_assert_int_eq(clean_up(), XM_ERR_PEER_DIED);
    ck_assert_int_eq(error.status, XM_ERR_IO);
    ck_assert_str_eq(error.sentence, "100% of disk sda are in use");
    ck_assert_int_eq(xm_error_restore(&error), XM_ERR_IO);
    ck_assert_str_eq(xm_last_error(), "100% of disk sda are in use");
    (void)clean_up();
    ck_assert_int_eq(xm_error_prefix(xm_error_restore(&error), "step 2"), XM_ERR_IO);
    ck_assert_str_eq(xm_last_error(), "step 2: 100% of disk sda are in use");
}
END_TEST

START_TEST(longest_sentence_is_saved_whole)
{
    char text[3000];
    xm_error_t error;

    memset(text, 'x', sizeof(text));
    text[sizeof(text) - 1] = '\0';
    xm_error_save(&error, xm_error_set(XM_ERR_IO, "%s", text));
    (void)clean_up();
    (void)xm_error_restore(&error);
    ck_assert_uint_eq(strlen(xm_last_error()), 1023);
}
END_TEST

static void *other_thread(void *arg)
{
    (void)arg;
    (void)xm_error_set(XM_ERR_IO, "theirs");
    return NULL;
}

START_TEST(sentence_is_per_thread)
{
    pthread_t thread;

    (void)xm_error_set(XM_ERR_IO, "mine");
    ck_assert_int_eq(pthread_create(&thread, NULL, other_thread, NULL), 0);
    ck_assert_int_eq(pthread_join(thread, NULL), 0);
    ck_assert_str_eq(xm_last_error(), "mine");
}
END_TEST

START_TEST(every_status_has_a_name_and_a_group)
{
    ck_assert_str_eq(xm_status_string(XM_ERR_PEER_DIED), "peer died");
    ck_assert_str_eq(xm_status_string((xm_status_t)-1000), "unknown status");
    ck_assert(xm_status_is_caller(XM_ERR_MISMATCH));
    ck_assert(!xm_status_is_caller(XM_ERR_NO_MEMORY));
    ck_assert(!xm_status_is_caller(XM_OK));
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("status");
    TCase *tcase = tcase_create("all");

    tcase_add_test(tcase, sentence_is_set_and_prefixed);
    tcase_add_test(tcase, sentence_may_quote_the_previous_one);
    tcase_add_test(tcase, long_sentences_are_cut);
    tcase_add_test(tcase, quoted_input_is_cut);
    tcase_add_test(tcase, saved_error_survives_others);
    tcase_add_test(tcase, longest_sentence_is_saved_whole);
    tcase_add_test(tcase, sentence_is_per_thread);
    tcase_add_test(tcase, every_status_has_a_name_and_a_group);
    suite_add_tcase(suite, tcase);
    return xm_test_run(suite);
}
