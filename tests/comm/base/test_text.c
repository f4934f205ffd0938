/* SPDX-License-Identifier: Apache-2.0 */
#include "comm/base/text.h"

#include "xm_test.h"

START_TEST(nearest_finds_typos_and_only_typos)
{
    static const char *const names[] = {"src-mesh", "dst-mesh", "strategy", "scheduler"};

    ck_assert_str_eq(xm_text_nearest("stratgey", names, 4), "strategy");
    ck_assert_str_eq(xm_text_nearest("src-mehs", names, 4), "src-mesh");
    ck_assert_str_eq(xm_text_nearest("schedular", names, 4), "scheduler");
    ck_assert_ptr_null(xm_text_nearest("qwertyuiop", names, 4));
    ck_assert_ptr_null(xm_text_nearest("x", names, 0));
}
END_TEST

START_TEST(choices_name_the_nearest_or_all)
{
    static const char *const names[] = {"naive", "balance"};
    int index = -1;

    ck_assert_xm_ok(xm_text_choose("scheduler", "balance", names, 2, &index));
    ck_assert_int_eq(index, 1);
    ck_assert_xm_fails(xm_text_choose("scheduler", "balanse", names, 2, &index),
                       XM_ERR_INVALID_ARGUMENT,
                       "unknown scheduler 'balanse'; did you mean balance?");
    ck_assert_xm_fails(xm_text_choose("scheduler", "quick", names, 2, &index),
                       XM_ERR_INVALID_ARGUMENT, "known are naive, balance");
}
END_TEST

START_TEST(integers_are_parsed_strictly)
{
    static const char *const bad[] = {"", " 1", "1 ", "1x", "0x10", "one", "1.0"};
    int64_t value = -7;

    ck_assert_xm_ok(xm_text_parse_int("n", "42", 0, 100, &value));
    ck_assert_int_eq(value, 42);
    for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); ++i) {
        ck_assert_xm_fails(xm_text_parse_int("n", bad[i], 0, 100, &value), XM_ERR_PARSE,
                           "is not an integer");
    }
    ck_assert_xm_fails(xm_text_parse_int("ranks", "101", 0, 100, &value), XM_ERR_INVALID_ARGUMENT,
                       "ranks: 101 is outside 0 … 100");
    ck_assert_xm_fails(xm_text_parse_int("n", "99999999999999999999", 0, INT64_MAX, &value),
                       XM_ERR_INVALID_ARGUMENT, "outside");
    ck_assert_int_eq(value, 42);
}
END_TEST

START_TEST(numbers_and_byte_counts)
{
    double number;
    uint64_t bytes;

    ck_assert_xm_ok(xm_text_parse_double("t", "1e-3", 0, 1, &number));
    ck_assert_double_eq(number, 1e-3);
    ck_assert_xm_fails(xm_text_parse_double("t", "nan", 0, 1, &number), XM_ERR_PARSE, "'nan'");
    ck_assert_xm_fails(xm_text_parse_double("t", "2", 0, 1, &number), XM_ERR_INVALID_ARGUMENT,
                       "0 … 1");
    ck_assert_xm_ok(xm_text_parse_bytes("m", "16GiB", &bytes));
    ck_assert_uint_eq(bytes, UINT64_C(16) << 30);
    ck_assert_xm_ok(xm_text_parse_bytes("m", "2GB", &bytes));
    ck_assert_uint_eq(bytes, 2000000000);
    ck_assert_xm_ok(xm_text_parse_bytes("m", "1M", &bytes)); /* as nccl-tests' parsesize() */
    ck_assert_uint_eq(bytes, 1048576);
    ck_assert_xm_ok(xm_text_parse_bytes("m", "128k", &bytes));
    ck_assert_uint_eq(bytes, 131072);
    ck_assert_xm_ok(xm_text_parse_bytes("m", "16G", &bytes));
    ck_assert_uint_eq(bytes, UINT64_C(17179869184));
    ck_assert_xm_fails(xm_text_parse_bytes("m", "2 GB", &bytes), XM_ERR_PARSE, "'2 GB'");
    ck_assert_xm_fails(xm_text_parse_bytes("m", "-1", &bytes), XM_ERR_PARSE, "'-1'");
    ck_assert_xm_fails(xm_text_parse_bytes("m", "99999999TiB", &bytes), XM_ERR_PARSE, "byte count");
}
END_TEST

START_TEST(quantities_carry_units)
{
    static const struct {
        double seconds;
        const char *said;
    } times[] = {{1.5, "1.50 s"},      {0.0123, "12.3 ms"},   {4.5e-6, "4.50 us"},
                 {0.0, "0 s"},         {523320, "6.1 days"},  {42610.147, "11 h 50 min"},
                 {5461, "1 h 31 min"}, {132.4, "2 min 12 s"}, {46.564, "46.6 s"},
                 {99.7, "1 min 40 s"}, {3599.9, "1 h 0 min"}, {0.2814811, "281 ms"},
                 {0.99999, "1000 ms"}, {9.999e-5, "100 us"},  {2.6e-8, "0.03 us"},
                 {9.998e-3, "10.0 ms"}};
    char buffer[32];

    ck_assert_str_eq(xm_text_format_bytes(512, buffer, sizeof(buffer)), "512 B");
    ck_assert_str_eq(xm_text_format_bytes(UINT64_C(3) << 29, buffer, sizeof(buffer)), "1.50 GiB");
    for (size_t i = 0; i < sizeof(times) / sizeof(times[0]); ++i) {
        ck_assert_str_eq(xm_text_format_seconds(times[i].seconds, buffer, sizeof(buffer)),
                         times[i].said);
    }
}
END_TEST

START_TEST(characters_stay_whole)
{
    static const char all[] = "a\xc3\xa9\xe2\x82\xac\xf0\x9f\x98\x80z"; /* 1, 2, 3, 4 bytes and 1 */
    static const size_t whole[] = {0, 1, 1, 3, 3, 3, 6, 6, 6, 6, 10, 11};
    char buffer[32];

    for (size_t room = 0; room < 12; ++room) {
        (void)xm_text_copy(all, buffer, room + 1);
        ck_assert_uint_eq(strlen(buffer), whole[room]);
        ck_assert_int_eq(memcmp(buffer, all, whole[room]), 0);
    }
    /* Orphan, overlong, surrogate, too large, cut off in the middle and at the end. */
    ck_assert_str_eq(xm_text_copy("a\x80z", buffer, sizeof(buffer)), "a?z");
    ck_assert_str_eq(xm_text_copy("\xc0\xafz", buffer, sizeof(buffer)), "??z");
    ck_assert_str_eq(xm_text_copy("\xed\xa0\x80", buffer, sizeof(buffer)), "???");
    ck_assert_str_eq(xm_text_copy("\xf4\x90\x80\x80", buffer, sizeof(buffer)), "????");
    ck_assert_str_eq(xm_text_copy("\xe2\x82z", buffer, sizeof(buffer)), "??z");
    ck_assert_str_eq(xm_text_copy("z\xe2\x82", buffer, sizeof(buffer)), "z");
    ck_assert_str_eq(xm_text_printable("\xc3\xa9\n\t\x1b[2J\x7f\xff", buffer, sizeof(buffer)),
                     "\xc3\xa9\\n\\t\\x1b[2J\\x7f?");
    ck_assert_str_eq(xm_text_printable("ab\n", buffer, 4), "ab");
}
END_TEST

START_TEST(lists_are_joined_and_cut)
{
    char list[16] = "";

    xm_text_list_add(list, sizeof(list), ", ", "%s:%d", "mlx5_0", 1);
    ck_assert_str_eq(list, "mlx5_0:1");
    xm_text_list_add(list, sizeof(list), ", ", "%s", "eth0");
    ck_assert_str_eq(list, "mlx5_0:1, eth0");
    xm_text_list_add(list, sizeof(list), ", ", "%s", "eth1");
    ck_assert_str_eq(list, "mlx5_0:1, eth0,");
    xm_text_list_add(list, sizeof(list), ", ", "%s", "eth2");
    ck_assert_str_eq(list, "mlx5_0:1, eth0,");
}
END_TEST

/* Words that are empty, that fit exactly and that are cut, whose whole length is told. */
START_TEST(words_of_a_list_come_in_turn)
{
    const char *list = "a,,bcd,defgh";
    const char *const expected[] = {"a", "", "bcd", "def"};
    const size_t lengths[] = {1, 0, 3, 5};
    char word[4];

    for (int i = 0; i < 4; ++i) {
        ck_assert_ptr_nonnull(list);
        ck_assert_uint_eq(xm_text_word(&list, ',', word, sizeof(word)), lengths[i]);
        ck_assert_str_eq(word, expected[i]);
    }
    ck_assert_ptr_null(list);
    list = "1x2";
    ck_assert_uint_eq(xm_text_word(&list, 'x', word, sizeof(word)), 1);
    ck_assert_str_eq(list, "2");
    list = "";
    ck_assert_uint_eq(xm_text_word(&list, ',', word, sizeof(word)), 0);
    ck_assert_ptr_null(list);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("text");
    TCase *tcase = tcase_create("all");

    tcase_add_test(tcase, lists_are_joined_and_cut);
    tcase_add_test(tcase, nearest_finds_typos_and_only_typos);
    tcase_add_test(tcase, choices_name_the_nearest_or_all);
    tcase_add_test(tcase, integers_are_parsed_strictly);
    tcase_add_test(tcase, numbers_and_byte_counts);
    tcase_add_test(tcase, quantities_carry_units);
    tcase_add_test(tcase, characters_stay_whole);
    tcase_add_test(tcase, words_of_a_list_come_in_turn);
    suite_add_tcase(suite, tcase);
    return xm_test_run(suite);
}
