/* SPDX-License-Identifier: Apache-2.0 */
#include "xm_test.h"

#include "planner/graph/spec.h"

START_TEST(text_goes_round)
{
    static const char *const texts[] = {"RRR", "S0RR", "S01RR", "RS1S0", "S0S1R"};
    char buffer[AP_SPEC_TEXT];

    for (size_t i = 0; i < sizeof(texts) / sizeof(texts[0]); ++i) {
        ap_spec_t spec;

        ck_assert_xm_ok(ap_spec_parse(texts[i], 3, 2, &spec));
        ck_assert_str_eq(ap_spec_format(spec, 3, buffer, sizeof(buffer)), texts[i]);
    }
    ck_assert_str_eq(ap_spec_format(AP_SPEC_REPLICATED, 0, buffer, sizeof(buffer)), "");
}
END_TEST

START_TEST(bits_are_where_they_are_said_to_be)
{
    ap_spec_t spec = ap_spec_with(ap_spec_with(AP_SPEC_REPLICATED, 1, 2), 7, 1);

    ck_assert_uint_eq(ap_spec_axes(spec, 1), 2);
    ck_assert_uint_eq(ap_spec_axes(spec, 7), 1);
    ck_assert_uint_eq(ap_spec_axes(spec, 0), 0);
    ck_assert_uint_eq(ap_spec_used_axes(spec), 3);
    ck_assert_uint_eq(ap_spec_axes(ap_spec_with(spec, 1, 0), 1), 0);
}
END_TEST

START_TEST(bad_specs_name_the_dimension)
{
    ap_spec_t spec = 77;

    ck_assert_xm_fails(ap_spec_parse("RX", 2, 2, &spec), XM_ERR_PARSE, "character 2 is 'X'");
    ck_assert_xm_fails(ap_spec_parse("SR", 2, 2, &spec), XM_ERR_PARSE,
                       "the S of dimension 0 names no mesh axis");
    ck_assert_xm_fails(ap_spec_parse("S0S0", 2, 2, &spec), XM_ERR_INVALID_ARGUMENT,
                       "dimension 1 uses axis 0 a second time");
    ck_assert_xm_fails(ap_spec_parse("S10R", 2, 2, &spec), XM_ERR_INVALID_ARGUMENT, "ascend");
    ck_assert_xm_fails(ap_spec_parse("S2R", 2, 2, &spec), XM_ERR_INVALID_ARGUMENT, "axis 2");
    ck_assert_xm_fails(ap_spec_parse("R", 2, 2, &spec), XM_ERR_INVALID_ARGUMENT, "1 dimensions");
    ck_assert_xm_fails(ap_spec_parse("RRR", 2, 2, &spec), XM_ERR_INVALID_ARGUMENT, "3 dimensions");
    ck_assert_uint_eq(spec, 77);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("spec");
    TCase *tcase = tcase_create("all");

    tcase_add_test(tcase, text_goes_round);
    tcase_add_test(tcase, bits_are_where_they_are_said_to_be);
    tcase_add_test(tcase, bad_specs_name_the_dimension);
    suite_add_tcase(suite, tcase);
    return xm_test_run(suite);
}
