/* SPDX-License-Identifier: Apache-2.0 */
#include "comm/base/config.h"

#include <stdio.h>

#include "xm_test.h"

START_TEST(defaults_parse)
{
    ck_assert_xm_ok(xm_config_check());
    ck_assert_double_eq(xm_config_seconds(XM_CONFIG_TIMEOUT), 30.0);
    ck_assert_uint_eq(xm_config_bytes(XM_CONFIG_CHUNK_SIZE), 512 * 1024);
    ck_assert_int_eq(xm_config_count(XM_CONFIG_WINDOW), 2);
    ck_assert_int_eq(xm_config_choice(XM_CONFIG_PROGRESS), 0);
    ck_assert_str_eq(xm_config_string(XM_CONFIG_HOST), "");
}
END_TEST

START_TEST(environment_overrides)
{
    ck_assert_int_eq(setenv("XM_TIMEOUT", "2.5", 1), 0);
    ck_assert_int_eq(setenv("XM_PROGRESS", "spin", 1), 0);
    ck_assert_xm_ok(xm_config_check());
    ck_assert_double_eq(xm_config_seconds(XM_CONFIG_TIMEOUT), 2.5);
    ck_assert_int_eq(xm_config_choice(XM_CONFIG_PROGRESS), 1);
}
END_TEST

START_TEST(bad_values_are_named)
{
    ck_assert_int_eq(setenv("XM_TIMEOUT", "soon", 1), 0);
    ck_assert_xm_fails(xm_config_check(), XM_ERR_PARSE, "XM_TIMEOUT: 'soon'");
    ck_assert_double_eq(xm_config_seconds(XM_CONFIG_TIMEOUT), 30.0);
    ck_assert_int_eq(setenv("XM_TIMEOUT", "1", 1), 0);
    ck_assert_int_eq(setenv("XM_PROGRESS", "nap", 1), 0);
    ck_assert_xm_fails(xm_config_check(), XM_ERR_PARSE,
                       "XM_PROGRESS: 'nap' is not one of sleep|spin");
    ck_assert_int_eq(setenv("XM_PROGRESS", "spin", 1), 0);
    ck_assert_int_eq(setenv("XM_LOG", "info,verb=trace", 1), 0);
    ck_assert_xm_fails(xm_config_check(), XM_ERR_PARSE, "XM_LOG: 'verb=trace' is neither a level");
    ck_assert_int_eq(setenv("XM_LOG", "info,verbs=trace", 1), 0);
    ck_assert_int_eq(setenv("XM_METRICS_FILE", "/tmp/%d.prom", 1), 0);
    ck_assert_xm_fails(xm_config_check(), XM_ERR_PARSE, "XM_METRICS_FILE: '/tmp/%d.prom' has");
    ck_assert_int_eq(setenv("XM_METRICS_FILE", "/tmp/%h-%r.prom", 1), 0);
    ck_assert_xm_ok(xm_config_check());
}
END_TEST

START_TEST(unknown_names_get_the_nearest_match)
{
    ck_assert_int_eq(setenv("XM_TIMEUOT", "1", 1), 0);
    ck_assert_xm_fails(xm_config_check(), XM_ERR_NOT_FOUND,
                       "unknown setting XM_TIMEUOT; did you mean XM_TIMEOUT?");
}
END_TEST

START_TEST(fingerprint_holds_uniform_rows_only)
{
    char text[512];

    ck_assert_int_eq(setenv("XM_HOST", "a", 1), 0);
    (void)xm_config_fingerprint(text, sizeof(text));
    ck_assert_ptr_nonnull(strstr(text, "XM_TIMEOUT=30"));
    ck_assert_ptr_null(strstr(text, "XM_HOST"));
}
END_TEST

START_TEST(documentation_lists_every_row)
{
    char page[65536];
    FILE *file = fopen(xm_test_source_path("docs/configuration.md"), "r");
    size_t length;

    ck_assert_ptr_nonnull(file);
    length = fread(page, 1, sizeof(page) - 1, file);
    page[length] = '\0';
    ck_assert_int_eq(fclose(file), 0);
    for (int id = 0; id < XM_CONFIG_COUNT; ++id) {
        const xm_config_row_t *row = xm_config_row((xm_config_id_t)id);

        ck_assert_msg(strstr(page, row->name) != NULL, "docs/configuration.md lacks %s", row->name);
        ck_assert_msg(strstr(page, row->doc) != NULL,
                      "docs/configuration.md: text of %s differs: %s", row->name, row->doc);
    }
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("config");
    TCase *tcase = tcase_create("all");

    tcase_add_test(tcase, defaults_parse);
    tcase_add_test(tcase, environment_overrides);
    tcase_add_test(tcase, bad_values_are_named);
    tcase_add_test(tcase, unknown_names_get_the_nearest_match);
    tcase_add_test(tcase, fingerprint_holds_uniform_rows_only);
    tcase_add_test(tcase, documentation_lists_every_row);
    suite_add_tcase(suite, tcase);
    return xm_test_run(suite);
}
