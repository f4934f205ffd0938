/* SPDX-License-Identifier: Apache-2.0 */
#include "cli_support.h"

#include <math.h>

#include "xm_test.h"

static const xm_table_column_t columns[] = {{"case", "", 6, false},
                                            {"who", "", -5, false},
                                            {"mean", "us", 8, true},
                                            {"#wrong", "B", 6, false}};

/* The head and two rows, of which one has a long text, a comma, and a number that is missing. */
static char *print(bool wide, bool csv)
{
    char *text = NULL;
    size_t length;
    xm_table_t table = {open_memstream(&text, &length), columns, 4, .wide = wide, .csv = csv};

    xm_table_head(&table);
    xm_table_text(&table, "nm%d", 1);
    xm_table_text(&table, "abcdefgh");
    xm_table_number(&table, 1, 12.34);
    xm_table_number(&table, 0, 0);
    xm_table_text(&table, "a,b");
    xm_table_text(&table, "x");
    xm_table_number(&table, 1, NAN);
    xm_table_number(&table, 0, NAN);
    (void)fclose(table.file);
    return text;
}

START_TEST(columns_stay_in_place)
{
    char *narrow = print(false, false), *wide = print(true, false), *csv = print(false, true);

    ck_assert_str_eq(narrow, "#   case who   #wrong\n"
                             "#                 (B)\n"
                             "     nm1 abcd…      0\n"
                             "     a,b x          -\n");
    ck_assert_str_eq(wide, "#   case who       mean #wrong\n"
                           "#                  (us)    (B)\n"
                           "     nm1 abcdefgh     12.3      0\n"
                           "     a,b x            -      -\n");
    ck_assert_str_eq(csv, "case,who,mean (us),#wrong (B)\nnm1,abcdefgh,12.3,0\n\"a,b\",x,,\n");
    free(csv);
    free(wide);
    free(narrow);
}
END_TEST

/* What nccl-tests makes of -b 8 -e 128M -f 2, written down by hand: 8 … 134217728. */
START_TEST(sweeps_have_the_sizes_of_nccl_tests)
{
    uint64_t sizes[XM_SWEEP_MOST];
    int count;

    ck_assert_xm_ok(xm_sweep_sizes(&(xm_sweep_t){8, 134217728, 2}, sizes, &count));
    ck_assert_int_eq(count, 25);
    ck_assert_uint_eq(sizes[0], 8);
    ck_assert_uint_eq(sizes[24], 134217728);
    ck_assert_xm_ok(xm_sweep_sizes(&(xm_sweep_t){3, 100, 3}, sizes, &count));
    ck_assert_int_eq(count, 4); /* 3 9 27 81 */
    ck_assert_xm_ok(xm_sweep_sizes(&(xm_sweep_t){1, UINT64_MAX, 0}, sizes, &count));
    ck_assert_int_eq(count, 64);
    ck_assert_xm_fails(xm_sweep_sizes(&(xm_sweep_t){.from = 8}, sizes, &count),
                       XM_ERR_INVALID_ARGUMENT, "needs both");
    ck_assert_xm_fails(xm_sweep_sizes(&(xm_sweep_t){9, 8, 2}, sizes, &count),
                       XM_ERR_INVALID_ARGUMENT, "larger than");
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("table");
    TCase *all = tcase_create("all");

    tcase_add_test(all, columns_stay_in_place);
    tcase_add_test(all, sweeps_have_the_sizes_of_nccl_tests);
    suite_add_tcase(suite, all);
    return xm_test_run(suite);
}
