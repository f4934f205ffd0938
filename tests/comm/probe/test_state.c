/* SPDX-License-Identifier: Apache-2.0 */
#include "comm/probe/state.h"

#include <stdlib.h>

#include "xm_test.h"

static xm_status_t parse(const char *text, xm_probe_state_t **state)
{
    return xm_probe_state_from_text(text, strlen(text), "x.partial", "4 ranks", state);
}

START_TEST(steps_survive_a_file)
{
    const double numbers[] = {1.0 / 3, 0, 1e-300, 4503599627370495.0};
    xm_probe_state_t *state = NULL, *again = NULL;
    const double *read;
    size_t count = 7;
    char *text = NULL;

    ck_assert_xm_ok(xm_probe_state_create("4 ranks", &state));
    ck_assert_ptr_null(xm_probe_state_find(state, "device", &count));
    ck_assert_xm_ok(xm_probe_state_add(state, "device", numbers, 4));
    ck_assert_xm_ok(xm_probe_state_add(state, "nic/0/out", NULL, 0));
    ck_assert_xm_ok(xm_probe_state_to_text(state, &text));
    ck_assert_xm_ok(parse(text, &again));
    read = xm_probe_state_find(again, "device", &count);
    ck_assert_uint_eq(count, 4);
    for (int i = 0; i < 4; ++i) {
        ck_assert_double_eq(read[i], numbers[i]);
    }
    ck_assert_ptr_nonnull(xm_probe_state_find(again, "nic/0/out", &count));
    ck_assert_uint_eq(count, 0);
    ck_assert_ptr_null(xm_probe_state_find(again, "nic/0/in", &count));
    free(text);
    xm_probe_state_destroy(again);
    xm_probe_state_destroy(state);
}
END_TEST

START_TEST(other_texts_are_refused)
{
    static const struct {
        const char *text, *sentence;
    } bad[] = {
        {"", "x.partial: line 1"},
        {"[]", "x.partial: the document is an array"},
        {"{}", "x.partial: key 'probe' is missing"},
        {"{\"probe\": 1, \"job\": \"4 ranks\", \"steps\": {}}", "reads version 2"},
        {"{\"probe\": 2, \"job\": \"8 ranks\", \"steps\": {}}",
         "are of another job (8 ranks); this one is 4 ranks"},
        {"{\"probe\": 2, \"job\": \"4 ranks\"}", "key 'steps' is missing"},
        {"{\"probe\": 2, \"job\": \"4 ranks\", \"steps\": {\"a\": 3}}",
         "a is an integer; it must be an array of numbers"},
        {"{\"probe\": 2, \"job\": \"4 ranks\", \"steps\": {\"a\": [1, \"x\"]}}",
         "a[1] is not a number"},
        {"{\"probe\": 2, \"job\": \"4 ranks\", \"steps\": {\"a\": [-1]}}", "a[0] is not a number"},
        {"{\"probe\": 2, \"job\": \"4 ranks\", \"steps\": {}, \"step\": 1}",
         "unknown key 'step'; did you mean 'steps'?"},
    };

    for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); ++i) {
        xm_probe_state_t *state = NULL;

        ck_assert_int_lt(parse(bad[i].text, &state), 0);
        ck_assert_msg(strstr(xm_last_error(), bad[i].sentence) != NULL, "%s", xm_last_error());
        ck_assert_ptr_null(state);
    }
    xm_probe_state_destroy(NULL);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("probe_state");
    TCase *tcase = tcase_create("all");

    tcase_add_test(tcase, steps_survive_a_file);
    tcase_add_test(tcase, other_texts_are_refused);
    suite_add_tcase(suite, tcase);
    return xm_test_run(suite);
}
