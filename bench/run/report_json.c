/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Parts of JSON reports. An addition that fails costs one field.
 */
#include "bench/run/report_json.h"

#include <stdlib.h>
#include <string.h>

/* JSON is UTF-8, arguments and file names are any bytes: those that are not UTF-8 lose
 * what is not ASCII. */
json_t *rb_json_text(const char *text)
{
    json_t *json = json_string(text);
    char *ascii = json == NULL ? strdup(text) : NULL;

    for (char *c = ascii; c != NULL && *c != '\0'; ++c) {
        if ((unsigned char)*c >= 0x80) {
            *c = '?';
        }
    }
    if (ascii != NULL) {
        json = json_string(ascii);
        free(ascii);
    }
    return json;
}

json_t *rb_json_arguments(int argc, char *const *argv)
{
    json_t *arguments = json_array();

    for (int i = 0; i < argc; ++i) {
        (void)json_array_append_new(arguments, rb_json_text(argv[i]));
    }
    return arguments;
}

json_t *rb_json_numbers(const double *numbers, int count)
{
    json_t *all = json_array();

    for (int i = 0; i < count; ++i) {
        (void)json_array_append_new(all, json_real(numbers[i]));
    }
    return all;
}

json_t *rb_json_shape(const rb_case_t *one)
{
    json_t *shape = json_array();

    for (int d = 0; d < one->dims; ++d) {
        (void)json_array_append_new(shape, json_integer(one->shape[d]));
    }
    return shape;
}

json_t *rb_json_positive(double number)
{
    return number > 0 ? json_real(number) : NULL;
}

json_t *rb_json_times(const rb_result_t *result)
{
    rb_times_t times = rb_result_times(result);

    return json_pack("{s:f, s:f, s:f, s:f, s:f, s:o}", "min", times.min, "median", times.median,
                     "max", times.max, "mean", times.mean, "variance", times.variance, "all",
                     rb_json_numbers(result->seconds, result->runs));
}
