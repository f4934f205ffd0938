/* SPDX-License-Identifier: Apache-2.0 */
#include "resharding/layout/spec.h"

#include <string.h>

#include "xm_test.h"

START_TEST(texts_survive_a_round_trip)
{
    static const char *const texts[] = {"", "R", "S0", "S01RR", "RS10R", "S2S0S1"};
    char text[XM_SPEC_TEXT];
    xm_spec_t spec;

    for (size_t i = 0; i < sizeof(texts) / sizeof(texts[0]); ++i) {
        ck_assert_xm_ok(xm_spec_parse(texts[i], &spec));
        ck_assert_str_eq(xm_spec_format(&spec, text), texts[i]);
    }
    ck_assert_int_eq(spec.dims, 3);
    ck_assert_int_eq(spec.axes[0][0], 2);
}
END_TEST

/* Every mesh refuses it, in a sentence that shows it whole. */
START_TEST(the_longest_text_is_written_whole)
{
    char longest[XM_SPEC_TEXT] = "", text[XM_SPEC_TEXT];
    xm_spec_t spec;

    for (int d = 0; d < XM_MAX_DIMS; ++d) {
        strcat(longest, "S01234567");
    }
    ck_assert_uint_eq(strlen(longest), XM_SPEC_TEXT - 1);
    ck_assert_xm_ok(xm_spec_parse(longest, &spec));
    ck_assert_str_eq(xm_spec_format(&spec, text), longest);
}
END_TEST

START_TEST(bad_texts_are_located)
{
    xm_spec_t spec;

    ck_assert_xm_fails(xm_spec_parse("S0X", &spec), XM_ERR_PARSE, "character 3 is 'X'");
    ck_assert_xm_fails(xm_spec_parse("RSR", &spec), XM_ERR_PARSE,
                       "the S of dimension 1 names no mesh axis");
    ck_assert_xm_fails(xm_spec_parse("RRRRRRRRRRRRR", &spec), XM_ERR_INVALID_ARGUMENT,
                       "more than 12 dimensions");
    ck_assert_xm_fails(xm_spec_parse("S012345670", &spec), XM_ERR_INVALID_ARGUMENT,
                       "more than 8 axes");
}
END_TEST

START_TEST(specs_must_fit_their_mesh)
{
    xm_mesh_t *mesh;
    xm_spec_t spec;

    ck_assert_xm_ok(xm_mesh_parse("2x4", NULL, 0, &mesh));
    ck_assert_xm_ok(xm_spec_parse("S0RS0", &spec));
    ck_assert_xm_fails(xm_spec_check(&spec, mesh), XM_ERR_INVALID_ARGUMENT,
                       "uses mesh axis 0 twice (dimensions 0 and 2)");
    ck_assert_xm_ok(xm_spec_parse("RS2", &spec));
    ck_assert_xm_fails(xm_spec_check(&spec, mesh), XM_ERR_INVALID_ARGUMENT,
                       "dimension 1 is split over mesh axis 2, but mesh 2x4 has 2 axes");
    ck_assert_xm_ok(xm_spec_parse("S10R", &spec));
    ck_assert_xm_ok(xm_spec_check(&spec, mesh));
    ck_assert_int_eq(xm_spec_parts(&spec, mesh, 0), 8);
    ck_assert_int_eq(xm_spec_parts(&spec, mesh, 1), 1);
    xm_mesh_destroy(mesh);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("spec");
    TCase *tcase = tcase_create("all");

    tcase_add_test(tcase, texts_survive_a_round_trip);
    tcase_add_test(tcase, the_longest_text_is_written_whole);
    tcase_add_test(tcase, bad_texts_are_located);
    tcase_add_test(tcase, specs_must_fit_their_mesh);
    suite_add_tcase(suite, tcase);
    return xm_test_run(suite);
}
