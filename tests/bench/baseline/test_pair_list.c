/* SPDX-License-Identifier: Apache-2.0 */
#include "bench/baseline/pair_list.h"

#include "xm_test.h"

START_TEST(pairs_and_ranges_are_listed_in_order)
{
    static const rb_pair_t expected[] = {{0, 4}, {2, 1}, {0, 3}, {0, 4}, {1, 3}, {1, 4}};
    rb_pair_list_t list;

    ck_assert_xm_ok(rb_pair_list_parse("0:4,2:1,0-1:3-4", 5, &list));
    ck_assert_int_eq(list.count, 6);
    for (int i = 0; i < list.count; ++i) {
        ck_assert_int_eq(list.pairs[i].sender, expected[i].sender);
        ck_assert_int_eq(list.pairs[i].receiver, expected[i].receiver);
    }
    rb_pair_list_clear(&list);
}
END_TEST

static const struct {
    const char *text;
    xm_status_t status;
    const char *sentence;
} refused[] = {
    {"0:5", XM_ERR_INVALID_ARGUMENT, "--pairs names rank 5, but the job has ranks 0 … 4"},
    {"0-2:2", XM_ERR_INVALID_ARGUMENT, "--pairs: rank 2 sends to itself"},
    {"0", XM_ERR_PARSE, "--pairs: '0' is not of the form SENDER:RECEIVER"},
    {"0:1,", XM_ERR_PARSE, "--pairs: '' is not of the form SENDER:RECEIVER"},
};

START_TEST(bad_lists_are_refused)
{
    rb_pair_list_t list;

    ck_assert_xm_fails(rb_pair_list_parse(refused[_i].text, 5, &list), refused[_i].status,
                       refused[_i].sentence);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("pair list");
    TCase *tests = tcase_create("pair list");

    tcase_add_test(tests, pairs_and_ranges_are_listed_in_order);
    tcase_add_loop_test(tests, bad_lists_are_refused, 0,
                        (int)(sizeof(refused) / sizeof(refused[0])));
    suite_add_tcase(suite, tests);
    return xm_test_run(suite);
}
